"""Acts on many jobs: counted first, then only jobs that have not changed since are changed."""

from typing import Any

import msgspec
import pytest

from holdfast.core.model import EventKind, JobFilter, LeaseRequest, NewJob, Queue, Record, State
from holdfast.core.verdict import Cancel, Delete, Edit, Retry, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, NotFound, WrongState
from holdfast.ops.audit import Audit
from holdfast.ops.jobs import acts as acts_module
from holdfast.ops.jobs.act_views import read_acts
from holdfast.ops.jobs.acts import ACT_JOBS_KIND, ACTS, ActPlan, Acts, ActState
from holdfast.ops.workers import Workers
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Amender
from holdfast.upkeep.amender import COUNTED_MS, ENDED_MS, UNFINISHED_MS
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


@pytest.fixture
def acts(engine: Engine, clock: ManualClock) -> Acts:
    return Acts(engine, clock.wall_ms)


@pytest.fixture
def amender(engine: Engine, clock: ManualClock) -> Amender:
    return amender_on(engine, clock)


@pytest.fixture(autouse=True)
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts_module, "JOBS_PER_LIST", 4)


async def test_nothing_is_changed_before_the_act_is_run(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    await add_jobs(engine, 10)
    before = await whole_jobs(engine)
    act = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert (act.state, act.count, act.capped, act.states) == (
        ActState.COUNTED,
        10,
        False,
        {State.WAITING: 10},
    )
    assert act.queues == ("default",)
    await step_until_idle(amender)
    assert await whole_jobs(engine) == before


async def test_only_jobs_unchanged_since_they_were_counted_are_changed(
    engine: Engine, acts: Acts, amender: Amender, clock: ManualClock
) -> None:
    ids = await add_jobs(engine, 10)
    act = await acts.count(ActPlan(act="cancel", wanted=ANY, text="why"), "ann")
    await engine.amend(JobFilter(ids=(ids[0],)), Edit(priority=5), limit=1)
    await engine.amend(JobFilter(ids=(ids[1], ids[2])), Delete(), limit=2)
    await lease_all(engine, [ids[3]])
    clock.advance(1)
    # Another job under the id of a deleted one, and a job that was not counted.
    await engine.enqueue([NewJob(id=ids[1], task="t"), NewJob(id="new", task="t")])
    await acts.run(act.id, "bob")
    await step_until_idle(amender)
    ended = await the_act(engine, act.id)
    assert (ended.state, sums(ended)) == (ActState.DONE, (6, 4, 0))
    jobs = await whole_jobs(engine)
    cancelled = sorted(id_ for id_, job in jobs.items() if job.state is State.CANCELLED)
    assert cancelled == ids[4:]
    event = jobs[ids[4]].events[-1]
    assert (event.kind, event.by, event.text) == (
        EventKind.CANCELLED,
        "bob",
        f"act {act.id}: why",
    )
    assert not jobs[ids[3]].cancel_requested
    assert await engine.load(ACT_JOBS_KIND, limit=9) == []


PLANS: list[tuple[ActPlan, State, dict[str, Any]]] = [
    (ActPlan(act="cancel", wanted=ANY), State.WAITING, {"state": State.CANCELLED}),
    (ActPlan(act="retry", wanted=ANY), State.DEAD, {"state": State.WAITING, "redrives": 1}),
    (ActPlan(act="expedite", wanted=ANY), State.WAITING, {"priority": 100}),
    (ActPlan(act="move", wanted=ANY, queue="q"), State.WAITING, {"queue": "q"}),
    (ActPlan(act="move", wanted=ANY, queue="q"), State.DEAD, {"queue": "q"}),
    (ActPlan(act="edit", wanted=ANY, priority=7), State.DEAD, {"priority": 7}),
    (
        ActPlan(act="edit", wanted=ANY, patch=b'{"n":null,"m":2}', labels={"a": "b"}),
        State.WAITING,
        {"payload": b'{"m":2}', "labels": {"own": "x", "a": "b"}},
    ),
    (ActPlan(act="edit", wanted=ANY, headers={"h": "1"}), State.WAITING, {"headers": {"h": "1"}}),
    (ActPlan(act="delete", wanted=ANY), State.DEAD, {}),
]


@pytest.mark.parametrize(
    ("plan", "state", "fields"),
    PLANS,
    ids=[f"{plan.act}-{'-'.join(fields)}-{state}" for plan, state, fields in PLANS],
)
async def test_every_act(
    engine: Engine, acts: Acts, amender: Amender, plan: ActPlan, state: State, fields: Any
) -> None:
    await engine.declare(Queue(name="q"))
    ids = await add_jobs(engine, 9, labels={"own": "x"}, delay_ms=0)
    if state is State.DEAD:
        await bury_all(engine, ids)
    id_ = await start_act(acts, plan)
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert (act.state, sums(act)) == (ActState.DONE, (9, 0, 0))
    jobs = await whole_jobs(engine)
    assert len(jobs) == (0 if plan.act == "delete" else 9)
    for job in jobs.values():
        found = {name: getattr(job, name) for name in fields}
        assert found == fields


async def test_delayed_jobs_are_due_later(
    engine: Engine, acts: Acts, amender: Amender, clock: ManualClock
) -> None:
    await add_jobs(engine, 2)
    await start_act(acts, ActPlan(act="delay", wanted=ANY, delay_ms=60_000, text="calm"))
    await step_until_idle(amender)
    for job in (await whole_jobs(engine)).values():
        assert job.due_at == clock.wall_ms() + 60_000
        assert job.events[-1].text.endswith(": calm")


async def test_running_jobs_are_asked_to_stop_and_their_workers_told(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    ids = await add_jobs(engine, 6)
    await lease_all(engine, ids[:2])
    act = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert act.states == {State.WAITING: 4, State.LEASED: 2}
    await acts.run(act.id, "ann")
    await step_until_idle(amender)
    assert sums(await the_act(engine, act.id)) == (6, 0, 0)
    jobs = await whole_jobs(engine)
    assert [jobs[id_].state for id_ in ids[:2]] == [State.LEASED] * 2
    assert all(jobs[id_].cancel_requested for id_ in ids[:2])
    assert list(await Workers(engine).orders()) == ["w"]
    again = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert again.count == 0, "they have been asked already"


async def test_jobs_that_cannot_be_edited_are_counted_as_failed(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    await add_jobs(engine, 3)
    await engine.enqueue(
        [
            NewJob(id="bytes", task="t", payload=b"\xff", content_type="application/octet-stream"),
            NewJob(id="same", task="t", payload=b'{"n":2}'),
            NewJob(id="large", task="t", payload=msgspec.json.encode({"x": "x" * 1_048_500})),
        ]
    )
    id_ = await start_act(acts, ActPlan(act="edit", wanted=ANY, patch=b'{"n":2}'))
    await step_until_idle(amender)
    assert sums(await the_act(engine, id_)) == (5, 0, 1)
    jobs = await whole_jobs(engine)
    assert jobs["same"].version == 1, "the patch would not change it"
    patch = msgspec.json.encode({"y": "y" * 20_000})
    id_ = await start_act(acts, ActPlan(act="edit", wanted=ANY, patch=patch))
    await step_until_idle(amender)
    assert sums(await the_act(engine, id_)) == (4, 0, 2), "one payload would be too large"


async def test_a_stopped_act_can_be_continued(
    engine: Engine, acts: Acts, amender: Amender, clock: ManualClock
) -> None:
    await add_jobs(engine, 10)
    id_ = await start_act(acts, ActPlan(act="cancel", wanted=ANY))
    assert await amender.once() == 0
    stopped = await acts.stop(id_, "bob")
    assert (stopped.state, stopped.text, sums(stopped)) == (ActState.STOPPED, "by bob", (4, 0, 0))
    await step_until_idle(amender)
    assert sums(await the_act(engine, id_)) == (4, 0, 0)
    assert (await acts.stop(id_, "eve")).text == "by bob"
    await acts.run(id_, "carl")
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert (act.state, act.by, act.text, sums(act)) == (ActState.DONE, "carl", "", (10, 0, 0))
    with pytest.raises(WrongState, match="is done"):
        await acts.run(id_, "ann")
    entries = await Audit(lambda: engine, clock.wall_ms).page()
    told = {(entry.who, entry.what, entry.changed) for _, entry in entries if entry is not None}
    assert told == {("ann", "act.stopped", 4), ("carl", "act.done", 10)}


async def test_a_move_to_a_queue_that_was_dropped_stops_the_act(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    await engine.declare(Queue(name="q"))
    await add_jobs(engine, 6)
    id_ = await start_act(acts, ActPlan(act="move", wanted=ANY, queue="q"))
    await amender.once()
    # The jobs of the first step go with the queue.
    await engine.drop("q")
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert (act.state, sums(act)) == (ActState.STOPPED, (4, 0, 0))
    assert "q" in act.text
    await engine.declare(Queue(name="q"))
    await acts.run(id_, "ann")
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert (act.state, sums(act)) == (ActState.DONE, (6, 0, 0))


async def test_more_jobs_than_an_act_may_have(
    engine: Engine, acts: Acts, amender: Amender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts_module, "JOBS_MAX", 6)
    monkeypatch.setattr(acts_module, "_PAGE", 3)
    ids = await add_jobs(engine, 7)
    act = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert (act.count, act.capped) == (6, True)
    await acts.run(act.id, "ann")
    await step_until_idle(amender)
    jobs = await whole_jobs(engine)
    assert [id_ for id_ in ids if jobs[id_].state is State.WAITING] == ids[:1]
    rest = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert (rest.count, rest.capped) == (1, False)
    await engine.amend(ANY, Cancel(), limit=9)
    await engine.enqueue([NewJob(id=f"n{number}", task="t") for number in range(6)])
    exactly = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    assert (exactly.count, exactly.capped) == (6, False)


async def test_jobs_that_contain_a_text(engine: Engine, acts: Acts, amender: Amender) -> None:
    await add_jobs(engine, 3)
    await engine.enqueue([NewJob(id="found", task="t", payload=b'{"mail":"ann@example.org"}')])
    id_ = await start_act(acts, ActPlan(act="delete", wanted=ANY, contains="ann@example"))
    await step_until_idle(amender)
    assert sums(await the_act(engine, id_)) == (1, 0, 0)
    assert "found" not in await whole_jobs(engine)


async def test_a_text_is_looked_for_in_a_bounded_number_of_jobs(
    engine: Engine, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts_module, "_EXAMINED_MAX", 5)
    monkeypatch.setattr(acts_module, "_PAYLOAD_PAGE", 5)
    await add_jobs(engine, 8)
    act = await acts.count(ActPlan(act="delete", wanted=ANY, contains='"n"'), "ann")
    assert (act.count, act.capped) == (5, True)


async def test_command_jobs_are_edited_only_by_those_who_may(engine: Engine, acts: Acts) -> None:
    await add_jobs(engine, 1)
    await engine.enqueue([NewJob(id="c", task="command", payload=b'{"command":["true"]}')])
    plan = ActPlan(act="edit", wanted=ANY, patch=b'{"command":["false"]}')
    with pytest.raises(Forbidden, match="run-commands"):
        await acts.count(plan, "ann", commands=False)
    assert await engine.load("act", limit=9) == []
    assert await engine.load(ACT_JOBS_KIND, limit=9) == []
    assert (await acts.count(plan, "ann")).commands
    cancel = ActPlan(act="cancel", wanted=ANY)
    assert (await acts.count(cancel, "ann", commands=False)).count == 2


async def test_old_acts_are_removed_with_their_lists(
    engine: Engine, acts: Acts, amender: Amender, clock: ManualClock
) -> None:
    await add_jobs(engine, 9)
    never_run = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    half = await start_act(acts, ActPlan(act="expedite", wanted=ANY))
    await amender.once()
    await acts.stop(half, "ann")
    await step_until_idle(amender)
    clock.advance(COUNTED_MS + 1)
    await step_until_idle(amender)
    assert list(await read_acts(engine)) == [half]
    keys = [record.key for record in await engine.load(ACT_JOBS_KIND, limit=9)]
    assert keys == [f"{half}/{number:03}" for number in range(3)]
    with pytest.raises(NotFound):
        await acts.run(never_run.id, "ann")
    clock.advance(ENDED_MS)
    await step_until_idle(amender)
    assert await read_acts(engine) == {}
    assert await engine.load(ACT_JOBS_KIND, limit=9) == []
    assert await engine.load("act", limit=9) == []


async def test_the_oldest_act_makes_room_for_a_new_one(
    engine: Engine, acts: Acts, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(acts_module, "ACTS_MAX", 2)
    await add_jobs(engine, 5)
    made = []
    for _ in range(3):
        clock.advance(1_000)
        made.append((await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")).id)
    assert list(await read_acts(engine)) == made[1:]
    keys = {record.key.partition("/")[0] for record in await engine.load(ACT_JOBS_KIND, limit=9)}
    assert keys == set(made[1:])
    for id_ in made[1:]:
        await acts.run(id_, "ann")
    with pytest.raises(WrongState, match="already 2 acts"):
        await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")


async def test_an_act_that_was_not_counted_to_the_end_is_hidden_and_removed(
    engine: Engine, amender: Amender, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_jobs(engine, 9)
    act = acts_module.ActRecord(id="half", plan=ActPlan(act="cancel", wanted=ANY))
    assert await ACTS.create(engine, "half", act)
    jobs = acts_module.ActJobs(jobs=(), created_before=1)
    assert await acts_module.ACT_JOBS.create(engine, "half/001", jobs)
    assert await read_acts(engine) == {}
    for verb in (Acts(engine, clock.wall_ms).run, Acts(engine, clock.wall_ms).stop):
        with pytest.raises(NotFound):
            await verb("half", "ann")
    clock.advance(UNFINISHED_MS + 1)
    await step_until_idle(amender)
    assert await engine.load("act", limit=9) == await engine.load(ACT_JOBS_KIND, limit=9) == []


@pytest.mark.parametrize("fault", ["gone", "short", "hostile"])
async def test_an_act_without_its_list_stops(
    engine: Engine, acts: Acts, amender: Amender, fault: str
) -> None:
    await add_jobs(engine, 6)
    before = await whole_jobs(engine)
    id_ = await start_act(acts, ActPlan(act="cancel", wanted=ANY))
    value = {
        "gone": None,
        "short": b'{"jobs":[["j0001",1]],"created_before":99}',
        "hostile": b'{"jobs":[["\\u0000",1]],"created_before":99}',
    }[fault]
    key = f"{id_}/000"
    await engine.save([Record(kind=ACT_JOBS_KIND, key=key, value=value, version=1)])
    await step_until_idle(amender)
    act = await the_act(engine, id_)
    assert (act.state, sums(act)) == (ActState.STOPPED, (0, 0, 0))
    assert act.text
    assert await whole_jobs(engine) == before


async def test_an_unreadable_act_does_not_hold_up_others(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    await engine.save([Record(kind="act", key="0", value=b'{"from": "later"}')])
    await add_jobs(engine, 1)
    id_ = await start_act(acts, ActPlan(act="cancel", wanted=ANY))
    await step_until_idle(amender)
    assert sums(await the_act(engine, id_)) == (1, 0, 0)


async def test_a_running_job_that_ends_first_was_changed_since(
    engine: Engine, acts: Acts, amender: Amender
) -> None:
    await add_jobs(engine, 2)
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=1, worker="w"))
    act = await acts.count(ActPlan(act="cancel", wanted=ANY), "ann")
    await engine.settle([Settlement(lease=each, verdict=Retry()) for each in leases])
    await acts.run(act.id, "ann")
    await step_until_idle(amender)
    assert sums(await the_act(engine, act.id)) == (1, 1, 0)
