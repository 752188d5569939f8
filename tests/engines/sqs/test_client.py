"""The client by itself: batches, repeats, errors and cancelled receives, against a scripted boto3
client."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from holdfast.engines.sqs import client as module
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsClient
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineUnavailable,
    HoldfastError,
    InvalidJob,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
)
from tests.stream_server import stream_server

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1/1/q"
KEY_ID, TOKEN = "AKIAIOSFODNN7EXAMPLE", "canary-session-token"
LOST = ConnectionClosedError(endpoint_url=URL)
UNSENT = EndpointConnectionError(endpoint_url=URL)

Answer = dict[str, Any] | BaseException | Callable[..., dict[str, Any]]


def fault(code: str, text: str = "", status: int = 400) -> ClientError:
    answer = {
        "Error": {"Code": code, "Message": text},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "Any")


def succeeds(**request: Any) -> dict[str, Any]:
    return {"Successful": [{"Id": e["Id"], "MessageId": f"m{e['Id']}"} for e in request["Entries"]]}


class ScriptedBoto:
    """Answers each call with the next of its script, then with `usual`."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.usual: Answer = succeeds
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        def call(**request: Any) -> dict[str, Any]:
            self.asked.append((name, request))
            answer = self.script.pop(0) if self.script else self.usual
            if isinstance(answer, BaseException):
                raise answer
            return answer if isinstance(answer, dict) else answer(**request)

        return call

    def close(self) -> None:
        self.asked.append(("close", {}))


@pytest.fixture
def boto() -> ScriptedBoto:
    return ScriptedBoto()


@pytest.fixture
async def client(boto: ScriptedBoto, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqsClient]:
    monkeypatch.setattr(module, "_PAUSE_S_FIRST", 0.0)
    made = SqsClient("eu-west-1")
    monkeypatch.setattr(made, "_make", lambda *_: (boto, boto, boto))
    await made.open()
    yield made
    await made.close()


def some(count: int, size: int = 1) -> list[OutgoingSqsMessage]:
    return [OutgoingSqsMessage(body="x" * size) for _ in range(count)]


