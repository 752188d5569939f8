"""`holdfast dlq list`, `show`, `retry`, `purge` and `export`: the dead letters."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.bulk import Count, batches, count, delete_all, retry_all
from holdfast.cli import acts, jobs, redrives
from holdfast.cli.exits import NotFound
from holdfast.cli.filters import WHICH, Which
from holdfast.cli.guards import All, DryRun, Yes, sure
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.redrives import PACE, Pace
from holdfast.cli.running import progress, running
from holdfast.core.model import JobFilter, State
from holdfast.core.text import counted
from holdfast.core.verdict import Delete, Redrive
from holdfast.errors import UsageError
from holdfast.filters import is_narrow
from holdfast.reading import some
from holdfast.upkeep import RedrivePlan, wall_ms
from holdfast.upkeep.redriving import put_back, taken_of
from holdfast.views.dead import Purged, Retried
from holdfast.views.values import plain

_DEAD = (State.DEAD,)

Ids = Annotated[list[str] | None, Parameter(help="The ids of the jobs.", negative=())]


async def list_all(
    *,
    which: Which = WHICH,
    limit: jobs.Limit = None,
    after: jobs.After = None,
    common: Common = COMMON,
) -> None:
    """List dead letters, newest first, with what went wrong."""
    async with running(common) as app:
        found, rest = await some(
            app.engine, which.wanted(_DEAD), jobs.limit_of(limit, common), after
        )
        views = await jobs.views_of(app, found)
        died = {job.id: job.finished_at or 0 for job in found}
        doing = {job.id: jobs.doing(job) for job in found}
    if common.json:
        print_json(views)
    else:
        now = wall_ms()
        rows = [
            (
                view["id"],
                view["queue"],
                doing[view["id"]],
                view["reason"],
                view["attempts"],
                f"{show_age(now - died[view['id']])} ago",
                (view["error"] or "")[:120],
            )
            for view in views
        ]
        print_table(("id", "queue", "task", "reason", "attempts", "died", "error"), rows)
        if not rows:
            say("no dead letter fits")
    if rest is not None:
        say(f"there may be more: --after {rest}")


async def show(id: jobs.Id, /, *, common: Common = COMMON) -> None:
    """Show one dead letter and what happened to it."""
    async with running(common) as app:
        job, _ = await jobs.read(app, id)
    if job.state is not State.DEAD:
        raise NotFound(f"job {id} is {job.state}, no dead letter: see {program()} job show {id}")
    await jobs.show(id, common=common)


async def retry(
    ids: Ids = None,
    /,
    *,
    which: Which = WHICH,
    all: All = False,
    pace: Pace = PACE,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> int | None:
    """Put dead letters back to work: those named, those that fit, or all.

    With --rate or --canary it becomes a redrive, which upkeep does: see redrive list.
    """
    plan = pace.plan(_wanted(ids, which, all=all))
    if pace.watch and not pace.is_durable:
        raise UsageError("--watch is for a redrive, with --rate or --canary: this one is at once")
    if ids and not dry_run and not pace.is_durable:
        return await _retry_each(ids, plan, common)
    async with running(common) as app:
        found = await app.redrives.survey(plan)
        if pace.is_durable and not dry_run:
            return await redrives.start(app, plan, pace.watch, common)
        retried = 0
        if not dry_run:
            with progress("retrying", found.fitting) as advance:
                retried = await retry_all(app.engine, plan, advance=advance)
    many = Count(found.fitting, found.more)
    if common.json:
        number, capped, more = found
        print_json(plain(Retried(found=number, more=more, capped=capped, retried=retried)))
    else:
        print(f"would retry {many}" if dry_run else f"retried {counted(retried, 'job')}")
    if found.capped and not common.json:
        say(f"{Count(found.capped)} left dead, over --max-redrives {plan.redrives_max}")
    return None


async def purge(
    ids: Ids = None,
    /,
    *,
    which: Which = WHICH,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> int | None:
    """Delete dead letters for good: those named, those that fit, or all."""
    wanted = _wanted(ids, which, all=all)
    if ids and not dry_run:
        some = "1 dead letter" if len(ids) == 1 else f"{len(ids)} dead letters"
        sure(f"Purge {some}?", yes=yes)
        return await acts.on_each(ids, Delete(), _DEAD, done="purged", common=common)
    async with running(common) as app:
        found = await count(app.engine, wanted)
        purged = 0
        if not dry_run and found.number:
            sure(f"Purge {found}?", yes=yes)
            with progress("purging", found.number) as advance:
                most = None if found.more else found.number
                purged = await delete_all(app.engine, wanted, most=most, advance=advance)
    if common.json:
        print_json(plain(Purged(found=found.number, more=found.more, purged=purged)))
    else:
        print(f"would purge {found}" if dry_run else f"purged {counted(purged, 'job')}")
    return None


async def export(
    file: Annotated[str, Parameter(help="A new file, or - for the standard output.")] = "-",
    /,
    *,
    which: Which = WHICH,
    common: Common = COMMON,
) -> None:
    """Write dead letters as lines of JSON, one each, as `job show --json` has them."""
    async with running(common) as app:
        if file == "-":
            await _export(app, which.wanted(_DEAD), sys.stdout)
            return
        with _new(file) as out:
            written = await _export(app, which.wanted(_DEAD), out)
            out.flush()
            os.fsync(out.fileno())
    if common.json:
        print_json({"file": file, "exported": written})
    else:
        say(f"{counted(written, 'dead letter')} written to {file}")


def _wanted(ids: list[str] | None, which: Which, *, all: bool) -> JobFilter:
    """One way of saying which, and exactly one: nobody means all of them by accident."""
    wanted = which.wanted(_DEAD)
    ways = (bool(ids), is_narrow(wanted), all)
    if sum(ways) != 1:
        said = "say only one of these" if sum(ways) else "say which"
        raise UsageError(f"{said}: ids, a filter such as --queue or --reason, or --all")
    return replace(wanted, ids=tuple(ids)) if ids else wanted


async def _retry_each(ids: list[str], plan: RedrivePlan, common: Common) -> int:
    act = Redrive(by=plan.by, delay_ms=plan.delay_ms)
    if plan.patch is None:
        return await acts.on_each(ids, act, _DEAD, done="retried", common=common)
    ended = acts.Ended()
    async with running(common) as app:
        for id_ in dict.fromkeys(ids):
            job = await app.get(id_)
            if job is None:
                ended.unknown.append(id_)
            elif job.state is not State.DEAD:
                ended.refused[id_] = f"it is {job.state}, and must be dead"
            elif await put_back(app.engine, taken_of([job]), act, plan.patch):
                ended.changed.append(id_)
            else:
                ended.refused[id_] = "its payload is not JSON, or it was changed just now"
    return ended.tell("retried", common)


async def _export(app: Holdfast, wanted: JobFilter, out: TextIO) -> int:
    written = 0
    with progress("exporting") as advance:
        async for found in batches(app.engine, wanted):
            views: list[dict[str, Any]] = await jobs.views_of(app, found)
            out.writelines(f"{json.dumps(view)}\n" for view in views)
            written += len(views)
            advance(len(views))
    return written


def _new(file: str) -> TextIO:
    try:
        # Payloads and errors are for those who may read the queue.
        number = os.open(Path(file), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{file} exists: an export overwrites nothing, give a new path") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    return os.fdopen(number, "w", encoding="ascii")
