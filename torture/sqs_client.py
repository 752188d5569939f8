"""Clients of the SQS endpoint for torture runs: `python -m torture.sqs_client PLAN`.

A process has some producers and receivers. It works until its standard input says `drain`, then
only receives, and ends when its input closes. Every call about a message goes to its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from torture.message_history import MessageCall, Result, write_call

ACCOUNT = "000000000000"
WORK, DEAD, MOVED, ORDERS = "work", "work-dead", "moved", "orders.fifo"
QUEUES = (WORK, DEAD, MOVED, ORDERS)
RECEIVED_FROM = (WORK, ORDERS, WORK, ORDERS, MOVED)
"""The queues of the receivers, in turn. Move tasks take the messages of the dead-letter queue."""
GROUPS_EACH = 2
VISIBILITY_S = (2, 4)
PAUSE_S = 0.05
"""After a call without an answer."""
ANSWER_S_MAX = 30.0

Messages = Sequence[dict[str, Any]]


class ClientPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one process. `first_receiver` numbers its receivers in the whole run."""

    name: str
    port: int
    seed: str
    directory: str
    producers: int
    receivers: int
    first_receiver: int
    boto3: bool


class Refused(Exception):
    """The server refused a request."""


class Unknown(Exception):
    """No answer arrived: the request may have been carried out or not."""


class Caller(Protocol):
    """Calls actions of the endpoint. Raises Refused or Unknown."""

    async def call(self, action: str, **request: Any) -> dict[str, Any]: ...


class RawCaller:
    """A plain JSON client. Each call uses an idle connection, or a new one if there is none."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, action: str, **request: Any) -> dict[str, Any]:
        body = msgspec.json.encode(request)
        head = (
            f"POST / HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
            f"content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{action}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                status, answer = await self._exchange(head.encode() + body)
        except (OSError, EOFError, TimeoutError) as error:
            raise Unknown(repr(error)) from None
        if status == 503:
            raise Unknown(answer.decode(errors="replace"))
        if status != 200:
            raise Refused(f"{status} {answer.decode(errors='replace')}")
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        streams = self._idle.pop() if self._idle else None
        reader, writer = streams or await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(line for line in lines if line.startswith(b"content-length:"))
            body = await reader.readexactly(int(length.partition(b":")[2]))
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return int(head[9:12]), body


class Boto3Caller:
    """boto3 without its retries: they would send a message twice."""

    def __init__(self, port: int) -> None:
        import boto3
        from botocore.config import Config

        self._client = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_S_MAX),
        )

    async def call(self, action: str, **request: Any) -> dict[str, Any]:
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError

        method = getattr(self._client, xform_name(action))
        try:
            answer: dict[str, Any] = await asyncio.to_thread(method, **request)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            kind = Unknown if status == 503 else Refused
            raise kind(f"{status} {error}") from None
        except BotoCoreError as error:
            raise Unknown(repr(error)) from None
        return answer


class Journal:
    """Records the calls of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def recorded(
        self, calls: Sequence[MessageCall], answer: Callable[[], Any]
    ) -> tuple[Result, dict[str, Any]]:
        """Make one request and record it as these calls, one for each message."""
        began_ns = time.monotonic_ns()
        result: Result = "ok"
        found: dict[str, Any] = {}
        error = ""
        try:
            found = await answer()
        except Unknown as unknown:
            result, error = "unknown", str(unknown)
        except Refused as refused:
            result, error = "refused", str(refused)
        times = {"began_ns": began_ns, "ended_ns": time.monotonic_ns()}
        failed = {each["Id"]: str(each) for each in found.get("Failed", ())}
        sent = {each["Id"]: each for each in found.get("Successful", ())}
        done = []
        for number, call in enumerate(calls):
            own = sent.get(str(number), found)
            text = failed.get(str(number), error)
            done.append(
                msgspec.structs.replace(
                    call,
                    **times,
                    result="refused" if text and not error else result,
                    id=own.get("MessageId", call.id),
                    sequence=int(own.get("SequenceNumber", call.sequence)),
                    error=text,
                )
            )
        write_call(self._path, done)
        if result == "unknown":
            await asyncio.sleep(PAUSE_S)
        return result, found

    def write(self, calls: Sequence[MessageCall]) -> None:
        write_call(self._path, calls)


