"""A redrive goes on where it was left: nothing is put back twice, and every count is true."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core import limits
from holdfast.core.flow import Rate
from holdfast.core.model import (
    EventKind,
    Failure,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Record,
    State,
)
from holdfast.core.verdict import Amendment, Bury, Complete, Delete, Edit, Settlement, Verdict
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, InvalidJob, UsageError
from holdfast.events import Redrove
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import RedrivePlan, Redriver, Redrives, RedriveState, RedriveView
from holdfast.upkeep.redriver import PATIENCE_MS, RETENTION_MS
from tests.upkeep.doubles import Ear

ALL = JobFilter(states=(State.DEAD,))
BROKEN = Failure(type="ValueError", message="broken")
OTHER = Failure(type="KeyError", message="other")


class Killed(BaseException):
    """The process ended here."""


class KillableEngine(MemoryEngine):
    """Ends the process at the n-th write from now, before or after it was done."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.writes = 0
        self.kill_at: tuple[int, bool] | None = None

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._maybe_kill(done=False)
        saved = await super().save(records)
        self._maybe_kill(done=True)
        return saved

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._maybe_kill(done=False)
        changed = await super().amend(wanted, amendment, limit=limit)
        self._maybe_kill(done=True)
        return changed

    def _maybe_kill(self, *, done: bool) -> None:
        if (self.writes, done) == self.kill_at:
            self.kill_at = None
            raise Killed
        self.writes += done


async def end(engine: Engine, verdict: Verdict, queue: str = "default") -> int:
    """All that waits is leased and ends so."""
    ended = 0
    while leases := await engine.lease(LeaseRequest(queues=(queue,), limit=100, worker="w")):
        await engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])
        ended += len(leases)
    return ended


async def dead(engine: Engine, count: int, failure: Failure = BROKEN, **fields: Any) -> list[str]:
    start = len((await engine.find(JobFilter(), limit=1000)).jobs)
    ids = [f"j{number:04}" for number in range(start, start + count)]
    await engine.enqueue([NewJob(id=id_, task="t", **fields) for id_ in ids])
    assert await end(engine, Bury(failure=failure)) == count
    return ids


async def go_on(redriver: Redriver, steps: int = 50) -> int | None:
    """Until there is nothing to do at once."""
    next_ms: int | None = 0
    while next_ms == 0 and steps:
        next_ms = await redriver.once()
        steps -= 1
    assert next_ms != 0, "it never comes to rest"
    return next_ms


async def jobs_of(engine: Engine) -> list[Job]:
    found = (await engine.find(JobFilter(), limit=1000)).jobs
    whole = [await engine.get(job.id) for job in found]
    return [job for job in whole if job is not None]


def times_put_back(job: Job) -> int:
    return sum(event.kind is EventKind.REDRIVEN for event in job.events)


@pytest.fixture
def redrives(engine: Engine, clock: ManualClock) -> Redrives:
    return Redrives(engine, clock.wall_ms)


@pytest.fixture
def redriver(engine: Engine, clock: ManualClock) -> Redriver:
    return redriver_on(engine, clock)


def redriver_on(engine: Engine, clock: ManualClock) -> Redriver:
    return Redriver(engine, clock.wall_ms, boot_ns=lambda: clock.boot_ms() * 1_000_000)


async def seen(redrives: Redrives, id: str) -> RedriveView:
    view = await redrives.get(id)
    assert view is not None
    return view


