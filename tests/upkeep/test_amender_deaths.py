"""Amenders that are killed, cut off or concurrent: each job once, and exact counts."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, Queue, State
from holdfast.core.verdict import Amendment, Delete, Edit
from holdfast.engines.base import Engine
from holdfast.engines.extras import PartitionView
from holdfast.errors import EngineUnavailable
from holdfast.ops.jobs import acts as acts_module
from holdfast.ops.jobs.acts import ActPlan, Acts, ActState
from holdfast.testing.clock import ManualClock
from holdfast.upkeep.record_steps import TAKEOVER_MS
from tests.killed import Killed
from tests.upkeep.act_steps import (
    ANY,
    add_jobs,
    amender_on,
    bury_all,
    lease_all,
    start_act,
    step_until_idle,
    sums,
    the_act,
    whole_jobs,
)
from tests.upkeep.redrive_steps import KillableEngine
from tests.upkeep.test_redriver_deaths import Slow

PLANS = {
    "cancel": ActPlan(act="cancel", wanted=ANY),
    "retry": ActPlan(act="retry", wanted=ANY),
    "expedite": ActPlan(act="expedite", wanted=ANY, text="why: so"),
    "move": ActPlan(act="move", wanted=ANY, queue="q"),
    "delay": ActPlan(act="delay", wanted=ANY, delay_ms=9),
    "edit": ActPlan(act="edit", wanted=ANY, priority=3),
    "patch": ActPlan(act="edit", wanted=ANY, patch=b'{"n":2}'),
    "delete": ActPlan(act="delete", wanted=ANY),
}
JOBS = 10


@pytest.fixture(autouse=True)
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts_module, "JOBS_PER_LIST", 4)


async def prepare(engine: Engine, clock: ManualClock, plan: ActPlan) -> str:
    """Ten jobs of different versions, and a running act on them."""
    await engine.declare(Queue(name="q"))
    ids = await add_jobs(engine, JOBS)
    await engine.amend(JobFilter(ids=(ids[1], ids[8])), Edit(labels={"x": "y"}), limit=2)
    if plan.act == "retry":
        await bury_all(engine, ids)
    if plan.act == "cancel":
        await lease_all(engine, [ids[0]])
    return await start_act(Acts(engine, clock.wall_ms), plan)


async def check_each_job_once(engine: Engine, id_: str, context: Any) -> None:
    act = await the_act(engine, id_)
    assert (act.state, sums(act)) == (ActState.DONE, (JOBS, 0, 0)), context
    jobs = await whole_jobs(engine)
    assert len(jobs) == (0 if act.plan.act == "delete" else JOBS), context
    for job in jobs.values():
        own = [event for event in job.events if event.text.endswith(act.mark)]
        assert len(own) == 1, (context, job)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("word", PLANS)
async def test_killed_at_every_write(clock: ManualClock, word: str, done: bool) -> None:
    """After each kill another amender goes on: each job once, with exact counts."""
    for kill_at in range(100):
        engine = KillableEngine(clock)
        await engine.open()
        id_ = await prepare(engine, clock, PLANS[word])
        engine.writes, engine.kill_at = 0, (kill_at, done)
        killed = False
        for _ in range(4):
            try:
                await step_until_idle(amender_on(engine, clock))
            except Killed:
                killed = True
            clock.advance(TAKEOVER_MS)
        await check_each_job_once(engine, id_, (word, kill_at, done))
        assert await engine.load("act-jobs", limit=9) == []
        audited = [each async for each in acts_module.ACTS.read_all(engine)]
        assert [each.value.closed for each in audited if each.value] == [True]
        assert len(await engine.load("audit", limit=9)) == 1
        if not killed:
            assert kill_at > 9, "it was killed in every phase"
            return
    raise AssertionError("the act never ended")


@pytest.mark.parametrize("done", [False, True])
async def test_jobs_changed_by_others_after_a_kill_are_not_touched(
    clock: ManualClock, done: bool
) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    ids = await add_jobs(engine, 4)
    id_ = await start_act(Acts(engine, clock.wall_ms), PLANS["expedite"])
    # It is killed before, or after, it expedited the jobs of its only step.
    engine.writes, engine.kill_at = 0, (1, done)
    with pytest.raises(Killed):
        await amender_on(engine, clock).once()
    await engine.amend(JobFilter(ids=(ids[0],)), Edit(labels={"x": "y"}), limit=1)
    amender = amender_on(engine, clock)
    assert await amender.once() == TAKEOVER_MS, "another amender may be doing it"
    clock.advance(TAKEOVER_MS)
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert sums(act) == ((4, 0, 0) if done else (3, 1, 0))
    job = (await whole_jobs(engine))[ids[0]]
    assert job.priority == (100 if done else 0)


async def test_killed_and_then_stopped(clock: ManualClock) -> None:
    """The next amender finishes the step that was begun, changes no more, and counts exactly."""
    for kill_at in range(100):
        engine = KillableEngine(clock)
        await engine.open()
        id_ = await prepare(engine, clock, PLANS["cancel"])
        engine.writes, engine.kill_at = 0, (kill_at, True)
        try:
            await step_until_idle(amender_on(engine, clock))
        except Killed:
            before = await the_act(engine, id_)
            await Acts(engine, clock.wall_ms).stop(id_, "ann")
        else:
            assert kill_at > 9
            return
        clock.advance(TAKEOVER_MS)
        await step_until_idle(amender_on(engine, clock))
        act = await the_act(engine, id_)
        reached = before.at + before.pending
        assert act.state is (ActState.DONE if reached == JOBS else ActState.STOPPED), kill_at
        assert sums(act) == (reached, 0, 0), kill_at
        jobs = (await whole_jobs(engine)).values()
        assert sum(any(act.mark in event.text for event in job.events) for job in jobs) == reached
        assert await Acts(engine, clock.wall_ms).stop(id_, "bob") == act
    raise AssertionError("the act never ended")


async def test_an_act_that_is_stopped_during_a_step_counts_that_step(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    await add_jobs(engine, JOBS)
    acts = Acts(engine, clock.wall_ms)
    id_ = await start_act(acts, PLANS["cancel"])
    real = engine.amend

    async def stop_meanwhile(*given: Any, **named: Any) -> int:
        await acts.stop(id_, "bob")
        return await real(*given, **named)

    engine.amend = stop_meanwhile  # type: ignore[method-assign]
    await step_until_idle(amender_on(engine, clock))
    act = await the_act(engine, id_)
    assert (act.state, act.text, sums(act)) == (ActState.STOPPED, "by bob", (4, 0, 0))
    states = [job.state for job in (await whole_jobs(engine)).values()]
    assert states.count(State.CANCELLED) == 4


async def test_an_outage_in_the_middle_is_survived(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    id_ = await prepare(engine, clock, PLANS["move"])
    real = engine.amend
    calls = 0

    async def down(*given: Any, **named: Any) -> int:
        nonlocal calls
        calls += 1
        changed = await real(*given, **named)
        if calls == 2:
            raise EngineUnavailable("down")
        return changed

    engine.amend = down  # type: ignore[method-assign]
    amender = amender_on(engine, clock)
    with pytest.raises(EngineUnavailable):
        await step_until_idle(amender)
    clock.advance(TAKEOVER_MS)
    await step_until_idle(amender)
    await check_each_job_once(engine, id_, "outage")


class PartlyOut(KillableEngine):
    """One of its partitions is shut out: its first job cannot be reached."""

    out_ms: int | None = 1

    def partitions(self) -> list[PartitionView]:
        return [PartitionView(name="p", waiting=0, out_ms=self.out_ms)]

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        ids = tuple(id_ for id_ in wanted.ids or () if self.out_ms is None or id_ != "j0000")
        return await super().amend(replace(wanted, ids=ids), amendment, limit=limit) if ids else 0


async def test_a_step_waits_for_a_partition_that_is_shut_out(clock: ManualClock) -> None:
    engine = PartlyOut(clock)
    await engine.open()
    await add_jobs(engine, JOBS)
    id_ = await start_act(Acts(engine, clock.wall_ms), PLANS["expedite"])
    amender = amender_on(engine, clock)
    for _ in range(3):
        assert await step_until_idle(amender) == TAKEOVER_MS
        clock.advance(TAKEOVER_MS)
    act = await the_act(engine, id_)
    assert (act.state, sums(act), act.pending) == (ActState.RUNNING, (8, 0, 0), 2)
    engine.out_ms = None
    await step_until_idle(amender)
    await check_each_job_once(engine, id_, "partition")


@pytest.mark.parametrize("word", ["cancel", "patch", "delete"])
async def test_several_amenders_at_the_same_time(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """They take over from each other at once, so that they interfere as much as possible."""
    monkeypatch.setattr("holdfast.upkeep.amender.TAKEOVER_MS", 0)
    for seed in range(20):
        engine = Slow(clock, seed)
        await engine.open()
        id_ = await prepare(engine, clock, PLANS[word])

        async def work(engine: Engine = engine) -> None:
            amender = amender_on(engine, clock)
            for _ in range(12):
                await amender.once()

        await asyncio.gather(*(work() for _ in range(4)))
        await step_until_idle(amender_on(engine, clock))
        await check_each_job_once(engine, id_, f"seed {seed}")


async def test_several_amenders_on_a_real_store(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.amender.TAKEOVER_MS", 0)
    id_ = await prepare(engine, clock, PLANS["expedite"])

    async def work() -> None:
        amender = amender_on(engine, clock)
        while not (await the_act(engine, id_)).state.ended:
            await amender.once()

    await asyncio.gather(*(work() for _ in range(3)))
    await check_each_job_once(engine, id_, "real")


async def test_a_job_that_others_deleted_counts_as_changed_unless_a_delete_is_repeated(
    clock: ManualClock,
) -> None:
    for kill, counts in ((False, (3, 1, 0)), (True, (4, 0, 0))):
        engine = KillableEngine(clock)
        await engine.open()
        ids = await add_jobs(engine, 4)
        id_ = await start_act(Acts(engine, clock.wall_ms), PLANS["delete"])
        if kill:
            # After a crash nobody can tell who deleted the job.
            engine.writes, engine.kill_at = 0, (1, False)
            with pytest.raises(Killed):
                await amender_on(engine, clock).once()
        await engine.amend(JobFilter(ids=(ids[0],)), Delete(), limit=1)
        clock.advance(TAKEOVER_MS)
        await step_until_idle(amender_on(engine, clock))
        assert sums(await the_act(engine, id_)) == counts
