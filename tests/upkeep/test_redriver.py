"""Redrives: matching jobs are put back at the rate, and their outcomes are counted."""

import random
from typing import Any

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.limits import Rate
from holdfast.core.model import EventKind, JobFilter, NewJob, Queue, Record, State
from holdfast.core.verdict import Bury, Complete
from holdfast.engines.base import Engine
from holdfast.errors import InvalidJob, UsageError
from holdfast.events import Redrove
from holdfast.ops.redrives import RedrivePlan, Redrives, RedriveState
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Redriver
from holdfast.upkeep.redriver import RETENTION_MS
from tests.upkeep.faulty_engine import RecordingListener
from tests.upkeep.redrive_steps import (
    ALL,
    BROKEN,
    OTHER,
    bury_jobs,
    read_jobs,
    read_redrive,
    settle_waiting,
    step_until_idle,
    times_redriven,
)


async def test_all_matching_jobs_are_put_back_with_the_operators_name(
    engine: Engine, redrives: Redrives, redriver: Redriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 3)
    ids = await bury_jobs(engine, 8)
    await engine.declare(Queue(name="mail"))
    await engine.enqueue([NewJob(id="mail", task="t", queue="mail")])
    await settle_waiting(engine, Bury(failure=BROKEN), "mail")
    listener = RecordingListener()
    redriver._tell = listener
    plan = RedrivePlan(wanted=JobFilter(queue="default"), by="ann@host")
    assert await redrives.survey(plan) == (8, 0, False)
    started = await redrives.start(plan)
    assert (started.total, started.state) == (8, RedriveState.RUNNING)
    await step_until_idle(redriver)
    view = await read_redrive(redrives, started.id)
    assert (view.redrive.state, view.redrive.retried, view.open) == (RedriveState.FINISHED, 8, 8)
    jobs = {job.id: job for job in await read_jobs(engine)}
    assert jobs.pop("mail").state is State.DEAD
    assert sorted(jobs) == ids
    for job in jobs.values():
        assert (job.state, job.redrives, job.attempt) == (State.WAITING, 1, 0)
        [event] = [each for each in job.events if each.kind is EventKind.REDRIVEN]
        assert (event.by, event.text) == ("ann@host", f"redrive {started.id}")
    assert sum(each.retried for each in listener.events if isinstance(each, Redrove)) == 8
    await settle_waiting(engine, Complete())
    await step_until_idle(redriver)
    view = await read_redrive(redrives, started.id)
    assert (view.done, view.died, view.open) == (8, 0, 0)
    assert view.redrive.followed


async def test_a_job_that_dies_again_is_counted_and_not_met_twice(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await bury_jobs(engine, 4)
    slowly = RedrivePlan(wanted=ALL, rate=Rate(count=1, per_ms=1_000))
    id_ = (await redrives.start(slowly)).id
    for step in range(4):
        await step_until_idle(redriver)
        assert (await read_redrive(redrives, id_)).redrive.retried == step + 1
        assert await settle_waiting(engine, Bury(failure=BROKEN if step % 2 else OTHER)) == 1
        clock.advance(1_000)
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert view.redrive.state is RedriveState.FINISHED
    assert (view.redrive.retried, view.died, view.recurred, view.open) == (4, 4, 2, 0)
    assert {times_redriven(job) for job in await read_jobs(engine)} == {1}


@pytest.mark.parametrize(
    ("rate", "at_once"), [(Rate(count=5, per_ms=1_000), 5), (Rate(count=6, per_ms=60_000), 1)]
)
async def test_the_rate_is_kept_and_used(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock, rate: Rate,
    at_once: int,
) -> None:  # fmt: skip
    await bury_jobs(engine, 40)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, rate=rate))).id
    starts: list[int] = []
    apart_ms = rate.per_ms // rate.count
    while len(starts) < 40:
        next_ms = await redriver.once()
        now = clock.boot_ms()
        starts += [now] * ((await read_redrive(redrives, id_)).redrive.retried - len(starts))
        if next_ms:
            # Redrivers wake late, and the wall clock does not matter.
            clock.advance(random.randint(1, max(1, min(next_ms, 4_000))))
            clock.jump(random.choice([-3_600_000, 0, 3_600_000]))
    assert starts[at_once - 1] == starts[0]
    for first, start in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = at_once + (starts[last] - start) // apart_ms
            assert last - first + 1 <= allowed, (first, last, starts)
    spent_ms = starts[-1] - starts[0]
    assert spent_ms <= (40 - at_once) * apart_ms + 40 * 4_000


