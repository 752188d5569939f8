"""Leases only with room and only known tasks; changes interrupt a wait, outages do not end it, and
jobs leased in the last moment are delivered."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.core.model import Job, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete
from holdfast.core.workers import Health
from holdfast.errors import EngineClosed, EngineUnavailable, StorageFull
from holdfast.process import boot_s
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor import intake as capacity_module
from holdfast.worker.supervisor import intake as module
from holdfast.worker.supervisor.child_pool import ChildPool
from holdfast.worker.supervisor.held_leases import GroupOrder, HeldLease, HeldLeases, RunnerKind
from holdfast.worker.supervisor.intake import Intake, LeaseAhead, WorkerCapacity
from holdfast.worker.wire import ChildSetup, TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import alongside, until
from tests.worker.pool_driver import Recorder


class IntakeDriver:
    """An intake with `room`, and the jobs it delivered."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.room = 0
        self.taken: list[str] = []
        self.asked: list[float] = []
        self.tasks = frozenset({"work"})
        self.left_out: set[RunnerKind] = set()
        self.intake = Intake(engine, self, self._deliver)
        self.intake.serve("w", {"default": 1})

    def wanted(self) -> tuple[int, frozenset[str]]:
        return self.room, self.tasks

    def has_room(self, task: str) -> bool:
        return self.room > 0

    def accept(self, leases: list[Lease], asked: float) -> list[HeldLease]:
        assert len(leases) <= self.room
        self.room -= len(leases)
        self.asked.append(asked)
        return [HeldLease(lease, asked, "python") for lease in leases]

    def _deliver(self, taken: list[HeldLease]) -> None:
        self.taken += [held.job.id for held in taken]

    def free(self, room: int) -> None:
        self.room = room
        self.intake.wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with alongside(self.intake.run()):
            yield


@pytest.fixture
async def driver() -> IntakeDriver:
    engine = TroubledEngine()
    await engine.open()
    return IntakeDriver(engine)


async def enqueue(engine: TroubledEngine, ids: str, **fields: str) -> None:
    await engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])  # type: ignore[arg-type]


async def test_no_more_than_there_is_room_for(driver: IntakeDriver) -> None:
    await enqueue(driver.engine, "abcdef")
    async with driver.running():
        driver.free(2)
        await until(lambda: len(driver.taken) == 2)
        driver.free(3)
        await until(lambda: len(driver.taken) == 5)
    assert driver.taken == list("abcde")
    assert [request.limit for request in driver.engine.requests] == [2, 3]


async def test_jobs_of_an_empty_queue_start_before_the_next_request(driver: IntakeDriver) -> None:
    requests: list[int] = []
    deliver = driver.intake._deliver

    def note(taken: list[HeldLease]) -> None:
        requests.append(len(driver.engine.requests))
        deliver(taken)

    driver.intake._deliver = note
    await enqueue(driver.engine, "abc")
    async with driver.running():
        driver.free(2)
        await until(lambda: len(driver.taken) == 2)
        driver.free(2)
        await until(lambda: len(driver.taken) == 3)
    assert requests == [1, 2]
    requests.clear()
    driver.engine.requests.clear()
    await enqueue(driver.engine, "def")
    driver.accept = lambda leases, asked: [  # type: ignore[method-assign]
        HeldLease(lease, asked, "python") for lease in leases
    ]
    driver.room = 2
    async with driver.running():
        await until(lambda: len(driver.taken) == 6)
    assert requests == [2, 2], "the first two while the second request was under way"


async def test_a_lease_counts_from_its_request(driver: IntakeDriver) -> None:
    """The worker may be frozen between the store's answer and its own reading of it."""
    async with driver.running():
        driver.free(1)
        await until(lambda: driver.engine.requests)
        before_the_job = boot_s()
        await enqueue(driver.engine, "a")
        await until(lambda: driver.taken)
    assert driver.asked[0] <= before_the_job


async def test_no_request_waits_longer_than_a_third_of_a_lease(driver: IntakeDriver) -> None:
    await driver.engine.declare(Queue(name="default", lease_ms=1_500))
    await enqueue(driver.engine, "a")
    async with driver.running():
        driver.free(2)
        await until(lambda: len(driver.engine.requests) > 1)
    assert [request.wait_ms for request in driver.engine.requests[:2]] == [5_000, 500]


async def test_without_room_nothing_is_requested(driver: IntakeDriver) -> None:
    async with driver.running():
        await asyncio.sleep(0)
        driver.intake.wake()
        await asyncio.sleep(0)
    assert driver.engine.requests == []


