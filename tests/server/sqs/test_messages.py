"""Actions on messages of standard queues: send, receive, delete, visibility, dead letters."""

import base64
import hashlib
import json
from typing import Any

import pytest

from holdfast.core.codec import ENVELOPE, Attribute, pack_envelope
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Queue, State
from holdfast.core.verdict import Release, Settlement
from tests.server.sqs.message_calls import bodies, count, delete, hide, reap, receive, send
from tests.server.sqs.sqs_client import SqsClient, SqsRefused

HOUR_S = 3_600


async def test_a_message_is_sent_received_and_deleted(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    sent = await send(sqs, url, "héllo\r\n")
    md5 = hashlib.md5("héllo\r\n".encode()).hexdigest()
    assert sent == {"MessageId": sent["MessageId"], "MD5OfMessageBody": md5}
    [message] = await receive(sqs, url)
    assert message == {
        "MessageId": sent["MessageId"],
        "ReceiptHandle": message["ReceiptHandle"],
        "MD5OfBody": md5,
        "Body": "héllo\r\n",
        "Attributes": {
            "SenderId": "000000000000",
            "SentTimestamp": str(sqs.clock.wall_ms()),
            "ApproximateReceiveCount": "1",
            "ApproximateFirstReceiveTimestamp": str(sqs.clock.wall_ms()),
        },
    }
    assert await receive(sqs, url) == []
    for _ in range(2):
        await delete(sqs, url, message["ReceiptHandle"])
    await reap(sqs, 60_000)
    assert await receive(sqs, url) == []


async def test_an_empty_receive_has_no_messages_member(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    assert await sqs.ask("ReceiveMessage", QueueUrl=url) == {}
    await send(sqs, url)
    answer = await sqs.ask("ReceiveMessage", QueueUrl=url)
    assert answer["Messages"][0].keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


async def test_message_attributes_come_back_as_the_filter_says(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    attributes = {
        "trace.id": {"DataType": "String", "StringValue": "a"},
        "trace.no": {"DataType": "Number.int", "StringValue": "7"},
        "blob": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00\xff").decode()},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    sent = await send(sqs, url, MessageAttributes=attributes, MessageSystemAttributes=trace)
    assert "MD5OfMessageSystemAttributes" in sent
    for names, expected in [
        ([], None),
        (["nope"], None),
        (["All"], attributes),
        ([".*"], attributes),
        (["trace.*"], {name: attributes[name] for name in ("trace.id", "trace.no")}),
        (["blob", "nope"], {"blob": attributes["blob"]}),
    ]:
        [message] = await receive(sqs, url, VisibilityTimeout=0, MessageAttributeNames=names)
        assert message.get("MessageAttributes") == expected
        assert ("MD5OfMessageAttributes" in message) == bool(expected)
        assert message["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"
        if expected == attributes:
            assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        assert message["Body"] == "hello"


async def test_the_task_of_a_message_is_an_attribute(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    task = {"holdfast.task": {"DataType": "String", "StringValue": "mail.send"}}
    sent = await send(sqs, url, '{"to":"a"}', MessageAttributes=task)
    job = await sqs.store.get(sent["MessageId"])
    assert job is not None
    assert (job.task, job.payload, job.content_type) == (
        "mail.send", b'{"to":"a"}', "application/json",
    )  # fmt: skip
    [message] = await receive(sqs, url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == task
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    plain = await sqs.store.get((await send(sqs, url, "hello"))["MessageId"])
    assert plain is not None
    assert (plain.task, plain.payload) == ("message", b"hello")
    default = {"holdfast.task": {"DataType": "String", "StringValue": "message"}}
    await send(sqs, url, "x", MessageAttributes=default)
    found = await receive(sqs, url, MessageAttributeNames=["All"])
    assert [each.get("MessageAttributes") for each in found] == [None, default]
    with pytest.raises(SqsRefused, match="names a task"):
        await send(
            sqs,
            url,
            MessageAttributes={"holdfast.task": {"DataType": "Number", "StringValue": "1"}},
        )


async def test_workers_run_messages(sqs: SqsClient) -> None:
    app = sqs.server.server.app

    @app.task(name="mail.send")
    def mail(to: str) -> None: ...

    @app.task(name="message")
    def any_message(body: bytes) -> None: ...

    url = await sqs.create("orders")
    task = {"holdfast.task": {"DataType": "String", "StringValue": "mail.send"}}
    more = {**task, "trace": {"DataType": "String", "StringValue": "a"}}
    for body, attributes, expected in [
        ('{"to":"a"}', task, {"to": "a"}),
        ('{"to":"a"}', more, {"to": "a"}),
        ("hello", {}, {"body": b"hello"}),
    ]:
        sent = await send(sqs, url, body, MessageAttributes=attributes)
        job = await sqs.store.get(sent["MessageId"])
        assert job is not None
        handler = app.tasks[job.task].handler
        assert handler.arguments(job.payload, job.content_type) == ((), expected)


async def test_commands_cannot_be_sent_as_messages(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    task = {"holdfast.task": {"DataType": "String", "StringValue": "command"}}
    with pytest.raises(SqsRefused) as refused:
        await send(sqs, url, '["id"]', MessageAttributes=task)
    assert refused.value.shape == "AccessDeniedException"


async def test_jobs_of_other_programs_are_received(sqs: SqsClient) -> None:
    await sqs.store.declare(Queue(name="native"))
    await sqs.store.enqueue(
        [
            NewJob(id="j1", task="mail.send", queue="native", payload=b'{"a":1}'),
            NewJob(id="j2", task="raw", queue="native", payload=b"\x00\xff", content_type="a/b"),
        ]
    )
    url = "/000000000000/native"
    first, second = await receive(sqs, url)
    assert (first["MessageId"], first["Body"]) == ("j1", '{"a":1}')
    assert second["Body"] == base64.b64encode(b"\x00\xff").decode()
    assert second["MessageAttributes"] == {
        "holdfast.encoding": {"DataType": "String", "StringValue": "base64"}
    }
    await delete(sqs, url, first["ReceiptHandle"])
    job = await sqs.store.get("j1")
    assert job is not None
    assert job.state is State.DONE


async def test_hostile_jobs_become_legal_messages(sqs: SqsClient) -> None:
    await sqs.store.declare(Queue(name="native"))
    illegal = {
        "AWS.x": Attribute("String", b"x"),
        "ok": Attribute("String", b"\x01"),
        "type": Attribute("\x01", b"x"),
    }
    for name, attribute in illegal.items():
        payload, content_type = pack_envelope(b"body", {name: attribute})
        job = NewJob(
            id=name, task="t", queue="native", payload=payload, content_type=content_type,
            tenant="\x01", headers={"sqs-trace-header": "\x01"},
        )  # fmt: skip
        await sqs.store.enqueue([job])
    await sqs.store.enqueue(
        [NewJob(id="cut", task="t", queue="native", payload=b"\xc1", content_type=ENVELOPE)]
    )
    found = await receive(sqs, "native", MessageAttributeNames=["All"])
    assert [each["MessageId"] for each in found] == [*illegal, "cut"]
    for message in found:
        assert message["MessageAttributes"].keys() <= {"holdfast.task", "holdfast.encoding"}
        assert not message["Attributes"].keys() & {"MessageGroupId", "AWSTraceHeader"}
    assert bodies(found)[:3] == ["body"] * 3


@pytest.mark.parametrize(
    ("members", "shape", "text"),
    [
        ({"MessageBody": ""}, "MissingRequiredParameterException", "MessageBody"),
        ({"MessageBody": "\x00"}, "InvalidMessageContents", "Invalid characters"),
        ({"DelaySeconds": 901}, "InvalidParameterValueException", "DelaySeconds must be >= 0"),
        ({"DelaySeconds": -1}, "InvalidParameterValueException", "DelaySeconds must be >= 0"),
        ({"MessageGroupId": "a b"}, "InvalidParameterValueException", "alphanumeric"),
        ({"MessageDeduplicationId": "x"}, "InvalidParameterValueException", "queue type"),
        ({"MessageBody": "x" * 1025}, "InvalidParameterValueException", "shorter than 1024 bytes"),
    ],
)
async def test_an_invalid_message_is_refused(
    sqs: SqsClient, members: dict[str, Any], shape: str, text: str
) -> None:
    url = await sqs.create("orders", MaximumMessageSize="1024")
    with pytest.raises(SqsRefused, match=text) as refused:
        await sqs.ask("SendMessage", **{"QueueUrl": url, "MessageBody": "x", **members})
    assert refused.value.shape == shape
    assert await receive(sqs, url) == []


async def test_one_invalid_entry_does_not_affect_the_others(sqs: SqsClient) -> None:
    url = await sqs.create("orders", MaximumMessageSize="1024")
    entries = [
        {"Id": "ok", "MessageBody": "a"},
        {"Id": "illegal", "MessageBody": "\x01"},
        {"Id": "long", "MessageBody": "x" * 1025},
        {"Id": "late", "MessageBody": "b", "DelaySeconds": 1_000},
        {"Id": "also-ok", "MessageBody": "c"},
    ]
    answer = await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["ok", "also-ok"]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in answer["Failed"]] == [
        ("illegal", "InvalidMessageContents", True),
        ("long", "InvalidParameterValue", True),
        ("late", "InvalidParameterValue", True),
    ]
    assert "cannot be validated" in answer["Failed"][1]["Message"]
    assert sorted(bodies(await receive(sqs, url))) == ["a", "c"]


@pytest.mark.parametrize(
    ("entries", "shape"),
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "x"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a.b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": "x" * 81, "MessageBody": "x"}], "InvalidBatchEntryId"),
        (
            [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)],
            "BatchRequestTooLong",
        ),
    ],
)
async def test_an_invalid_batch_is_refused_as_a_whole(
    sqs: SqsClient, entries: list[dict[str, str]], shape: str
) -> None:
    url = await sqs.create("orders")
    with pytest.raises(SqsRefused) as refused:
        await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert refused.value.shape == shape


async def test_a_body_of_the_largest_size_is_delivered(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url, "é" * 524_288)
    assert [len(body) for body in bodies(await receive(sqs, url))] == [524_288]
    with pytest.raises(SqsRefused, match="shorter than 1048576 bytes"):
        await send(sqs, url, "é" * 524_288 + "x")


async def test_a_message_of_the_largest_size_with_attributes_is_delivered(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "v" * 100} for n in range(10)}
    used = sum(2 + 6 + 100 for _ in range(10))
    body = "x" * (1_048_576 - used)
    await send(sqs, url, body, MessageAttributes=attributes)
    [message] = await receive(sqs, url, MessageAttributeNames=["All"])
    assert len(message["Body"]) == len(body)
    assert len(message["MessageAttributes"]) == 10
    with pytest.raises(SqsRefused, match="shorter than 1048576 bytes"):
        await send(sqs, url, body + "x", MessageAttributes=attributes)


async def test_delays_of_messages_and_queues(sqs: SqsClient) -> None:
    url = await sqs.create("orders", DelaySeconds="10")
    await send(sqs, url, "queue")
    await send(sqs, url, "own", DelaySeconds=20)
    await send(sqs, url, "now", DelaySeconds=0)
    assert bodies(await receive(sqs, url)) == ["now"]
    sqs.clock.advance(10_000)
    assert bodies(await receive(sqs, url)) == ["queue"]
    sqs.clock.advance(10_000)
    assert bodies(await receive(sqs, url)) == ["own"]


async def test_a_message_is_visible_again_after_its_timeout(sqs: SqsClient) -> None:
    url = await sqs.create("orders", VisibilityTimeout="10")
    await send(sqs, url)
    start = sqs.clock.wall_ms()
    [first] = await receive(sqs, url)
    await reap(sqs, 9_999)
    assert await receive(sqs, url) == []
    await reap(sqs, 1)
    [second] = await receive(sqs, url, VisibilityTimeout=60)
    assert count(second) == 2
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateFirstReceiveTimestamp"] == str(start)
    await reap(sqs, 59_999)
    assert await receive(sqs, url) == []


async def test_a_visibility_of_zero_hides_nothing_and_counts(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url)
    handles = []
    for times in (1, 2, 3):
        [message] = await receive(sqs, url, VisibilityTimeout=0)
        assert count(message) == times
        handles.append(message["ReceiptHandle"])
    await delete(sqs, url, handles[0])
    assert await receive(sqs, url) == []


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"MaxNumberOfMessages": 0}, "Must be between 1 and 10"),
        ({"MaxNumberOfMessages": 11}, "Must be between 1 and 10"),
        ({"WaitTimeSeconds": 21}, "Must be >= 0 and <= 20"),
        ({"WaitTimeSeconds": -1}, "Must be >= 0 and <= 20"),
        ({"VisibilityTimeout": 43_201}, "between 0 and 43200"),
        ({"VisibilityTimeout": -1}, "between 0 and 43200"),
        ({"ReceiveRequestAttemptId": "x"}, "queue type"),
    ],
)
async def test_an_invalid_receive_is_refused(
    sqs: SqsClient, members: dict[str, Any], text: str
) -> None:
    url = await sqs.create("orders")
    with pytest.raises(SqsRefused, match=text) as refused:
        await sqs.ask("ReceiveMessage", QueueUrl=url, **members)
    assert refused.value.shape == "InvalidParameterValueException"


