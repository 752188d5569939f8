"""Messages that a gate holds stay invisible: extended in batches, and never past twelve hours."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.engines.sqs.client import SqsClient, SqsMessage
from holdfast.engines.sqs.source import HIDDEN_S, SqsSource
from holdfast.errors import EngineUnavailable, HoldfastError, LeaseLost, NotFound


class ScriptedClient(SqsClient):
    """A queue in memory; `changes` are the extensions, `answers` the errors by handle."""

    def __init__(self, count: int) -> None:
        super().__init__("eu-west-1")
        self.left = [
            SqsMessage(id=f"m{n}", handle=f"h{n}", body="x", attributes={}, system={})
            for n in range(count)
        ]
        self.changes: list[list[tuple[str, int]]] = []
        self.answers: dict[str, HoldfastError] = {}
        self.asked: list[int] = []
        self.error: HoldfastError | None = None

    async def receive(
        self, url: str, *, limit: int = 10, wait_s: int = 0, visibility_s: int | None = None
    ) -> list[SqsMessage]:
        assert visibility_s == HIDDEN_S
        self.asked.append(limit)
        if self.error is not None:
            raise self.error
        found, self.left = self.left[:limit], self.left[limit:]
        return found

    async def change_visibility(
        self, url: str, changes: Sequence[tuple[str, int]]
    ) -> list[HoldfastError | None]:
        self.changes.append(list(changes))
        return [self.answers.get(handle) for handle, _ in changes]

    async def delete(self, url: str, handles: Sequence[str]) -> list[HoldfastError | None]:
        return [self.answers.get(handle) for handle in handles]


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock_s() -> Clock:
    return Clock()


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient(25)


@pytest.fixture
async def queue(client: ScriptedClient, clock_s: Clock) -> AsyncIterator[SqsSource]:
    found = SqsSource(client, "http://q", itertools.count(1), clock_s=clock_s)
    yield found
    await found.stop()


async def test_held_messages_are_extended(
    client: ScriptedClient, queue: SqsSource, clock_s: Clock
) -> None:
    assert len(await queue.receive(25, 100)) == 25
    await queue.extend()
    assert client.changes == []
    clock_s.now += HIDDEN_S - 10
    await queue.extend()
    assert client.changes == [[(f"h{n}", HIDDEN_S) for n in range(25)]]
    clock_s.now += HIDDEN_S - 10
    await queue.extend()
    assert len(client.changes) == 2


async def test_no_more_than_the_limit_is_held(client: ScriptedClient, queue: SqsSource) -> None:
    assert len(await queue.receive(13, 100)) == 13
    assert await queue.receive(13, 10) == []
    assert sum(client.asked) == 13
    await queue.delete(list(queue.held)[:4])
    assert len(await queue.receive(13, 100)) == 4


async def test_after_twelve_hours_a_message_is_let_go(
    client: ScriptedClient, queue: SqsSource, clock_s: Clock
) -> None:
    """SQS refuses a longer timeout: the last extension ends before that."""
    await queue.receive(1, 100)
    for _ in range(12 * 3600 // 40 + 1):
        clock_s.now += 40
        await queue.extend()
    assert not queue.held
    last = client.changes[-1]
    assert len(last) == 1
    assert 0 < last[0][1] < HIDDEN_S
    total = (len(client.changes)) * 40 + last[0][1]
    assert 12 * 3600 - 60 < total < 12 * 3600


async def test_a_message_that_is_lost_is_let_go_and_others_are_tried_again(
    client: ScriptedClient, queue: SqsSource, clock_s: Clock
) -> None:
    await queue.receive(3, 100)
    client.answers = {"h0": LeaseLost("gone"), "h1": EngineUnavailable("throttled")}
    clock_s.now += HIDDEN_S - 10
    await queue.extend()
    assert [each.message.handle for each in queue.held.values()] == ["h1", "h2"]
    client.answers = {}
    await queue.extend()
    assert client.changes[1] == [("h1", HIDDEN_S)]


async def test_a_message_that_is_deleted_while_it_is_extended(
    client: ScriptedClient, queue: SqsSource, clock_s: Clock
) -> None:
    """SQS says that its handle is not valid. The others are extended, now and later."""
    await queue.receive(3, 100)
    plain = client.change_visibility

    async def delete_meanwhile(
        url: str, changes: Sequence[tuple[str, int]]
    ) -> list[HoldfastError | None]:
        await queue.delete(list(queue.held)[:1])
        client.answers = {"h0": LeaseLost("deleted")}
        return await plain(url, changes)

    client.change_visibility = delete_meanwhile  # type: ignore[method-assign]
    clock_s.now += HIDDEN_S - 10
    await queue.extend()
    assert [each.message.handle for each in queue.held.values()] == ["h1", "h2"]
    assert all(each.hidden_until == clock_s.now + HIDDEN_S for each in queue.held.values())


async def test_a_delete_that_fails_is_raised_and_a_lost_handle_is_not(
    client: ScriptedClient, queue: SqsSource
) -> None:
    await queue.receive(3, 100)
    client.answers = {"h0": LeaseLost("gone"), "h1": EngineUnavailable("throttled")}
    with pytest.raises(EngineUnavailable):
        await queue.delete(list(queue.held))
    assert [each.message.handle for each in queue.held.values()] == ["h1"]


async def test_an_error_is_raised_once_and_after_the_messages(
    client: ScriptedClient, queue: SqsSource
) -> None:
    client.error = NotFound("no queue")
    with pytest.raises(NotFound):
        await queue.receive(10, 1_000)
    client.error = None
    assert len(await queue.receive(10, 1_000)) == 10


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
async def test_take_gets_what_is_there_now(clock_s: Clock, count: int) -> None:
    client = ScriptedClient(count)
    queue = SqsSource(client, "http://q", itertools.count(1), clock_s=clock_s)
    found = await queue.take(23)
    assert len(found) == min(count, 23)
    assert sum(client.asked) <= 23
    await queue.stop()
    assert not queue.held


async def test_take_raises_a_plain_error_and_keeps_what_it_got(
    client: ScriptedClient, queue: SqsSource
) -> None:
    plain = client.receive

    async def fail_later(url: str, **asked: Any) -> list[SqsMessage]:
        if len(client.asked) == 2:
            raise EngineUnavailable("gone")
        return await plain(url, **asked)

    client.receive = fail_later  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await queue.take(25)
    assert len(queue.held) == 20