async def test_all_that_fit_are_put_back_with_who_did_it(
    engine: Engine, redrives: Redrives, redriver: Redriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.redrive.BATCH", 3)
    ids = await dead(engine, 8)
    await engine.declare(Queue(name="mail"))
    await engine.enqueue([NewJob(id="mail", task="t", queue="mail")])
    await end(engine, Bury(failure=BROKEN), "mail")
    ear = Ear()
    redriver._tell = ear
    plan = RedrivePlan(wanted=JobFilter(queue="default"), by="ann@host")
    assert await redrives.survey(plan) == (8, 0, False)
    started = await redrives.start(plan)
    assert (started.total, started.state) == (8, RedriveState.RUNNING)
    await go_on(redriver)
    view = await seen(redrives, started.id)
    assert (view.redrive.state, view.redrive.retried, view.open) == (RedriveState.FINISHED, 8, 8)
    jobs = {job.id: job for job in await jobs_of(engine)}
    assert jobs.pop("mail").state is State.DEAD
    assert sorted(jobs) == ids
    for job in jobs.values():
        assert (job.state, job.redrives, job.attempt) == (State.WAITING, 1, 0)
        [event] = [each for each in job.events if each.kind is EventKind.REDRIVEN]
        assert (event.by, event.text) == ("ann@host", f"redrive {started.id}")
    assert sum(each.retried for each in ear.heard if isinstance(each, Redrove)) == 8
    await end(engine, Complete())
    await go_on(redriver)
    view = await seen(redrives, started.id)
    assert (view.done, view.died, view.open) == (8, 0, 0)
    assert view.redrive.followed


async def test_one_that_dies_again_is_counted_and_not_met_twice(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await dead(engine, 4)
    slowly = RedrivePlan(wanted=ALL, rate=Rate(count=1, per_ms=1_000))
    id_ = (await redrives.start(slowly)).id
    for step in range(4):
        await go_on(redriver)
        assert (await seen(redrives, id_)).redrive.retried == step + 1
        assert await end(engine, Bury(failure=BROKEN if step % 2 else OTHER)) == 1
        clock.advance(1_000)
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert view.redrive.state is RedriveState.FINISHED
    assert (view.redrive.retried, view.died, view.recurred, view.open) == (4, 4, 2, 0)
    assert {times_put_back(job) for job in await jobs_of(engine)} == {1}


@pytest.mark.parametrize(
    ("rate", "at_once"), [(Rate(count=5, per_ms=1_000), 5), (Rate(count=6, per_ms=60_000), 1)]
)
async def test_the_rate_holds_and_is_used(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock, rate: Rate,
    at_once: int,
) -> None:  # fmt: skip
    await dead(engine, 40)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, rate=rate))).id
    starts: list[int] = []
    apart_ms = rate.per_ms // rate.count
    while len(starts) < 40:
        next_ms = await redriver.once()
        now = clock.boot_ms()
        starts += [now] * ((await seen(redrives, id_)).redrive.retried - len(starts))
        if next_ms:
            # Redrivers come late, and the wall clock is nobody's business.
            clock.advance(random.randint(1, max(1, min(next_ms, 4_000))))
            clock.jump(random.choice([-3_600_000, 0, 3_600_000]))
    assert starts[at_once - 1] == starts[0]
    for first, start in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = at_once + (starts[last] - start) // apart_ms
            assert last - first + 1 <= allowed, (first, last, starts)
    spent_ms = starts[-1] - starts[0]
    assert spent_ms <= (40 - at_once) * apart_ms + 40 * 4_000


async def test_a_hundredth_goes_first_and_the_rest_when_they_came_through(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 250)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    for _ in range(3):
        await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.state, view.redrive.retried, view.redrive.left) == (
        RedriveState.CANARY, 3, 247,
    )  # fmt: skip
    assert await end(engine, Complete()) == 3
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.state, view.redrive.retried) == (RedriveState.FINISHED, 250)


async def test_it_stops_when_the_fingerprint_recurs(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 150)
    [was] = await engine.tally(ALL, "fingerprint", limit=9)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    [first, _] = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    await engine.settle([Settlement(lease=first, verdict=Bury(failure=BROKEN))])
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert view.redrive.state is RedriveState.STOPPED
    assert view.redrive.text == f"fingerprint {was.value} recurred in job {first.id}"
    assert (view.redrive.retried, view.recurred) == (2, 1)
    for _ in range(3):
        await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.retried == 2


