"""Manual upkeep: `holdfast doctor`, `backup`, `cleanup` and `distribute`."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import (
    DryRun,
    States,
    Yes,
    archive_path,
    can_prompt,
    confirm,
    option,
    switch,
)
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    Exit,
    print_either,
    print_json,
    print_table,
    progress,
    say,
)
from holdfast.cli.queues import read_queue
from holdfast.cli.session import open_app
from holdfast.core.model import JobFilter
from holdfast.core.text import counted, printable
from holdfast.errors import EngineError, NotFound, UsageError
from holdfast.events import Distributed, ProcessEvent
from holdfast.ops.doctor import Finding, check_store, checkup_view
from holdfast.ops.jobs.bulk import (
    Archive,
    ArchiveResult,
    archive_jobs,
    count_jobs,
    delete_jobs,
    old_jobs,
)
from holdfast.ops.queues import Distribution, Distributions, check_distribution
from holdfast.ops.service import run_service
from holdfast.ops.views import plain
from holdfast.upkeep import Distributor


async def doctor(
    *,
    deep: Annotated[bool, switch("Read the whole store and look for damage.")] = False,
    common: Common = COMMON,
) -> int:
    """Check for problems and suggest fixes."""
    try:
        async with open_app(common) as app:
            findings = await check_store(app.home.store, deep=deep)
    except EngineError as error:
        findings = [Finding(level="fail", name="store", text=str(error))]
    view = checkup_view(findings)
    if common.json:
        print_json(plain(view))
    else:
        for finding in findings:
            _print_finding(finding)
    return Exit.DONE if view.ok else Exit.FAILED


async def backup(
    file: Annotated[Path, Parameter(help="New file; an existing one is not overwritten.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Copy the queue file while it is in use."""
    async with open_app(common) as app:
        await app.backup(file)
    print_either({"backup": str(file)}, f"copied to {file}", common)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class CleanupFlags:
    """Flags that select the jobs to clean up."""

    days: Annotated[
        float | None,
        option(
            "N",
            "Delete jobs that ended at least this many days ago. [default: the setting"
            " cleanup-days, 7]",
        ),
    ] = None
    dead: Annotated[bool, switch("Also delete dead letters.")] = False
    state: States = None
    queue: Annotated[str | None, option("NAME", "Only jobs of this queue.")] = None

    async def old_jobs(self, app: Holdfast) -> JobFilter:
        """The jobs to delete. Raises UsageError."""
        state = self.state or None
        return await old_jobs(app.engine, self.days, state, self.queue, dead=self.dead)


_CLEANUP = CleanupFlags()


