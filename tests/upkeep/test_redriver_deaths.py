"""Redrivers that are killed, cut off or concurrent: each job once, and exact counts."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.model import EventKind, JobFilter, Record, State
from holdfast.core.verdict import Amendment, Complete, Delete, Edit
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.ops.redrives import RedrivePlan, Redrives, RedriveState
from holdfast.testing.clock import ManualClock
from holdfast.upkeep.record_steps import TAKEOVER_MS
from tests.killed import Killed
from tests.upkeep.redrive_steps import (
    ALL,
    KillableEngine,
    bury_jobs,
    read_jobs,
    read_redrive,
    redriver_on,
    settle_waiting,
    step_until_idle,
    times_redriven,
)


async def test_a_job_changed_meanwhile_is_not_put_back(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    [first, second, *_] = await bury_jobs(engine, 3)
    redrives = Redrives(engine, clock.wall_ms)
    redriver = redriver_on(engine, clock)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL))).id
    # It is killed after it saved its pending jobs.
    engine.writes, engine.kill_at = 0, (0, True)
    with pytest.raises(Killed):
        await redriver.once()
    await engine.amend(JobFilter(ids=(first,)), Edit(priority=5), limit=1)
    await engine.amend(JobFilter(ids=(second,)), Delete(), limit=1)
    assert await redriver.once() == TAKEOVER_MS, "another redriver may be doing it"
    clock.advance(TAKEOVER_MS)
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.retried, view.redrive.changed) == (1, 2)
    job = await engine.get(first)
    assert job is not None
    assert job.state is State.DEAD


async def doomed(
    clock: ManualClock, kill_at: tuple[int, bool], patch: bytes | None = None
) -> tuple[KillableEngine, Redrives, str]:
    """Ten dead jobs and their redrive, whose redrivers are killed."""
    engine = KillableEngine(clock)
    await engine.open()
    await bury_jobs(engine, 10, payload=b'{"n": 1}')
    redrives = Redrives(engine, clock.wall_ms)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True, patch=patch))).id
    engine.writes, engine.kill_at = 0, kill_at
    return engine, redrives, id_


@pytest.mark.parametrize("patch", [None, b'{"fixed": true}'])
@pytest.mark.parametrize("done", [False, True])
async def test_killed_at_every_write(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, done: bool, patch: bytes | None
) -> None:
    """After each kill another redriver goes on: each job once, with exact counts."""
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 4)
    for kill_at in range(100):
        engine, redrives, id_ = await doomed(clock, (kill_at, done), patch)
        killed = False
        for _ in range(12):
            try:
                await step_until_idle(redriver_on(engine, clock))
            except Killed:
                killed = True
            await settle_waiting(engine, Complete())
            clock.advance(TAKEOVER_MS)
        view = await read_redrive(redrives, id_)
        context = (kill_at, done, view)
        assert view.redrive.state is RedriveState.FINISHED, context
        assert (view.redrive.retried, view.redrive.changed, view.done) == (10, 0, 10), context
        for job in await read_jobs(engine):
            assert (job.redrives, times_redriven(job), job.state) == (1, 1, State.DONE), context
            assert sum(event.kind is EventKind.EDITED for event in job.events) == bool(patch)
        if not killed:
            assert kill_at > 8, "it was killed in every phase"
            return
    raise AssertionError("the redrive never finished")


@pytest.mark.parametrize("done", [False, True])
async def test_killed_at_every_write_and_then_cancelled(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """The next redriver finishes pending jobs, puts no more back, and the counts are exact."""
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 4)
    for kill_at in range(100):
        engine, redrives, id_ = await doomed(clock, (kill_at, done))
        killed = False
        for _ in range(12):
            try:
                await step_until_idle(redriver_on(engine, clock))
            except Killed:
                killed = True
                stored = await read_redrive(redrives, id_)
                await redrives.cancel(id_, "ann")
                most = stored.redrive.retried + len(stored.redrive.pending)
            await settle_waiting(engine, Complete())
            clock.advance(TAKEOVER_MS)
        if not killed:
            assert kill_at > 8, "it was killed in every phase"
            return
        view = await read_redrive(redrives, id_)
        context = (kill_at, done, view)
        assert view.redrive.state in (RedriveState.CANCELLED, RedriveState.FINISHED), context
        assert view.redrive.pending == (), context
        assert view.redrive.retried == view.done == most, context
        times = [times_redriven(job) for job in await read_jobs(engine)]
        assert max(times) <= 1, context
        assert sum(times) == view.redrive.retried, context
    raise AssertionError("the redrive never finished")


class Slow(MemoryEngine):
    """Yields to other tasks between any two calls."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        super().__init__(clock=clock)
        self._random = random.Random(seed)

    async def yield_(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        await self.yield_()
        return await super().save(records)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        await self.yield_()
        return await super().amend(wanted, amendment, limit=limit)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        await self.yield_()
        return await super().load(kind, after=after, limit=limit)


@pytest.mark.parametrize("patch", [None, b'{"fixed": true}'])
async def test_several_redrivers_at_the_same_time(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, patch: bytes | None
) -> None:
    """Without patience, so that they interfere as much as possible."""
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 5)
    monkeypatch.setattr("holdfast.upkeep.redriver.TAKEOVER_MS", 0)
    for seed in range(40):
        engine = Slow(clock, seed)
        await engine.open()
        await bury_jobs(engine, 23, payload=b'{"n": 1}')
        redrives = Redrives(engine, clock.wall_ms)
        id_ = (await redrives.start(RedrivePlan(wanted=ALL, patch=patch))).id

        async def work(engine: Engine = engine) -> None:
            redriver = redriver_on(engine, clock)
            for _ in range(30):
                await redriver.once()

        await asyncio.gather(*(work() for _ in range(4)))
        view = await read_redrive(redrives, id_)
        context = f"seed {seed}: {view}"
        assert view.redrive.state is RedriveState.FINISHED, context
        assert (view.redrive.retried, view.redrive.changed) == (23, 0), context
        await settle_waiting(engine, Complete())
        await step_until_idle(redriver_on(engine, clock))
        view = await read_redrive(redrives, id_)
        assert (view.done, view.open) == (23, 0), context
        assert {times_redriven(job) for job in await read_jobs(engine)} == {1}, context


async def test_several_redrivers_on_a_real_store(
    engine: Engine, redrives: Redrives, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 5)
    monkeypatch.setattr("holdfast.upkeep.redriver.TAKEOVER_MS", 0)
    await bury_jobs(engine, 43)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, patch=b'{"fixed": true}'))).id

    async def work() -> None:
        redriver = redriver_on(engine, clock)
        while not (await read_redrive(redrives, id_)).redrive.state.ended:
            await redriver.once()

    await asyncio.gather(*(work() for _ in range(4)))
    view = await read_redrive(redrives, id_)
    assert (view.redrive.retried, view.redrive.changed) == (43, 0)
    assert {times_redriven(job) for job in await read_jobs(engine)} == {1}


async def test_an_outage_in_the_middle_is_survived(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    await bury_jobs(engine, 2)
    redrives = Redrives(engine, clock.wall_ms)
    redriver = redriver_on(engine, clock)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL))).id
    real = engine.amend

    async def down(*_: Any, **__: Any) -> int:
        raise EngineUnavailable("down")

    engine.amend = down  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await redriver.once()
    engine.amend = real  # type: ignore[method-assign]
    clock.advance(TAKEOVER_MS)
    await step_until_idle(redriver)
    assert (await read_redrive(redrives, id_)).redrive.retried == 2