@pytest.mark.parametrize(
    ("ends", "wait_ms", "state", "text"),
    [
        ([Complete(), Bury(failure=OTHER)], 0, RedriveState.FINISHED, ""),
        ([Bury(failure=OTHER)] * 2, 0, RedriveState.STOPPED, "none of 2 canaries came through: 2"),
        ([Complete()], 0, RedriveState.CANARY, ""),
        ([Complete()], 600_000, RedriveState.FINISHED, ""),
        ([], 599_999, RedriveState.CANARY, ""),
        ([], 600_000, RedriveState.STOPPED, "none of 2 canaries came through within 600 s"),
    ],
)
async def test_what_canaries_say(
    redrives: Redrives, redriver: Redriver, clock: ManualClock,
    ends: list[Verdict], wait_ms: int, state: RedriveState, text: str,
) -> None:  # fmt: skip
    engine = redriver._engine
    await dead(engine, 120)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=9, lease_ms=limits.DAY_MS))
    pairs = zip(leases, ends, strict=False)
    await engine.settle([Settlement(lease=lease, verdict=verdict) for lease, verdict in pairs])
    clock.advance(wait_ms)
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert view.redrive.state is state
    assert view.redrive.text.startswith(text)


async def test_canaries_that_are_kept_no_longer_came_through(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 3)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    await end(engine, Complete())
    assert await engine.amend(JobFilter(states=(State.DONE,)), Delete(), limit=9) == 1
    await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.state is RedriveState.FINISHED


async def test_jobs_redriven_too_often_are_left(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    [first, *_] = await dead(engine, 3)
    for _ in range(2):
        await redrives.start(RedrivePlan(wanted=JobFilter(ids=(first,)), redrives_max=2))
        await go_on(redriver)
        await end(engine, Bury(failure=BROKEN))
    plan = RedrivePlan(wanted=ALL, redrives_max=2)
    assert await redrives.survey(plan) == (2, 1, False)
    id_ = (await redrives.start(plan)).id
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.retried, view.redrive.capped) == (2, 1)
    left = await engine.get(first)
    assert left is not None
    assert (left.state, left.redrives) == (State.DEAD, 2)


async def test_payloads_are_edited_first(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 1, payload=b'{"a": 1, "b": 2}')
    await dead(engine, 1, payload=b'{"c": 4}')
    await dead(engine, 1, payload=b"\xff", content_type="application/octet-stream")
    plan = RedrivePlan(wanted=ALL, by="ann", patch=b'{"b": null, "c": 4}')
    id_ = (await redrives.start(plan)).id
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.retried, view.redrive.unfit, view.redrive.changed) == (2, 1, 0)
    jobs = {job.id: job for job in await jobs_of(engine)}
    assert msgspec.json.decode(jobs["j0000"].payload) == {"a": 1, "c": 4}
    edits = [each for each in jobs["j0000"].events if each.kind is EventKind.EDITED]
    assert [(each.by, each.text) for each in edits] == [("ann", f"payload: redrive {id_}")]
    assert not [each for each in jobs["j0001"].events if each.kind is EventKind.EDITED]
    assert [jobs[id_].state for id_ in sorted(jobs)] == [State.WAITING, State.WAITING, State.DEAD]


async def test_a_cancel_is_obeyed_and_told(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await dead(engine, 9)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, rate=Rate(count=2, per_ms=1_000)))).id
    await go_on(redriver)
    cancelled = await redrives.cancel(id_, "bob")
    assert (cancelled.state, cancelled.text) == (RedriveState.CANCELLED, "by bob")
    clock.advance(60_000)
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.state, view.redrive.retried) == (RedriveState.CANCELLED, 2)
    assert (await redrives.cancel(id_, "eve")).text == "by bob"
    with pytest.raises(UsageError, match="does not exist"):
        await redrives.cancel("nothing", "bob")


