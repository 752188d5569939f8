"""The metrics of SQS queues by the names of CloudWatch."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.model import NewJob, Queue
from holdfast.server.live.metrics import snapshot_reader
from holdfast.server.sqs.metrics import COUNTED
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.meter import METERED_MAX, OTHER, SQS_COUNTERS, Meter
from tests.server.sqs.sqs_client import SqsClient, SqsRefused


async def shown(sqs: SqsClient, queue: str) -> dict[str, Any]:
    await flush(sqs)
    reply = await sqs.server.ask("GET", f"/v1/queues/{queue}/sqs")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


async def flush(sqs: SqsClient) -> None:
    app = sqs.server.server.app
    snapshot_reader(app).age_s_max = 0
    await Flusher(app.engine, app.telemetry.meter, "server", sqs.clock.wall_ms).flush()


async def test_messages_are_counted(sqs: SqsClient) -> None:
    url = await sqs.create("mail")
    attributes = {"k": {"DataType": "String", "StringValue": "v"}}
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="é", MessageAttributes=attributes)
    entries = [{"Id": "a", "MessageBody": "12345"}, {"Id": "b", "MessageBody": "\x00"}]
    await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="later", DelaySeconds=60)
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    answer = await sqs.ask("ReceiveMessage", QueueUrl=url)
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    handle = answer["Messages"][0]["ReceiptHandle"]
    for _ in range(2):
        await sqs.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    with pytest.raises(SqsRefused):
        await sqs.ask("DeleteMessage", QueueUrl=url, ReceiptHandle="nonsense")
    assert await shown(sqs, "mail") == {
        "QueueName": "mail",
        "ApproximateAgeOfOldestMessage": 0,
        "ApproximateNumberOfMessagesVisible": 0,
        "ApproximateNumberOfMessagesNotVisible": 1,
        "ApproximateNumberOfMessagesDelayed": 1,
        "NumberOfMessagesSent": 3,
        # The name, the type and the value of an attribute count as well.
        "SentMessageSize": 2 + 1 + 6 + 1 + 5 + 5,
        "NumberOfMessagesReceived": 2,
        "NumberOfEmptyReceives": 1,
        "NumberOfMessagesDeleted": 2,
    }


async def test_duplicates_are_counted_apart(sqs: SqsClient) -> None:
    url = await sqs.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for body in ("one", "one", "two"):
        await sqs.ask("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g")
    found = await shown(sqs, "orders.fifo")
    assert found["NumberOfMessagesSent"] == 2
    assert found["NumberOfDeduplicatedSentMessages"] == 1


async def test_the_age_of_the_oldest_message(sqs: SqsClient) -> None:
    url = await sqs.create("mail")
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="old")
    sqs.clock.advance(90_000)
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="new")
    assert (await shown(sqs, "mail"))["ApproximateAgeOfOldestMessage"] == 90


async def test_dead_letters_are_visible_in_their_queue(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    arn = (await sqs.attributes(dead, "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = await sqs.create("mail", RedrivePolicy=policy)
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="bad")
    for _ in range(2):
        await sqs.ask("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0)
    found = await shown(sqs, "dead")
    assert found["ApproximateNumberOfMessagesVisible"] == 1
    # A move is not a send.
    assert found["NumberOfMessagesSent"] == 0


async def test_noisy_groups(sqs: SqsClient) -> None:
    url = await sqs.create("mail")
    entries = [{"Id": str(n), "MessageBody": "x", "MessageGroupId": "loud"} for n in range(10)]
    for _ in range(4):
        await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    for _ in range(3):
        await sqs.ask("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="quiet")
    found = await shown(sqs, "mail")
    assert found["ApproximateNumberOfNoisyGroups"] == 1
    assert found["ApproximateNumberOfMessagesVisibleInQuietGroups"] == 1
    assert found["ApproximateNumberOfMessagesNotVisibleInQuietGroups"] == 0


async def test_prometheus_shows_the_queues_that_clients_have_used(sqs: SqsClient) -> None:
    url = await sqs.create("mail")
    await sqs.store.declare(Queue(name="other"))
    await sqs.store.enqueue([NewJob(id="a", task="t", queue="other")])
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="hello")
    await flush(sqs)
    reply = await sqs.server.ask("GET", "/metrics")
    found = {
        (sample.name, sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith("holdfast_sqs_")
    }
    assert {queue for _, queue in found} == {"mail"}
    assert found["holdfast_sqs_number_of_messages_sent_total", "mail"] == 1
    assert found["holdfast_sqs_sent_message_size_bytes_total", "mail"] == 5
    assert found["holdfast_sqs_approximate_number_of_messages_visible", "mail"] == 1


async def test_an_unknown_queue(sqs: SqsClient) -> None:
    reply = await sqs.server.ask("GET", "/v1/queues/nowhere/sqs")
    assert reply.status == 404


def test_every_counter_is_shown() -> None:
    assert set(COUNTED.values()) == set(SQS_COUNTERS)


def test_labels_are_bounded() -> None:
    meter = Meter()
    for number in range(METERED_MAX + 10):
        meter.served(f"q{number}", {"sqs_sent": 1})
    queues = meter.totals.queues
    assert len(queues) <= METERED_MAX + 1
    assert OTHER in queues
    assert sum(each.counts["sqs_sent"] for each in queues.values()) == METERED_MAX + 10
