"""Messages with boto3 on a running server, with SQLite and PostgreSQL: long polls and races."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from holdfast.app.application import Holdfast
from holdfast.core.model import JobFilter, NewJob, Queue
from holdfast.server.application import AsgiApplication
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs.receive import message_state_of
from holdfast.server.state import ServerState
from tests.server.loop_server import LoopServer
from tests.wait import wait_until


@cache
def _session() -> Any:
    """Loading the service model takes most of the time of a small test."""
    return boto3.session.Session(
        aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )


@dataclass
class Endpoint:
    """A running server, and a client whose calls run in threads."""

    app: Holdfast
    url: str
    client: Any
    threads: ThreadPoolExecutor

    async def ask(self, action: str, **members: Any) -> dict[str, Any]:
        call = partial(getattr(self.client, action), **members)
        loop = asyncio.get_running_loop()
        answer: dict[str, Any] = await loop.run_in_executor(self.threads, call)
        return answer

    async def create(self, name: str, **attributes: str) -> str:
        answer = await self.ask("create_queue", QueueName=name, Attributes=attributes)
        url: str = answer["QueueUrl"]
        return url

    async def receive(self, queue: str, **members: Any) -> list[dict[str, Any]]:
        members = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], **members}
        answer = await self.ask("receive_message", QueueUrl=queue, **members)
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    async def waiting(self, count: int) -> None:
        """Wait until so many long polls wait."""
        polls = message_state_of(self.app).polls
        await asyncio.to_thread(wait_until, lambda: polls.waiting == count)


@pytest.fixture(params=["sqlite", "postgres"])
async def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoint]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/sqs.db"
    else:
        url = request.getfixturevalue("pg_url")
    async with Holdfast(url) as app:
        state = ServerState(app=app, settings=ServerSettings())
        loop_server = LoopServer()
        loop_server.only_app = AsgiApplication(state)
        stop = asyncio.Event()
        upkeep = asyncio.create_task(app.upkeep().run(stop))
        async with loop_server.running():
            # A repeated request would hide that the first one failed.
            config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32)
            client = _session().client("sqs", endpoint_url=loop_server.place, config=config)
            # The threads of the loop are too few for many long polls.
            with ThreadPoolExecutor(32) as threads:
                yield Endpoint(app, loop_server.place, client, threads)
            client.close()
        stop.set()
        await upkeep


async def test_a_message_with_attributes_is_sent_received_and_deleted(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders")
    attributes = {
        "ключ": {"DataType": "String", "StringValue": "значение"},
        "n": {"DataType": "Number.float", "StringValue": "1.5"},
        "b": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG\x00"},
    }
    body = "line\r\nline é \U0001f600 <&>"
    # botocore compares the MD5s.
    sent = await endpoint.ask(
        "send_message", QueueUrl=queue, MessageBody=body, MessageAttributes=attributes
    )
    [message] = await endpoint.receive(queue, MessageAttributeNames=["All"])
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == body
    assert message["MessageAttributes"] == attributes
    await endpoint.ask("delete_message", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert await endpoint.receive(queue) == []


async def test_batches_are_sent_received_and_deleted(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders")
    entries = [{"Id": str(n), "MessageBody": f"body {n}"} for n in range(10)]
    sent = await endpoint.ask("send_message_batch", QueueUrl=queue, Entries=entries)
    assert len(sent["Successful"]) == 10
    found = await endpoint.receive(queue)
    assert sorted(each["Body"] for each in found) == sorted(each["MessageBody"] for each in entries)
    handles = [
        {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)
    ]
    hidden = [{**each, "VisibilityTimeout": 100} for each in handles]
    answer = await endpoint.ask("change_message_visibility_batch", QueueUrl=queue, Entries=hidden)
    assert len(answer["Successful"]) == 10
    answer = await endpoint.ask("delete_message_batch", QueueUrl=queue, Entries=handles)
    assert len(answer["Successful"]) == 10
    page = await endpoint.app.find(JobFilter(queue="orders"))
    assert {job.state for job in page.jobs} <= {"done"}


async def test_a_long_poll_wakes_up_for_each_reason(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders")
    poll = asyncio.create_task(endpoint.receive(queue, WaitTimeSeconds=20, VisibilityTimeout=1))
    await endpoint.waiting(1)
    await endpoint.ask("send_message", QueueUrl=queue, MessageBody="sent")
    assert [each["Body"] for each in await poll] == ["sent"]
    [again] = await endpoint.receive(queue, WaitTimeSeconds=20)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    await endpoint.ask("send_message", QueueUrl=queue, MessageBody="late", DelaySeconds=1)
    assert [each["Body"] for each in await endpoint.receive(queue, WaitTimeSeconds=20)] == ["late"]


async def test_the_queue_says_how_long_a_poll_waits(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders", ReceiveMessageWaitTimeSeconds="20")
    poll = asyncio.create_task(endpoint.receive(queue))
    await endpoint.waiting(1)
    await endpoint.ask("send_message", QueueUrl=queue, MessageBody="sent")
    assert len(await poll) == 1
    assert await endpoint.receive(queue, WaitTimeSeconds=0) == []


async def test_a_client_that_disconnects_receives_nothing(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders")
    for _ in range(3):
        writer = await _poll_by_hand(endpoint.url, queue)
        await endpoint.waiting(1)
        writer.close()
        await endpoint.waiting(0)
    gone = await _poll_by_hand(endpoint.url, queue)
    await endpoint.waiting(1)
    here = asyncio.create_task(endpoint.receive(queue, WaitTimeSeconds=20))
    await endpoint.waiting(2)
    gone.close()
    await endpoint.ask("send_message", QueueUrl=queue, MessageBody="sent")
    [message] = await here
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def _poll_by_hand(url: str, queue: str) -> asyncio.StreamWriter:
    """Begin a long poll on a connection that the test can close."""
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"X-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


@pytest.mark.parametrize("wait_s", [0, 20])
async def test_many_receivers_never_hold_one_message_together(
    endpoint: Endpoint, wait_s: int
) -> None:
    queue = await endpoint.create("orders")
    seen: Counter[str] = Counter()
    total = 200

    async def produce() -> None:
        for start in range(0, total, 10):
            entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(start, start + 10)]
            await endpoint.ask("send_message_batch", QueueUrl=queue, Entries=entries)

    async def consume(is_over: Callable[[], bool]) -> None:
        while not is_over():
            found = await endpoint.receive(queue, WaitTimeSeconds=min(wait_s, 1))
            seen.update(each["Body"] for each in found)
            handles = [
                {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]}
                for n, each in enumerate(found)
            ]
            if handles:
                await endpoint.ask("delete_message_batch", QueueUrl=queue, Entries=handles)

    consumers = [consume(lambda: len(seen) >= total) for _ in range(8)]
    await asyncio.gather(produce(), *consumers)
    assert seen == Counter(str(n) for n in range(total))


async def test_fifo_order_holds_with_many_receivers(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    groups, each_ = "abcd", 15
    for n in range(each_):
        entries = [
            {"Id": group, "MessageBody": f"{group}{n}", "MessageGroupId": group} for group in groups
        ]
        await endpoint.ask("send_message_batch", QueueUrl=queue, Entries=entries)
    handled: list[str] = []
    in_flight: set[str] = set()

    async def consume() -> None:
        while len(handled) < len(groups) * each_:
            found = await endpoint.receive(queue, MaxNumberOfMessages=3, WaitTimeSeconds=1)
            held = {each["Attributes"]["MessageGroupId"] for each in found}
            assert not held & in_flight
            in_flight.update(held)
            for each in found:
                handled.append(each["Body"])
            in_flight.difference_update(held)
            for each in found:
                await endpoint.ask(
                    "delete_message", QueueUrl=queue, ReceiptHandle=each["ReceiptHandle"]
                )

    await asyncio.gather(*(consume() for _ in range(4)))
    for group in groups:
        own = [body for body in handled if body.startswith(group)]
        assert own == [f"{group}{n}" for n in range(each_)]


async def test_jobs_and_messages_are_the_same(endpoint: Endpoint) -> None:
    await endpoint.app.engine.declare(Queue(name="native"))
    await endpoint.app.enqueue_many(
        [NewJob(id="job-1", task="mail.send", queue="native", payload=b'{"to":"a"}')]
    )
    queue = (await endpoint.ask("get_queue_url", QueueName="native"))["QueueUrl"]
    [message] = await endpoint.receive(queue, MessageAttributeNames=["holdfast.*"])
    assert (message["MessageId"], message["Body"]) == ("job-1", '{"to":"a"}')
    assert message["MessageAttributes"]["holdfast.task"]["StringValue"] == "mail.send"


async def test_errors_have_the_classes_of_the_sdk(endpoint: Endpoint) -> None:
    queue = await endpoint.create("orders")
    exceptions = endpoint.client.exceptions
    with pytest.raises(exceptions.ReceiptHandleIsInvalid):
        await endpoint.ask("delete_message", QueueUrl=queue, ReceiptHandle="nonsense")
    with pytest.raises(exceptions.InvalidMessageContents):
        await endpoint.ask("send_message", QueueUrl=queue, MessageBody="\x00")
    with pytest.raises(exceptions.QueueDoesNotExist):
        await endpoint.ask("send_message", QueueUrl=f"{queue}-2", MessageBody="x")
    with pytest.raises(ClientError) as refused:
        await endpoint.ask("receive_message", QueueUrl=queue, MaxNumberOfMessages=11)
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
