"""The benchmark `single`: one job a call, beside raw SQL and other queues.

The CPU time of a call counts, in the client and in the database server: how long a call takes is
mostly the sync of its commit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench import concurrency
from bench.drain import install_peers
from bench.peers import run as turns
from bench.peers.catalogue import DEFAULT, HOLDFAST, PEERS, Contestant
from bench.peers.run import Failed, SingleCalls
from bench.peers.workspace import Workspaces, workspaces
from bench.report import Report
from bench.stores import ENGINES, EngineName, Store

RAW_GOAL = 0.4
"""Raw SQL over a call of a task: at most two and a half times as much."""
THREADS = 16
THREADS_GOAL = 8
RAW, BLOCKING, ASYNC = "raw SQL", "task.enqueue", "await task.aenqueue"

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    jobs: int = 2_000
    repeats: int = 5


QUICK = Sizes(jobs=50, repeats=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    engines: tuple[EngineName, ...] = ENGINES
    sizes: Sizes = Sizes()
    peers: bool = True


async def run(options: Options, log: Log) -> Report:
    """Run in a temporary directory and on a private server, which are deleted afterwards."""
    report = Report("single")
    missing = install_peers(options.engines, report, log) if options.peers else set()
    for engine in options.engines:
        contestants = [raw(engine), *calls(engine)]
        if options.peers:
            contestants += [each for each in peers(engine) if each.runs not in missing]
        async with workspaces(engine) as opened:
            found = await _measure(contestants, opened, options.sizes, report, log)
            add_results(report, engine, found)
            await _add_threads(report, engine, opened, options.sizes, log)
    return report


def raw(engine: EngineName) -> Contestant:
    """Raw SQL."""
    default = _default(engine)
    return replace(default, name=RAW, program="raw", settings={})


def calls(engine: EngineName) -> list[Contestant]:
    """The ways of Holdfast to enqueue one job."""
    default = _default(engine)
    return [
        replace(default, name=BLOCKING, settings={"call": "enqueue"}),
        replace(default, name=ASYNC, settings={}),
    ]


def peers(engine: EngineName) -> list[Contestant]:
    """One contestant for each peer that waits for the disk, or else for each peer: how its workers
    are set up is of no interest here."""
    of_engine = [each for each in PEERS if each.engine == engine]
    first = {each.program: each for each in reversed(of_engine)}
    return [replace(each, name=each.program) for each in reversed(first.values())]


def _default(engine: EngineName) -> Contestant:
    return next(each for each in HOLDFAST if (each.engine, each.name) == (engine, DEFAULT))


async def _measure(
    contestants: list[Contestant], opened: Workspaces, sizes: Sizes, report: Report, log: Log
) -> dict[str, SingleCalls]:
    """The medians of all turns, by the name of the contestant."""
    found: dict[str, list[SingleCalls]] = {}
    for turn in range(sizes.repeats):
        lead = turn % len(contestants)
        for contestant in contestants[lead:] + contestants[:lead]:
            name = contestant.name
            log(f"{contestant.engine}: turn {turn + 1} of {sizes.repeats}: {name}")
            async with opened.new() as workspace:
                jobs = min(sizes.jobs, contestant.jobs_max)
                try:
                    calls = await turns.single(contestant, workspace, jobs=jobs)
                except Failed as error:
                    report.notes.append(f"failed on {contestant.engine}: {name} ({error})")
                else:
                    found.setdefault(name, []).append(calls)
    return {
        name: SingleCalls(
            client_us=statistics.median(each.client_us for each in values),
            server_us=statistics.median(each.server_us for each in values),
        )
        for name, values in found.items()
    }


def add_results(report: Report, engine: EngineName, found: dict[str, SingleCalls]) -> None:
    """Add the CPU time of a call; the reference is raw SQL. The goal applies to our calls."""
    report.section(f"{engine}, CPU time of a call that enqueues one job; the reference is raw SQL")
    raw_us = found[RAW].client_us if RAW in found else None
    for name, each in found.items():
        goal = RAW_GOAL if name in (BLOCKING, ASYNC) else None
        report.cost(engine, name, each.client_us, unit="µs", reference=raw_us, goal=goal)
    if engine == "postgres":
        report.section(f"{engine}, the same with the server; the reference is raw SQL")
        raw_us = found[RAW].both_us if RAW in found else None
        for name, each in found.items():
            report.cost(engine, f"{name}, both", each.both_us, unit="µs", reference=raw_us)


async def _add_threads(
    report: Report, engine: EngineName, opened: Workspaces, sizes: Sizes, log: Log
) -> None:
    log(f"{engine}: {THREADS} threads")
    report.section(f"{engine}, blocking calls of {THREADS} threads; the reference is one thread")
    async with opened.new() as workspace:
        store = Store(engine=engine, place=workspace.store)
        many, one = await concurrency.threads(
            store, jobs=sizes.jobs, count=THREADS, repeats=sizes.repeats
        )
    report.rate(engine, f"{THREADS} threads", many, unit="jobs/s", reference=one, goal=THREADS_GOAL)