async def test_jobs_at_the_redrive_limit_are_left_alone(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    [first, *_] = await bury_jobs(engine, 3)
    for _ in range(2):
        await redrives.start(RedrivePlan(wanted=JobFilter(ids=(first,)), redrives_max=2))
        await step_until_idle(redriver)
        await settle_waiting(engine, Bury(failure=BROKEN))
    plan = RedrivePlan(wanted=ALL, redrives_max=2)
    assert await redrives.survey(plan) == (2, 1, False)
    id_ = (await redrives.start(plan)).id
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.retried, view.redrive.capped) == (2, 1)
    left = await engine.get(first)
    assert left is not None
    assert (left.state, left.redrives) == (State.DEAD, 2)


async def test_payloads_are_edited_first(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await bury_jobs(engine, 1, payload=b'{"a": 1, "b": 2}')
    await bury_jobs(engine, 1, payload=b'{"c": 4}')
    await bury_jobs(engine, 1, payload=b"\xff", content_type="application/octet-stream")
    plan = RedrivePlan(wanted=ALL, by="ann", patch=b'{"b": null, "c": 4}')
    id_ = (await redrives.start(plan)).id
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.retried, view.redrive.unfit, view.redrive.changed) == (2, 1, 0)
    jobs = {job.id: job for job in await read_jobs(engine)}
    assert msgspec.json.decode(jobs["j0000"].payload) == {"a": 1, "c": 4}
    edits = [each for each in jobs["j0000"].events if each.kind is EventKind.EDITED]
    assert [(each.by, each.text) for each in edits] == [("ann", f"payload: redrive {id_}")]
    assert not [each for each in jobs["j0001"].events if each.kind is EventKind.EDITED]
    assert [jobs[id_].state for id_ in sorted(jobs)] == [State.WAITING, State.WAITING, State.DEAD]


async def test_a_cancelled_redrive_ends(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await bury_jobs(engine, 9)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, rate=Rate(count=2, per_ms=1_000)))).id
    await step_until_idle(redriver)
    cancelled = await redrives.cancel(id_, "bob")
    assert (cancelled.state, cancelled.text) == (RedriveState.CANCELLED, "by bob")
    clock.advance(60_000)
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.state, view.redrive.retried) == (RedriveState.CANCELLED, 2)
    assert (await redrives.cancel(id_, "eve")).text == "by bob"
    with pytest.raises(UsageError, match="does not exist"):
        await redrives.cancel("nothing", "bob")


async def test_old_redrives_are_removed(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await bury_jobs(engine, 2)
    await redrives.start(RedrivePlan(wanted=ALL))
    await step_until_idle(redriver)
    await settle_waiting(engine, Complete())
    await step_until_idle(redriver)
    [view] = await redrives.all()
    assert view.redrive.followed
    clock.advance(RETENTION_MS + 1)
    await step_until_idle(redriver)
    assert await redrives.all() == []
    assert await engine.load("redriven", limit=9) == []


async def test_outcomes_are_counted_for_a_day(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await bury_jobs(engine, 2)
    await redrives.start(RedrivePlan(wanted=ALL, delay_ms=bounds.DAY_MS * 3))
    await step_until_idle(redriver)
    clock.advance(bounds.DAY_MS + 1)
    await step_until_idle(redriver)
    [view] = await redrives.all()
    assert (view.open, view.redrive.followed) == (2, True)


async def test_an_unreadable_redrive_does_not_hold_up_others(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await engine.save([Record(kind="redrive", key="0", value=b'{"from": "later"}')])
    await bury_jobs(engine, 1)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL))).id
    await step_until_idle(redriver)
    assert (await read_redrive(redrives, id_)).redrive.retried == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"redrives_max": 0}, "redrives_max 0 is out of range: expected 1"),
        ({"rate": Rate(count=0, per_ms=1)}, "count of its rate 0"),
        ({"rate": Rate(count=1, per_ms=0)}, "per_ms of its rate 0"),
        ({"delay_ms": -1}, "delay_ms -1"),
        ({"canary_wait_ms": 0}, "canary_wait_ms 0"),
        ({"by": 5}, "by"),
        ({"wanted": JobFilter(queue="a\0")}, "NUL"),
    ],
)
async def test_an_invalid_plan_is_refused(
    redrives: Redrives, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        await redrives.start(RedrivePlan(**{"wanted": ALL, **fields}))
    assert await redrives.all() == []


async def test_a_patch_must_be_json(redrives: Redrives) -> None:
    with pytest.raises(InvalidJob, match="JSON"):
        await redrives.start(RedrivePlan(wanted=ALL, patch=b"{"))
