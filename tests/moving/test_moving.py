"""A whole store moves to another: nothing is lost, changed or started before it was compared."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.config import KIND as SETTING_KIND
from holdfast.core.model import JobFilter, NewJob, Queue, Record, State
from holdfast.core.verdict import Complete, Delete, Edit, Settlement
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.explaining import Pause, load_pause, save_pause
from holdfast.moving import Migration, Moved, Side, copying, reopen
from holdfast.moving.records import Leaving, Opening, leaving
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper, RedrivePlan, Redrives, Schedule, Schedules
from tests.moving import mixture
from tests.moving.mixture import all_of, canonical, keys_of, mover_of, take


class Stores:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.old = MemoryEngine(clock=self.clock)
        self.new = MemoryEngine(clock=self.clock)

    def migration(self, wrap: Callable[[Any], Any] = lambda each: each) -> Migration:
        old, new = (
            Side(wrap(engine), wrap(mover_of(engine)), place)
            for engine, place in ((self.old, "old"), (self.new, "new"))
        )
        return Migration(old, new, self.clock.wall_ms)

    async def move(self, wrap: Callable[[Any], Any] = lambda each: each) -> Moved:
        migration = self.migration(wrap)
        await migration.begin()
        assert await migration.drain(wait_ms=0, tell=nothing) == []
        await migration.copy(nothing)
        return await migration.compare(nothing)


def nothing(_count: int) -> None:
    pass


@pytest.fixture
async def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setattr("holdfast.moving.closing._LOOK_S", 0)
    stores = Stores()
    await stores.old.open()
    await stores.new.open()
    return stores


async def dump(engine: Engine) -> object:
    return canonical(await all_of(mover_of(engine))), await keys_of(engine)


async def queues(engine: Engine) -> dict[str, Queue]:
    return {view.queue.name: view.queue for view in await engine.queues(counts=False)}


async def test_everything_moves(stores: Stores) -> None:
    await mixture.fill(stores.old)
    before, shape = await dump(stores.old), await queues(stores.old)
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))
    words = [
        Record(kind=SETTING_KIND, key="lease", value=b'"1m"'),
        Record(kind=WORKER_KIND, key="w", value=b"{}"),
    ]
    await stores.old.save(words)
    await save_pause(stores.old, "shut", Pause(by="me", text="as it was"))
    moved = await stores.move()
    assert moved.is_verified
    assert moved.comparison is not None
    assert moved.comparison.wrong == []
    assert await dump(stores.new) == before
    assert await dump(stores.old) == before
    assert await queues(stores.new) == shape
    assert moved.records == {"schedule": 1, "setting": 1, "pause": 1, "distribution": 0}
    assert await Schedules(stores.new, stores.clock.wall_ms).all() == await schedules.all()
    assert (await load_pause(stores.new, "shut")).by == "me"
    assert await stores.new.load(WORKER_KIND, limit=10) == []
    for state, found in moved.comparison.source.items():
        assert found == moved.comparison.target[state]


async def test_the_old_store_is_closed_and_can_be_opened_again(stores: Stores) -> None:
    await mixture.fill(stores.old)
    shape = await queues(stores.old)
    await stores.move()
    assert all(each.paused and not each.accepting for each in (await queues(stores.old)).values())
    assert (await load_pause(stores.old, "plain")).text == "everything is moved to new"
    assert (await load_pause(stores.new, "plain")) == Pause()
    assert sorted(await reopen(stores.old)) == sorted(shape)
    assert (await load_pause(stores.old, "plain")) == Pause()
    assert await queues(stores.old) == shape
    with pytest.raises(UsageError, match="no move"):
        await reopen(stores.old)
    with pytest.raises(UsageError, match="another move"):
        await stores.migration().begin()


async def test_a_move_that_is_done_is_not_done_again(stores: Stores) -> None:
    await mixture.fill(stores.old)
    await stores.move()
    await stores.new.amend(JobFilter(ids=("later",)), Delete(), limit=1)
    assert (await stores.migration().survey()).is_done
    moved = await stores.move()
    assert (moved.is_verified, moved.comparison) == (True, None)
    assert await stores.new.get("later") is None


class Killed(BaseException):
    pass


class Mortal:
    """Dies before or after the call with this number that changes something."""

    CHANGES = ("adopt", "hold", "save", "declare")

    def __init__(self, number: int, *, after: bool) -> None:
        self.calls = itertools.count(1)
        self.number = number
        self.after = after

    def __call__(self, inner: Any) -> Any:
        mortal = self

        class Wrapped:
            def __getattr__(self, name: str) -> Any:
                verb = getattr(inner, name)
                if name not in mortal.CHANGES:
                    return verb

                async def call(*given: Any, **named: Any) -> Any:
                    number = next(mortal.calls)
                    if number == mortal.number and not mortal.after:
                        raise Killed
                    answer = await verb(*given, **named)
                    if number == mortal.number:
                        raise Killed
                    return answer

                return call

        return Wrapped()


@pytest.mark.parametrize("after", [False, True])
async def test_whoever_is_killed_is_taken_up(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """At every single change, before it and after it; from any of them another run goes on."""
    monkeypatch.setattr("holdfast.moving.copying.BATCH", 7)
    await mixture.fill(stores.old)
    await stores.old.save([Record(kind=SETTING_KIND, key="lease", value=b'"1m"')])
    before, shape = await dump(stores.old), await queues(stores.old)
    for number in itertools.count(1):
        stores.new = MemoryEngine(clock=stores.clock)
        await stores.new.open()
        try:
            await stores.move(Mortal(number, after=after))
        except Killed:
            assert (await stores.move()).is_verified, number
        else:
            break
        assert await dump(stores.new) == before, number
        assert await queues(stores.new) == shape, number
        assert await reopen(stores.old)
        assert await queues(stores.old) == shape, number
    assert number > 30


async def test_nothing_starts_before_it_was_compared(stores: Stores) -> None:
    await mixture.fill(stores.old)
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await migration.copy(nothing)
    assert all(each.paused and not each.accepting for each in (await queues(stores.new)).values())
    await stores.old.amend(JobFilter(ids=("p1",)), Edit(priority=9), limit=1)
    await stores.old.amend(JobFilter(ids=("later",)), Delete(), limit=1)
    await stores.new.amend(JobFilter(ids=("off",)), Delete(), limit=1)
    moved = await migration.compare(nothing)
    assert not moved.is_verified
    assert moved.comparison is not None
    assert moved.comparison.wrong_count == 3
    assert sorted(moved.comparison.wrong) == [
        "job later is no longer in the source",
        "job off is not in the target",
        "job p1 was changed in the source or the target meanwhile",
    ]
    assert all(each.paused for each in (await queues(stores.new)).values())


async def test_another_order_is_told(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id=id_, task="t") for id_ in "abc"])
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await migration.copy(nothing)
    wholes = [each for each in await all_of(mover_of(stores.new)) if each.job.id == "a"]
    await stores.new.amend(JobFilter(ids=("a",)), Delete(), limit=1)
    await mover_of(stores.new).adopt(wholes)
    moved = await migration.compare(nothing)
    assert moved.comparison is not None
    assert not moved.is_verified
    told = {f"job {id_} has another place in the order" for id_ in "abc"}
    assert set(moved.comparison.wrong) == told
    assert all(each.paused for each in (await queues(stores.new)).values())


async def test_records_are_compared_too(stores: Stores) -> None:
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))

    class Meddled(MemoryEngine):
        """Somebody removes each schedule as soon as it is there."""

        async def save(self, records: Sequence[Record]) -> list[Saved]:
            answers = await super().save(records)
            gone = [replace(each, value=None, version=1) for each in records]
            await super().save([each for each in gone if each.kind == "schedule"])
            return answers

    stores.new = Meddled(clock=stores.clock)
    await stores.new.open()
    moved = await stores.move()
    assert moved.comparison is not None
    assert moved.comparison.wrong == ["the schedule nightly was changed in the target meanwhile"]
    assert not moved.is_verified


async def test_a_schedule_that_was_removed_before_the_next_run_is_not_moved(
    stores: Stores,
) -> None:
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    for name in ("kept", "gone"):
        await schedules.add(Schedule(name=name, every_ms=1000, job=NewJob(id="n", task="t")))
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await migration.copy(nothing)
    await copying.copy_records(stores.old, stores.new, Leaving(id="x", to="new"))
    await schedules.remove("gone")
    assert (await stores.move()).is_verified
    there = await Schedules(stores.new, stores.clock.wall_ms).all()
    assert [each.name for each in there] == ["kept"]


@pytest.mark.parametrize("side", ["old", "new"])
async def test_what_upkeep_ends_meanwhile_is_no_fault(stores: Stores, side: str) -> None:
    ms = 1000
    await stores.old.declare(Queue(name="short", retention_ms=5 * ms))
    await stores.old.enqueue(
        [
            NewJob(id="parent", task="t", expires_ms=10 * ms),
            NewJob(id="child", task="t", after=("parent",)),
            NewJob(id="over", task="t", queue="short"),
            NewJob(id="stays", task="t"),
        ]
    )
    [lease] = await take(stores.old, "over")
    await stores.old.settle([Settlement(lease=lease, verdict=Complete())])
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await migration.copy(nothing)
    stores.clock.advance(20 * ms)
    engine = stores.old if side == "old" else stores.new
    await Reaper(engine).once()
    past = await engine.finished(10)
    await engine.amend(JobFilter(ids=tuple(job.id for job in past)), Delete(), limit=10)
    moved = await migration.compare(nothing)
    assert moved.comparison is not None
    assert (moved.is_verified, moved.comparison.ended) == (True, 3)


async def test_leased_jobs_are_waited_for(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t"), NewJob(id="waits", task="t")])
    [lease] = await take(stores.old, "runs")
    migration = stores.migration()
    await migration.begin()
    left = await migration.drain(wait_ms=0, tell=nothing)
    assert [job.id for job in left] == ["runs"]
    assert await take(stores.old, "waits") == []

    ending: list[asyncio.Future[object]] = []

    def end_it(leased: int) -> None:
        assert leased == 1
        # Follow-up jobs pass a closed queue.
        verdict = Complete(b"1", (NewJob(id="next", task="t"),))
        settlement = Settlement(lease=lease, verdict=verdict)
        ending.append(asyncio.ensure_future(stores.old.settle([settlement])))

    assert await migration.drain(wait_ms=60_000, tell=end_it) == []
    await asyncio.gather(*ending)
    await migration.copy(nothing)
    assert (await migration.compare(nothing)).is_verified
    runs = await stores.new.get("runs")
    assert runs is not None
    assert (runs.state, runs.result) == (State.DONE, b"1")
    assert await stores.new.get("next") is not None


async def test_a_lease_that_lapsed_comes_back_without_upkeep(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t")])
    await take(stores.old, "runs")
    stores.clock.advance(60_000)
    assert (await stores.move()).is_verified
    moved = await stores.new.get("runs")
    assert moved is not None
    assert (moved.state, moved.attempt, len(moved.events)) == (State.WAITING, 1, 1)


async def test_what_is_leased_in_spite_of_it_stops_the_move(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t")])
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await stores.old.declare(Queue(name="default"))
    await take(stores.old, "runs")
    with pytest.raises(EngineUnavailable, match="runs was leased meanwhile"):
        await migration.copy(nothing)


async def test_a_target_with_something_in_it_is_refused(stores: Stores) -> None:
    await stores.new.enqueue([NewJob(id="other", task="t")])
    with pytest.raises(UsageError, match="has jobs already"):
        await stores.migration().begin()
    await stores.new.amend(JobFilter(), Delete(), limit=10)
    schedules = Schedules(stores.new, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))
    with pytest.raises(UsageError, match="has schedules already"):
        await stores.migration().begin()
    # Nothing was changed by the refusals.
    assert await queues(stores.old) == {"default": Queue(name="default")}


async def test_a_redrive_that_goes_on_is_refused(stores: Stores) -> None:
    redrives = Redrives(stores.old, stores.clock.wall_ms)
    await redrives.start(RedrivePlan(wanted=JobFilter(states=(State.DEAD,))))
    with pytest.raises(UsageError, match="is going on in the source"):
        await stores.migration().begin()


async def test_two_at_once_notice(stores: Stores) -> None:
    await mixture.fill(stores.old)
    one, other = stores.migration(), stores.migration()
    await one.begin()
    await other.begin()
    await one.drain(wait_ms=0, tell=nothing)
    await one.copy(nothing)
    with pytest.raises(EngineUnavailable, match="somebody else"):
        await other.copy(nothing)
    assert (await one.compare(nothing)).is_verified


async def test_a_dead_queue_that_is_gone_counts_as_none(stores: Stores) -> None:
    await stores.old.declare(Queue(name="b"))
    await stores.old.declare(Queue(name="a", dead_queue="b"))
    await stores.old.drop("b")
    assert (await stores.move()).is_verified
    assert (await queues(stores.new))["a"] == Queue(name="a")


async def test_a_queue_that_comes_meanwhile_is_closed_too(stores: Stores) -> None:
    migration = stores.migration()
    await migration.begin()
    await stores.old.declare(Queue(name="worker.late"))
    await stores.old.enqueue([NewJob(id="late", task="t", queue="worker.late")])
    assert await migration.drain(wait_ms=0, tell=nothing) == []
    assert (await queues(stores.old))["worker.late"].paused
    await migration.copy(nothing)
    assert (await migration.compare(nothing)).is_verified
    assert (await queues(stores.new))["worker.late"] == Queue(name="worker.late")


async def test_how_many_thousand_queues_were_can_be_written_down(stores: Stores) -> None:
    queues = {f"tenant.of-some-length.{n}": Opening(n % 7 > 0, n % 5 > 0) for n in range(20_000)}
    known = Leaving(id="x", to="new", queues=queues)
    await leaving(stores.old).write(known)
    assert await leaving(stores.old).read() == known


async def test_a_survey_changes_nothing(stores: Stores) -> None:
    await mixture.fill(stores.old)
    shape = await queues(stores.old)
    survey = await stores.migration().survey()
    assert survey.jobs == sum(survey.states.values()) == len(await all_of(mover_of(stores.old)))
    assert (survey.refusal, survey.resumes, survey.leased) == ("", False, ())
    assert await queues(stores.old) == shape
    assert await stores.old.load("move", limit=10) == []