async def test_only_known_tasks(driver: IntakeDriver) -> None:
    await enqueue(driver.engine, "a", task="other")
    async with driver.running():
        driver.free(5)
        await until(lambda: driver.engine.requests)
        await enqueue(driver.engine, "b")
        await until(lambda: driver.taken)
        assert driver.taken == ["b"]
        # A task that is learned later counts at once, though a request was waiting.
        driver.tasks = frozenset({"work", "other"})
        driver.intake.interrupt()
        await until(lambda: len(driver.taken) == 2)
    assert driver.taken == ["b", "a"]


async def test_an_interrupted_wait_leases_nothing_more(driver: IntakeDriver) -> None:
    async with driver.running():
        driver.free(5)
        await until(lambda: driver.engine.requests)
        driver.room = 0
        driver.intake.interrupt()
        for _ in range(20):
            await asyncio.sleep(0)
        await enqueue(driver.engine, "a")
        for _ in range(20):
            await asyncio.sleep(0)
    assert driver.taken == []
    (lease,) = await driver.engine.lease(LeaseRequest(queues=("default",)))
    assert lease.job.attempt == 1


async def test_jobs_leased_in_the_last_moment_are_delivered(driver: IntakeDriver) -> None:
    """The engine has answered when the intake is cancelled: those leases must be delivered."""
    driver.room = 5
    await enqueue(driver.engine, "ab")
    task = asyncio.create_task(driver.intake.run())
    answered = asyncio.Event()
    lease = driver.engine.lease

    async def answering(request: LeaseRequest) -> list[Lease]:
        leases = await lease(request)
        answered.set()
        task.cancel()
        return leases

    driver.engine.lease = answering  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answered.is_set()
    assert driver.taken == ["a", "b"]


async def test_an_empty_answer_in_the_last_moment_is_no_error(driver: IntakeDriver) -> None:
    """An empty answer during the cancel must not break the worker's end."""
    capacity = make_capacity(HeldLeases())
    capacity.learn({"work": TaskInfo("work")})
    intake = Intake(driver.engine, capacity, lambda _leased: None)
    intake.serve("w", {"default": 1})
    task = asyncio.create_task(intake.run())

    async def answering(request: LeaseRequest) -> list[Lease]:
        task.cancel()
        return []

    driver.engine.lease = answering  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", [EngineUnavailable, StorageFull])
