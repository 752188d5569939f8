"""`holdfast dlq …`: list, group, retry, delete and export dead letters."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.cli import jobs, redrives
from holdfast.cli.flags import (
    NO_FILTER,
    After,
    AllDead,
    DryRun,
    FilterFlags,
    JobId,
    Limit,
    Yes,
    confirm,
    option,
)
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    new_private_file,
    print_either,
    print_json,
    print_table,
    progress,
    say,
    show_age,
)
from holdfast.cli.redrives import PACE, PaceFlags
from holdfast.cli.session import open_app
from holdfast.core import bounds, checks, failures
from holdfast.core.model import Failure, JobFilter, Reason, State
from holdfast.core.text import counted
from holdfast.core.verdict import Delete, Redrive
from holdfast.engines.extras import DeadLetterQueues, extra
from holdfast.errors import NotFound, Unsupported, UsageError
from holdfast.notation.filters import is_narrow
from holdfast.ops.dead_letters import (
    DeadGroup,
    DeadSample,
    Purged,
    Quarantined,
    Retried,
    dead_groups,
    groups_view,
    is_quarantined,
    put_back,
    quarantined,
    quarantined_view,
    retry_jobs,
    sample_dead,
    taken_jobs,
)
from holdfast.ops.doctor import examine
from holdfast.ops.jobs.bulk import JobCount, count_jobs, delete_jobs, job_batches
from holdfast.ops.jobs.views import find_jobs, job_view
from holdfast.ops.queues import queue_settings
from holdfast.ops.redrives import RedrivePlan
from holdfast.ops.views import plain
from holdfast.process import wall_ms

_DEAD = (State.DEAD,)
_BARS = "▁▂▃▄▅▆▇█"
_GROUPS_MAX = 200
_TEXT_MAX = 100
_SAMPLE = 100

OptionalIds = Annotated[list[str] | None, Parameter(help="Ids of the jobs.", negative=())]


async def list_all(
    *,
    which: FilterFlags = NO_FILTER,
    limit: Limit = None,
    after: After = None,
    common: Common = COMMON,
) -> None:
    """List dead letters and their errors, newest first."""
    async with open_app(common) as app:
        queues = extra(app.engine, DeadLetterQueues)
        if queues is not None:
            sample = await _sample(app, queues, which.wanted(_DEAD), limit, after)
            found, next_page = sample.letters, None
            settings = await queue_settings(app.engine, {job.queue for job in found})
            views = [plain(job_view(job, settings.get(job.queue))) for job in found]
            _say_sample(sample)
        else:
            found, next_page = await find_jobs(
                app.engine, which.wanted(_DEAD), jobs.page_size(limit, common), after
            )
            views = await jobs.job_views(app, found)
        by_id = {job.id: job for job in found}
    if common.json:
        print_json(views)
    else:
        now = wall_ms()
        rows = [
            (
                view["id"],
                view["queue"],
                jobs.job_title(by_id[view["id"]]),
                view["reason"],
                view["attempts"],
                f"{show_age(now - (by_id[view['id']].finished_at or 0))} ago",
                _error(view),
            )
            for view in views
        ]
        columns = ("id", "queue", "task", "reason", "attempts", "died", "error")
        print_table(columns, rows, less=("attempts", "queue", "died", "reason"))
        if not rows:
            say("no dead letters match")
    jobs.say_more(next_page)


async def show(id: JobId, /, *, common: Common = COMMON) -> None:
    """Show a dead letter, its timeline and its output."""
    async with open_app(common) as app:
        queues = extra(app.engine, DeadLetterQueues)
        if queues is not None:
            sample = await _sample(app, queues, JobFilter(ids=(id,)), bounds.PAGE_MAX, None)
            if not sample.letters:
                raise NotFound(
                    f"no dead letter with the id {id[:80]!r} is in a sample of {bounds.PAGE_MAX};"
                    f' see "{program()} dlq list"'
                )
            job = sample.letters[0]
            settings = await queue_settings(app.engine, [job.queue])
            jobs.print_job(job, settings.get(job.queue), common)
            return
        job, _ = await jobs.read_job(app, id)
    if not job.is_dead_letter:
        raise NotFound(f'job {id} is {job.state}, not dead: see "{program()} job show {id}"')
    await jobs.show(id, common=common)


async def retry(
    ids: OptionalIds = None,
    /,
    *,
    which: FilterFlags = NO_FILTER,
    all: AllDead = False,
    pace: PaceFlags = PACE,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> int | None:
    """Run dead letters again: by id, by filter, or all.

    With --rate or --canary, upkeep retries them gradually: see redrive list. On Amazon SQS,
    the service itself moves all dead letters of a queue.
    """
    plan = pace.plan(_wanted(ids, which, all=all))
    async with open_app(common) as app:
        moves = extra(app.engine, DeadLetterQueues) is not None
        if pace.watch and not pace.is_durable and not moves:
            raise UsageError(
                "--watch needs --rate or --canary: without them the retry is immediate"
            )
        if ids and not dry_run and not pace.is_durable and not moves:
            return await _retry_each(app, ids, plan, common)
        found = await app.redrives.survey(plan)
        if moves and not dry_run:
            return await redrives.start_moves(app, plan, pace, common)
        if pace.is_durable and not dry_run:
            return await redrives.start_redrive(app, plan, pace.watch, common)
        retried = 0
        if not dry_run:
            with progress("retrying", found.fitting) as advance:
                retried = await retry_jobs(app.engine, plan, advance=advance)
    number, capped, more = found
    view = plain(Retried(found=number, more=more, capped=capped, retried=retried))
    many = JobCount(number, more)
    done = f"would retry {many}" if dry_run else f"retried {counted(retried, 'job')}"
    print_either(view, done, common)
    if capped and not common.json:
        times = counted(plan.redrives_max, "time")
        say(f"left {JobCount(capped)} dead: already retried {times} or more")
    return None


async def purge(
    ids: OptionalIds = None,
    /,
    *,
    which: FilterFlags = NO_FILTER,
    all: AllDead = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> int | None:
    """Delete dead letters permanently: by id, by filter, or all."""
    wanted = _wanted(ids, which, all=all)
    async with open_app(common) as app:
        queues = extra(app.engine, DeadLetterQueues)
        if queues is not None:
            wanted = replace(wanted, ids=tuple(ids)) if ids else wanted
            await _purge_queues(app, queues, wanted, common, yes=yes, dry_run=dry_run)
            return None
        if ids and not dry_run:
            confirm(f"Purge {counted(len(ids), 'dead letter')}?", yes=yes)
            return (await jobs.amend_each(app, ids, Delete(), _DEAD)).print("purged", common)
        found = await count_jobs(app.engine, wanted)
        purged = 0
        if not dry_run and found.number:
            confirm(f"Purge {found}?", yes=yes)
            with progress("purging", found.number) as advance:
                most = None if found.more else found.number
                purged = await delete_jobs(app.engine, wanted, most=most, advance=advance)
    view = plain(Purged(found=found.number, more=found.more, purged=purged))
    done = f"would purge {found}" if dry_run else f"purged {counted(purged, 'job')}"
    print_either(view, done, common)
    return None


async def export(
    file: Annotated[str, Parameter(help="New file, or - for standard output.")] = "-",
    /,
    *,
    which: FilterFlags = NO_FILTER,
    common: Common = COMMON,
) -> None:
    """Write dead letters as JSON, one per line.

    Each line is a job as `job show --json` prints it.
    """
    async with open_app(common) as app:
        if file == "-":
            await _export(app, which.wanted(_DEAD), sys.stdout)
            return
        with new_private_file(file) as out:
            written = await _export(app, which.wanted(_DEAD), out)
            out.flush()
            os.fsync(out.fileno())
    if common.json:
        print_json({"file": file, "exported": written})
    else:
        say(f"wrote {counted(written, 'dead letter')} to {file}")


async def groups(
    *,
    which: FilterFlags = NO_FILTER,
    limit: Annotated[int, option("N", "Show at most this many groups.")] = 20,
    common: Common = COMMON,
) -> None:
    """Group dead letters by their error, largest group first."""
    if not 1 <= limit <= _GROUPS_MAX:
        raise UsageError(f"--limit {limit} is out of range: expected 1 to {_GROUPS_MAX}")
    async with open_app(common) as app:
        now = (await examine(app.home.store)).now
        found = await dead_groups(app.engine, which.wanted(_DEAD), now=now, limit=limit)
    if common.json:
        print_json(plain(groups_view(found)))
        return
    rows = [_group_row(group, now) for group in found.groups]
    span = show_age(len(found.groups[0].trend) * found.bucket_ms) if found.groups else ""
    columns = ("fingerprint", "dead", "error", "tasks", "tenants", "workers", "first", "last")
    every = (*columns, f"over {span}" if span else "trend")
    print_table(every, rows, less=("first", "workers", "tenants", "tasks"))
    if not found.groups:
        say("no dead letters match")
    if found.hidden:
        say(f"{found.hidden} more in smaller groups: --limit shows more groups")
    if found.estimated or any(group.estimated for group in found.groups):
        say("a number with + counts only the newest dead letters: the true one is larger")
    if found.groups:
        first = found.groups[0].fingerprint or ""
        say(f'list a group with "{program()} dlq list --fingerprint {first}"')


async def quarantine(
    *,
    which: FilterFlags = NO_FILTER,
    limit: Limit = None,
    after: After = None,
    common: Common = COMMON,
) -> None:
    """List dead letters that crashed their workers."""
    if which.reason not in (None, Reason.CRASHED):
        raise UsageError(f"jobs in quarantine have the reason crashed, not {which.reason}")
    wanted = replace(which.wanted(_DEAD), reason=Reason.CRASHED)
    async with open_app(common) as app:
        found, next_page = await find_jobs(app.engine, wanted, jobs.page_size(limit, common), after)
        now = (await examine(app.home.store)).now
        complete = await asyncio.gather(*(app.get(job.id) for job in found))
    views = [quarantined(job) for job in complete if job is not None and is_quarantined(job)]
    if common.json:
        print_json([plain(quarantined_view(each)) for each in views])
    else:
        columns = ("id", "queue", "task", "ended by", "crashes", "died", "last output")
        rows = [_crash_row(each, now) for each in views]
        print_table(columns, rows, less=("crashes", "queue", "died"))
        if not views:
            say("no job is in quarantine")
    jobs.say_more(next_page)
    if views and not common.json:
        say(f'inspect one with "{program()} dlq show {views[0].id}"')
        say(f'run it again, alone in a process, with "{program()} dlq retry {views[0].id}"')


def sparkline(counts: Sequence[int]) -> str:
    """A bar for each count, relative to the largest; a dot for 0."""
    most = max([1, *counts])
    return "".join(
        "·" if count == 0 else _BARS[-(-count * len(_BARS) // most) - 1] for count in counts
    )


def _wanted(ids: list[str] | None, which: FilterFlags, *, all: bool) -> JobFilter:
    """The selection. Exactly one way of selecting must be given, so that all jobs are never
    selected by accident.
    """
    wanted = which.wanted(_DEAD)
    ways = (bool(ids), is_narrow(wanted), all)
    if sum(ways) != 1:
        remedy = "give only one of these" if sum(ways) else "select dead letters"
        raise UsageError(f"{remedy}: ids, a filter such as --queue or --reason, or --all")
    return replace(wanted, ids=tuple(ids)) if ids else wanted


async def _sample(
    app: Holdfast, queues: DeadLetterQueues, wanted: JobFilter, limit: int | None, after: int | None
) -> DeadSample:
    """Dead letters of a store that cannot be searched."""
    if after is not None:
        raise UsageError("--after needs an ordered list: this store shows only a sample")
    most = jobs.page_size(limit or _SAMPLE, COMMON)
    return await sample_dead(app.engine, queues, wanted, limit=most, now=wall_ms())


def _say_sample(sample: DeadSample) -> None:
    say(
        f"a sample: {len(sample.letters)} of about {sample.total} dead letters; reading them counts"
        " as one more receive of each"
    )


async def _retry_each(app: Holdfast, ids: list[str], plan: RedrivePlan, common: Common) -> int:
    act = Redrive(by=plan.by, delay_ms=plan.delay_ms)
    if plan.patch is None:
        return (await jobs.amend_each(app, ids, act, _DEAD)).print("retried", common)
    result = jobs.ActResult()
    for id_ in dict.fromkeys(ids):
        job = await app.get(id_)
        if job is None:
            result.unknown.append(id_)
        elif job.state is not State.DEAD:
            result.refused[id_] = f"it is {job.state}, and must be dead"
        elif await put_back(app.engine, taken_jobs([job]), act, plan.patch):
            result.changed.append(id_)
        else:
            result.refused[id_] = "its payload is not JSON, or it was changed just now"
    return result.print("retried", common)


async def _purge_queues(
    app: Holdfast,
    queues: DeadLetterQueues,
    wanted: JobFilter,
    common: Common,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Purge the dead letters of one queue, or of each that has some: all of them."""
    if wanted != JobFilter(queue=wanted.queue, states=wanted.states):
        remedy = (
            "purge all dead letters of a queue, or let @app.on_dead_letter complete those that are"
            " not needed"
        )
        raise Unsupported(app.engine.traits.name, "purging single dead letters", remedy)
    only = wanted.queue
    views = await app.queues(names=[only] if only else None)
    if only and not views:
        raise checks.unknown_queue(only)
    dead = {view.queue.name: view.dead for view in views if view.dead or only}
    many = f"about {counted(sum(dead.values()), 'dead letter')}"
    purged = 0
    if dead and not dry_run:
        confirm(f"Purge {many} of {', '.join(dead)}?", yes=yes)
        for name, number in dead.items():
            await queues.purge_dead(name)
            purged += number
    view = plain(Purged(found=sum(dead.values()), more=True, purged=purged))
    print_either(view, f"would purge {many}" if dry_run else f"purged {many}", common)


