"""FIFO queues: order and blocking of groups, deduplication, expired handles, repeated receives."""

import json
import re
from typing import Any

import pytest

from holdfast.core.model import JobFilter
from holdfast.core.verdict import Delete
from holdfast.server.http import endpoint
from holdfast.server.sqs import messages
from tests.server.sqs.message_calls import bodies, count, delete, hide, reap, receive, send
from tests.server.sqs.sqs_client import SqsClient, SqsRefused

DEDUP_MS = 5 * 60_000
NO_DEDUP_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId"
    " provided explicitly"
)
WRONG_TYPE = (
    "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is"
    " not valid for this queue type."
)


async def create(sqs: SqsClient, name: str = "orders.fifo", **attributes: str) -> str:
    return await sqs.create(
        name,
        FifoQueue="true",
        ContentBasedDeduplication="true",
        VisibilityTimeout="30",
        **attributes,
    )


async def send_all(sqs: SqsClient, url: str, *texts: str) -> None:
    """Send messages whose group is their first letter."""
    for text in texts:
        await send(sqs, url, text, MessageGroupId=text[0])


async def delete_all(sqs: SqsClient, url: str, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        await delete(sqs, url, message["ReceiptHandle"])


async def test_a_receive_returns_messages_of_one_group_in_order(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "b1", "a2", "a3", "b2")
    found = await receive(sqs, url)
    assert bodies(found) == ["a1", "a2", "a3", "b1", "b2"]
    numbers = [each["Attributes"]["SequenceNumber"] for each in found]
    assert all(re.fullmatch("[1-9][0-9]{19}", number) for number in numbers)
    by_body = dict(zip(bodies(found), numbers, strict=True))
    assert [by_body[each] for each in ("a1", "b1", "a2", "a3", "b2")] == sorted(numbers)
    assert found[0]["Attributes"]["MessageGroupId"] == "a"
    assert len(found[0]["Attributes"]["MessageDeduplicationId"]) == 64


async def test_nothing_of_a_group_is_delivered_while_one_is_in_flight(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2", "a3", "b1")
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=1)) == ["a1"]
    await send_all(sqs, url, "a4")
    assert bodies(await receive(sqs, url)) == ["b1"]
    await reap(sqs, 30_000)
    assert bodies(await receive(sqs, url)) == ["a1", "a2", "a3", "a4", "b1"]