async def test_it_survives_an_outage(
    driver: IntakeDriver, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S_FIRST", 0.001)
    driver.engine.trouble["lease"] = [error("down")] * 4
    await enqueue(driver.engine, "a")
    driver.room = 1
    async with driver.running():
        await until(lambda: driver.taken)
    assert driver.engine.asked["lease"] >= 5


async def test_a_closed_engine_ends_it(driver: IntakeDriver) -> None:
    driver.room = 1
    await driver.engine.close()
    with pytest.raises(EngineClosed):
        await driver.intake.run()


async def test_heavier_queues_come_first_more_often(driver: IntakeDriver) -> None:
    driver.intake.serve("w", {"heavy": 9, "light": 1})
    first = Counter(driver.intake._order()[0] for _ in range(2_000))
    assert set(driver.intake._order()) == {"heavy", "light"}
    assert first["heavy"] > 3 * first["light"] > 0


def test_jobs_leased_ahead_follow_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(capacity_module, "monotonic", lambda: now)
    pace = LeaseAhead(50)
    assert pace.count() == 0
    for _ in range(100):
        pace.ended(1_000)
        now += 1.0
        pace.measure()
    # A tenth of a second's worth, but never more than it was told.
    assert pace.count() == 50
    for _ in range(50):
        now += 1.0
        pace.measure()
    assert pace.count() == 0


def make_capacity(held: HeldLeases) -> WorkerCapacity:
    setup = ChildSetup(worker="w", worker_id="1", slots=4)
    pool = ChildPool(
        Recorder(),
        lambda _name: None,  # type: ignore[arg-type, return-value]
        python=ChildSetup(worker="w", worker_id="1", slots=4, target="a:app"),
        processes=2,
        built_in=(setup,),
    )
    options = WorkerOptions(url="memory:", prefetch=100)
    return WorkerCapacity(options, held, pool, GroupOrder())


async def test_each_kind_has_its_own_room(driver: IntakeDriver) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    assert [capacity.room(kind) for kind in ("python", "solo", "command")] == [8, 2, 4]
    held.active["python"] = 8
    assert [capacity.room(kind) for kind in ("python", "solo", "command")] == [0, 2, 4]
    held.active["python"] = 11
    assert capacity.room("python") == 0


async def test_room_by_health(driver: IntakeDriver) -> None:
    capacity = make_capacity(HeldLeases())
    by_health = {}
    for state in Health:
        capacity.set_state(closed=False, health=state)
        by_health[state] = capacity.room("python")
    assert by_health == {Health.HEALTHY: 8, Health.DEGRADED: 4, Health.UNHEALTHY: 0}
    capacity.set_state(closed=True, health=Health.HEALTHY)
    assert capacity.room("python") == 0


async def test_a_batch_task_makes_room_for_a_batch(driver: IntakeDriver) -> None:
    capacity = make_capacity(HeldLeases())
    capacity.learn({"many": TaskInfo("many", batch=10)})
    assert (capacity.room("python"), capacity.room("command")) == (17, 4)


async def test_one_request_asks_for_all_kinds_with_room(driver: IntakeDriver) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    capacity.learn({"work": TaskInfo("work"), "command": TaskInfo("command")})
    assert capacity.wanted() == (8, frozenset({"work", "command"}))
    held.active["python"] = 8
    assert capacity.wanted() == (4, frozenset({"command"}))
    held.active["command"] = 4
    assert capacity.wanted() == (0, frozenset())


async def test_the_kind_with_the_least_room_bounds_the_request(driver: IntakeDriver) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    capacity.learn({"work": TaskInfo("work"), "command": TaskInfo("command")})
    capacity.ended("python", 200)
    capacity._ahead["python"]._rate = 10_000.0
    plain, _ = capacity.wanted()
    assert plain == 108
    mixed = [Job(id=f"j{n}", task=("command", "work")[n % 2], queue="default") for n in range(2)]
    for _ in range(20):
        leases = [Lease(job=job, token=1, lease_ms=1000) for job in mixed]
        for each in capacity.accept(leases, 0.0):
            held.decide(each, Complete())
            held.drop(each)
    limit, _ = capacity.wanted()
    assert limit == 8


async def test_a_kind_of_which_no_job_comes_does_not_bound_the_request(
    driver: IntakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    capacity.learn({"work": TaskInfo("work"), "command": TaskInfo("command")})
    capacity._ahead["python"]._rate = 10_000.0
    held.active["command"] = 3

    def accept(task: str, count: int) -> None:
        job = Job(id="j", task=task, queue="default")
        leases = [Lease(job=job, token=1, lease_ms=1000)] * count
        for each in capacity.accept(leases, 0.0):
            held.decide(each, Complete())
            held.drop(each)

    assert capacity.wanted()[0] == 50, "nothing is known of the queue"
    accept("work", 80)
    assert capacity.wanted()[0] == 80
    accept("work", 80)
    assert capacity.wanted()[0] == 108
    accept("command", 1)
    assert capacity.wanted()[0] == 3
    for _ in range(30):
        accept("work", 10)
    assert capacity.wanted()[0] == 108
    monkeypatch.setattr(ChildPool, "is_ready", True)
    capacity.takes_all = True
    assert capacity.wanted()[0] == 50, "a command that is given back would lose an attempt"


async def test_a_kind_that_was_left_out_is_requested_when_it_has_room(driver: IntakeDriver) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    capacity.learn({"work": TaskInfo("work"), "command": TaskInfo("command")})
    intake = Intake(driver.engine, capacity, lambda _leased: None)
    held.active["python"] = 8
    capacity.wanted()
    intake.freed("command")
    assert not intake._interrupted.is_set()
    intake.freed("python")
    assert intake._interrupted.is_set()


async def test_where_giving_back_costs_an_attempt_all_tasks_are_leased_or_none(
    driver: IntakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLeases()
    capacity = make_capacity(held)
    capacity.takes_all = True
    capacity.learn({"command": TaskInfo("command")})
    assert capacity.wanted() == (0, frozenset()), "the application is not ready"
    monkeypatch.setattr(ChildPool, "is_ready", True)
    capacity.learn({"work": TaskInfo("work"), "command": TaskInfo("command")})
    everything = frozenset({"work", "command"})
    assert capacity.wanted()[1] == everything
    held.active["command"] = 4
    assert capacity.wanted()[1] == everything, "a command that comes waits for its slot"
    held.active["command"] = 14
    assert capacity.wanted() == (0, frozenset()), "enough of them wait"
    held.active["command"] = 0
    capacity.shut_out = frozenset({"work"})
    assert capacity.wanted() == (0, frozenset())
    capacity.shut_out = frozenset()
    capacity.set_state(closed=False, health=Health.HEALTHY, broken=True)
    assert capacity.wanted() == (0, frozenset())
