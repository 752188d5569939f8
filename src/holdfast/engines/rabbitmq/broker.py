"""RabbitBroker: notifications, messages for addressed jobs and dead messages, over one connection.

Calls only write down what is to be sent; tasks send it while there is a connection. A connection
that is lost is replaced, and what was not confirmed is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import NamedTuple
from uuid import uuid4

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelClosed, DeliveryError, PublishError

from holdfast.core import bounds
from holdfast.core.text import counted
from holdfast.core.workers import addressee
from holdfast.engines.broker import BrokerStatus, DeadMessage, JobMessage, WorkerQueueView
from holdfast.engines.rabbitmq.connection import (
    RabbitTarget,
    Reconnecting,
    amqp_errors,
    end_tasks,
    explain,
    run_together,
)
from holdfast.engines.rabbitmq.consumer import Consumer
from holdfast.engines.rabbitmq.message import Properties, dead_message, job_message, read_job
from holdfast.engines.rabbitmq.topology import (
    ALL_QUEUES,
    LISTENER_MESSAGES_MAX,
    BrokerQueue,
    RabbitNames,
    declare_dead_queue,
    declare_exchanges,
    declare_queue,
    inspect_queue,
    open_channel,
    worker_arguments,
)
from holdfast.errors import EngineUnavailable

PAUSE_S = 0.005
"""After a notification, before the next of the same queue: a busy producer sends few of them."""
WINDOW = 256
"""Messages for jobs that are sent before the first of them is confirmed."""
BUFFER_MAX = 10_000
TRIES_MAX, REFUSED_S = 4, 0.2
HELD_S_MAX = 60.0
"""Messages of a worker that does not look are acknowledged after this time: RabbitMQ closes a
channel that holds one for half an hour."""
HELD_MAX = 1_000
NAMES_MAX = 1_000
DEAD_PREFETCH = 100
ANSWER_S_MAX = 5.0
CLOSE_S_MAX = 1.0
RETRY_S = 10.0
REBIND_S = 60.0
"""A person may delete the queue or the exchange of the notifications; nobody tells."""
UNUSED_S = 3600.0
"""A worker with only long jobs waits for none meanwhile, and still receives."""
_WARN_S = 60.0

_log = logging.getLogger("holdfast.rabbitmq")


class _Waiting(NamedTuple):
    """A message for a job, and when it was given."""

    message: JobMessage
    since: float


class RabbitBroker:
    """See `Broker`."""

    def __init__(
        self,
        place: str,
        *,
        prefix: str = "holdfast",
        dead_ttl_ms: int = bounds.DAY_MS,
        ca: str | None = None,
        cert: str | None = None,
    ) -> None:
        self._target = target = RabbitTarget.parse(place, ca=ca, cert=cert)
        self._prefix = prefix
        self._dead_ttl_ms = dead_ttl_ms
        self._names = RabbitNames(prefix, "default")
        self._wake: Callable[[], None] = lambda: None
        self._link = Reconnecting(target, self._serve, self._progressed)
        self._sender = uuid4().hex
        self._numbers = itertools.count(1)
        self._warnings: dict[str, str] = {}
        """By queue; each is logged once."""
        self._compared: set[str] = set()
        self._declared_at: dict[str, float] = {}
        self._notices: set[str] = set()
        self._messages: deque[_Waiting] = deque()
        self._unconfirmed = 0
        self._listening: dict[str, float] = {}
        """When each queue was last waited for."""
        self._bound: set[str] = set()
        """The queues of which notifications are received."""
        self._workers: dict[str, _WorkerMessages] = {}
        self._dead: Consumer | None = None
        self._dropped = _Dropped()
        self._make_events()

    async def open(self, namespace: str, wake: Callable[[], None]) -> None:
        if self._link.is_running:
            return
        self._names = RabbitNames(self._prefix, namespace)
        self._wake = wake
        self._make_events()
        self._link = Reconnecting(self._target, self._serve, self._progressed)
        self._link.start()

    async def close(self) -> None:
        if not self._link.is_running:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                # A program that ends soon may not even be connected yet.
                while self._has_unsent and not self._link.has_failed:
                    self._progress.clear()
                    await self._progress.wait()
        await self._link.stop()
        self._notices.clear()
        self._messages.clear()
        self._listening.clear()

    def notify(self, queues: Collection[str]) -> None:
        self._notices.update(queues or (ALL_QUEUES,))
        if len(self._notices) > NAMES_MAX:
            self._notices = {ALL_QUEUES}
        self._has_notices.set()

    def deliver(self, messages: Sequence[JobMessage]) -> None:
        now = monotonic()
        self._messages.extend(_Waiting(message, now) for message in messages)
        while len(self._messages) > BUFFER_MAX:
            self._messages.popleft()
            self._dropped.add("too many wait for the broker")
        self._has_messages.set()

    def listen(self, queues: Collection[str]) -> None:
        now = monotonic()
        has_new = any(name not in self._listening for name in queues)
        self._listening.update(dict.fromkeys(queues, now))
        if has_new:
            if len(self._listening) > NAMES_MAX:
                self._forget_unused(now)
            self._has_new_names.set()
            self._has_new_workers.set()

    def _forget_unused(self, now: float) -> None:
        """Stop listening to queues that no lease waits for: each worker costs a channel, and a
        server may have waited for many that are gone. Beyond the bound, jobs of the newest queues
        are found by polling and by notifications to all."""
        used = [(name, at) for name, at in self._listening.items() if now - at < UNUSED_S]
        self._listening = dict(used[:NAMES_MAX])

    def received(self, queues: Collection[str]) -> list[str]:
        held = [self._workers[queue].ids() for queue in queues if queue in self._workers]
        return list(itertools.chain.from_iterable(held))

    def acknowledge(self, ids: Collection[str]) -> None:
        for worker in self._workers.values():
            if worker.finish(ids):
                self._has_finished.set()

    async def take_dead(self, limit: int, wait_ms: int) -> list[DeadMessage]:
        end = monotonic() + wait_ms / 1000
        if not await self._link.first_attempt(wait_ms / 1000):
            return []
        with amqp_errors(self._target):
            consumer = await self._dead_consumer(limit)
            while True:
                if found := consumer.take(limit):
                    return [dead_message(*one, self._names) for one in found]
                if consumer.is_closed:
                    raise EngineUnavailable(
                        self._link.error or f"{self._target.where} ended the delivery"
                    )
                left_s = end - monotonic()
                if left_s <= 0:
                    return []
                await consumer.wait(left_s)

    async def settle_dead(
        self, done: Sequence[DeadMessage], again: Sequence[DeadMessage] = ()
    ) -> None:
        consumer = self._dead
        if consumer is None or consumer.is_closed:
            return
        # If the connection is lost now, the broker offers all of them again.
        with contextlib.suppress(EngineUnavailable), amqp_errors(self._target):
            await consumer.acknowledge([one.tag for one in done])
            await consumer.give_back([one.tag for one in again])

    async def worker_queues(self, names: Collection[str]) -> list[WorkerQueueView]:
        await self._link.first_attempt(ANSWER_S_MAX)
        connection = self._connected()
        views: list[WorkerQueueView] = []
        with amqp_errors(self._target):
            for name in names:
                try:
                    async with asyncio.timeout(ANSWER_S_MAX):
                        found = await inspect_queue(connection, self._names.full(name))
                        if found is not None and name not in self._compared:
                            # It exists, so this only compares the arguments.
                            await self._declare_worker_queue(connection, name)
                except TimeoutError:
                    self._warn(name, self._silent(self._names.full(name)))
                    continue
                if found is not None:
                    views.append(
                        WorkerQueueView(
                            queue=name, messages=found.messages, consumers=found.consumers
                        )
                    )
        return views

    async def status(self) -> BrokerStatus:
        await self._link.first_attempt(ANSWER_S_MAX)
        dead: BrokerQueue | None = None
        error = self._link.error
        try:
            connection = self._connected()
            with amqp_errors(self._target):
                async with asyncio.timeout(ANSWER_S_MAX):
                    dead = await inspect_queue(connection, self._names.dead)
            version = str(connection.server_properties.get("version", ""))
        except EngineUnavailable as unavailable:
            error, version = str(unavailable), ""
        warnings = [*self._warnings.values(), *self._dropped.warnings()]
        return BrokerStatus(
            error=error,
            version=version,
            warnings=tuple(warnings),
            dead_messages=None if dead is None else dead.messages + self._dead_here,
        )

    def _make_events(self) -> None:
        """Make new events and locks: the broker may have been open on another event loop before."""
        self._has_notices, self._has_messages = asyncio.Event(), asyncio.Event()
        self._has_new_names, self._has_new_workers = asyncio.Event(), asyncio.Event()
        self._has_finished, self._progress = asyncio.Event(), asyncio.Event()
        self._opening_dead, self._declaring = asyncio.Lock(), asyncio.Lock()

    @property
    def _has_unsent(self) -> bool:
        sending = self._notices or self._messages or self._unconfirmed
        return bool(sending) or any(worker.is_acknowledging for worker in self._workers.values())

    @property
    def _dead_here(self) -> int:
        """Dead messages that are here and not handed out."""
        return 0 if self._dead is None else self._dead.waiting

    def _progressed(self) -> None:
        self._progress.set()

    def _connected(self) -> aiormq.Connection:
        connection = self._link.connection
        if connection is None or connection.is_closed or self._link.error:
            error = self._link.error or f"{self._target.where} is not connected"
            raise EngineUnavailable(error)
        return connection

    async def _serve(self, connection: aiormq.Connection) -> None:
        """Send and receive until the connection is lost."""
        try:
            with amqp_errors(self._target):
                await declare_exchanges(connection, self._names)
                await self._declare_dead_queue(connection)
                self._link.note_up()
                await run_together(
                    self._send_notices(connection),
                    self._send_messages(connection),
                    self._receive_notices(connection),
                    self._receive_messages(connection),
                    self._acknowledge_finished(),
                    self._watch(connection),
                )
        finally:
            self._bound.clear()
            self._workers.clear()
            self._dead = None

    async def _watch(self, connection: aiormq.Connection) -> None:
        """End the other tasks with the connection."""
        await asyncio.wait([connection.closing])
        raise EngineUnavailable(f"{self._target.where} closed the connection")

    async def _send_notices(self, connection: aiormq.Connection) -> None:
        """Send notifications in batches, one at a time: at most one of each queue is in flight."""
        channel = await open_channel(connection, confirms=True)
        while True:
            await self._has_notices.wait()
            self._has_notices.clear()
            names, self._notices = self._notices, set()
            self._unconfirmed += 1
            try:
                await asyncio.gather(
                    *(
                        channel.basic_publish(
                            b"",
                            exchange=self._names.notifications,
                            routing_key=name,
                            properties=Properties(delivery_mode=1, app_id=self._sender),
                            wait=False,
                        )
                        for name in names
                    )
                )
            except BaseException:
                self.notify(names)
                raise
            finally:
                self._unconfirmed -= 1
                self._progress.set()
            await asyncio.sleep(PAUSE_S)

    async def _send_messages(self, connection: aiormq.Connection) -> None:
        """Send each message in a task of its own: a queue that does not answer delays no other."""
        channel = await open_channel(connection, confirms=True)
        tasks: set[asyncio.Task[None]] = set()
        window = asyncio.Semaphore(WINDOW)

        def finished(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            # The loss of the connection, which `_watch` reports.
            _ = task.cancelled() or task.exception()
            window.release()
            self._unconfirmed -= 1
            self._progress.set()

        try:
            while True:
                await window.acquire()
                # None of them after a delivery of nothing.
                while not self._messages:
                    self._has_messages.clear()
                    await self._has_messages.wait()
                self._unconfirmed += 1
                send = self._send_message(connection, channel, self._messages.popleft())
                task = asyncio.create_task(send)
                tasks.add(task)
                task.add_done_callback(finished)
        finally:
            await end_tasks(list(tasks))

    async def _send_message(
        self, connection: aiormq.Connection, channel: Channel, one: _Waiting
    ) -> None:
        """Send until it is confirmed or refused several times. If the connection is lost, the
        message is sent again over the next."""
        try:
            for _ in range(TRIES_MAX):
                sent_at = monotonic()
                try:
                    await self._publish(channel, one)
                except PublishError:
                    await self._declare_missing(connection, one.message.queue, sent_at)
                except (DeliveryError, TimeoutError):
                    # A queue that is being made, or has lost its leader, refuses for a moment.
                    await asyncio.sleep(REFUSED_S)
                else:
                    return
            self._dropped.add("their queue at the broker is full or does not answer")
        except BaseException:
            self._messages.append(one)
            raise

    async def _declare_missing(
        self, connection: aiormq.Connection, queue: str, missing_at: float
    ) -> None:
        """Declare a worker's queue, unless another message of it did so since then."""
        async with self._declaring:
            if self._declared_at.get(queue, 0.0) <= missing_at:
                await self._declare_worker_queue(connection, queue)
                self._declared_at[queue] = monotonic()

    async def _publish(self, channel: Channel, one: _Waiting) -> None:
        waited_ms = int((monotonic() - one.since) * 1000)
        body, properties = job_message(one.message, waited_ms)
        await channel.basic_publish(
            body,
            routing_key=self._names.full(one.message.queue),
            properties=properties,
            mandatory=True,
            timeout=ANSWER_S_MAX,
            wait=False,
        )

    async def _receive_notices(self, connection: aiormq.Connection) -> None:
        """Receive notifications in a queue of this process, bound to the names of the queues that
        it waits for. A process that never waits has none."""
        while not self._listening:
            self._has_new_names.clear()
            await self._has_new_names.wait()
        channel = await open_channel(connection)
        queue = self._names.full(f":notify.{uuid4().hex}")
        await channel.queue_declare(
            queue,
            exclusive=True,
            auto_delete=True,
            arguments={"x-max-length": LISTENER_MESSAGES_MAX},
        )
        await channel.basic_consume(queue, self._on_notice, no_ack=True)
        checked: set[str] = set()
        while True:
            self._has_new_names.clear()
            wanted = {ALL_QUEUES, *self._listening}
            for name in sorted(self._bound - wanted):
                await channel.queue_unbind(queue, self._names.notifications, name)
            for name in sorted(wanted - checked):
                await channel.queue_bind(queue, self._names.notifications, name)
            is_new = bool(wanted - self._bound)
            self._bound = checked = wanted
            if is_new:
                # Messages sent before the binding were not received.
                self._wake()
            try:
                async with asyncio.timeout(REBIND_S):
                    await self._has_new_names.wait()
            except TimeoutError:
                # Bind again: if the queue or the exchange is gone, this fails, and both are
                # declared again.
                checked = set()

    async def _on_notice(self, message: DeliveredMessage) -> None:
        # The ledger has woken the waiting leases of this process already.
        if message.header.properties.app_id != self._sender:
            self._wake()

    async def _receive_messages(self, connection: aiormq.Connection) -> None:
        """Consume the queues of the workers in this process. A queue that fails, e.g. because the
        user has no permission, is tried again later."""
        while True:
            self._has_new_workers.clear()
            for queue in [name for name in self._listening if addressee(name) is not None]:
                worker = self._workers.get(queue)
                if worker is None or worker.consumer.is_closed:
                    await self._consume(connection, queue)
                elif worker.finish_before(monotonic() - HELD_S_MAX):
                    self._has_finished.set()
            for queue in [name for name in self._workers if name not in self._listening]:
                await self._workers.pop(queue).consumer.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._has_new_workers.wait()

    async def _consume(self, connection: aiormq.Connection, queue: str) -> None:
        worker = _WorkerMessages(self._names.full(queue), self._numbers, self._on_message)
        # Before it starts: messages may arrive at once.
        self._workers[queue] = worker
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._declare_worker_queue(connection, queue)
                await worker.consumer.start(connection, HELD_MAX)
        except ChannelClosed as error:
            self._warn(queue, explain(self._target, error))
        except TimeoutError:
            self._warn(queue, self._silent(self._names.full(queue)))

    def _on_message(self) -> None:
        # One that is not ours is given up at once.
        self._has_finished.set()
        self._wake()

    async def _acknowledge_finished(self) -> None:
        while True:
            await self._has_finished.wait()
            self._has_finished.clear()
            for worker in list(self._workers.values()):
                await worker.acknowledge()
            self._progress.set()

    async def _dead_consumer(self, prefetch: int) -> Consumer:
        connection = self._connected()
        async with self._opening_dead:
            if self._dead is None or self._dead.is_closed:
                # It may have been deleted since the connection was made.
                await declare_exchanges(connection, self._names)
                await self._declare_dead_queue(connection)
                consumer = Consumer(self._names.dead, self._numbers)
                async with asyncio.timeout(ANSWER_S_MAX):
                    await consumer.start(connection, max(prefetch, DEAD_PREFETCH))
                self._dead = consumer
            return self._dead

    async def _declare_dead_queue(self, connection: aiormq.Connection) -> None:
        """Declare the queue of dead messages. If it does not answer, everything else works."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                self._note(await declare_dead_queue(connection, self._names, self._dead_ttl_ms))
        except TimeoutError:
            self._warn(self._names.dead, self._silent(self._names.dead))

    def _silent(self, name: str) -> str:
        return (
            f"queue {name} at {self._target.where} does not answer: if it does not come back, "
            "delete it, and Holdfast declares it again"
        )

    async def _declare_worker_queue(self, connection: aiormq.Connection, queue: str) -> None:
        name = self._names.full(queue)
        self._note(await declare_queue(connection, name, worker_arguments(self._names, queue)))
        self._compared.add(queue)

    def _note(self, declared: BrokerQueue) -> None:
        if declared.warning:
            self._warn(declared.name, declared.warning)

    def _warn(self, about: str, text: str) -> None:
        if self._warnings.get(about) != text:
            self._warnings[about] = text
            _log.warning("%s", text)


class _WorkerMessages:
    """The messages of one worker's queue that are here and not acknowledged."""

    def __init__(self, queue: str, numbers: Iterator[int], arrived: Callable[[], None]) -> None:
        self.consumer = Consumer(queue, numbers, self._arrived)
        self._notify = arrived
        self._held: dict[str, list[tuple[int, float]]] = {}
        """By job id: the number of each message, and when it arrived."""
        self._finished: list[int] = []
        self._refused: list[int] = []

    @property
    def is_acknowledging(self) -> bool:
        return bool(self._finished)

    def ids(self) -> list[str]:
        return list(self._held)

    def finish(self, ids: Collection[str]) -> bool:
        """These jobs need no message any more; False if none had one."""
        found = [self._held.pop(id_) for id_ in ids if id_ in self._held]
        self._finished += [number for messages in found for number, _ in messages]
        return bool(found)

    def finish_before(self, instant: float) -> bool:
        """Do not hold messages any longer that came before this instant."""
        return self.finish([id_ for id_, held in self._held.items() if held[0][1] < instant])

    async def acknowledge(self) -> None:
        """Tell the broker. Messages that are not ours become dead messages."""
        finished, refused = list(self._finished), list(self._refused)
        if not self.consumer.is_closed:
            await self.consumer.acknowledge(finished)
            await self.consumer.give_back(refused, again=False)
        del self._finished[: len(finished)]
        del self._refused[: len(refused)]

    def _arrived(self) -> None:
        now = monotonic()
        for number, message in self.consumer.take(HELD_MAX):
            job = read_job(message.body)
            if job is None:
                self._refused.append(number)
            else:
                self._held.setdefault(job.id, []).append((number, now))
        self._notify()


class _Dropped:
    """Counts messages that were not sent, by reason. The ledger has their jobs."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._told_at: dict[str, float] = {}

    def add(self, reason: str) -> None:
        self._counts[reason] += 1
        if monotonic() - self._told_at.get(reason, -_WARN_S) >= _WARN_S:
            self._told_at[reason] = monotonic()
            _log.warning("%s", self._text(reason))

    def warnings(self) -> list[str]:
        return [self._text(reason) for reason in self._counts]

    def _text(self, reason: str) -> str:
        count = counted(self._counts[reason], "message")
        return f"{count} for addressed jobs not sent because {reason}: they are found by polling"