async def test_batches_have_ten_entries_and_a_mebibyte(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    assert await client.send(URL, some(25)) == [f"m{number}" for number in range(25)]
    assert sorted(len(request["Entries"]) for _, request in boto.asked) == [5, 10, 10]
    boto.asked.clear()
    await client.send(URL, some(5, 400_000))
    assert sorted(len(request["Entries"]) for _, request in boto.asked) == [1, 2, 2]
    assert client.calls["SendMessageBatch"] == 6
    assert await client.send(URL, []) == []


async def test_several_batches_are_under_way_at_a_time(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    """Each call waits for another one: with one at a time none would ever end."""
    both = threading.Barrier(2)

    def met(**request: Any) -> dict[str, Any]:
        both.wait(60)
        return succeeds(**request)

    boto.usual = met
    answers = await client.send(URL, some(20))
    assert all(isinstance(answer, str) for answer in answers)


async def test_too_many_messages_in_flight_are_named_and_not_waited_for(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    boto.usual = fault("OverLimit", "too many", status=403)
    with pytest.raises(EngineUnavailable, match="120,000 messages of the queue are in flight"):
        await client.receive(URL, limit=1, wait_s=0, visibility_s=30)
    assert len(boto.asked) == 1


async def test_one_bad_entry_harms_no_other(client: SqsClient, boto: ScriptedBoto) -> None:
    def one_fails(**request: Any) -> dict[str, Any]:
        answer = succeeds(**request)
        bad = answer["Successful"].pop(3)
        answer["Failed"] = [
            {"Id": bad["Id"], "SenderFault": True, "Code": "InvalidMessageContents", "Message": "x"}
        ]
        return answer

    boto.script = [one_fails]
    answers = await client.send(URL, some(10))
    assert isinstance(answers.pop(3), InvalidJob)
    assert all(isinstance(each, str) for each in answers)
    assert len(boto.asked) == 1


async def test_an_entry_that_the_service_failed_is_repeated_by_itself(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    def one_fails(**request: Any) -> dict[str, Any]:
        answer = succeeds(**request)
        bad = answer["Successful"].pop(0)
        answer["Failed"] = [{"Id": bad["Id"], "SenderFault": False, "Code": "RequestThrottled"}]
        return answer

    boto.script = [one_fails, one_fails]
    assert await client.delete(URL, list("abc")) == [None] * 3
    assert [len(request["Entries"]) for _, request in boto.asked] == [3, 1, 1]


async def test_a_batch_that_one_entry_spoils_is_sent_singly(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    boto.script = [
        fault("InvalidParameterValue", "the group of one entry is missing"),
        succeeds,
        fault("AWS.SimpleQueueService.BatchRequestTooLong", "longer than 1048576 bytes"),
        succeeds,
    ]
    answers = await client.send(URL, some(3))
    assert [type(each) for each in answers] == [str, PayloadTooLarge, str]


async def test_a_lost_reply_to_a_send_is_not_repeated(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    for error in (LOST, ReadTimeoutError(endpoint_url=URL), fault("InternalFailure", "", 500)):
        boto.asked.clear()
        boto.script = [error]
        (answer,) = await client.send(URL, some(1))
        assert isinstance(answer, OutcomeUnknown)
        assert len(boto.asked) == 1


async def test_a_lost_reply_to_a_delete_is_repeated(client: SqsClient, boto: ScriptedBoto) -> None:
    boto.script = [LOST, fault("InternalFailure", "", 500)]
    assert await client.delete(URL, ["h"]) == [None]


async def test_throttling_is_waited_out_and_bounded(client: SqsClient, boto: ScriptedBoto) -> None:
    boto.script = [fault("RequestThrottled", "", 403), UNSENT]
    assert await client.send(URL, some(1)) == ["m0"]
    boto.usual = fault("ThrottlingException", "Rate exceeded")
    boto.asked.clear()
    (answer,) = await client.send(URL, some(1))
    assert isinstance(answer, EngineUnavailable)
    assert "nothing was changed" in str(answer)
    assert len(boto.asked) < 10


async def test_pauses_are_drawn_over_a_growing_span(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        spans.append((low, high))
        return 0.0

    monkeypatch.setattr("random.uniform", uniform)
    for tried in range(1, 20):
        module._pause_s(tried)
    assert all(low == 0 for low, _ in spans)
    tops = [top for _, top in spans]
    assert tops == sorted(tops)
    assert max(tops) == module._PAUSE_S_MAX


SIGNED = f"The Canonical String should have been host:x x-amz-security-token:{TOKEN} {KEY_ID}"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (fault("ExpiredToken", f"The token {TOKEN} expired"), ConfigError, "have expired: renew"),
        (fault("InvalidClientTokenId", KEY_ID), ConfigError, "check the access key"),
        (fault("SignatureDoesNotMatch", SIGNED), ConfigError, "secret access key"),
        (
            fault("SignatureDoesNotMatch", f"Signature expired: 2026 is now earlier than {SIGNED}"),
            ConfigError,
            "clock of this machine",
        ),
        (fault("AccessDenied", "User x may not"), ConfigError, "sqs:GetQueueAttributes"),
        (fault("AWS.SimpleQueueService.NonExistentQueue"), NotFound, "create=true"),
        (UNSENT, EngineUnavailable, "nothing was changed"),
        (fault("ServiceUnavailable", "busy", 503), EngineUnavailable, "busy"),
    ],
)
async def test_errors_say_the_remedy_and_no_credential(
    client: SqsClient,
    boto: ScriptedBoto,
    error: BaseException,
    kind: type[HoldfastError],
    words: str,
) -> None:
    boto.usual = error
    with pytest.raises(kind) as raised:
        await client.attributes(URL)
    text = repr(raised.value) + repr(raised.value.__cause__)
    assert words in text
    assert TOKEN not in text
    assert KEY_ID not in text


async def test_an_old_handle_is_a_lost_lease(client: SqsClient, boto: ScriptedBoto) -> None:
    expired = (
        "Value h for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )
    codes = {
        "ReceiptHandleIsInvalid": "x",
        "AWS.SimpleQueueService.MessageNotInflight": "x",
        "InvalidParameterValue": expired,
    }
    for code, text in codes.items():
        failed = {"Id": "0", "SenderFault": True, "Code": code, "Message": text}
        boto.script = [{"Failed": [failed]}]
        (answer,) = await client.change_visibility(URL, [("h", 5)])
        assert isinstance(answer, LeaseLost)


async def test_without_credentials_the_error_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    client = SqsClient("eu-west-1", endpoint="http://127.0.0.1:9")
    await client.open()
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        await client.queue_url("q")
    await client.close()


async def test_a_cancelled_receive_gives_its_messages_back(
    client: SqsClient, boto: ScriptedBoto
) -> None:
    polling, answer = Event(), Event()

    def poll(**request: Any) -> dict[str, Any]:
        polling.set()
        answer.wait(10)
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "h", "Body": "b"}]}

    given_back = Event()

    def change(**request: Any) -> dict[str, Any]:
        given_back.set()
        return succeeds(**request)

    boto.script = [poll, change]
    task = asyncio.create_task(client.receive(URL, wait_s=20))
    await asyncio.to_thread(polling.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answer.set()
    assert await asyncio.to_thread(given_back.wait, 10)
    name, request = boto.asked[-1]
    assert name == "change_message_visibility_batch"
    assert [(e["ReceiptHandle"], e["VisibilityTimeout"]) for e in request["Entries"]] == [("h", 0)]


async def test_closing_does_not_wait_for_a_long_poll(client: SqsClient, boto: ScriptedBoto) -> None:
    polling, answer = Event(), Event()

    def poll(**request: Any) -> dict[str, Any]:
        polling.set()
        answer.wait(10)
        return {}

    boto.script = [poll]
    task = asyncio.create_task(client.receive(URL, wait_s=20))
    await asyncio.to_thread(polling.wait, 10)
    task.cancel()
    async with asyncio.timeout(5):
        await client.close()
        await client.close()
    with pytest.raises(EngineClosed):
        await client.queue_url("q")
    answer.set()


async def test_the_clock_is_the_services(client: SqsClient, boto: ScriptedBoto) -> None:
    before = client.now_ms()
    headers = {"date": "Tue, 01 Jan 2030 00:00:00 GMT"}
    boto.script = [{"Attributes": {}, "ResponseMetadata": {"HTTPHeaders": headers}}]
    await client.attributes(URL)
    assert abs(client.now_ms() - 1_893_456_000_000) < 60_000
    boto.script = [{"ResponseMetadata": {"HTTPHeaders": {"date": "nonsense"}}}]
    await client.attributes(URL)
    assert client.now_ms() != before


async def test_a_reply_that_was_read_late_does_not_change_the_clock(
    client: SqsClient, boto: ScriptedBoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1_893_456_000_000, 1_893_456_030_000])
    headers = {"date": "Tue, 01 Jan 2030 00:00:05 GMT"}
    boto.script = [{"Attributes": {}, "ResponseMetadata": {"HTTPHeaders": headers}}]
    with monkeypatch.context() as patched:
        patched.setattr(client._clock, "wall_ms", lambda: next(times))
        await client.attributes(URL)
    assert client._clock_off_ms == 0


async def test_a_url_is_asked_for_once(client: SqsClient, boto: ScriptedBoto) -> None:
    boto.usual = {"QueueUrl": URL}
    assert [await client.queue_url("q") for _ in range(3)] == [URL] * 3
    assert len(boto.asked) == 1
    await client.delete_queue(URL)
    await client.queue_url("q")
    assert len(boto.asked) == 3


async def test_a_reply_that_was_cut_is_lost_and_not_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """botocore parses half a body as an answer without members."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    requests = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        requests += 1
        body = b'{"Attributes":{"VisibilityTimeout":"30"}}'
        sent = body if requests > 1 else body[:20]
        kind = b"content-type: application/x-amz-json-1.0\r\n"
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + length + sent)
        await writer.drain()

    async with stream_server(answer) as port:
        client = SqsClient("us-east-1", endpoint=f"http://127.0.0.1:{port}")
        await client.open()
        assert await client.attributes("u") == {"VisibilityTimeout": "30"}
        await client.close()
    assert requests == 2
