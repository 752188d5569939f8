"""Hostile requests: the right 4xx, never a 5xx, and neighbours in batches and queues unharmed."""

import copy
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.serialize import QuerySerializer

from holdfast.server.sqs.receipts import HANDLE_MAX
from holdfast.server.sqs.shapes import ACTIONS
from tests.server.server_process import ServerProcess, server_process
from tests.server.sqs.message_calls import bodies, receive, send
from tests.server.sqs.service_model import query_model
from tests.server.sqs.sqs_client import ACCOUNT, JSON, SqsClient, SqsRefused, sqs_server

FORM = "application/x-www-form-urlencoded"
ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"
QUEUE = {"QueueUrl": f"/{ACCOUNT}/target.fifo"}
ATTRIBUTES = {
    "a": {"DataType": "String", "StringValue": "x"},
    "b": {"DataType": "Binary", "BinaryValue": "AA=="},
}
SYSTEM = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x"}}
MESSAGE = {
    "MessageBody": "x",
    "DelaySeconds": 0,
    "MessageAttributes": ATTRIBUTES,
    "MessageSystemAttributes": SYSTEM,
    "MessageGroupId": "g",
    "MessageDeduplicationId": "d",
}
HANDLE = {"ReceiptHandle": "the handle of a message"}
REDRIVE = json.dumps({"deadLetterTargetArn": f"{ARN}dead.fifo", "maxReceiveCount": 3})
ALLOW = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}target.fifo"]})
SAMPLES: dict[str, dict[str, Any]] = {
    "AddPermission": {**QUEUE, "Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": ["*"]},
    "CancelMessageMoveTask": {"TaskHandle": "x"},
    "ChangeMessageVisibility": {**QUEUE, **HANDLE, "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {
        **QUEUE,
        "Entries": [{"Id": "1", **HANDLE, "VisibilityTimeout": 1}],
    },
    "CreateQueue": {
        "QueueName": "made.fifo",
        "Attributes": {"DelaySeconds": "1", "FifoQueue": "true", "RedrivePolicy": REDRIVE},
        "tags": {"a": "b"},
    },
    "DeleteMessage": {**QUEUE, **HANDLE},
    "DeleteMessageBatch": {**QUEUE, "Entries": [{"Id": "1", **HANDLE}]},
    "DeleteQueue": QUEUE,
    "GetQueueAttributes": {**QUEUE, "AttributeNames": ["All"]},
    "GetQueueUrl": {"QueueName": "target.fifo", "QueueOwnerAWSAccountId": ACCOUNT},
    "ListDeadLetterSourceQueues": {**QUEUE, "NextToken": None, "MaxResults": 1},
    "ListMessageMoveTasks": {"SourceArn": f"{ARN}dead.fifo", "MaxResults": 1},
    "ListQueueTags": QUEUE,
    "ListQueues": {"QueueNamePrefix": "t", "NextToken": None, "MaxResults": 1},
    "PurgeQueue": QUEUE,
    "ReceiveMessage": {
        **QUEUE,
        "AttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
        "MaxNumberOfMessages": 1,
        "VisibilityTimeout": 0,
        "WaitTimeSeconds": 0,
        "ReceiveRequestAttemptId": "x",
    },
    "RemovePermission": {**QUEUE, "Label": "l"},
    "SendMessage": {**QUEUE, **MESSAGE},
    "SendMessageBatch": {**QUEUE, "Entries": [{"Id": "1", **MESSAGE}, {"Id": "2", **MESSAGE}]},
    "SetQueueAttributes": {
        **QUEUE,
        "Attributes": {
            "VisibilityTimeout": "1",
            "Policy": "{}",
            "RedrivePolicy": REDRIVE,
            "RedriveAllowPolicy": ALLOW,
            "KmsMasterKeyId": "k",
        },
    },
    "StartMessageMoveTask": {
        "SourceArn": f"{ARN}dead.fifo",
        "DestinationArn": f"{ARN}target.fifo",
        "MaxNumberOfMessagesPerSecond": 1,
    },
    "TagQueue": {**QUEUE, "Tags": {"a": "b"}},
    "UntagQueue": {**QUEUE, "TagKeys": ["a"]},
}
"""A request of each action with every member, accepted where that needs no other request."""
REFUSED = ("CancelMessageMoveTask", "RemovePermission")
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 1.5, 2**31, 2**64, 10**400, "", "x", "-1", "\x00", "\ud800", "é" * 3000,
    "9" * 5000, "[" * 200, '{"deadLetterTargetArn":[],"maxReceiveCount":{}}',
    '{"redrivePermission":{},"sourceQueueArns":[1]}', "arn:aws:sqs:::", "../" * 9, [], [None],
    ["x"] * 100, [[]], {}, {"a": None}, {"": {}}, {"a": {"a": {"a": []}}},
)  # fmt: skip


