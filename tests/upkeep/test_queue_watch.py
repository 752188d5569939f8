"""The watch over workers' queues at the broker: who does not receive for 30 s is unhealthy, shows
why, recovers by itself, and loses the jobs that may go to others."""

import pytest

from holdfast.core.model import Job, NewJob, Overrides, Queue, Record, Reroute
from holdfast.core.workers import UNATTENDED_KIND, Health
from holdfast.engines.base import Engine, Saved
from holdfast.errors import Forbidden
from holdfast.events import Reaped
from holdfast.ops.workers import Workers, WorkerView
from holdfast.telemetry.watch import StoreWatcher
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import QueueWatch
from tests.ops.test_reroute import workers
from tests.upkeep.fake_broker import FakeBroker, FakeBrokered
from tests.upkeep.faulty_engine import RecordingListener

SECOND = 1_000
STEP = 10 * SECOND
MINUTE = 60 * SECOND


@pytest.fixture
def broker(clock: ManualClock) -> FakeBroker:
    found = FakeBroker(clock)
    found.consumers = {"worker.a": 0, "worker.b": 1}
    return found


class Watched:
    """A store with two workers, of which a does not receive."""

    def __init__(self, engine: Engine, broker: FakeBroker, clock: ManualClock) -> None:
        self.engine = FakeBrokered(engine, broker)
        self.broker = broker
        self.clock = clock
        self.listener = RecordingListener()
        self.watch = self.new_watch()

    def new_watch(self) -> QueueWatch:
        return QueueWatch(
            self.engine,
            self.broker,
            tell=self.listener,
            clock_s=lambda: self.clock.boot_ms() / 1000,
        )

    async def look(self, seconds: int, *watches: QueueWatch) -> None:
        """Heartbeats, and a look of each watch every ten seconds."""
        for _ in range(seconds // 10):
            self.clock.advance(STEP)
            await workers(self.engine, "a", "b")
            for watch in watches or (self.watch,):
                await watch.once()

    async def view(self, name: str = "a") -> WorkerView:
        return next(view for view in await Workers(self.engine).all() if view.name == name)


@pytest.fixture
async def watched(engine: Engine, broker: FakeBroker, clock: ManualClock) -> Watched:
    found = Watched(engine, broker, clock)
    await workers(engine, "a", "b")
    await found.watch.once()
    return found


def addressed(id: str, **fields: object) -> NewJob:
    rerouted = Overrides(reroute=Reroute())
    plain = {"task": "t", "queue": "worker.a", "expires_ms": 5 * MINUTE, "overrides": rerouted}
    return NewJob(id=id, **{**plain, **fields})  # type: ignore[arg-type]


async def read(engine: Engine, id: str) -> Job:
    job = await engine.get(id)
    assert job is not None
    return job


async def test_a_worker_that_does_not_receive_for_30_s_is_unhealthy(watched: Watched) -> None:
    await watched.look(20)
    assert (await watched.view()).health is Health.HEALTHY
    await watched.look(10)
    view = await watched.view()
    assert (view.health, view.why) == (
        Health.UNHEALTHY,
        "it has not received from its queue at the broker for 30 s",
    )
    assert (await watched.view("b")).health is Health.HEALTHY
    watched.broker.consumers["worker.a"] = 1
    await watched.look(10)
    assert (await watched.view()).health is Health.HEALTHY, "it recovers by itself"


async def test_the_live_feed_has_it(watched: Watched) -> None:
    watcher = StoreWatcher(watched.engine, watched.clock.wall_ms)
    await watcher.once()
    await watched.look(30)
    await watcher.once()
    records = await watched.engine.load("events", limit=10)
    assert [b'"worker.unwell"' in (record.value or b"") for record in records] == [True]


async def test_replicas_and_restarts_count_the_same_time_once(watched: Watched) -> None:
    others = [watched.new_watch() for _ in range(3)]
    await watched.look(10, watched.watch, *others)
    # The first process ends, and another one starts.
    await watched.look(10, watched.new_watch(), *others[:1])
    assert (await watched.view()).unattended_ms == 20 * SECOND
    await watched.look(10, *others)
    assert (await watched.view()).unattended_ms == 30 * SECOND
    assert watched.broker.looks == 4, "one of them looks, for all"


async def test_of_two_looks_at_the_same_time_one_counts(watched: Watched) -> None:
    class Late(FakeBrokered):
        """Another process saves its look just before this one."""

        async def save(self, records: object) -> list[Saved]:
            await watched.watch.once()
            return await super().save(records)  # type: ignore[arg-type]

    watched.clock.advance(STEP)
    await workers(watched.engine, "a", "b")
    late = QueueWatch(Late(watched.engine, watched.broker), watched.broker)
    await late.once()
    assert (await watched.view()).unattended_ms == STEP


async def test_there_is_no_judgement_while_the_broker_is_unreachable(watched: Watched) -> None:
    await watched.look(30)
    assert (await watched.view()).health is Health.UNHEALTHY
    watched.broker.error = "connection refused"
    await watched.look(40)
    assert (await watched.view()).health is Health.HEALTHY, "the last look is too old"
    # It is back, and all workers have yet to connect.
    watched.broker.error = ""
    watched.broker.consumers = {"worker.a": 0, "worker.b": 0}
    await watched.look(50)
    assert {(await watched.view(name)).health for name in "ab"} == {Health.HEALTHY}
    watched.broker.consumers["worker.b"] = 1
    await watched.look(30)
    assert (await watched.view()).health is Health.UNHEALTHY, "this one did not"
    assert (await watched.view("b")).health is Health.HEALTHY


async def test_a_queue_that_the_broker_does_not_have_says_nothing(watched: Watched) -> None:
    del watched.broker.consumers["worker.a"]
    await watched.look(60)
    assert (await watched.view()).health is Health.HEALTHY


@pytest.mark.parametrize("order", ["cordon", "stop"])
async def test_cordoned_and_stopping_workers_are_left_out(watched: Watched, order: str) -> None:
    await watched.look(30)
    if order == "cordon":
        await Workers(watched.engine).cordon("a")
    for _ in range(2):
        watched.clock.advance(STEP)
        await workers(watched.engine, "a", stopping=order == "stop")
        await watched.watch.once()
    assert (await watched.view()).unattended_ms == 0


async def test_jobs_are_rerouted_early_where_they_allow_it(watched: Watched) -> None:
    engine = watched.engine
    await engine.enqueue(
        [
            addressed("moved"),
            addressed("fixed", overrides=Overrides()),
            addressed("later", delay_ms=10 * MINUTE, expires_ms=None),
            addressed("often", overrides=Overrides(reroute=Reroute(most=1, done=1))),
            addressed("unknown", task="other"),
        ]
    )
    await watched.look(20)
    assert (await read(engine, "moved")).queue == "worker.a"
    await watched.look(10)
    job = await read(engine, "moved")
    assert (job.queue, job.origin) == ("worker.b", "worker.a")
    [event] = job.events
    assert event.by == "queue watch"
    why = "worker a has not received from its queue at the broker for 30 s"
    assert event.text == f"from worker.a to worker.b: {why}"
    assert job.expires_at == watched.clock.wall_ms() + 5 * MINUTE
    assert job.overrides.reroute is not None
    assert job.overrides.reroute.done == 1
    for id_ in ("fixed", "later", "often", "unknown"):
        assert (await read(engine, id_)).queue == "worker.a", id_
    assert watched.listener.events == [Reaped(overdue=0, expired=0, rerouted=1)]
    watched.broker.consumers["worker.a"] = 1
    await engine.enqueue([addressed("stays")])
    await watched.look(10)
    assert (await read(engine, "stays")).queue == "worker.a"


async def test_jobs_of_a_worker_that_is_gone_are_rerouted_too(watched: Watched) -> None:
    """It ended and was forgotten; only its queues are left."""
    await watched.engine.declare(Queue(name="worker.gone"))
    watched.broker.consumers = {"worker.gone": 0, "worker.a": 1, "worker.b": 1}
    await watched.engine.enqueue([addressed("j", queue="worker.gone")])
    await watched.look(40)
    assert (await read(watched.engine, "j")).queue == "worker.a"


async def test_a_server_that_does_not_know_the_records_hides_no_worker(watched: Watched) -> None:
    class Earlier(FakeBrokered):
        async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
            if kind == UNATTENDED_KIND:
                raise Forbidden("records of this kind are private to the server")
            return await super().load(kind, after=after, limit=limit)

    earlier = Earlier(watched.engine, watched.broker)
    assert [view.name for view in await Workers(earlier).all()] == ["a", "b"]


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"workers": {"a": -1}}', b'{"workers": {"a": 1e30}}']
)
async def test_a_record_that_cannot_be_read_is_replaced(watched: Watched, value: bytes) -> None:
    [record] = await watched.engine.load(UNATTENDED_KIND, limit=10)
    broken = Record(kind=UNATTENDED_KIND, key=record.key, value=value, version=record.version)
    assert await watched.engine.save([broken]) == [Saved.SAVED]
    assert (await watched.view()).unattended_ms == 0
    await watched.look(40)
    assert (await watched.view()).health is Health.UNHEALTHY