async def test_an_invalid_handle_and_one_of_another_queue_are_refused(sqs: SqsClient) -> None:
    url, other = await sqs.create("orders"), await sqs.create("other")
    await send(sqs, url)
    [message] = await receive(sqs, url)
    handle = message["ReceiptHandle"]
    for queue, given, text in [
        (url, "nonsense", 'The input receipt handle "nonsense" is not a valid receipt handle.'),
        (other, handle, f'The receipt handle "{handle}" is not valid for this queue.'),
    ]:
        for action, members in [
            ("DeleteMessage", {}),
            ("ChangeMessageVisibility", {"VisibilityTimeout": 0}),
        ]:
            with pytest.raises(SqsRefused) as refused:
                await sqs.ask(action, QueueUrl=queue, ReceiptHandle=given, **members)
            assert (refused.value.shape, refused.value.message) == ("ReceiptHandleIsInvalid", text)
    await reap(sqs, 29_999)
    assert await receive(sqs, url) == []


async def test_a_stale_handle_deletes_a_message_that_waits(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    for rounds in (1, 2):
        await send(sqs, url)
        handles = []
        for _ in range(rounds):
            [message] = await receive(sqs, url)
            handles.append(message["ReceiptHandle"])
            await reap(sqs, 30_000)
        await delete(sqs, url, handles[0])
        assert await receive(sqs, url) == []


async def test_a_stale_handle_never_touches_the_lease_of_another_consumer(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url)
    [stale] = await receive(sqs, url)
    await reap(sqs, 30_000)
    [current] = await receive(sqs, url, VisibilityTimeout=100)
    await delete(sqs, url, stale["ReceiptHandle"])
    for seconds in (0, 1, 50):
        await hide(sqs, url, stale["ReceiptHandle"], seconds)
    await reap(sqs, 99_999)
    assert await receive(sqs, url) == []
    await hide(sqs, url, current["ReceiptHandle"], 0)
    assert [count(each) for each in await receive(sqs, url)] == [3]


async def test_visibility_counts_from_the_change(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url)
    [message] = await receive(sqs, url, VisibilityTimeout=10)
    sqs.clock.advance(5_000)
    await hide(sqs, url, message["ReceiptHandle"], 10)
    await reap(sqs, 9_999)
    assert await receive(sqs, url) == []
    await reap(sqs, 1)
    assert len(await receive(sqs, url)) == 1


async def test_visibility_lasts_twelve_hours_in_all(sqs: SqsClient) -> None:
    url = await sqs.create("orders", VisibilityTimeout="43200")
    await send(sqs, url)
    [message] = await receive(sqs, url)
    handle = message["ReceiptHandle"]
    await hide(sqs, url, handle, 12 * HOUR_S)
    sqs.clock.advance(HOUR_S * 1_000)
    await hide(sqs, url, handle, 11 * HOUR_S)
    for seconds, text in [
        (11 * HOUR_S + 1, r"beyond the limit \[43200 seconds\]"),
        (43_201, "between 0 and 43200"),
        (-1, "between 0 and 43200"),
    ]:
        with pytest.raises(SqsRefused, match=text):
            await hide(sqs, url, handle, seconds)


@pytest.mark.parametrize("is_reaped", [True, False])
async def test_a_message_whose_timeout_ended_can_be_hidden_again(
    sqs: SqsClient, *, is_reaped: bool
) -> None:
    url = await sqs.create("orders", VisibilityTimeout="10")
    await send(sqs, url)
    [message] = await receive(sqs, url)
    sqs.clock.advance(10_000)
    if is_reaped:
        await reap(sqs)
    await hide(sqs, url, message["ReceiptHandle"], 20)
    await reap(sqs, 19_999)
    assert await receive(sqs, url) == []
    await reap(sqs, 1)
    [again] = await receive(sqs, url)
    assert count(again) == 2
    await delete(sqs, url, message["ReceiptHandle"])
    await delete(sqs, url, again["ReceiptHandle"])
    with pytest.raises(SqsRefused, match="Message does not exist or is not available") as refused:
        await hide(sqs, url, again["ReceiptHandle"], 10)
    assert refused.value.shape == "InvalidParameterValueException"


async def test_batches_of_handles(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    for body in "abc":
        await send(sqs, url, body)
    messages = await receive(sqs, url)
    handles = {each["Body"]: each["ReceiptHandle"] for each in messages}
    answer = await sqs.ask(
        "ChangeMessageVisibilityBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": handles["a"], "VisibilityTimeout": 0},
            {"Id": "bad", "ReceiptHandle": "nonsense", "VisibilityTimeout": 0},
            {"Id": "far", "ReceiptHandle": handles["b"], "VisibilityTimeout": 50_000},
            {"Id": "none", "ReceiptHandle": handles["b"]},
            {"Id": "c", "ReceiptHandle": handles["c"], "VisibilityTimeout": 100},
        ],
    )
    assert [each["Id"] for each in answer["Successful"]] == ["a", "c"]
    assert {each["Id"]: each["Code"] for each in answer["Failed"]} == {
        "bad": "ReceiptHandleIsInvalid",
        "far": "InvalidParameterValue",
        "none": "MissingParameter",
    }
    assert bodies(await receive(sqs, url)) == ["a"]
    await reap(sqs, 30_000)
    answer = await sqs.ask(
        "DeleteMessageBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "bad", "ReceiptHandle": handles["a"][:-1]},
            *({"Id": body, "ReceiptHandle": handle} for body, handle in handles.items()),
        ],
    )
    assert [each["Id"] for each in answer["Successful"]] == ["a", "b", "c"]
    assert [each["Id"] for each in answer["Failed"]] == ["bad"]
    await reap(sqs, 100_000)
    assert await receive(sqs, url) == []