@pytest.mark.parametrize("protocol", [JSON, FORM])
@pytest.mark.parametrize("action", ACTIONS)
async def test_the_samples_are_accepted(action: str, protocol: str) -> None:
    """Otherwise one wrong member would hide the others."""
    async with sqs_server() as sqs:
        sample = await _prepared(sqs, action)
        if protocol == JSON:
            reply = await sqs.send(action, json.dumps(sample).encode())
        else:
            body = urlencode(_parameters(action, sample)).encode()
            reply = await sqs.server.ask("POST", "/", body, content_type=FORM)
        assert (reply.status == 200) == (action not in REFUSED), reply.body


@pytest.mark.parametrize("action", sorted(SAMPLES))
async def test_any_value_in_any_member_is_answered(sqs: SqsClient, action: str) -> None:
    sample = await _prepared(sqs, action)
    for place in _places(sample):
        for value in HOSTILE:
            request = _replaced(sample, place, value)
            reply = await sqs.send(action, json.dumps(request).encode())
            assert reply.status < 500, (place, value, reply.body)
            if reply.status != 200:
                assert reply.json["__type"], (place, value)
                assert reply.headers["x-amzn-query-error"].endswith(";Sender"), (place, value)
    assert bodies(await receive(sqs, "bystander")) == ["kept"]


@pytest.mark.parametrize("action", sorted(SAMPLES))
async def test_any_text_in_any_parameter_is_answered(sqs: SqsClient, action: str) -> None:
    sample = await _prepared(sqs, action)
    parameters = _parameters(action, sample)
    texts = [value for value in HOSTILE if isinstance(value, str) and value != "\ud800"]
    for name in parameters:
        for text in (*texts, "\ufffe", "<!DOCTYPE x [<!ENTITY a '&a;&a;'>]>&a;"):
            body = urlencode({**parameters, name: text}).encode()
            reply = await sqs.server.ask("POST", "/", body, content_type=FORM)
            assert reply.status < 500, (name, text, reply.body)
            if reply.status != 200:
                errors = (b"<Type>Sender</Type>", b"<UnknownOperationException/>")
                assert any(error in reply.body for error in errors), (name, text)
    assert bodies(await receive(sqs, "bystander")) == ["kept"]


async def _prepared(sqs: SqsClient, action: str) -> dict[str, Any]:
    """The sample of an action on queues that exist, with the handle of a message."""
    await send(sqs, await sqs.create("bystander"), "kept")
    await sqs.create("dead.fifo", FifoQueue="true")
    url = await sqs.create("target.fifo", FifoQueue="true", RedrivePolicy=REDRIVE)
    await send(sqs, url, MessageGroupId="held", MessageDeduplicationId="1")
    [message] = await receive(sqs, url)
    text = json.dumps(SAMPLES[action]).replace(HANDLE["ReceiptHandle"], message["ReceiptHandle"])
    sample: dict[str, Any] = json.loads(text)
    return sample


