"""Leases only as there is room, only for known tasks; changes cut a wait short, outages do not end
it, and nothing that was leased at the last moment is left lying."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.core.model import Lease, LeaseRequest, NewJob
from holdfast.core.workers import Health
from holdfast.errors import EngineClosed, EngineUnavailable, StorageFull
from holdfast.worker import intake as module
from holdfast.worker.crew import Crew
from holdfast.worker.hand import Hand
from holdfast.worker.intake import Intake, Pace
from holdfast.worker.intakes import Intakes
from holdfast.worker.options import WorkerOptions
from holdfast.worker.wire import ChildSetup, TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.running import until
from tests.worker.staging import Listening


class Story:
    """An intake with `room`, and what it took."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.room = 0
        self.taken: list[str] = []
        self.intake = Intake(engine, lambda: self.room, self._take)
        self.intake.ask("w", {"default": 1}, frozenset({"work"}))

    def _take(self, leases: list[Lease]) -> None:
        assert len(leases) <= self.room
        self.room -= len(leases)
        self.taken += [lease.id for lease in leases]

    def free(self, room: int) -> None:
        self.room = room
        self.intake.look()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.intake.run())
        yield
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def story() -> Story:
    engine = TroubledEngine()
    await engine.open()
    return Story(engine)


async def enqueue(engine: TroubledEngine, ids: str, **fields: str) -> None:
    await engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])  # type: ignore[arg-type]


async def test_no_more_than_there_is_room_for(story: Story) -> None:
    await enqueue(story.engine, "abcdef")
    async with story.running():
        story.free(2)
        await until(lambda: len(story.taken) == 2)
        story.free(3)
        await until(lambda: len(story.taken) == 5)
    assert story.taken == list("abcde")
    assert [request.limit for request in story.engine.requests] == [2, 3]


async def test_without_room_nothing_is_asked(story: Story) -> None:
    async with story.running():
        await asyncio.sleep(0)
        story.intake.look()
        await asyncio.sleep(0)
    assert story.engine.requests == []


async def test_only_known_tasks(story: Story) -> None:
    await enqueue(story.engine, "a", task="other")
    async with story.running():
        story.free(5)
        await until(lambda: story.engine.requests)
        await enqueue(story.engine, "b")
        await until(lambda: story.taken)
        assert story.taken == ["b"]
        # A task that is learned later counts at once, though a request was waiting.
        story.intake.ask("w", {"default": 1}, frozenset({"work", "other"}))
        await until(lambda: len(story.taken) == 2)
    assert story.taken == ["b", "a"]


async def test_an_interrupted_wait_leases_nothing_more(story: Story) -> None:
    async with story.running():
        story.free(5)
        await until(lambda: story.engine.requests)
        story.room = 0
        story.intake.interrupt()
        for _ in range(20):
            await asyncio.sleep(0)
        await enqueue(story.engine, "a")
        for _ in range(20):
            await asyncio.sleep(0)
    assert story.taken == []
    (lease,) = await story.engine.lease(LeaseRequest(queues=("default",)))
    assert lease.job.attempt == 1


async def test_what_came_in_the_last_moment_is_taken(story: Story) -> None:
    """The engine has answered when the intake is cancelled: those leases must not lie around."""
    story.room = 5
    await enqueue(story.engine, "ab")
    task = asyncio.create_task(story.intake.run())
    answered = asyncio.Event()
    lease = story.engine.lease

    async def answering(request: LeaseRequest) -> list[Lease]:
        leases = await lease(request)
        answered.set()
        task.cancel()
        return leases

    story.engine.lease = answering  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answered.is_set()
    assert story.taken == ["a", "b"]


@pytest.mark.parametrize("error", [EngineUnavailable, StorageFull])
async def test_an_outage_is_waited_out(
    story: Story, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S_FIRST", 0.001)
    story.engine.trouble["lease"] = [error("down")] * 4
    await enqueue(story.engine, "a")
    story.room = 1
    async with story.running():
        await until(lambda: story.taken)
    assert story.engine.asked["lease"] >= 5


async def test_a_closed_engine_ends_it(story: Story) -> None:
    story.room = 1
    await story.engine.close()
    with pytest.raises(EngineClosed):
        await story.intake.run()


async def test_heavier_queues_come_first_more_often(story: Story) -> None:
    story.intake.ask("w", {"heavy": 9, "light": 1}, frozenset({"work"}))
    first = Counter(story.intake._order()[0] for _ in range(2_000))
    assert set(story.intake._order()) == {"heavy", "light"}
    assert first["heavy"] > 3 * first["light"] > 0


def test_the_pace_follows_what_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    pace = Pace(50)
    assert pace.ahead() == 0
    for _ in range(100):
        pace.ended(1_000)
        now += 1.0
        pace.measure()
    # A tenth of a second's worth, but never more than it was told.
    assert pace.ahead() == 50
    for _ in range(50):
        now += 1.0
        pace.measure()
    assert pace.ahead() == 0


def make_intakes(engine: TroubledEngine, hand: Hand, *, commands: bool = True) -> Intakes:
    setup = ChildSetup(worker="w", worker_id="1", slots=4)
    crew = Crew(
        Listening(),
        lambda _name: None,  # type: ignore[arg-type, return-value]
        python=ChildSetup(worker="w", worker_id="1", slots=4, target="a:app"),
        processes=2,
        commands=setup if commands else None,
    )
    options = WorkerOptions(url="memory:", prefetch=100)
    return Intakes(engine, options, hand, crew, lambda _leases: None)


async def test_each_kind_has_its_own_room(story: Story) -> None:
    hand = Hand()
    intakes = make_intakes(story.engine, hand)
    assert [intakes.room(kind) for kind in ("python", "solo", "command")] == [8, 2, 4]
    hand.unjudged["python"] = 8
    assert [intakes.room(kind) for kind in ("python", "solo", "command")] == [0, 2, 4]
    hand.unjudged["python"] = 11
    assert intakes.room("python") == 0


async def test_room_by_health(story: Story) -> None:
    intakes = make_intakes(story.engine, Hand())
    rooms = {}
    for state in Health:
        intakes.set(closed=False, health=state)
        rooms[state] = intakes.room("python")
    assert rooms == {Health.HEALTHY: 8, Health.DEGRADED: 4, Health.UNHEALTHY: 0}
    intakes.set(closed=True, health=Health.HEALTHY)
    assert intakes.room("python") == 0


async def test_a_batch_task_makes_room_for_a_batch(story: Story) -> None:
    intakes = make_intakes(story.engine, Hand())
    intakes.learn("w", {"many": TaskInfo("many", batch=10)})
    assert (intakes.room("python"), intakes.room("command")) == (17, 4)