async def create_with_dead_queue(sqs: SqsClient, receives_max: int) -> tuple[str, str]:
    dead = await sqs.create("dead")
    arn = (await sqs.attributes(dead, "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max})
    return await sqs.create("orders", RedrivePolicy=policy, VisibilityTimeout="10"), dead


async def test_a_message_moves_to_the_dead_letter_queue_at_its_next_receive(
    sqs: SqsClient,
) -> None:
    url, dead = await create_with_dead_queue(sqs, 2)
    sent = await send(sqs, url, MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}})
    sent_at = sqs.clock.wall_ms()
    for times in (1, 2):
        [message] = await receive(sqs, url)
        assert count(message) == times
        await reap(sqs, 10_000)
        assert await receive(sqs, dead) == []
    await send(sqs, url, "next")
    assert bodies(await receive(sqs, url)) == ["next"]
    [letter] = await receive(sqs, dead, MessageAttributeNames=["All"])
    assert (letter["MessageId"], letter["Body"]) == (sent["MessageId"], "hello")
    assert letter["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "b"}}
    assert letter["Attributes"]["ApproximateReceiveCount"] == "3"
    assert letter["Attributes"]["SentTimestamp"] == str(sent_at)
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == (
        "arn:aws:sqs:us-east-1:000000000000:orders"
    )
    await reap(sqs, 30_000)
    [again] = await receive(sqs, dead)
    assert count(again) == 4
    await hide(sqs, dead, again["ReceiptHandle"], 0)
    [last] = await receive(sqs, dead)
    assert count(last) == 5
    # An older handle deletes only a message that no consumer holds.
    await delete(sqs, dead, letter["ReceiptHandle"])
    await reap(sqs, 30_000)
    [held] = await receive(sqs, dead)
    await reap(sqs, 30_000)
    await delete(sqs, dead, held["ReceiptHandle"])
    assert await receive(sqs, dead) == []


async def test_a_worker_that_gave_a_message_back_counts_no_receive_of_the_dead_letter(
    sqs: SqsClient,
) -> None:
    url, dead = await create_with_dead_queue(sqs, 1)
    await send(sqs, url)
    request = LeaseRequest(queues=("orders",), limit=1, worker="w", lease_ms=10_000)
    for _ in range(3):
        [lease] = await sqs.store.lease(request)
        await sqs.store.settle([Settlement(lease=lease, verdict=Release("it stops"))])
    for n in (1, 0):
        assert len(await receive(sqs, url, VisibilityTimeout=0)) == n
    for n in (2, 3):
        [letter] = await receive(sqs, dead, VisibilityTimeout=0)
        assert count(letter) == n


async def test_a_server_that_dies_before_the_burial_loses_nothing(sqs: SqsClient) -> None:
    url, dead = await create_with_dead_queue(sqs, 1)
    sent = await send(sqs, url)
    await receive(sqs, url)
    await reap(sqs, 10_000)
    # The receive that finds the message past its limit ends after its lease.
    assert len(await sqs.store.lease(LeaseRequest(queues=("orders",), lease_ms=1_000))) == 1
    await reap(sqs, 1_000)
    assert await receive(sqs, url) == []
    [letter] = await receive(sqs, dead)
    assert (letter["MessageId"], count(letter)) == (sent["MessageId"], 2)


async def test_a_dead_letter_queue_delivers_what_was_sent_to_it_as_well(sqs: SqsClient) -> None:
    url, dead = await create_with_dead_queue(sqs, 1)
    await send(sqs, url, "died")
    await receive(sqs, url)
    await reap(sqs, 10_000)
    assert await receive(sqs, url) == []
    await send(sqs, dead, "sent")
    seen: set[str] = set()
    for _ in range(50):
        seen.update(bodies(await receive(sqs, dead, MaxNumberOfMessages=1, VisibilityTimeout=0)))
    assert seen == {"died", "sent"}
    found = await receive(sqs, dead)
    assert sorted(bodies(found)) == ["died", "sent"]
    for message in found:
        await delete(sqs, dead, message["ReceiptHandle"])
    await reap(sqs, 30_000)
    assert await receive(sqs, dead) == []


async def test_dead_letters_are_received_after_their_source_has_another_policy(
    sqs: SqsClient,
) -> None:
    url, dead = await create_with_dead_queue(sqs, 1)
    await send(sqs, url)
    await receive(sqs, url)
    await reap(sqs, 10_000)
    await receive(sqs, url)
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    found = await receive(sqs, dead)
    while not found:
        found = await receive(sqs, dead, WaitTimeSeconds=1)
    assert bodies(found) == ["hello"]


async def test_a_missing_dead_letter_queue_loses_nothing(sqs: SqsClient) -> None:
    url, dead = await create_with_dead_queue(sqs, 1)
    await send(sqs, url)
    await sqs.ask("DeleteQueue", QueueUrl=dead)
    for times in (1, 2, 3):
        [message] = await receive(sqs, url)
        assert count(message) == times
        await reap(sqs, 10_000)


async def test_a_message_past_its_retention_is_not_delivered(sqs: SqsClient) -> None:
    url = await sqs.create("orders", MessageRetentionPeriod="60", VisibilityTimeout="50")
    await send(sqs, url, "old")
    await receive(sqs, url)
    await reap(sqs, 50_000)
    await send(sqs, url, "new")
    await reap(sqs, 10_000)
    assert bodies(await receive(sqs, url)) == ["new"]
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "100"})
    await reap(sqs, 50_000)
    assert bodies(await receive(sqs, url)) == ["new"]


async def test_jobs_of_other_programs_have_no_retention(sqs: SqsClient) -> None:
    await sqs.store.declare(Queue(name="native"))
    await sqs.store.enqueue([NewJob(id="j1", task="t", queue="native")])
    sqs.clock.advance(100 * 24 * HOUR_S * 1_000)
    assert len(await receive(sqs, "native")) == 1


async def test_a_group_on_a_standard_queue_makes_it_fair(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await send(sqs, url, "plain")
    [view] = await sqs.store.queues(names=["orders"])
    assert view.queue.fairness == "off"
    for n in range(40):
        await send(sqs, url, f"noisy {n}", MessageGroupId="a")
    [view] = await sqs.store.queues(names=["orders"])
    assert view.queue.fairness == "noisy"
    for _ in range(4):
        assert len(await receive(sqs, url)) == 10
    await send(sqs, url, "noisy again", MessageGroupId="a")
    await send(sqs, url, "quiet", MessageGroupId="b")
    first, _ = await receive(sqs, url, MaxNumberOfMessages=1), None
    assert first[0]["Body"] in ("quiet", "noisy 39", "plain")
    jobs = await sqs.store.find(JobFilter(queue="orders", tenant="a"), limit=100)
    assert len(jobs.jobs) == 41
