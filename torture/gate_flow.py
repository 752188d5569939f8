"""The processes of a torture test of gates, and its checks.

Producers publish messages at the broker, gates move them in, workers complete each job with a
follow-up in the queue of an outlet, and gates move those out. Everything is killed meanwhile. Each
confirmed message with an id must be exactly one job, and each job of the outlet at least one
message.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic
from pamqp.common import FieldTable

from holdfast.conformance.history import Journal, Recorded
from holdfast.conformance.rabbitmq_server import RabbitNode
from holdfast.core.backoff import Backoff
from holdfast.core.model import Job, LeaseRequest, NewJob, Queue, State
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.gates import GateRunner
from holdfast.ops.gates import Gate, Gates
from holdfast.upkeep.reaper import Reaper
from torture.client import REAP_S, retry_until_answered

VHOST = "gates"
SOURCE, SINK = "source", "sink"
BROKER = "rabbit"
LEASE_MS = 2_000
BATCHES = (1, 20)
PAUSE_S_MAX = 0.1
REPEAT_SHARE = 0.5
"""Of the messages whose confirm is lost, a producer publishes this share again with the same id."""
UNNAMED_SHARE = 0.05
CONFIRM_S_MAX = 5.0
READ_S = 20.0
READ_AHEAD = 500
_BREAKS = (Exception,)
"""The library may end a call of a lost connection with a bare Exception."""


def _queue(name: str) -> Queue:
    quick = Backoff(kind="constant", first_ms=100, cap_ms=200, jitter=0.5)
    # Outages are no fault of a job.
    return Queue(name=name, lease_ms=LEASE_MS, backoff=quick, max_attempts=1_000, max_crashes=1_000)


QUEUES = (_queue("in"), _queue("out"))
GATES = (
    Gate(name="in", direction="inlet", broker=BROKER, queue="in", source=SOURCE, task="torture"),
    Gate(name="out", direction="outlet", broker=BROKER, queue="out", routing_key=SINK),
)


async def prepare(engine: Engine, journal: Journal, amqp: str) -> None:
    """Declare the queues on both sides, and add the gates."""
    recorded = Recorded(engine, journal)
    await recorded.open()
    for queue in QUEUES:
        await recorded.declare(queue)
    for gate in GATES:
        await Gates(recorded).add(gate)
    await recorded.close()
    async with _connected(amqp) as connection:
        channel = await connection.channel()
        for name in (SOURCE, SINK):
            arguments: FieldTable = {"x-queue-type": "quorum"}
            await channel.queue_declare(name, durable=True, arguments=arguments)


async def run_gates(engine: Engine, amqp: str) -> None:
    """Run both gates until the process is killed."""
    await retry_until_answered(engine.open)
    await GateRunner(engine, {BROKER: amqp}).run(asyncio.Event())


async def run_worker(engine: Engine, process: str) -> None:
    """Complete jobs of the inlet with a job for the outlet, until the process is killed."""
    await retry_until_answered(engine.open)
    async with asyncio.TaskGroup() as group:
        group.create_task(_work(engine, process))
        group.create_task(_reap(engine))


async def _work(engine: Engine, process: str) -> None:
    request = LeaseRequest(queues=("in",), limit=50, worker=process, wait_ms=200)
    while True:
        try:
            leases = await engine.lease(request)
            settlements = [
                Settlement(lease=lease, verdict=Complete(then=(follow_up(lease.job),)))
                for lease in leases
            ]
            if settlements:
                await engine.settle(settlements)
        except EngineError:
            await asyncio.sleep(0.05)


def follow_up(job: Job) -> NewJob:
    """The job for the outlet."""
    return NewJob(id=f"{job.id}.out", task="torture", queue="out", payload=job.payload)


async def _reap(engine: Engine) -> None:
    reaper = Reaper(engine)
    while True:
        await asyncio.sleep(REAP_S)
        with contextlib.suppress(EngineError):
            await reaper.once()


@contextlib.asynccontextmanager
async def _connected(amqp: str) -> AsyncIterator[aiormq.Connection]:
    connection = aiormq.Connection(amqp)
    try:
        async with asyncio.timeout(CONFIRM_S_MAX):
            await connection.connect()
        yield connection
    finally:
        with contextlib.suppress(*_BREAKS):
            async with asyncio.timeout(1):
                await connection.close()


class ForeignMessage(NamedTuple):
    """A message of another program. `id` is None if it has none; `body` is unique."""

    id: str | None
    body: str


class ForeignProducer:
    """Publishes messages as another program does, and writes down what it tried and what the broker
    confirmed: a line before the call and one after it, each with a single write."""

    def __init__(self, process: str, amqp: str, directory: Path, rng: random.Random) -> None:
        self._process = process
        self._amqp = amqp
        self._rng = rng
        path = directory / f"{process}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._made = 0

    async def run(self) -> None:
        """Publish until the process is killed."""
        batch: list[ForeignMessage] = []
        while True:
            with contextlib.suppress(*_BREAKS):
                async with _connected(self._amqp) as connection:
                    channel = await connection.channel(publisher_confirms=True)
                    while not channel.is_closed:
                        batch = batch or [self._message() for _ in range(self._rng.choice(BATCHES))]
                        batch = await self._publish(channel, batch)
                        await asyncio.sleep(self._rng.random() * PAUSE_S_MAX)
            await asyncio.sleep(PAUSE_S_MAX)

    def _message(self) -> ForeignMessage:
        self._made += 1
        name = f"{self._process}-{self._made}"
        is_named = self._rng.random() >= UNNAMED_SHARE
        return ForeignMessage(name if is_named else None, name)

    async def _publish(
        self, channel: AbstractChannel, batch: list[ForeignMessage]
    ) -> list[ForeignMessage]:
        """Returns the messages to publish again, with the same ids."""
        for message in batch:
            self._note("try", message)
        confirmed = await asyncio.gather(*(self._is_confirmed(channel, each) for each in batch))
        return [
            message
            for message, is_confirmed in zip(batch, confirmed, strict=True)
            if not is_confirmed and message.id and self._rng.random() < REPEAT_SHARE
        ]

    async def _is_confirmed(self, channel: AbstractChannel, message: ForeignMessage) -> bool:
        properties = Basic.Properties(message_id=message.id, delivery_mode=2)
        try:
            async with asyncio.timeout(CONFIRM_S_MAX):
                await channel.basic_publish(
                    message.body.encode(), routing_key=SOURCE, properties=properties
                )
        except (*_BREAKS, asyncio.CancelledError):
            # The library cancels calls whose connection breaks; nobody else cancels this one.
            return False
        self._note("confirmed", message)
        return True

    def _note(self, what: str, message: ForeignMessage) -> None:
        line = {"what": what, "id": message.id, "body": message.body}
        os.write(self._file, json.dumps(line).encode() + b"\n")


async def wait_until_empty(node: RabbitNode, queue: str, seconds_max: float) -> bool:
    """Wait until no message is in a queue of the broker, delivered ones included."""
    end = time.monotonic() + seconds_max
    while node.depth(VHOST, queue):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.2)
    return True


class SinkMessage(NamedTuple):
    """A message that the outlet published."""

    id: str | None
    body: str


async def read_sink(node: RabbitNode) -> list[SinkMessage]:
    """Take all messages that the outlet published. A broker that just recovered may answer late, or
    deliver a message again."""
    found: list[SinkMessage] = []
    while node.depth(VHOST, SINK):
        with contextlib.suppress(*_BREAKS):
            async with asyncio.timeout(READ_S), _connected(node.url(VHOST)) as connection:
                channel = await connection.channel()

                async def take(message: DeliveredMessage, channel: Any = channel) -> None:
                    id_ = message.header.properties.message_id
                    found.append(SinkMessage(id_, message.body.decode()))
                    await channel.basic_ack(message.delivery_tag)

                await channel.basic_qos(prefetch_count=READ_AHEAD)
                await channel.basic_consume(SINK, take)
                await wait_until_empty(node, SINK, READ_S)
    return found


def judge_gates(
    lines: Sequence[dict[str, Any]], jobs: Sequence[Job], sink: Sequence[SinkMessage]
) -> tuple[dict[str, int], list[str]]:
    """The counts of a run, and what is wrong. Bodies tell messages apart: those without an id have
    one too."""
    ids = {line["body"]: line["id"] for line in lines}
    confirmed = {line["body"] for line in lines if line["what"] == "confirmed"}
    entered = [job for job in jobs if job.queue == "in"]
    left = {job.id: job for job in jobs if job.queue == "out"}
    made = Counter(job.payload.decode() for job in entered)
    published = Counter(message.id for message in sink)
    wrong = [
        *(f"confirmed message {body} is no job" for body in confirmed if not made[body]),
        *(
            f"message {body} is {count} jobs"
            for body, count in made.items()
            if count > 1 and ids.get(body)
        ),
        *(f"job for {body}, which no producer published" for body in made if body not in ids),
        *(f"job {job.id} is {job.state}" for job in jobs if job.state is not State.DONE),
        *(
            f"job {job.id} was completed without its follow-up"
            for job in entered
            if follow_up(job).id not in left
        ),
        *(f"job {id_} of the outlet is no message" for id_ in left if not published[id_]),
        *(
            f"message {message.id} is not its job"
            for message in sink
            if message.id not in left or left[message.id].payload.decode() != message.body
        ),
    ]
    counts = {
        "confirmed": len(confirmed),
        "entered": len(entered),
        "published": len(published),
        "published_again": len(sink) - len(published),
    }
    return counts, wrong