def _parameters(action: str, sample: dict[str, Any]) -> dict[str, str]:
    given = {name: value for name, value in sample.items() if value is not None}
    operation = query_model().operation_model(action)
    parameters: dict[str, str] = QuerySerializer().serialize_to_request(given, operation)["body"]
    return parameters


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values inside of a value."""
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield from _places(each, (*place, key))


def _replaced(request: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    request = copy.deepcopy(request)
    inside: Any = request
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return request


async def test_a_handle_altered_at_any_byte_is_refused(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url, "first")
    await send(sqs, url, "second")
    first, second = await receive(sqs, url)
    handle = first["ReceiptHandle"]
    alphabet = string.ascii_letters + string.digits + "-_"
    for place, char in enumerate(handle):
        for other in (alphabet[(alphabet.find(char) + 1) % 64], "=", "é", "\x00"):
            altered = handle[:place] + other + handle[place + 1 :]
            if altered == handle:
                continue
            entries = [
                {"Id": "bad", "ReceiptHandle": altered},
                {"Id": "good", "ReceiptHandle": second["ReceiptHandle"]},
            ]
            for entry in entries:
                entry["VisibilityTimeout"] = 30
            answer = await sqs.ask("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
            assert [each["Id"] for each in answer["Successful"]] == ["good"], altered
            assert [each["Code"] for each in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
            with pytest.raises(SqsRefused, match="is not a valid receipt handle") as refused:
                await sqs.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=altered)
            assert refused.value.shape == "ReceiptHandleIsInvalid"
    shown = await sqs.attributes(url, "ApproximateNumberOfMessagesNotVisible")
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "2"


async def test_a_handle_of_another_queue_is_refused(sqs: SqsClient) -> None:
    own, other = await sqs.create("own"), await sqs.create("other")
    await send(sqs, own)
    await send(sqs, other)
    [message] = await receive(sqs, own)
    [foreign] = await receive(sqs, other)
    entries = [
        {"Id": "bad", "ReceiptHandle": foreign["ReceiptHandle"]},
        {"Id": "long", "ReceiptHandle": "x" * (HANDLE_MAX + 1)},
        {"Id": "good", "ReceiptHandle": message["ReceiptHandle"]},
    ]
    answer = await sqs.ask("DeleteMessageBatch", QueueUrl=own, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["good"]
    assert {each["Id"]: each["Code"] for each in answer["Failed"]} == {
        "bad": "ReceiptHandleIsInvalid",
        "long": "ReceiptHandleIsInvalid",
    }
    with pytest.raises(SqsRefused, match="is not valid for this queue") as refused:
        await sqs.ask("DeleteMessage", QueueUrl=own, ReceiptHandle=foreign["ReceiptHandle"])
    assert refused.value.shape == "ReceiptHandleIsInvalid"
    shown = await sqs.attributes(other, "ApproximateNumberOfMessagesNotVisible")
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "1"


async def test_a_bad_message_leaves_its_batch_unharmed(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    value = {"DataType": "String", "StringValue": "x"}
    bad: dict[str, dict[str, Any]] = {
        "eleven": {"MessageAttributes": {f"a{n}": value for n in range(11)}},
        "type": {"MessageAttributes": {"a": {"DataType": "Nonsense", "StringValue": "x"}}},
        "empty": {"MessageAttributes": {"a": {"DataType": "String"}}},
        "number": {"MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}},
        "name": {"MessageAttributes": {"aws.a": value}},
        "text": {"MessageBody": "\x01"},
        "surrogate": {"MessageBody": "\ud800"},
        "delay": {"DelaySeconds": 901},
    }
    entries = [{"Id": name, "MessageBody": name, **members} for name, members in bad.items()]
    entries[4:4] = [{"Id": "good", "MessageBody": "good", "MessageAttributes": {"a": value}}]
    answer = await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["good"]
    assert {each["Id"] for each in answer["Failed"]} == set(bad)
    assert all(each["SenderFault"] for each in answer["Failed"])
    assert bodies(await receive(sqs, url)) == ["good"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(tmp_path, "--sqs", "relaxed") as process:
        yield process


def test_raw_requests(server: ServerProcess) -> None:
    created = _post(server, "CreateQueue", b'{"QueueName":"orders"}')
    assert created.startswith(b"HTTP/1.1 200 "), created
    sent = _post(server, "SendMessage", b'{"QueueUrl":"orders","MessageBody":"kept"}')
    assert sent.startswith(b"HTTP/1.1 200 "), sent
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><SendMessage>&a;</SendMessage>'
    huge = "x" * 10_000_000
    refused = {
        b"400": [
            _post(server, "SendMessage", b'{"QueueUrl":'),
            _post(server, "SendMessage", b"\xff\xfe"),
            _post(server, "SendMessage", b"[" * 100_000),
            _post(server, "SendMessage", bomb),
            _post(server, "Nonsense", b"{}"),
            _post(server, "", b"{}"),
            server.exchange(_request("POST", "/", b"Action=Nonsense", FORM)),
        ],
        b"404": [
            server.exchange(_request("POST", f"/{ACCOUNT}/orders", bomb, FORM)),
            server.exchange(_request("POST", "/", b"Version=1", FORM)),
            server.exchange(
                _request(
                    "GET",
                    f"/{ACCOUNT}/orders?Action=PurgeQueue",
                    b"",
                    FORM,
                    **{"sec-fetch-mode": "navigate"},
                )
            ),
        ],
        b"431": [
            server.exchange(_request("POST", "/", b"{}", JSON, **{"x-amz-target": huge})),
            server.exchange(_request("POST", "/", b"{}", JSON, authorization=huge)),
        ],
    }
    for status, answers in refused.items():
        for number, answer in enumerate(answers):
            # A server that refuses a request while it is being sent may reset the connection.
            assert not answer or answer.split(b" ")[1] == status, (status, number, answer[:300])
    received = _post(server, "ReceiveMessage", b'{"QueueUrl":"orders"}')
    assert b'"Body":"kept"' in received, received


def _post(server: ServerProcess, action: str, body: bytes) -> bytes:
    target = {"x-amz-target": f"AmazonSQS.{action}"}
    return server.exchange(_request("POST", "/", body, JSON, **target))


def _request(method: str, path: str, body: bytes, content_type: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
