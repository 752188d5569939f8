"""`SqsClient`: the actions of Amazon SQS for an event loop, by boto3 in bounded thread pools.

Long polls have a pool of their own, so that they never delay a delete, an extension or a receive
that does not wait. botocore itself repeats nothing: only here is it known whether repeating an
action may do it twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from holdfast.core.text import without_credentials
from holdfast.engines.clock import Clock, SystemClock
from holdfast.engines.sqs import faults
from holdfast.engines.sqs.faults import EntryFault
from holdfast.engines.sqs.threads import ThreadPool
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    HoldfastError,
    NotFound,
    OutcomeUnknown,
)

BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 1024 * 1024
WAIT_S_MAX: Final = 20
VISIBILITY_S_MAX: Final = 12 * 3600

CALL_THREADS: Final = 16
RECEIVE_THREADS: Final = 32
POLL_THREADS: Final = 256
"""A worker has one long poll for each of its queues."""
_CONNECT_S: Final = 5
_CALL_S: Final = 15
_POLL_S: Final = WAIT_S_MAX + 15
_TRIES: Final = 6
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0
_PAGE: Final = 1000
_DATE_OFF_MS: Final = 2_000
"""Dates of replies are exact to the second, and servers write the same one for a while."""
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")

_MISSING: Final = EntryFault("MissingEntry", "the answer lacks an entry", False, 500)

Answer = TypeVar("Answer")
Call = Callable[..., dict[str, Any]]


class SqsAttribute(msgspec.Struct, frozen=True, array_like=True):
    """A typed attribute of a message: text, or bytes if the type is Binary."""

    type: str
    value: str | bytes


class OutgoingSqsMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send. `group` is the group of a FIFO queue or the tenant of a fair one."""

    body: str
    attributes: dict[str, SqsAttribute] = {}
    delay_s: int | None = None
    group: str | None = None
    deduplication_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes, as the service counts them."""
        return len(self.body.encode("utf-8", "surrogatepass")) + sum(
            len(name.encode()) + len(one.type) + _length(one.value)
            for name, one in self.attributes.items()
        )


class SqsMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A received message; its system attributes by the names of the service. All of it is hostile
    except `id` and `handle`."""

    id: str
    handle: str
    body: str
    attributes: dict[str, SqsAttribute]
    system: dict[str, str]