async def test_one_that_was_changed_meanwhile_is_not_put_back(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    [first, second, *_] = await dead(engine, 3)
    redrives = Redrives(engine, clock.wall_ms)
    redriver = redriver_on(engine, clock)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL))).id
    # It is killed when it has saved what it is about to do.
    engine.writes, engine.kill_at = 0, (0, True)
    with pytest.raises(Killed):
        await redriver.once()
    await engine.amend(JobFilter(ids=(first,)), Edit(priority=5), limit=1)
    await engine.amend(JobFilter(ids=(second,)), Delete(), limit=1)
    assert await redriver.once() == PATIENCE_MS, "another may be about to do it"
    clock.advance(PATIENCE_MS)
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.retried, view.redrive.changed) == (1, 2)
    job = await engine.get(first)
    assert job is not None
    assert job.state is State.DEAD


@pytest.mark.parametrize("patch", [None, b'{"fixed": true}'])
@pytest.mark.parametrize("done", [False, True])
async def test_killed_at_every_write(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, done: bool, patch: bytes | None
) -> None:
    """Wherever it dies, the next one goes on: each job once, and the counts say so."""
    monkeypatch.setattr("holdfast.upkeep.redrive.BATCH", 4)
    for kill_at in range(100):
        engine = KillableEngine(clock)
        await engine.open()
        await dead(engine, 10, payload=b'{"n": 1}')
        redrives = Redrives(engine, clock.wall_ms)
        id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True, patch=patch))).id
        engine.writes, engine.kill_at = 0, (kill_at, done)
        killed = False
        for _ in range(12):
            try:
                await go_on(redriver_on(engine, clock))
            except Killed:
                killed = True
            await end(engine, Complete())
            clock.advance(PATIENCE_MS)
        view = await seen(redrives, id_)
        told = (kill_at, done, view)
        assert view.redrive.state is RedriveState.FINISHED, told
        assert (view.redrive.retried, view.redrive.changed, view.done) == (10, 0, 10), told
        for job in await jobs_of(engine):
            assert (job.redrives, times_put_back(job), job.state) == (1, 1, State.DONE), told
            assert sum(event.kind is EventKind.EDITED for event in job.events) == bool(patch)
        if not killed:
            assert kill_at > 8, "it was killed in every phase"
            return
    raise AssertionError("it never came through")


@pytest.mark.parametrize("done", [False, True])
async def test_killed_at_every_write_and_cancelled_then(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """What was in hand is finished by the next one, no more is put back, the counts are true."""
    monkeypatch.setattr("holdfast.upkeep.redrive.BATCH", 4)
    for kill_at in range(100):
        engine = KillableEngine(clock)
        await engine.open()
        await dead(engine, 10)
        redrives = Redrives(engine, clock.wall_ms)
        id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
        engine.writes, engine.kill_at = 0, (kill_at, done)
        killed = False
        for _ in range(12):
            try:
                await go_on(redriver_on(engine, clock))
            except Killed:
                killed = True
                in_hand = await seen(redrives, id_)
                await redrives.cancel(id_, "ann")
                most = in_hand.redrive.retried + len(in_hand.redrive.pending)
            await end(engine, Complete())
            clock.advance(PATIENCE_MS)
        if not killed:
            assert kill_at > 8, "it was killed in every phase"
            return
        view = await seen(redrives, id_)
        told = (kill_at, done, view)
        assert view.redrive.state in (RedriveState.CANCELLED, RedriveState.FINISHED), told
        assert view.redrive.pending == (), told
        assert view.redrive.retried == view.done == most, told
        times = [times_put_back(job) for job in await jobs_of(engine)]
        assert max(times) <= 1, told
        assert sum(times) == view.redrive.retried, told
    raise AssertionError("it never came through")


class Slow(MemoryEngine):
    """Others come in between any two calls."""

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
async def test_several_redrivers_at_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, patch: bytes | None
) -> None:
    """Without patience, so that they get into each other's way as much as they can."""
    monkeypatch.setattr("holdfast.upkeep.redrive.BATCH", 5)
    monkeypatch.setattr("holdfast.upkeep.redriver.PATIENCE_MS", 0)
    for seed in range(40):
        engine = Slow(clock, seed)
        await engine.open()
        await dead(engine, 23, payload=b'{"n": 1}')
        redrives = Redrives(engine, clock.wall_ms)
        id_ = (await redrives.start(RedrivePlan(wanted=ALL, patch=patch))).id

        async def work(engine: Engine = engine) -> None:
            redriver = redriver_on(engine, clock)
            for _ in range(30):
                await redriver.once()

        await asyncio.gather(*(work() for _ in range(4)))
        view = await seen(redrives, id_)
        told = f"seed {seed}: {view}"
        assert view.redrive.state is RedriveState.FINISHED, told
        assert (view.redrive.retried, view.redrive.changed) == (23, 0), told
        await end(engine, Complete())
        await go_on(redriver_on(engine, clock))
        view = await seen(redrives, id_)
        assert (view.done, view.open) == (23, 0), told
        assert {times_put_back(job) for job in await jobs_of(engine)} == {1}, told