async def cleanup(
    *,
    which: CleanupFlags = _CLEANUP,
    archive: Annotated[
        Path | None, option("PATH", "First append the jobs to this file, as JSON lines.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete old jobs that are done or cancelled.

    Dead letters stay, unless --dead or --state says otherwise. At a terminal it asks for
    confirmation first, unless the jobs are archived.
    """
    path = archive_path(archive)
    async with open_app(common) as app:
        old = await which.old_jobs(app)
        if dry_run:
            found = await count_jobs(app.engine, old)
            view = {"found": found.number, "more": found.more, "deleted": 0}
            print_either(view, f"would delete {found}", common)
            return
        # A cron job cannot answer: there, the command itself is confirmation enough.
        if archive is None and not yes and can_prompt():
            found = await count_jobs(app.engine, old)
            if found.number:
                confirm(f"Delete {found} permanently?", yes=yes)
        with progress("cleaning up") as advance:
            if path is None:
                ended = ArchiveResult(await delete_jobs(app.engine, old, advance=advance))
            else:
                ended = await archive_jobs(app.engine, old, Archive(path), advance=advance)
        deleted, archived = ended
    note = f", archived {archived:,} in {archive}" if archive else ""
    print_either(
        {"deleted": deleted, "archived": archived},
        f"deleted {counted(deleted, 'job')}{note}",
        common,
    )


async def distribute(
    *,
    source: Annotated[
        str | None,
        option("PATTERN", "Take jobs from queues that match this, e.g. mail.*", "--from"),
    ] = None,
    target: Annotated[str | None, option("NAME", "Move the jobs to this queue.", "--to")] = None,
    depth: Annotated[int, option("N", "Move jobs while fewer than this many wait there.")] = 1_000,
    weight: Annotated[
        list[str] | None,
        option("QUEUE=N...", "Take N times as many jobs from this queue. Repeatable."),
    ] = None,
    store: Annotated[bool, switch("Store it, so that upkeep carries it out, and exit.")] = False,
    forget: Annotated[bool, switch("Remove a stored distribution.")] = False,
    common: Common = COMMON,
) -> None:
    """Move jobs from many queues to one, taking turns fairly.

    It runs until it is stopped; with --store, upkeep does it from now on. Without --to it lists the
    stored distributions. Any number of them may run at the same time.
    """
    async with open_app(common) as app:
        stored = Distributions(app.engine)
        if target is None:
            if source is not None or store or forget:
                raise UsageError("--to is missing: give the queue that receives the jobs")
            _print_distributions(await stored.all(), common)
            return
        if forget:
            if not await stored.remove(target):
                raise NotFound(f'no distribution to "{target[:80]}" is stored')
            removed = {"queue": target, "stored": False}
            print_either(removed, f"upkeep no longer feeds {target}", common)
            return
        if source is None:
            raise UsageError("--from is missing: give a pattern of queue names such as mail.*")
        wanted = Distribution(
            source=source, target=target, depth=depth, weights=_weights(weight or [])
        )
        check_distribution(wanted)
        await read_queue(app, target)
        if not any(wanted.feeds_from(view.queue.name) for view in await app.queues(counts=False)):
            say(f"no other queue matches {source} yet; queues created later will")
        if store:
            await stored.put(wanted)
            text = f"upkeep feeds {target} from {source}"
            print_either(msgspec.to_builtins(wanted), text, common)
            return
        await _distribute_until_stopped(app, wanted, common)


async def _distribute_until_stopped(app: Holdfast, wanted: Distribution, common: Common) -> None:
    """A step that has begun is finished before it stops."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    moved = 0

    def count_moved(event: ProcessEvent) -> None:
        nonlocal moved
        if isinstance(event, Distributed):
            moved += sum(event.moved.values())

    if not common.json:
        say(f"feeding {wanted.target} from {wanted.source}; Ctrl-C stops it")
    try:
        await run_service(Distributor(app.engine, [wanted], tell=count_moved), stop, count_moved)
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
    print_either(
        {"queue": wanted.target, "moved": moved},
        f"moved {counted(moved, 'job')} to {wanted.target}",
        common,
    )


def _print_finding(finding: Finding) -> None:
    line = f"{finding.level:4}  {finding.name:9}  {finding.text}"
    print(printable(line, one_line=True))
    if finding.remedy:
        command = f": {program()} {finding.command}" if finding.command else ""
        print(printable(f"      {finding.remedy}{command}", one_line=True))


def _weights(given: list[str]) -> dict[str, int]:
    weights = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise UsageError(f'--weight "{text[:80]}": expected QUEUE=N such as mail.big=2')
        weights[name] = int(number[:9])
    return weights


def _print_distributions(found: list[Distribution], common: Common) -> None:
    if common.json:
        print_json(msgspec.to_builtins(found))
        return
    if not found:
        add = f"{program()} distribute --from 'mail.*' --to mail --store"
        say(f'no distribution is stored: add one with "{add}"')
        return
    rows = [
        (
            each.target,
            each.source,
            each.depth,
            ", ".join(f"{name}={weight}" for name, weight in each.weights.items()),
        )
        for each in found
    ]
    print_table(("queue", "fed from", "depth", "weights"), rows)