class SqsClient:
    """One region of SQS, or the endpoint of another server. `open` it on the event loop that uses
    it. Failures are Holdfast errors; a batch answers each entry by itself, with an error or None.
    """

    def __init__(
        self,
        region: str,
        *,
        endpoint: str | None = None,
        call_threads: int = CALL_THREADS,
        receive_threads: int = RECEIVE_THREADS,
        clock: Clock | None = None,
    ) -> None:
        assert _REGION.match(region), "the registry checks regions"
        self.region = region
        self.where: str = without_credentials(endpoint) if endpoint else region
        self.calls: Counter[str] = Counter()
        """Requests by action, for measurements."""
        self._endpoint = endpoint
        self._sizes = (call_threads, receive_threads)
        self._threads: tuple[ThreadPool, ThreadPool, ThreadPool] | None = None
        self._clients: tuple[Any, Any, Any] | None = None
        self._urls: dict[str, str] = {}
        self._returns: set[asyncio.Task[None]] = set()
        self._clock = clock or SystemClock()
        self._clock_off_ms = 0

    @property
    def is_open(self) -> bool:
        return self._clients is not None

    async def open(self) -> None:
        """Make the clients. Idempotent. Raises ConfigError."""
        if self._clients is not None:
            return
        calls, receives = self._sizes
        maker = ThreadPool("holdfast sqs", 1, _nothing)
        try:
            made = await maker.submit(lambda: self._make(calls, receives)).future
        except (BotoCoreError, ValueError) as error:
            raise faults.explain(error, "open", self.where, doubtful=False) from None
        finally:
            maker.stop()
        self._clients = made
        self._threads = (
            ThreadPool("holdfast sqs", calls, made[0].close),
            ThreadPool("holdfast sqs receive", receives, made[1].close),
            ThreadPool("holdfast sqs poll", POLL_THREADS, made[2].close),
        )

    async def close(self) -> None:
        """End the threads. A long poll under way goes on in the background: messages that it
        receives are given back, as long as the process lives. Idempotent."""
        if self._threads is None:
            return
        while self._returns:
            await asyncio.wait(self._returns)
        pools, self._threads, self._clients = self._threads, None, None
        for pool in pools:
            pool.stop()

    def now_ms(self) -> int:
        """The time of the service, by the date of its replies."""
        return self._clock.wall_ms() + self._clock_off_ms

    # Queues

    async def queue_url(self, name: str) -> str:
        """The URL of a queue, read once. Raises NotFound."""
        found = self._urls.get(name)
        if found is None:
            answer = await self._ask("GetQueueUrl", QueueName=name)
            found = self._urls[name] = str(answer["QueueUrl"])
        return found

    def forget_url(self, name: str) -> None:
        """Read the URL anew: the queue was deleted, or created."""
        self._urls.pop(name, None)

    async def create_queue(
        self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]
    ) -> str:
        """The URL of the queue, which is created if there is none. Raises UsageError if there is
        one with other attributes."""
        given: dict[str, Any] = {"Attributes": dict(attributes)} if attributes else {}
        if tags:
            given["tags"] = dict(tags)
        answer = await self._ask("CreateQueue", QueueName=name, **given)
        url = self._urls[name] = str(answer["QueueUrl"])
        return url

    async def delete_queue(self, url: str) -> None:
        """Delete a queue and its messages."""
        await self._ask("DeleteQueue", QueueUrl=url)
        self.forget_url(name_of(url))

    async def purge(self, url: str) -> None:
        """Delete all messages of a queue, also those in flight."""
        await self._ask("PurgeQueue", QueueUrl=url)

    async def list_queues(self, prefix: str = "") -> list[str]:
        """The URLs of all queues with this prefix."""
        found: list[str] = []
        page: dict[str, Any] = {"QueueNamePrefix": prefix} if prefix else {}
        page["MaxResults"] = _PAGE
        while True:
            answer = await self._ask("ListQueues", **page)
            found += map(str, answer.get("QueueUrls", ()))
            if not answer.get("NextToken"):
                return found
            page["NextToken"] = answer["NextToken"]

    async def attributes(self, url: str, names: Sequence[str] = ("All",)) -> dict[str, str]:
        """Attributes of a queue."""
        answer = await self._ask("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names))
        return dict(answer.get("Attributes", {}))

    async def set_attributes(self, url: str, attributes: Mapping[str, str]) -> None:
        """Change attributes of a queue."""
        await self._ask("SetQueueAttributes", QueueUrl=url, Attributes=dict(attributes))

    async def tags(self, url: str) -> dict[str, str]:
        """The tags of a queue."""
        answer = await self._ask("ListQueueTags", QueueUrl=url)
        return dict(answer.get("Tags", {}))

    async def set_tags(self, url: str, tags: Mapping[str, str]) -> None:
        """Add or replace tags of a queue."""
        await self._ask("TagQueue", QueueUrl=url, Tags=dict(tags))

    async def remove_tags(self, url: str, names: Iterable[str]) -> None:
        """Remove tags of a queue."""
        await self._ask("UntagQueue", QueueUrl=url, TagKeys=list(names))

    async def dead_letter_sources(self, url: str) -> list[str]:
        """The URLs of the queues whose dead letters this queue gets: at most 1,000."""
        answer = await self._ask("ListDeadLetterSourceQueues", QueueUrl=url, MaxResults=_PAGE)
        return [str(each) for each in answer.get("queueUrls", ())]

    # Move tasks

    async def start_move(
        self, source_arn: str, destination_arn: str | None = None, rate: int | None = None
    ) -> str:
        """Move the messages of a dead-letter queue, at most `rate` a second. Returns the
        handle of the task. Without a destination each returns to the queue it came from."""
        given: dict[str, Any] = {"SourceArn": source_arn}
        if destination_arn is not None:
            given["DestinationArn"] = destination_arn
        if rate is not None:
            given["MaxNumberOfMessagesPerSecond"] = rate
        answer = await self._ask("StartMessageMoveTask", doubtful=True, **given)
        return str(answer["TaskHandle"])

    async def cancel_move(self, handle: str) -> int:
        """Stop a move task. Returns the number of messages that it has moved."""
        answer = await self._ask("CancelMessageMoveTask", TaskHandle=handle)
        return int(answer.get("ApproximateNumberOfMessagesMoved", 0))

    async def list_moves(self, source_arn: str) -> list[dict[str, Any]]:
        """The last ten move tasks of a dead-letter queue, newest first, by the service's names."""
        answer = await self._ask("ListMessageMoveTasks", SourceArn=source_arn, MaxResults=BATCH_MAX)
        return list(answer.get("Results", ()))

    # Messages

    async def send(
        self, url: str, messages: Sequence[OutgoingSqsMessage]
    ) -> list[str | HoldfastError]:
        """Send any number of messages; for each its message id, or the error. OutcomeUnknown: it
        may have been sent."""
        entries = [_send_entry(message) for message in messages]
        sizes = [message.size for message in messages]
        batches = list(_batches(sizes, BATCH_BYTES_MAX))
        answers = await self._batched("SendMessageBatch", url, entries, batches, doubtful=True)
        return [
            one if isinstance(one, HoldfastError) else str(one.get("MessageId", ""))
            for one in answers
        ]

    async def receive(
        self,
        url: str,
        *,
        limit: int = BATCH_MAX,
        wait_s: int = 0,
        visibility_s: int | None = None,
    ) -> list[SqsMessage]:
        """At most ten messages; a long poll of `wait_s` seconds. Those of a cancelled call are
        given back."""
        asked: dict[str, Any] = {
            "QueueUrl": url,
            "MaxNumberOfMessages": min(limit, BATCH_MAX),
            "WaitTimeSeconds": min(wait_s, WAIT_S_MAX),
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
        }
        if visibility_s is not None:
            asked["VisibilityTimeout"] = visibility_s
        if url.endswith(".fifo"):
            # A repeat with the same id gets the messages of an answer that was lost.
            asked["ReceiveRequestAttemptId"] = uuid.uuid4().hex
        return await self._repeated(
            "ReceiveMessage", lambda: self._poll(url, asked), doubtful=False
        )

    async def delete(self, url: str, handles: Sequence[str]) -> list[HoldfastError | None]:
        """Delete received messages. LeaseLost: the handle is not valid any more."""
        entries = [{"ReceiptHandle": handle} for handle in handles]
        return await self._entries("DeleteMessageBatch", url, entries)

    async def change_visibility(
        self, url: str, changes: Sequence[tuple[str, int]]
    ) -> list[HoldfastError | None]:
        """Hide received messages for so many seconds from now; 0 makes them visible. LeaseLost: the
        message is gone or the handle not valid any more."""
        entries = [
            {"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle, seconds in changes
        ]
        return await self._entries("ChangeMessageVisibilityBatch", url, entries)

    async def _poll(self, url: str, asked: dict[str, Any]) -> list[SqsMessage]:
        """A receive in a thread. If the caller is cancelled, the thread gives the messages back."""
        pool, client = self._polling() if asked["WaitTimeSeconds"] else self._receiving()

        def work() -> list[SqsMessage]:
            answer = self._answered(client.receive_message, asked)
            return [_message(each) for each in answer.get("Messages", ())]

        def give_back(messages: list[SqsMessage]) -> None:
            for at in range(0, len(messages), BATCH_MAX):
                entries = [
                    {"Id": str(number), "ReceiptHandle": each.handle, "VisibilityTimeout": 0}
                    for number, each in enumerate(messages[at : at + BATCH_MAX])
                ]
                self.calls["ChangeMessageVisibilityBatch"] += 1
                try:
                    client.change_message_visibility_batch(QueueUrl=url, Entries=entries)
                except (BotoCoreError, ClientError):
                    # They become visible when their timeout ends.
                    return

        call = pool.submit(work)
        try:
            return await asyncio.shield(call.future)
        except asyncio.CancelledError:
            if not call.abandon(give_back):
                self._begin_return(url, call.future)
            raise

    def _begin_return(self, url: str, received: asyncio.Future[list[SqsMessage]]) -> None:
        task = asyncio.get_running_loop().create_task(self._give_back(url, received))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _give_back(self, url: str, received: asyncio.Future[list[SqsMessage]]) -> None:
        try:
            messages = await received
            await self.change_visibility(url, [(each.handle, 0) for each in messages])
        except (BotoCoreError, ClientError, HoldfastError):
            # They become visible when their timeout ends.
            return

    # Requests

    async def _entries(
        self, action: str, url: str, entries: Sequence[dict[str, Any]]
    ) -> list[HoldfastError | None]:
        batches = list(_batches([0] * len(entries), 0))
        answers = await self._batched(action, url, entries, batches, doubtful=False)
        return [one if isinstance(one, HoldfastError) else None for one in answers]

    async def _batched(
        self,
        action: str,
        url: str,
        entries: Sequence[dict[str, Any]],
        batches: Sequence[range],
        *,
        doubtful: bool,
    ) -> list[dict[str, Any] | HoldfastError]:
        """The answer to each entry: the batches go at the same time, as many as there are
        threads."""
        answers: list[dict[str, Any] | HoldfastError | None] = [None] * len(entries)

        async def send(batch: range) -> None:
            part = [{**entries[at], "Id": str(at)} for at in batch]
            found = await self._batch(action, url, part, doubtful=doubtful)
            for at in batch:
                answers[at] = found[str(at)]

        if len(batches) == 1:
            await send(batches[0])
        else:
            await _together(map(send, batches))
        return [_known(one) for one in answers]

    async def _batch(
        self, action: str, url: str, entries: list[dict[str, Any]], *, doubtful: bool
    ) -> dict[str, dict[str, Any] | HoldfastError]:
        """The answer to each entry by its id. Entries that failed are repeated one by one, unless
        they are at fault themselves."""
        try:
            answer = await self._ask(action, doubtful=doubtful, QueueUrl=url, Entries=entries)
        except HoldfastError as error:
            if len(entries) == 1 or isinstance(error, ConfigError | EngineError | NotFound):
                return {entry["Id"]: error for entry in entries}
            # One entry is at fault, and the service refuses all: each is sent by itself.
            return await self._singly(action, url, entries, doubtful=doubtful)
        found: dict[str, dict[str, Any] | HoldfastError] = {
            str(one["Id"]): one for one in answer.get("Successful", ())
        }
        failed = {str(one["Id"]): faults.fault_of_entry(one) for one in answer.get("Failed", ())}
        again: list[dict[str, Any]] = []
        for entry in entries:
            name = entry["Id"]
            if name in found:
                continue
            fault = failed.get(name, _MISSING)
            if fault.may_repeat(doubtful=doubtful):
                again.append(entry)
            else:
                found[name] = faults.explain_fault(fault, action, self.where, doubtful=doubtful)
        return found | await self._singly(action, url, again, doubtful=doubtful)

    async def _singly(
        self, action: str, url: str, entries: Sequence[dict[str, Any]], *, doubtful: bool
    ) -> dict[str, dict[str, Any] | HoldfastError]:
        found: dict[str, dict[str, Any] | HoldfastError] = {}
        for entry in entries:
            found[entry["Id"]] = await self._single(action, url, entry, doubtful=doubtful)
        return found

    async def _single(
        self, action: str, url: str, entry: dict[str, Any], *, doubtful: bool
    ) -> dict[str, Any] | HoldfastError:
        """A batch of one, repeated while the service is at fault and did nothing."""
        fault: EntryFault | None = None
        for tried in range(1, _TRIES):
            try:
                answer = await self._ask(action, doubtful=doubtful, QueueUrl=url, Entries=[entry])
            except HoldfastError as error:
                return error
            successful = answer.get("Successful") or ()
            if successful:
                return dict(successful[0])
            failed = answer.get("Failed")
            fault = faults.fault_of_entry(failed[0]) if failed else _MISSING
            if not fault.may_repeat(doubtful=doubtful):
                break
            await asyncio.sleep(_pause_s(tried))
        assert fault is not None
        return faults.explain_fault(fault, action, self.where, doubtful=doubtful)

    async def _ask(self, action: str, *, doubtful: bool = False, **asked: Any) -> dict[str, Any]:
        """The answer to a request. `doubtful`: repeating it may do it twice, so that a lost answer
        is OutcomeUnknown."""

        async def send() -> dict[str, Any]:
            pool, client = self._calling()
            call: Call = getattr(client, _METHODS[action])
            return await pool.submit(partial(self._answered, call, asked)).future

        return await self._repeated(action, send, doubtful=doubtful)

    async def _repeated(
        self, action: str, send: Callable[[], Coroutine[Any, Any, Answer]], *, doubtful: bool
    ) -> Answer:
        """Repeats a request that was throttled or not sent, and a lost one unless it is `doubtful`,
        after a pause drawn at random that doubles."""
        tried = 0
        while True:
            tried += 1
            self.calls[action] += 1
            try:
                return await send()
            except (BotoCoreError, ClientError, OSError) as error:
                if tried < _tries_of(error, action, doubtful=doubtful):
                    await asyncio.sleep(_pause_s(tried))
                    continue
                raise faults.explain(error, action, self.where, doubtful=doubtful) from None

    def _answered(self, call: Call, asked: dict[str, Any]) -> dict[str, Any]:
        """In a thread."""
        sent_ms = self._clock.wall_ms()
        answer = call(**asked)
        self._read_date(answer, sent_ms)
        return answer

    def _read_date(self, answer: dict[str, Any], sent_ms: int) -> None:
        """Correct the clock as little as the date of the reply requires: the service wrote it
        between the request and now."""
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        date = headers.get("date")
        if not date or not isinstance(self._clock, SystemClock):
            return
        from email.utils import parsedate_to_datetime

        try:
            date_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
        except ValueError:
            return
        least_ms = date_ms - self._clock.wall_ms() - _DATE_OFF_MS
        most_ms = date_ms - sent_ms + _DATE_OFF_MS
        self._clock_off_ms = min(max(self._clock_off_ms, least_ms), most_ms)

    def _calling(self) -> tuple[ThreadPool, Any]:
        return self._opened(0)

    def _receiving(self) -> tuple[ThreadPool, Any]:
        return self._opened(1)

    def _polling(self) -> tuple[ThreadPool, Any]:
        return self._opened(2)

    def _opened(self, kind: int) -> tuple[ThreadPool, Any]:
        if self._threads is None or self._clients is None:
            raise EngineClosed("the SQS client is closed: open a new one")
        return self._threads[kind], self._clients[kind]

    def _make(self, calls: int, receives: int) -> tuple[Any, Any, Any]:
        """In a thread: importing boto3 takes half a second, and reading credentials may ask a
        service of the machine."""
        import boto3.session
        from botocore.config import Config

        log = logging.getLogger("botocore")
        if log.level == logging.NOTSET:
            # It tells at every start where the credentials came from.
            log.setLevel(logging.WARNING)
        session = boto3.session.Session()

        def client(threads: int, read_s: int) -> Any:
            config = Config(
                connect_timeout=_CONNECT_S,
                read_timeout=read_s,
                max_pool_connections=threads,
                retries={"mode": "standard", "total_max_attempts": 1},
                tcp_keepalive=True,
            )
            made = session.client(
                "sqs", region_name=self.region, endpoint_url=self._endpoint, config=config
            )
            made.meta.events.register("before-parse.sqs", _check_length)
            return made

        return client(calls, _CALL_S), client(receives, _CALL_S), client(POLL_THREADS, _POLL_S)


def _check_length(response_dict: dict[str, Any], **_: Any) -> None:
    """Raise IncompleteReadError for a reply that was cut: botocore would take it for an empty
    one."""
    length = response_dict["headers"].get("content-length", "")
    body = response_dict["body"]
    if length.isdecimal() and int(length) > len(body):
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=int(length))


def name_of(url: str) -> str:
    """The name of a queue in its URL or its ARN."""
    return re.split("[/:]", url)[-1]


ACTIONS: Final = (
    "GetQueueUrl CreateQueue DeleteQueue PurgeQueue ListQueues GetQueueAttributes "
    "SetQueueAttributes ListQueueTags TagQueue UntagQueue ListDeadLetterSourceQueues "
    "StartMessageMoveTask CancelMessageMoveTask ListMessageMoveTasks SendMessageBatch "
    "DeleteMessageBatch ChangeMessageVisibilityBatch"
).split()
_METHODS: Final = {action: re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower() for action in ACTIONS}


async def _together(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


def _batches(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Ranges of at most ten entries and `most` bytes; an entry alone may be larger."""
    begin, total = 0, 0
    for at, size in enumerate(sizes):
        if at > begin and (at - begin == BATCH_MAX or total + size > most):
            yield range(begin, at)
            begin, total = at, 0
        total += size
    if begin < len(sizes):
        yield range(begin, len(sizes))


def _send_entry(message: OutgoingSqsMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {"MessageBody": message.body}
    if message.attributes:
        entry["MessageAttributes"] = {
            name: _attribute_value(one) for name, one in message.attributes.items()
        }
    if message.delay_s is not None:
        entry["DelaySeconds"] = message.delay_s
    if message.group is not None:
        entry["MessageGroupId"] = message.group
    if message.deduplication_id is not None:
        entry["MessageDeduplicationId"] = message.deduplication_id
    return entry


def _attribute_value(attribute: SqsAttribute) -> dict[str, Any]:
    kind = "StringValue" if isinstance(attribute.value, str) else "BinaryValue"
    return {"DataType": attribute.type, kind: attribute.value}


def _message(found: dict[str, Any]) -> SqsMessage:
    attributes = {
        str(name): SqsAttribute(str(one.get("DataType", "")), _value_of(one))
        for name, one in (found.get("MessageAttributes") or {}).items()
    }
    return SqsMessage(
        id=str(found.get("MessageId", "")),
        handle=str(found["ReceiptHandle"]),
        body=str(found.get("Body", "")),
        attributes=attributes,
        system={str(name): str(one) for name, one in (found.get("Attributes") or {}).items()},
    )


def _value_of(attribute: dict[str, Any]) -> str | bytes:
    binary = attribute.get("BinaryValue")
    return bytes(binary) if binary is not None else str(attribute.get("StringValue", ""))


def _length(value: str | bytes) -> int:
    return len(value) if isinstance(value, bytes) else len(value.encode("utf-8", "surrogatepass"))


def _tries_of(error: BaseException, action: str, *, doubtful: bool) -> int:
    """How often a request that failed like this is sent at most."""
    if isinstance(error, ClientError):
        fault = faults.fault_of(error)
        # A queue with too many messages in flight stays so for longer than a few pauses.
        passes = fault.may_repeat(doubtful=doubtful) and fault.code != "OverLimit"
        return _TRIES if passes else 1
    if action == "ReceiveMessage":
        # The caller polls again; a repeat here would only hide that the service is gone.
        return 2
    if faults.is_unsent(error) or (faults.is_lost(error) and not doubtful):
        return 3
    return 1


def _pause_s(tried: int) -> float:
    return random.uniform(0, min(_PAUSE_S_FIRST * 2**tried, _PAUSE_S_MAX))


def _known(answer: dict[str, Any] | HoldfastError | None) -> dict[str, Any] | HoldfastError:
    return OutcomeUnknown("the batch ended without an answer") if answer is None else answer


def _nothing() -> None:
    return None
