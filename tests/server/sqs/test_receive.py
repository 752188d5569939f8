"""ReceiveMessage beyond the contents of messages: disconnects, limits, scopes, other regions."""

import asyncio

import pytest

from holdfast.server.http import endpoint, response
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs import leases, polls
from holdfast.server.sqs.receive import message_state_of
from tests.server.sqs.message_calls import bodies, count, delete, hide, reap, receive, send
from tests.server.sqs.sqs_client import SqsClient, SqsRefused, sqs_server
from tests.wait import wait_until


async def polling(sqs: SqsClient, count: int = 1) -> None:
    """Wait until so many long polls wait."""
    shared = message_state_of(sqs.server.server.app).polls
    await asyncio.to_thread(wait_until, lambda: shared.waiting == count)


async def test_a_long_poll_gets_a_message_that_is_sent_later(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    waiting = [asyncio.create_task(receive(sqs, url, WaitTimeSeconds=20)) for _ in range(3)]
    await polling(sqs, 3)
    for text in "abc":
        await send(sqs, url, text)
    assert [bodies(await poll) for poll in waiting] == [["a"], ["b"], ["c"]]


async def test_a_long_poll_of_a_dead_letter_queue_waits_for_both_kinds(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    arn = (await sqs.attributes(dead, "QueueArn"))["QueueArn"]
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}'
    url = await sqs.create("orders", RedrivePolicy=policy)
    for kind in ("sent", "died"):
        poll = asyncio.create_task(receive(sqs, dead, WaitTimeSeconds=20))
        await polling(sqs)
        if kind == "sent":
            await send(sqs, dead, "sent")
        else:
            await send(sqs, url, "died")
            await receive(sqs, url)
            await reap(sqs, 30_000)
            assert await receive(sqs, url) == []
        [message] = await poll
        assert message["Body"] == kind
        await delete(sqs, dead, message["ReceiptHandle"])


async def test_a_gone_queue_ends_long_polls_with_nothing(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    poll = asyncio.create_task(receive(sqs, url, WaitTimeSeconds=1))
    await polling(sqs)
    await sqs.ask("DeleteQueue", QueueUrl=url)
    assert await poll == []


async def test_a_queue_that_is_created_again_serves_new_long_polls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sqs_server(settings=ServerSettings(sqs="relaxed")) as sqs:
        url = await sqs.create("orders")
        monkeypatch.setattr(polls, "WAIT_MS", 10)
        monkeypatch.setattr(leases, "_GONE_POLL_S", 0.01)
        one = {"MaxNumberOfMessages": 1, "WaitTimeSeconds": 20}
        old = asyncio.create_task(receive(sqs, url, **one))
        await polling(sqs)
        await sqs.ask("DeleteQueue", QueueUrl=url)
        monkeypatch.setattr(polls, "WAIT_MS", 20_000)
        await asyncio.sleep(0.1)
        await sqs.create("orders")
        new = asyncio.create_task(receive(sqs, url, **one))
        await polling(sqs, 2)
        for text in "ab":
            await send(sqs, url, text)
        assert [bodies(await poll) for poll in (old, new)] == [["a"], ["b"]]


async def test_an_answer_that_the_client_never_read_counts_no_receive(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await sqs.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for n in range(3):
        await send(sqs, url, str(n), MessageGroupId="g")
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "is_disconnected", lambda _: True)
        for _ in range(30):
            assert len(await receive(sqs, url, ReceiveRequestAttemptId="try")) == 3
    found = await receive(sqs, url, ReceiveRequestAttemptId="try")
    assert bodies(found) == ["0", "1", "2"]
    assert [count(each) for each in found] == [1, 1, 1]


async def test_an_answer_to_a_connection_that_is_closing_counts_no_receive(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await sqs.create("orders")
    await send(sqs, url)
    with monkeypatch.context() as patch:
        patch.setattr(response, "_transport_of", lambda _: ClosingTransport())
        assert len(await receive(sqs, url)) == 1
    assert [count(each) for each in await receive(sqs, url)] == [1]


class ClosingTransport:
    """The client has disconnected, but the connection does not know it yet. It drops what is
    written."""

    def is_closing(self) -> bool:
        return True


@pytest.mark.parametrize(
    "member", ["AttributeNames", "MessageSystemAttributeNames", "MessageAttributeNames"]
)
async def test_the_names_in_a_request_are_bounded(sqs: SqsClient, member: str) -> None:
    url = await sqs.create("orders")
    await send(sqs, url)
    with pytest.raises(SqsRefused, match="1000") as refused:
        await receive(sqs, url, **{member: [f"n{n}.*" for n in range(1_001)]})
    assert refused.value.code == "InvalidParameterValue"
    assert [count(each) for each in await receive(sqs, url)] == [1]


@pytest.mark.parametrize("is_fifo", [True, False])
async def test_too_many_messages_in_flight(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch, *, is_fifo: bool
) -> None:
    monkeypatch.setattr(leases, "IN_FLIGHT_MAX", 3)
    more = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}
    name = "orders.fifo" if is_fifo else "orders"
    url = await sqs.create(name, **more)
    # Messages that are delivered while the store is read may count twice: read it before.
    monkeypatch.setattr(leases, "_COUNT_AGE_S_MAX", float("inf"))
    counts = message_state_of(sqs.server.server.app).counts
    assert not counts.is_full(name)
    await counts.refreshed()
    for n in range(5):
        await send(sqs, url, str(n), **({"MessageGroupId": str(n)} if is_fifo else {}))
    held = await receive(sqs, url, MaxNumberOfMessages=3)
    assert len(held) == 3
    if is_fifo:
        assert await receive(sqs, url) == []
    else:
        with pytest.raises(SqsRefused) as refused:
            await receive(sqs, url)
        assert (refused.value.shape, refused.value.status) == ("OverLimit", 403)
    assert await receive(sqs, url, WaitTimeSeconds=1) == []
    await delete(sqs, url, held[0]["ReceiptHandle"])
    assert len(await receive(sqs, url, MaxNumberOfMessages=1)) == 1


async def test_the_count_in_flight_follows_the_store(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IN_FLIGHT_MAX", 2)
    monkeypatch.setattr(leases, "_COUNT_AGE_S_MAX", 0.0)
    url = await sqs.create("orders")
    for n in range(4):
        await send(sqs, url, str(n))
    await receive(sqs, url, MaxNumberOfMessages=2)
    counts = message_state_of(sqs.server.server.app).counts
    await counts.refreshed()
    with pytest.raises(SqsRefused):
        await receive(sqs, url)
    await reap(sqs, 30_000)
    counts.is_full("orders")
    await counts.refreshed()
    assert len(await receive(sqs, url, MaxNumberOfMessages=1)) == 1


async def test_queues_of_other_regions_and_accounts_are_apart() -> None:
    settings = ServerSettings(namespaces=("111122223333",))
    async with sqs_server(settings=settings) as first:
        clients = [
            first,
            SqsClient(first.server, first.clock, region="eu-west-1"),
            SqsClient(first.server, first.clock, key_id="111122223333"),
        ]
        urls = [await client.create("orders") for client in clients]
        for n, (client, url) in enumerate(zip(clients, urls, strict=True)):
            await send(client, url, str(n))
        handles = []
        for n, (client, url) in enumerate(zip(clients, urls, strict=True)):
            [message] = await receive(client, url)
            assert message["Body"] == str(n)
            handles.append(message["ReceiptHandle"])
        for other in handles[1:]:
            with pytest.raises(SqsRefused) as refused:
                await delete(first, urls[0], other)
            assert refused.value.shape == "ReceiptHandleIsInvalid"


async def token_for(sqs: SqsClient, *scopes: str, prefix: str = "") -> SqsClient:
    text = await sqs.server.token(*scopes, prefix=prefix, name="-".join(scopes))
    return SqsClient(sqs.server, sqs.clock, token=text)


async def test_scopes_of_tokens(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    producer = await token_for(sqs, "produce")
    consumer = await token_for(sqs, "consume")
    await send(producer, url, "x", MessageGroupId="tenant")
    with pytest.raises(SqsRefused, match="consume"):
        await receive(producer, url)
    with pytest.raises(SqsRefused, match="produce"):
        await send(consumer, url)
    [message] = await receive(consumer, url)
    assert message["Attributes"]["SenderId"] == "produce"
    await hide(consumer, url, message["ReceiptHandle"], 0)
    [again] = await receive(consumer, url)
    with pytest.raises(SqsRefused, match="consume"):
        await delete(producer, url, again["ReceiptHandle"])
    await reap(sqs, 30_000)
    # An older handle deletes by an amendment, which consumers may not make otherwise.
    await delete(consumer, url, message["ReceiptHandle"])
    assert await receive(consumer, url) == []


async def test_a_token_with_a_prefix_sees_only_its_queues(sqs: SqsClient) -> None:
    url, other = await sqs.create("mine-1"), await sqs.create("theirs")
    own = await token_for(sqs, "produce", "consume", prefix="mine-")
    await send(own, url, "x")
    [message] = await receive(own, url)
    await delete(own, url, message["ReceiptHandle"])
    for action, members in [
        ("SendMessage", {"MessageBody": "x"}),
        ("ReceiveMessage", {}),
        ("DeleteMessage", {"ReceiptHandle": message["ReceiptHandle"]}),
    ]:
        with pytest.raises(SqsRefused) as refused:
            await own.ask(action, QueueUrl=other, **members)
        assert refused.value.shape == "QueueDoesNotExist"