class Producer:
    """Sends single messages and batches to the standard queue, and messages of its own groups to
    the FIFO queue. A message of a group is sent again until it is acknowledged."""

    def __init__(self, caller: Caller, journal: Journal, name: str, rng: random.Random) -> None:
        self._caller = caller
        self._journal = journal
        self._name = name
        self._rng = rng
        self._numbers = itertools.count(1)

    async def run(self, draining: asyncio.Event) -> None:
        while not draining.is_set():
            if self._rng.random() < 0.5:
                await self._send_order()
            elif self._rng.random() < 0.5:
                await self._send_batch()
            else:
                await self._send_one()
            await asyncio.sleep(self._rng.uniform(0, 0.05))

    async def _send_one(self) -> None:
        call = self._message(WORK)
        delay = {"DelaySeconds": 1} if self._rng.random() < 0.1 else {}
        await self._journal.recorded(
            [call],
            lambda: self._caller.call(
                "SendMessage", QueueUrl=url(WORK), MessageBody=call.body, **delay
            ),
        )

    async def _send_batch(self) -> None:
        calls = [self._message(WORK) for _ in range(self._rng.randint(2, 10))]
        entries = [
            {"Id": str(number), "MessageBody": call.body} for number, call in enumerate(calls)
        ]
        await self._journal.recorded(
            calls,
            lambda: self._caller.call("SendMessageBatch", QueueUrl=url(WORK), Entries=entries),
        )

    async def _send_order(self) -> None:
        group = f"{self._name}-{self._rng.randrange(GROUPS_EACH)}"
        call = self._message(ORDERS, group)
        request = {
            "QueueUrl": url(ORDERS),
            "MessageBody": call.body,
            "MessageGroupId": group,
            "MessageDeduplicationId": call.body,
        }
        while True:
            result, _ = await self._journal.recorded(
                [call], lambda: self._caller.call("SendMessage", **request)
            )
            if result != "unknown":
                return

    def _message(self, queue: str, group: str = "") -> MessageCall:
        body = f"{self._name}-{next(self._numbers)}"
        return MessageCall(
            action="send", queue=queue, body=body, group=group, began_ns=0, ended_ns=0
        )