async def _export(app: Holdfast, wanted: JobFilter, out: TextIO) -> int:
    written = 0
    with progress("exporting") as advance:
        async for found in job_batches(app.engine, wanted):
            views: list[dict[str, Any]] = await jobs.job_views(app, found)
            out.writelines(f"{json.dumps(view)}\n" for view in views)
            written += len(views)
            advance(len(views))
    return written


def _group_row(group: DeadGroup, now: int) -> tuple[Any, ...]:
    more = "+" if group.estimated else ""
    error = ": ".join(filter(None, (group.type, group.text)))
    return (
        group.fingerprint or "",
        group.count,
        error if len(error) <= _TEXT_MAX else f"{error[: _TEXT_MAX - 1]}…",
        _names(group.tasks) + more,
        f"{len(group.tenants)}{more}",
        f"{len(group.workers)}{more}",
        f"{show_age(max(now - group.first_at, 0))}{more} ago" if group.ids else "",
        f"{show_age(max(now - group.last_at, 0))} ago" if group.ids else "",
        sparkline(group.trend),
    )


def _error(view: dict[str, Any]) -> str:
    """The last failure in one line."""
    if not view["failures"]:
        return str(view["error"] or "")
    last = view["failures"][-1]
    failure = msgspec.convert({**last, "message": last["error"]}, Failure)
    return failures.line(failure)


def _names(names: dict[str, int], most: int = 3) -> str:
    shown = list(names)[:most]
    return ", ".join([*shown, *(["…"] if len(names) > most else [])])


def _crash_row(each: Quarantined, now: int) -> tuple[Any, ...]:
    output = [line.strip() for line in (each.words or each.output).splitlines() if line.strip()]
    # A crashing interpreter prints its error before its stack.
    fatal = [line for line in output if line.startswith("Fatal ")]
    return (
        each.id,
        each.queue,
        each.task,
        each.type if each.signal else f"exit code {each.exit_code}",
        each.crashes,
        f"{show_age(max(now - each.died_at, 0))} ago",
        (fatal or output or [""])[-1][:_TEXT_MAX],
    )
