"""Manual upkeep: `holdfast doctor`, `backup`, `cleanup` and `distribute`."""

from __future__ import annotations

import asyncio
import os
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
from holdfast.engines.registry import open_queue_link
from holdfast.errors import ConfigError, EngineError, NotFound, UsageError
from holdfast.events import Distributed, ProcessEvent
from holdfast.gates import MessageDistributor
from holdfast.gates.distributor import MESSAGES_WAITING
from holdfast.ops.doctor import Finding, check_store, checkup_view
from holdfast.ops.gates import broker_urls, broker_variable, url_of
from holdfast.ops.jobs.bulk import (
    Archive,
    ArchiveResult,
    archive_jobs,
    count_jobs,
    delete_jobs,
    old_jobs,
)
from holdfast.ops.queues import Distribution, Distributions, check_distribution
from holdfast.ops.service import Service, run_service
from holdfast.ops.views import plain
from holdfast.upkeep import Distributor

_JOBS_WAITING = 1_000


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
    file: Annotated[Path, Parameter(help="Path of the copy; an existing file is not overwritten.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Copy the SQLite file of the store while it is in use."""
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

    Dead letters stay, unless --dead or --state selects them. At a terminal, it asks for
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


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DistributionFlags:
    """From which queues to which one, and how much."""

    source: Annotated[
        str | None,
        option("PATTERN", "Take jobs from queues that match this pattern, e.g. mail.*", "--from"),
    ] = None
    target: Annotated[str | None, option("NAME", "Move the jobs to this queue.", "--to")] = None
    depth: Annotated[
        int | None,
        option(
            "N",
            "Move jobs while fewer than this many wait there."
            f" [default: {_JOBS_WAITING}, or {MESSAGES_WAITING} with --broker]",
        ),
    ] = None
    weight: Annotated[
        list[str] | None,
        option("QUEUE=N...", "Take N times as many jobs from this queue. Repeatable."),
    ] = None
    limit: Annotated[int | None, option("N", "Stop after moving this many.")] = None

    def distribution(self, depth: int) -> Distribution:
        """The distribution, with this depth by default. Raises UsageError."""
        if self.target is None:
            raise UsageError("--to is missing: give the queue that receives the jobs")
        if self.source is None:
            raise UsageError("--from is missing: give a pattern of queue names such as mail.*")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit} is out of range: expected 1 or more")
        wanted = Distribution(
            source=self.source,
            target=self.target,
            depth=depth if self.depth is None else self.depth,
            weights=_weights(self.weight or []),
        )
        check_distribution(wanted)
        return wanted


_DISTRIBUTION = DistributionFlags()


async def distribute(
    *,
    which: DistributionFlags = _DISTRIBUTION,
    broker: Annotated[
        str | None,
        option(
            "NAME=URL",
            "Move messages between queues of this broker instead of jobs, e.g."
            " main=sqs://eu-west-1; or NAME alone, with the URL in HOLDFAST_BROKER_NAME.",
        ),
    ] = None,
    store: Annotated[bool, switch("Store the distribution for upkeep to run, and exit.")] = False,
    forget: Annotated[bool, switch("Remove a stored distribution.")] = False,
    common: Common = COMMON,
) -> None:
    """Move jobs, or messages of a broker, from many queues to one, in fair turns.

    It runs until you stop it; with --store, upkeep does this from now on. Without --to, it lists
    the stored distributions. Any number of distributions may run at the same time.
    """
    if store and (broker is not None or which.limit is not None):
        raise UsageError("--store takes neither --broker nor --limit: leave them out")
    if broker is not None:
        await _distribute_messages(which, broker, common)
        return
    async with open_app(common) as app:
        stored = Distributions(app.engine)
        if which.target is None and which.source is None and not store and not forget:
            _print_distributions(await stored.all(), common)
            return
        if forget and which.target is not None:
            if not await stored.remove(which.target):
                raise NotFound(f'no distribution to "{which.target[:80]}" is stored')
            removed = {"queue": which.target, "stored": False}
            print_either(removed, f"upkeep no longer feeds {which.target}", common)
            return
        wanted = which.distribution(_JOBS_WAITING)
        await read_queue(app, wanted.target)
        if not any(wanted.feeds_from(view.queue.name) for view in await app.queues(counts=False)):
            say(f"no other queue matches {wanted.source} yet; queues created later will")
        if store:
            await stored.put(wanted)
            text = f"upkeep feeds {wanted.target} from {wanted.source}"
            print_either(msgspec.to_builtins(wanted), text, common)
            return
        run = _DistributionRun(wanted, which.limit, "job", common)
        service = Distributor(app.engine, [wanted], limit=which.limit, tell=run.count)
        await run.until_stopped(service)


async def _distribute_messages(which: DistributionFlags, broker: str, common: Common) -> None:
    wanted = which.distribution(MESSAGES_WAITING)
    url = _broker_url(broker)
    # A wrong URL is an error, and no reason to try again.
    open_queue_link(url)
    run = _DistributionRun(wanted, which.limit, "message", common)
    service = MessageDistributor(
        lambda: open_queue_link(url), wanted, limit=which.limit, tell=run.count
    )
    try:
        await run.until_stopped(service)
    finally:
        await service.close()


def _broker_url(given: str) -> str:
    """The URL of a broker given as NAME=URL, or as the NAME of an environment variable."""
    if "=" in given:
        [url] = broker_urls([given], {}).values()
        return url
    found = url_of(given, broker_urls((), os.environ))
    if found is None:
        raise ConfigError(
            f"--broker {given[:40]}: give {given[:40]}=URL, or set {broker_variable(given[:40])}"
        )
    return found


class _DistributionRun:
    """A distribution in the foreground: runs until a signal, or until enough was moved."""

    def __init__(self, wanted: Distribution, limit: int | None, noun: str, common: Common) -> None:
        self._wanted = wanted
        self._limit = limit
        self._noun = noun
        self._common = common
        self._moved = 0
        self._stop = asyncio.Event()

    def count(self, event: ProcessEvent) -> None:
        if isinstance(event, Distributed):
            self._moved += sum(event.moved.values())
            if self._limit is not None and self._moved >= self._limit:
                self._stop.set()

    async def until_stopped(self, service: Service) -> None:
        """A step that has begun is finished before it stops."""
        target = self._wanted.target
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop.set)
        if not self._common.json:
            say(f"feeding {target} from {self._wanted.source}; Ctrl-C stops it")
        try:
            await run_service(service, self._stop, self.count)
        finally:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
        print_either(
            {"queue": target, "moved": self._moved},
            f"moved {counted(self._moved, self._noun)} to {target}",
            self._common,
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
