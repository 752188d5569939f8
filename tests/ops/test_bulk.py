"""Bulk operations: walk, count and delete jobs in bounded batches."""

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.model import JobFilter, NewJob, Page, Reason, State
from holdfast.core.verdict import BuryWaiting
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UsageError
from holdfast.ops import dead_letters
from holdfast.ops.jobs import bulk
from holdfast.ops.redrives import RedrivePlan
from holdfast.ops.settings import save_setting

WAITING = JobFilter(states=(State.WAITING,))


class Watched(MemoryEngine):
    """Records the limit of each `find`, and can fail from a given amend on."""

    def __init__(self) -> None:
        super().__init__()
        self.away_from: int | None = None
        self.found: list[int] = []
        self.amended: list[int] = []

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self.found.append(limit)
        return await super().find(wanted, limit=limit, after=after)

    async def amend(self, wanted: JobFilter, amendment: Any, *, limit: int) -> int:
        if len(self.amended) == self.away_from:
            raise EngineUnavailable("it is away; nothing was changed")
        self.amended.append(limit)
        return await super().amend(wanted, amendment, limit=limit)


async def engine_with(payloads: Iterable[bytes]) -> Watched:
    engine = Watched()
    await engine.open()
    jobs = [NewJob(id=f"j{at}", task="t", payload=each) for at, each in enumerate(payloads)]
    for start in range(0, len(jobs), 1000):
        await engine.enqueue(jobs[start : start + 1000])
    return engine


async def ids(engine: MemoryEngine) -> list[str]:
    return [job.id for job in (await engine.find(JobFilter(), limit=1000)).jobs]


async def test_small_jobs_are_read_in_growing_batches() -> None:
    engine = await engine_with([b"1"] * 900)
    met = [job.id async for jobs in bulk.job_batches(engine, WAITING) for job in jobs]
    assert met == [f"j{at}" for at in reversed(range(900))]
    assert engine.found[:5] == [16, 32, 64, 128, bulk.BATCH]
    assert max(engine.found) == bulk.BATCH


async def test_large_jobs_are_read_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_BYTES_AIM", 4_000)
    engine = await engine_with([b"x" * 1_000] * 50)
    sizes = [len(jobs) async for jobs in bulk.job_batches(engine, WAITING)]
    assert sum(sizes) == 50
    assert sizes[0] == 16
    assert max(sizes[1:]) <= 8


async def test_most_bounds_the_walk() -> None:
    engine = await engine_with([b"1"] * 30)
    assert sum([len(jobs) async for jobs in bulk.job_batches(engine, WAITING, most=20)]) == 20


@pytest.mark.parametrize(("most", "counted"), [(None, (5, False)), (5, (5, False)), (4, (4, True))])
async def test_a_bounded_count_says_that_there_are_more(
    most: int | None, counted: tuple[int, bool]
) -> None:
    engine = await engine_with([b"1"] * 5)
    assert await bulk.count_jobs(engine, WAITING, most=most) == counted


async def test_the_oldest_are_deleted_first_without_reading_them() -> None:
    engine = await engine_with([b"1"] * 500)
    seen: list[int] = []
    assert await bulk.delete_jobs(engine, WAITING, most=450, advance=seen.append) == 450
    assert (engine.found, engine.amended, seen) == ([], [200, 200, 50], [200, 200, 50])
    assert sorted(await ids(engine)) == sorted(f"j{at}" for at in range(450, 500))
    assert await bulk.delete_jobs(engine, WAITING) == 50


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("retries", [False, True])
async def test_a_partly_done_delete_reports_an_unknown_outcome(after: int, retries: bool) -> None:
    engine = await engine_with([b"1"] * 300)
    if retries:
        await MemoryEngine.amend(engine, WAITING, BuryWaiting(reason=Reason.EXPLICIT), limit=300)
    engine.away_from = after
    plan = RedrivePlan(wanted=JobFilter(states=(State.DEAD,)))
    doing = dead_letters.retry_jobs(engine, plan) if retries else bulk.delete_jobs(engine, WAITING)
    with pytest.raises(OutcomeUnknown if after else EngineUnavailable, match="it is away"):
        await doing


async def test_only_finished_jobs_are_cleaned_up() -> None:
    engine = MemoryEngine()
    both = (State.DONE, State.CANCELLED)
    assert (await bulk.old_jobs(engine, 1, None, None)).states == both
    assert (await bulk.old_jobs(engine, 1, None, None, dead=True)).states == (*both, State.DEAD)
    only_dead = await bulk.old_jobs(engine, 1, (State.DEAD,), None, dead=True)
    assert only_dead.states == (State.DEAD,)
    with pytest.raises(UsageError, match="only finished"):
        await bulk.old_jobs(engine, 1, (State.DONE, State.LEASED), None)
    with pytest.raises(UsageError, match="days -1"):
        await bulk.old_jobs(engine, -1, None, None)


async def test_the_setting_says_which_jobs_are_old() -> None:
    engine = MemoryEngine()
    await engine.open()
    week_ms = 7 * bounds.DAY_MS
    assert (await bulk.old_jobs(engine, None, None, None)).finished_before_ms == week_ms
    await save_setting(engine, "cleanup-days", "0.5")
    old = await bulk.old_jobs(engine, None, None, None)
    assert old.finished_before_ms == bounds.DAY_MS // 2