class Receiver:
    """Receives from one queue, and deletes most messages. Others it shows again, hides for longer,
    keeps until their timeout has ended, or deletes too late."""

    def __init__(
        self, caller: Caller, journal: Journal, name: str, queue: str, rng: random.Random
    ) -> None:
        self._caller = caller
        self._journal = journal
        self._name = name
        self._queue = queue
        self._rng = rng
        self._numbers = itertools.count(1)

    async def run(self, draining: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as late:
            while True:
                messages, calls = await self._receive()
                if calls:
                    await self._handle(messages, calls, draining, late)
                else:
                    await asyncio.sleep(PAUSE_S)

    async def _handle(
        self,
        messages: Messages,
        calls: Sequence[MessageCall],
        draining: asyncio.Event,
        late: asyncio.TaskGroup,
    ) -> None:
        share = self._rng.random()
        if share < 0.7 or draining.is_set():
            await self._delete_most(messages, calls, draining)
        elif share < 0.8:
            await self._hide(messages, calls, 0)
        elif share < 0.9:
            await self._hide(messages, calls, self._rng.randint(1, 4))
            await self._delete_most(messages, calls, draining)
        elif share < 0.95:
            pause_s = max(call.seconds for call in calls) + self._rng.random()
            late.create_task(self._delete_late(pause_s, messages, calls))

    async def _receive(self) -> tuple[Messages, list[MessageCall]]:
        seconds = self._rng.randint(*VISIBILITY_S)
        began_ns = time.monotonic_ns()
        try:
            answer = await self._caller.call(
                "ReceiveMessage",
                QueueUrl=url(self._queue),
                MaxNumberOfMessages=self._rng.randint(1, 10),
                VisibilityTimeout=seconds,
                WaitTimeSeconds=self._rng.choice((0, 1)),
                MessageSystemAttributeNames=["All"],
            )
        except (Unknown, Refused) as error:
            if isinstance(error, Refused):
                self._journal.write([self._refusal(began_ns, str(error))])
            return [], []
        ended_ns = time.monotonic_ns()
        messages = answer.get("Messages", [])
        receive = f"{self._name}-{next(self._numbers)}"
        calls = []
        for position, each in enumerate(messages):
            attributes = each["Attributes"]
            digest = hashlib.md5(each["Body"].encode(), usedforsecurity=False).hexdigest()
            calls.append(
                MessageCall(
                    action="receive",
                    queue=self._queue,
                    body=each["Body"],
                    began_ns=began_ns,
                    ended_ns=ended_ns,
                    id=each["MessageId"],
                    group=attributes.get("MessageGroupId", ""),
                    sequence=int(attributes.get("SequenceNumber", 0)),
                    receive=receive,
                    position=position,
                    seconds=seconds,
                    result="ok" if digest == each["MD5OfBody"] else "refused",
                    error="" if digest == each["MD5OfBody"] else "the MD5 of the body is wrong",
                )
            )
        self._journal.write(calls)
        return messages, calls

    async def _delete_most(
        self, messages: Messages, calls: Sequence[MessageCall], draining: asyncio.Event
    ) -> None:
        """Delete all or the first few. Some messages of the standard queue are never deleted
        there, and so become dead letters."""
        count = len(calls)
        if self._rng.random() < 0.2 and not draining.is_set():
            count = self._rng.randint(1, count)
        pairs = list(zip(messages[:count], calls[:count], strict=True))
        dying = [pair for pair in pairs if self._queue == WORK and must_die(pair[1].body)]
        deleted = [pair for pair in pairs if pair not in dying]
        await self._delete([each for each, _ in deleted], [call for _, call in deleted])
        if dying:
            await self._hide([each for each, _ in dying], [call for _, call in dying], 0)

    async def _delete(self, messages: Messages, calls: Sequence[MessageCall]) -> None:
        deletes = [_follow_up(call, "delete") for call in calls]
        target = url(self._queue)
        if len(deletes) == 1:
            handle = messages[0]["ReceiptHandle"]
            await self._journal.recorded(
                deletes,
                lambda: self._caller.call("DeleteMessage", QueueUrl=target, ReceiptHandle=handle),
            )
        elif deletes:
            entries = _entries(messages)
            await self._journal.recorded(
                deletes,
                lambda: self._caller.call("DeleteMessageBatch", QueueUrl=target, Entries=entries),
            )

    async def _delete_late(
        self, pause_s: float, messages: Messages, calls: Sequence[MessageCall]
    ) -> None:
        await asyncio.sleep(pause_s)
        await self._delete(messages, calls)

    async def _hide(self, messages: Messages, calls: Sequence[MessageCall], seconds: int) -> None:
        hides = [
            msgspec.structs.replace(_follow_up(call, "hide"), seconds=seconds) for call in calls
        ]
        entries = [{**entry, "VisibilityTimeout": seconds} for entry in _entries(messages)]
        target = url(self._queue)
        await self._journal.recorded(
            hides,
            lambda: self._caller.call(
                "ChangeMessageVisibilityBatch", QueueUrl=target, Entries=entries
            ),
        )

    def _refusal(self, began_ns: int, error: str) -> MessageCall:
        return MessageCall(
            action="receive",
            queue=self._queue,
            body="",
            began_ns=began_ns,
            ended_ns=time.monotonic_ns(),
            result="refused",
            error=error,
        )


def url(queue: str) -> str:
    """The URL of a queue; the host does not matter."""
    return f"http://127.0.0.1/{ACCOUNT}/{queue}"


def must_die(body: str) -> bool:
    """True for one message in eight."""
    return hashlib.sha256(body.encode()).digest()[0] % 8 == 0


def _follow_up(receive: MessageCall, action: Any) -> MessageCall:
    return msgspec.structs.replace(receive, action=action, position=0, error="")


def _entries(messages: Messages) -> list[dict[str, Any]]:
    return [
        {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
        for number, each in enumerate(messages)
    ]


async def run(plan: ClientPlan) -> None:
    """Produce and receive as planned."""
    journal = Journal(Path(plan.directory, f"{plan.name}.jsonl"))
    draining = asyncio.Event()
    make = Boto3Caller if plan.boto3 else RawCaller
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(plan.producers):
            name = f"{plan.name}.p{number}"
            producer = Producer(make(plan.port), journal, name, random.Random(plan.seed + name))
            tasks.append(group.create_task(producer.run(draining)))
        for number in range(plan.receivers):
            name = f"{plan.name}.r{number}"
            queue = RECEIVED_FROM[(plan.first_receiver + number) % len(RECEIVED_FROM)]
            rng = random.Random(plan.seed + name)
            receiver = Receiver(make(plan.port), journal, name, queue, rng)
            tasks.append(group.create_task(receiver.run(draining)))
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "drain":
                draining.set()
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(run(msgspec.json.decode(sys.argv[1], type=ClientPlan)))
