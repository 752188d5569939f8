"""The dead-letter handler with a real RabbitMQ: what expires there, in real time.

A step of the handler waits for messages at the broker, so no test sleeps.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import aiormq
import pytest
from aiormq import spec

from holdfast.core.model import Job, JobFilter, LeaseRequest, NewJob, Queue, Reason, State
from holdfast.core.verdict import Complete, Edit, Outcome, Settlement
from holdfast.core.workers import Health
from holdfast.engines.brokered import BrokeredEngine
from holdfast.engines.rabbitmq import RabbitBroker
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.ops.doctor import check_store
from holdfast.ops.rejected import REJECTED_QUEUE
from holdfast.ops.workers import Workers
from holdfast.upkeep import DeadLetterHandler, QueueWatch, Reaper
from tests.ops.test_reroute import workers

SECOND = 1_000
MINUTE = 60 * SECOND
ROUNDS = 10


class Store:
    """A ledger in a file and a broker with names of its own."""

    def __init__(self, path: Path, url: str) -> None:
        self.url = url
        self.prefix = f"t{uuid4().hex[:12]}"
        self._path = path
        self.engine = self.open()

    def open(self) -> BrokeredEngine:
        """An engine of its own, as another process would have."""
        broker = RabbitBroker(self.url, prefix=self.prefix)
        return BrokeredEngine(SQLiteEngine(self._path / "work.db"), broker)

    @property
    def handler(self) -> DeadLetterHandler:
        return DeadLetterHandler(self.engine, self.engine.broker())

    def name(self, queue: str) -> str:
        return f"{self.prefix}.default.{queue}"

    async def addressed(self, id: str = "j", *, expires_ms: int = 200) -> None:
        job = NewJob(id=id, task="t", queue="worker.a", expires_ms=expires_ms)
        assert [each.status for each in await self.engine.enqueue([job])] == ["new"]

    async def job(self, id: str = "j") -> Job:
        found = await self.engine.get(id)
        assert found is not None
        return found

    async def is_dead(self, id: str = "j") -> bool:
        return (await self.job(id)).state is State.DEAD

    async def dead_messages(self) -> int | None:
        return (await self.engine.broker().status()).dead_messages

    async def send(self, *messages: tuple[bytes, dict[str, Any]], to: str = ":dead") -> None:
        """As another program would, straight into the queue of dead messages or of a worker."""
        connection = await aiormq.connect(self.url)
        try:
            channel = await connection.channel()
            for body, properties in messages:
                answer = await channel.basic_publish(
                    body,
                    routing_key=self.name(to),
                    properties=spec.Basic.Properties(**properties),
                    mandatory=True,
                )
                assert isinstance(answer, spec.Basic.Ack), answer
        finally:
            await connection.close()


async def connected(engine: BrokeredEngine) -> None:
    async def is_connected() -> bool:
        return not (await engine.broker().status()).error

    await until(pause, is_connected)


async def until(
    step: Callable[[], Awaitable[object]], holds: Callable[[], Awaitable[bool]]
) -> None:
    ends_s = monotonic() + 60
    while not await holds():
        assert monotonic() < ends_s, "it never came to be"
        await step()


async def pause() -> None:
    await asyncio.sleep(0.01)


@pytest.fixture
async def store(memory_path: Path, amqp_url: str) -> AsyncIterator[Store]:
    found = Store(memory_path, amqp_url)
    await found.engine.open()
    await found.engine.declare(Queue(name="worker.a"))
    await connected(found.engine)
    yield found
    await found.engine.close()


async def test_no_worker_and_past_the_ttl_the_job_is_dead_with_the_reason(store: Store) -> None:
    await store.addressed()
    await until(store.handler.once, store.is_dead)
    job = await store.job()
    assert job.reason is Reason.EXPIRED
    [event] = job.events
    assert event.by == "dead-letter handler"
    assert event.failure is not None
    assert event.failure.message == "worker a did not take it within its TTL of 200ms"
    assert f'"queue":"{store.name("worker.a")}"' in event.failure.trace
    assert '"reason":"expired"' in event.failure.trace
    assert await store.dead_messages() == 0


async def test_the_ttl_was_extended_meanwhile(store: Store) -> None:
    await store.addressed()
    longer = Edit(expires_ms=1_500)
    assert await store.engine.amend(JobFilter(ids=("j",)), longer, limit=1) == 1
    await until(store.handler.once, store.is_dead)
    job = await store.job()
    assert job.finished_at is not None
    assert job.expires_at is not None
    assert job.finished_at >= job.expires_at
    assert job.events[-1].by == "dead-letter handler", "the second message told it"


async def test_the_ttl_was_shortened_or_the_message_is_behind_a_longer_one(store: Store) -> None:
    """The broker gives the message up late, so the reaper ends the job."""
    await store.addressed("long", expires_ms=5 * MINUTE)
    broker = store.engine.broker()

    async def is_first() -> bool:
        return any(view.messages for view in await broker.worker_queues(["worker.a"]))

    # Messages that are sent together may arrive in any order.
    await until(pause, is_first)
    await store.addressed("shortened", expires_ms=5 * MINUTE)
    await store.addressed("behind")
    shorter = Edit(expires_ms=100)
    assert await store.engine.amend(JobFilter(ids=("shortened",)), shorter, limit=1) == 1

    async def both_are_dead() -> bool:
        return await store.is_dead("shortened") and await store.is_dead("behind")

    async def step() -> None:
        await store.handler.once()
        await Reaper(store.engine).once()

    await until(step, both_are_dead)
    for id_ in ("shortened", "behind"):
        assert (await store.job(id_)).events[-1].by == "reaper"
    assert (await store.job("long")).state is State.WAITING


async def test_with_the_handler_off_the_reaper_ends_the_job(store: Store) -> None:
    await store.addressed()
    await until(Reaper(store.engine).once, store.is_dead)

    async def one_waits() -> bool:
        return await store.dead_messages() == 1

    await until(pause, one_waits)
    await until(store.handler.once, has_none(store))
    assert len((await store.job()).events) == 1


def has_none(store: Store) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return await store.dead_messages() == 0

    return holds


async def test_a_handler_that_ends_between_the_write_and_the_acknowledgement(
    store: Store,
) -> None:
    class Cut(BaseException):
        pass

    other = store.open()
    await other.open()
    await connected(other)
    broker = other.broker()

    async def cut(*_: object, **__: object) -> None:
        await broker.close()
        raise Cut

    broker.settle_dead = cut  # type: ignore[method-assign]
    await store.addressed()
    handler = DeadLetterHandler(other, broker)
    with pytest.raises(Cut):
        await until(handler.once, store.is_dead)
    assert await store.is_dead()
    handled: list[Any] = []
    again = DeadLetterHandler(store.engine, store.engine.broker(), tell=handled.append)

    async def was_handled() -> bool:
        return bool(handled)

    await until(again.once, was_handled)
    assert handled[0].outcomes == {"worker.a": {"finished": 1}}
    assert len((await store.job()).events) == 1
    await other.close()


async def test_a_worker_that_takes_the_job_at_the_moment_of_expiry(store: Store) -> None:
    """A worker, two handlers and a reaper, in real time: exactly one outcome each."""
    rounds = int(os.environ.get("HOLDFAST_EXPIRY_ROUNDS") or ROUNDS)
    other = store.open()
    await other.open()
    await connected(other)
    stop = asyncio.Event()

    async def run(step: Callable[[], Awaitable[object]]) -> None:
        while not stop.is_set():
            if await step() is None:
                # The broker is away for a moment: the loop must go on, or it never comes back.
                await pause()

    async def reap() -> None:
        await Reaper(store.engine).once()
        await asyncio.sleep(random.random() / 100)

    handlers = [
        DeadLetterHandler(each, each.broker(), wait_ms=50) for each in (store.engine, other)
    ]
    loops = [asyncio.create_task(run(each.once)) for each in handlers]
    loops.append(asyncio.create_task(run(reap)))
    outcomes = {State.DONE: 0, State.DEAD: 0}
    for number in range(rounds):
        id_ = f"{number}"
        await store.addressed(id_, expires_ms=30)
        # Around the moment of expiry, more or less.
        await asyncio.sleep(random.uniform(0.02, 0.032))
        leases = await other.lease(LeaseRequest(queues=("worker.a",), worker="a", wait_ms=5))
        settlements = [Settlement(lease=each, verdict=Complete()) for each in leases]
        if settlements:
            assert await other.settle(settlements) == [Outcome.SETTLED]

        async def has_ended(id_: str = id_) -> bool:
            return (await store.job(id_)).state.finished

        await until(pause, has_ended)
        job = await store.job(id_)
        assert (job.state, job.attempt, len(job.events)) in (
            (State.DONE, 1, 0),
            (State.DEAD, 0, 1),
        ), job
        assert (job.state is State.DONE) == bool(leases)
        outcomes[job.state] += 1
    stop.set()
    await asyncio.gather(*loops)
    print(f"taken {outcomes[State.DONE]}, expired {outcomes[State.DEAD]}")
    assert sum(outcomes.values()) == rounds
    await other.close()


HOSTILE: list[tuple[bytes, dict[str, Any]]] = [
    (b"", {}),
    (b"\x00" * 1_000, {"content_type": "application/json"}),
    (b'{"id": 1}', {"content_type": "application/json"}),
    (b'{"id": "../..", "queue": "worker.a"}', {}),
    (b'{"id": "j", "queue": "default"}', {}),
    (b"[" * 100_000, {}),
    (os.urandom(10 * 1024 * 1024), {"content_type": "image/png"}),
    (b"deep", {"headers": {"a": {"b": {"c": [1, {"d": "e"}]}}}}),
    (b"many", {"headers": {f"h{number}": number for number in range(1_000)}}),
    (b"x-death", {"headers": {"x-death": "not a list", "nul": "a\x00b"}}),
    (b"lie", {"headers": {"x-death": [{"queue": "x", "reason": 5, "time": "y", "count": {}}]}}),
]


async def test_messages_that_are_not_ours_are_kept_whole(store: Store) -> None:
    await store.send(*HOSTILE)
    # A worker's queue gives up what its worker does not understand.
    await store.addressed("first", expires_ms=100)
    await until(store.handler.once, lambda: store.is_dead("first"))
    await store.send((b"to a worker", {"expiration": "1"}), to="worker.a")

    async def kept() -> list[Job]:
        wanted = JobFilter(queue=REJECTED_QUEUE, states=(State.DEAD,), reason=Reason.REJECTED)
        return list((await store.engine.find(wanted, limit=100)).jobs)

    async def all_are_kept() -> bool:
        return len({job.id.partition(".part")[0] for job in await kept()}) == len(HOSTILE) + 1

    await until(store.handler.once, all_are_kept)
    assert await store.dead_messages() == 0
    found = {job.payload: job for job in await kept()}
    large = HOSTILE[6][0]
    for body in [*(body for body, _ in HOSTILE if body != large), b"to a worker"]:
        assert body in found, body[:20]
    assert found[b"deep"].headers["a"] == '{"b":{"c":[1,{"d":"e"}]}}'
    [first] = [job for job in found.values() if job.payload and large.startswith(job.payload)]
    rest = [job for job in found.values() if job.id.startswith(f"{first.id}.part")]
    rest.sort(key=lambda job: int(job.id.rpartition(".part")[2]))
    assert b"".join(job.payload for job in [first, *rest]) == large


async def test_who_does_not_receive_is_seen(store: Store) -> None:
    await workers(store.engine, "a", "b")
    await store.addressed(expires_ms=5 * MINUTE)
    broker = store.engine.broker()

    async def views() -> dict[str, int]:
        return {
            view.queue: view.consumers
            for view in await broker.worker_queues(["worker.a", "worker.b"])
        }

    async def is_there() -> bool:
        return await views() == {"worker.a": 0}

    await until(pause, is_there)
    watch = QueueWatch(store.engine, broker)
    await watch.once()
    [a, _] = await Workers(store.engine).all()
    assert (a.health, a.unattended_ms) == (Health.HEALTHY, 0)
    other = store.open()
    await other.open()
    # The worker looks for jobs, and then receives.
    assert await other.lease(LeaseRequest(queues=("worker.a",), worker="a", wait_ms=1))

    async def receives() -> bool:
        return (await views())["worker.a"] == 1

    await until(pause, receives)
    await other.close()


async def test_the_doctor_waits_for_the_connection(store: Store) -> None:
    other = store.open()
    await other.open()
    findings = [each for each in await check_store(other) if each.name == "broker"]
    assert [(each.level, "0 dead messages" in each.text) for each in findings] == [("ok", True)]
    await other.close()


async def test_the_first_steps_wait_for_the_connection(store: Store) -> None:
    other = store.open()
    await other.open()
    assert await other.broker().take_dead(1, SECOND) == []
    assert await other.broker().worker_queues(["worker.none"]) == []
    await other.close()


async def test_a_wrong_password_does_not_leak(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    place = store.url.partition("@")[2]
    broker = RabbitBroker(f"amqp://guest:hunter2@{place}", prefix=store.prefix)
    engine = BrokeredEngine(SQLiteEngine(store._path / "work.db"), broker)
    await engine.open()
    assert await DeadLetterHandler(engine, broker).once() is None
    [finding] = [each for each in await check_store(engine) if each.name == "broker"]
    assert finding.level == "warn"
    assert "guest" in finding.text, "the first attempt to connect was awaited"
    assert "hunter2" not in finding.text + caplog.text
    await engine.close()