async def test_a_later_message_waits_while_an_earlier_one_is_hidden(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2")
    first, second = await receive(sqs, url, VisibilityTimeout=10)
    await hide(sqs, url, first["ReceiptHandle"], 60)
    await reap(sqs, 10_000)
    assert await receive(sqs, url) == []
    await hide(sqs, url, first["ReceiptHandle"], 0)
    assert bodies(await receive(sqs, url)) == ["a1", "a2"]
    with pytest.raises(SqsRefused, match="The receipt handle has expired"):
        await delete(sqs, url, second["ReceiptHandle"])


async def test_an_earlier_message_waits_while_a_later_one_is_hidden(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2")
    first, second = await receive(sqs, url)
    await hide(sqs, url, first["ReceiptHandle"], 0)
    assert await receive(sqs, url) == []
    await hide(sqs, url, second["ReceiptHandle"], 0)
    assert bodies(await receive(sqs, url)) == ["a1", "a2"]


async def test_a_group_is_blocked_until_all_received_messages_are_deleted(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2", "a3")
    first, second = await receive(sqs, url, MaxNumberOfMessages=2)
    await delete(sqs, url, first["ReceiptHandle"])
    assert await receive(sqs, url) == []
    await delete(sqs, url, second["ReceiptHandle"])
    assert bodies(await receive(sqs, url)) == ["a3"]


async def test_a_timeout_of_zero_keeps_the_place(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2", "a3")
    for _ in range(3):
        assert bodies(await receive(sqs, url, MaxNumberOfMessages=2, VisibilityTimeout=0)) == [
            "a1",
            "a2",
        ]
    assert bodies(await receive(sqs, url)) == ["a1", "a2", "a3"]


async def test_the_group_with_the_oldest_message_goes_first(sqs: SqsClient) -> None:
    """On AWS, a group that was just served goes behind the others."""
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2", "b1")
    order = []
    while found := await receive(sqs, url, MaxNumberOfMessages=1):
        order += bodies(found)
        await delete_all(sqs, url, found)
    assert order == ["a1", "a2", "b1"]


async def test_dead_letters_of_a_group_do_not_block_each_other(sqs: SqsClient) -> None:
    """On AWS, groups block in a dead-letter queue as in any other."""
    dead = await create(sqs, "dead.fifo")
    arn = (await sqs.attributes(dead, "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = await create(sqs, RedrivePolicy=policy)
    await send_all(sqs, url, "a1", "a2")
    await receive(sqs, url)
    await reap(sqs, 30_000)
    assert await receive(sqs, url) == []
    for body in ("a1", "a2"):
        assert bodies(await receive(sqs, dead, MaxNumberOfMessages=1)) == [body]


async def test_at_most_ten_of_one_group_are_received(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, *(f"a{n:02}" for n in range(12)))
    found = await receive(sqs, url)
    assert bodies(found) == [f"a{n:02}" for n in range(10)]
    await delete_all(sqs, url, found)
    assert bodies(await receive(sqs, url)) == ["a10", "a11"]


async def test_a_duplicate_returns_the_original_ids(sqs: SqsClient) -> None:
    url = await create(sqs)
    first = await send(sqs, url, "x", MessageGroupId="a", MessageDeduplicationId="id")
    again = await send(sqs, url, "y", MessageGroupId="b", MessageDeduplicationId="id")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    assert bodies(await receive(sqs, url)) == ["x"]


@pytest.mark.parametrize("end", ["waits", "received", "deleted"])
async def test_deduplication_lasts_five_minutes_from_the_first_send(
    sqs: SqsClient, end: str
) -> None:
    url = await create(sqs)
    await send(sqs, url, "x", MessageGroupId="a")
    if end != "waits":
        found = await receive(sqs, url, VisibilityTimeout=1_000)
        if end == "deleted":
            await delete_all(sqs, url, found)
    sqs.clock.advance(DEDUP_MS - 1)
    await send(sqs, url, "x", MessageGroupId="b")
    assert bodies(await receive(sqs, url)) == (["x"] if end == "waits" else [])
    sqs.clock.advance(1)
    await send(sqs, url, "x", MessageGroupId="c")
    assert [each["Attributes"]["MessageGroupId"] for each in await receive(sqs, url)] == ["c"]


async def test_deduplication_by_group(sqs: SqsClient) -> None:
    url = await create(sqs, DeduplicationScope="messageGroup")
    for group in "aab":
        await send(sqs, url, "x", MessageGroupId=group)
    found = await receive(sqs, url)
    assert [each["Attributes"]["MessageGroupId"] for each in found] == ["a", "b"]


async def test_an_explicit_id_counts_instead_of_the_content(sqs: SqsClient) -> None:
    url = await create(sqs)
    for dedup_id in ("1", "2", "2"):
        await send(sqs, url, "x", MessageGroupId="a", MessageDeduplicationId=dedup_id)
    found = await receive(sqs, url)
    assert [each["Attributes"]["MessageDeduplicationId"] for each in found] == ["1", "2"]


async def test_a_purge_forgets_deduplication_ids(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1")
    await sqs.ask("PurgeQueue", QueueUrl=url)
    assert await receive(sqs, url) == []
    await send_all(sqs, url, "a1")
    assert bodies(await receive(sqs, url)) == ["a1"]


@pytest.mark.parametrize(
    ("members", "code", "text"),
    [
        ({}, "MissingParameter", "The request must contain the parameter MessageGroupId."),
        (
            {"MessageGroupId": "a"},
            "InvalidParameterValue",
            NO_DEDUP_ID,
        ),
        (
            {"MessageGroupId": "a", "MessageDeduplicationId": "d", "DelaySeconds": 2},
            "InvalidParameterValue",
            WRONG_TYPE,
        ),
    ],
)
async def test_an_invalid_message_is_refused(
    sqs: SqsClient, members: dict[str, Any], code: str, text: str
) -> None:
    url = await sqs.create("strict.fifo", FifoQueue="true")
    with pytest.raises(SqsRefused) as refused:
        await send(sqs, url, **members)
    assert (refused.value.code, refused.value.message) == (code, text)
    if "DelaySeconds" not in members:
        with pytest.raises(SqsRefused) as refused:
            await sqs.ask(
                "SendMessageBatch",
                QueueUrl=url,
                Entries=[{"Id": "x", "MessageBody": "y", **members}],
            )
        assert (refused.value.code, refused.value.message) == ("InvalidParameterValue", text)
    await send(sqs, url, MessageGroupId="a", MessageDeduplicationId="d", DelaySeconds=0)


async def test_a_batch_keeps_its_order_and_answers_duplicates(sqs: SqsClient) -> None:
    url = await create(sqs)
    entries = [
        {"Id": str(n), "MessageBody": text, "MessageGroupId": "a"}
        for n, text in enumerate(["x", "y", "x", "z"])
    ]
    answer = await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    sent = answer["Successful"]
    assert [each["Id"] for each in sent] == ["0", "1", "2", "3"]
    assert sent[2]["MessageId"] == sent[0]["MessageId"]
    assert sent[0]["SequenceNumber"] < sent[1]["SequenceNumber"] < sent[3]["SequenceNumber"]
    assert bodies(await receive(sqs, url)) == ["x", "y", "z"]


@pytest.mark.parametrize("ahead_ms", [60_000, -60_000])
async def test_the_clock_of_the_store_ends_a_timeout(sqs: SqsClient, ahead_ms: int) -> None:
    sqs.endpoint.state.wall_ms = lambda: sqs.clock.wall_ms() + ahead_ms
    url = await create(sqs)
    await send_all(sqs, url, "a1")
    [message] = await receive(sqs, url, VisibilityTimeout=10)
    await hide(sqs, url, message["ReceiptHandle"], 20)
    await delete(sqs, url, message["ReceiptHandle"])
    await reap(sqs, 30_000)
    assert await receive(sqs, url) == []


@pytest.mark.parametrize("is_reaped", [True, False])
async def test_an_expired_handle_is_refused(sqs: SqsClient, *, is_reaped: bool) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "b1")
    first, other = await receive(sqs, url, VisibilityTimeout=10)
    await delete(sqs, url, other["ReceiptHandle"])
    await delete(sqs, url, other["ReceiptHandle"])
    sqs.clock.advance(10_000)
    if is_reaped:
        await reap(sqs)
    handle = first["ReceiptHandle"]
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle"
    for _ in range(2):
        with pytest.raises(SqsRefused, match=re.escape(text)) as refused:
            await delete(sqs, url, handle)
        assert refused.value.code == "InvalidParameterValue"
        with pytest.raises(SqsRefused, match="expired"):
            await hide(sqs, url, handle, 10)
        await reap(sqs)
    answer = await sqs.ask(
        "DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "x", "ReceiptHandle": handle}]
    )
    assert [each["Code"] for each in answer["Failed"]] == ["InvalidParameterValue"]
    assert bodies(await receive(sqs, url)) == ["a1"]


async def test_a_repeated_receive_returns_the_same_messages(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2", "b1")
    first = await receive(sqs, url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="try")
    sqs.clock.advance(20_000)
    again = await receive(sqs, url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="try")
    assert again == first
    await reap(sqs, 29_999)
    assert bodies(await receive(sqs, url)) == ["b1"]
    await delete(sqs, url, first[0]["ReceiptHandle"])
    with pytest.raises(SqsRefused, match="not valid anymore since the receive call") as refused:
        await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert refused.value.code == "InvalidParameterValue"


async def test_a_repeated_receive_after_the_timeout_is_a_new_one(sqs: SqsClient) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1")
    [first] = await receive(sqs, url, ReceiveRequestAttemptId="try")
    await reap(sqs, 30_000)
    [again] = await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert again["ReceiptHandle"] != first["ReceiptHandle"]
    assert count(again) == 2
    [same] = await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert same["ReceiptHandle"] == again["ReceiptHandle"]


async def test_a_receive_of_which_another_server_deleted_a_message_is_not_repeated(
    sqs: SqsClient,
) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "b1", "c1")
    received = await receive(sqs, url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="try")
    wanted = JobFilter(ids=(received[0]["MessageId"],))
    assert await sqs.store.amend(wanted, Delete(force=True), limit=1) == 1
    for _ in range(2):
        with pytest.raises(SqsRefused, match="not valid anymore since the receive call"):
            await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert bodies(await receive(sqs, url)) == ["c1"]


async def test_a_receive_whose_answer_was_lost_can_be_repeated(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "a2")
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "is_disconnected", lambda _: True)
        await receive(sqs, url, ReceiveRequestAttemptId="try")
    again = await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert [(each["Body"], count(each)) for each in again] == [("a1", 1), ("a2", 1)]


async def test_a_message_that_another_consumer_received_during_a_delete_is_not_deleted(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await create(sqs)
    await send_all(sqs, url, "a1", "b1")
    [first] = await receive(sqs, url, MaxNumberOfMessages=1)
    check = messages._expired
    received: list[dict[str, Any]] = []

    async def check_early(*given: Any) -> Any:
        failed = await check(*given)
        if not received:
            await reap(sqs, 30_000)
            received.extend(await receive(sqs, url))
        return failed

    monkeypatch.setattr(messages, "_expired", check_early)
    with pytest.raises(SqsRefused, match="expired"):
        await delete(sqs, url, first["ReceiptHandle"])
    assert sorted(bodies(received)) == ["a1", "b1"]
    await delete_all(sqs, url, received)


async def test_a_buried_head_lets_its_group_go_on(sqs: SqsClient) -> None:
    dead = await create(sqs, "dead.fifo")
    arn = (await sqs.attributes(dead, "QueueArn"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = await create(sqs, RedrivePolicy=policy)
    await send_all(sqs, url, "a1", "a2")
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=1)) == ["a1"]
    await reap(sqs, 30_000)
    buried_at = sqs.clock.wall_ms()
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=1)) == ["a2"]
    [letter] = await receive(sqs, dead)
    assert letter["Body"] == "a1"
    assert letter["Attributes"]["MessageGroupId"] == "a"
    assert letter["Attributes"]["ApproximateReceiveCount"] == "2"
    assert letter["Attributes"]["SentTimestamp"] == str(buried_at)
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(":orders.fifo")
    await delete(sqs, dead, letter["ReceiptHandle"])
    await reap(sqs, 60_000)
    assert await receive(sqs, dead) == []
