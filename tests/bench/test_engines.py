"""Every measurement of the engines runs and adds its results; no test checks speed."""

from __future__ import annotations

import pytest

from bench.engines import Options, Sizes, run
from bench.report import Result
from bench.stores import EngineName

TINY = Sizes(
    jobs=200,
    jobs_single=10,
    repeats=1,
    small=600,
    large=600,
    samples=2,
    callers=10,
    jobs_coalesced=40,
    threads=3,
    jobs_threads=40,
    writers=2,
    writers_s=0.1,
    wake_ups=3,
    idle_s=0.1,
    memory_s=0.1,
)
CYCLE = {
    f"{phase}, batch {batch:,}{sync}"
    for phase in ("enqueue", "lease", "settle", "cycle")
    for batch in (1, 100, 1_000)
    for sync in ("", ", sync + 1 ms")
}
BACKLOG = {
    f"{act} 100, {what}"
    for act in ("lease", "settle")
    for what in ("600 waiting + 600 finished", "600 delayed of higher priority")
}
USE = {
    "most memory, 1,200 jobs waiting",
    "idle with a waiting lease",
    "wake-up, p50",
    "wake-up, p99",
    "enqueue, 3 threads",
    "enqueue, 3 threads, sync + 1 ms",
}
ALONE = {
    "all writers together",
    "longest time without a commit by anybody",
    *(f"wait for a commit, {part}" for part in ("p50", "p99.9", "longest")),
    *(f"{phase}, 10 callers" for phase in ("enqueue", "lease", "settle", "cycle")),
}


@pytest.mark.parametrize(
    ("engine", "metrics"),
    [("sqlite", CYCLE | BACKLOG | USE | ALONE), ("postgres", CYCLE | BACKLOG | USE)],
)
async def test_everything_is_measured(engine: EngineName, metrics: set[str]) -> None:
    messages: list[str] = []
    report = await run(Options(engines=(engine,), sizes=TINY), messages.append)
    found = {result.metric: result for result in report.results if result.engine == engine}
    assert set(found) == metrics
    assert len(found) == len(report.results) - 1
    assert all(
        result.value > 0 for result in found.values() if not result.metric.startswith("idle")
    )
    assert {metric for metric in found if found[metric].goal is not None} == _with_goals(found)
    assert any("backlog" in text or "long queues" in text for text in messages)


def _with_goals(found: dict[str, Result]) -> set[str]:
    """Metrics that must have a goal; each must have a ratio."""
    wanted = ("batch 100", "batch 1,000", "10 callers", "3 threads", "memory", "idle", "p99.9")
    names = {name for name in found if any(part in name for part in wanted)}
    assert all(found[name].ratio is not None for name in names)
    return names