async def test_several_redrivers_on_a_real_store(
    engine: Engine, redrives: Redrives, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.redrive.BATCH", 5)
    monkeypatch.setattr("holdfast.upkeep.redriver.PATIENCE_MS", 0)
    await dead(engine, 43)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, patch=b'{"fixed": true}'))).id

    async def work() -> None:
        redriver = redriver_on(engine, clock)
        while not (await seen(redrives, id_)).redrive.state.ended:
            await redriver.once()

    await asyncio.gather(*(work() for _ in range(4)))
    view = await seen(redrives, id_)
    assert (view.redrive.retried, view.redrive.changed) == (43, 0)
    assert {times_put_back(job) for job in await jobs_of(engine)} == {1}


async def test_old_ones_are_forgotten(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await dead(engine, 2)
    await redrives.start(RedrivePlan(wanted=ALL))
    await go_on(redriver)
    await end(engine, Complete())
    await go_on(redriver)
    [view] = await redrives.all()
    assert view.redrive.followed
    clock.advance(RETENTION_MS + 1)
    await go_on(redriver)
    assert await redrives.all() == []
    assert await engine.load("redriven", limit=9) == []


async def test_what_becomes_of_jobs_is_counted_for_a_day(
    engine: Engine, redrives: Redrives, redriver: Redriver, clock: ManualClock
) -> None:
    await dead(engine, 2)
    await redrives.start(RedrivePlan(wanted=ALL, delay_ms=limits.DAY_MS * 3))
    await go_on(redriver)
    clock.advance(limits.DAY_MS + 1)
    await go_on(redriver)
    [view] = await redrives.all()
    assert (view.open, view.redrive.followed) == (2, True)


async def test_one_that_cannot_be_read_holds_up_no_other(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await engine.save([Record(kind="redrive", key="0", value=b'{"from": "later"}')])
    await dead(engine, 1)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL))).id
    await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.retried == 1


async def test_an_outage_in_the_middle_is_survived(clock: ManualClock) -> None:
    engine = KillableEngine(clock)
    await engine.open()
    await dead(engine, 2)
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
    clock.advance(PATIENCE_MS)
    await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.retried == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"redrives_max": 0}, "redrives_max 0 is not 1"),
        ({"rate": Rate(count=0, per_ms=1)}, "count of its rate 0"),
        ({"rate": Rate(count=1, per_ms=0)}, "per_ms of its rate 0"),
        ({"delay_ms": -1}, "delay_ms -1"),
        ({"canary_wait_ms": 0}, "canary_wait_ms 0"),
        ({"by": 5}, "by"),
        ({"wanted": JobFilter(queue="a\0")}, "NUL"),
    ],
)
async def test_a_plan_that_cannot_be_done_is_refused(
    redrives: Redrives, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        await redrives.start(RedrivePlan(**{"wanted": ALL, **fields}))
    assert await redrives.all() == []


async def test_a_patch_must_be_json(redrives: Redrives) -> None:
    with pytest.raises(InvalidJob, match="JSON"):
        await redrives.start(RedrivePlan(wanted=ALL, patch=b"{"))
