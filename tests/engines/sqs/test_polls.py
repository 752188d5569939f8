"""Receives: polls outlive their calls, no job dies of receives that nobody wanted, and a queue that
fails does not stop the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, jobs, settle
from holdfast.core.model import Overrides, Queue
from holdfast.core.verdict import Complete, Outcome
from holdfast.engines.sqs.client import SqsClient, SqsMessage
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError, LeaseLost
from tests.engines.sqs.place import Place
from tests.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("aws")]


async def leave_poll(place: Place, **fields: Any) -> None:
    """Cancel a call; its long poll goes on."""
    waiting = asyncio.create_task(place.lease(wait_ms=60_000, **fields))
    await asyncio.sleep(0.2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_messages_that_nobody_takes_do_not_die(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that have no room any more may receive a message one after the other."""
    receive = SqsClient.receive
    counts: list[int] = []

    async def counted(self: SqsClient, url: str, **asked: Any) -> list[SqsMessage]:
        found = await receive(self, url, **asked)
        counts.append(len(found))
        return found

    monkeypatch.setattr(SqsClient, "receive", counted)
    await place.engine.declare(a_queue(max_attempts=2))
    others = [Place(place.endpoint, place.prefix) for _ in range(3)]
    try:
        for other in others:
            await other.open()
            await leave_poll(other)
        await place.engine.enqueue([a_job("a", tenant="acme")])
        await asyncio.to_thread(wait_until, lambda: counts == [1, 1, 1])
        lease = await place.one(wait_ms=10_000)
    finally:
        for other in others:
            await other.engine.close()
    assert (lease.id, lease.job.attempt, lease.job.tenant) == ("a", 2, "acme")
    assert await settle(place.engine, lease, Complete()) is Outcome.SETTLED
    assert await place.letters() == []


async def test_messages_that_a_smaller_call_has_no_room_for_do_not_die(place: Place) -> None:
    await place.engine.declare(a_queue(max_attempts=1))
    for _ in range(2):
        await leave_poll(place)
        await place.engine.enqueue(jobs("abc"))
        found = [await place.one(limit=1, wait_ms=5_000) for _ in range(3)]
        assert sorted(lease.id for lease in found) == ["a", "b", "c"]
        for lease in found:
            assert await settle(place.engine, lease, Complete()) is Outcome.SETTLED
    assert await place.letters() == []


async def test_a_poll_of_a_shorter_lease_is_extended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the message is visible again long before its worker renews the lease."""
    await leave_poll(place, lease_ms=1_000)
    change = SqsClient.change_visibility
    changed: list[tuple[str, int]] = []

    async def recorded(
        self: SqsClient, url: str, changes: Sequence[tuple[str, int]]
    ) -> list[HoldfastError | None]:
        changed.extend(changes)
        return await change(self, url, changes)

    monkeypatch.setattr(SqsClient, "change_visibility", recorded)
    await place.engine.enqueue([a_job("a")])
    lease = await place.one(wait_ms=5_000, lease_ms=60_000)
    assert [hidden_s for _, hidden_s in changed] == [60]
    assert lease.lease_ms == 60_000


@pytest.mark.parametrize("failing", ["receive", "attributes"])
async def test_a_queue_that_fails_does_not_stop_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    request: dict[str, Any] = {"queues": ("denied", "other"), "wait_ms": 5_000}
    await place.engine.enqueue([a_job("x", queue="denied"), a_job("a", queue="other")])
    await expire_settings(place)
    plain = getattr(SqsClient, failing)

    async def denied(self: SqsClient, url: str, *args: Any, **asked: Any) -> Any:
        if url.endswith("denied"):
            raise ConfigError("this is not allowed")
        return await plain(self, url, *args, **asked)

    monkeypatch.setattr(SqsClient, failing, denied)
    assert [lease.id for lease in await place.lease(**request)] == ["a"]
    waiting = asyncio.create_task(place.lease(**request))
    await asyncio.sleep(0.2)
    await place.engine.enqueue([a_job("b", queue="other")])
    assert [lease.id for lease in await waiting] == ["b"]
    [warning] = [each.message for each in caplog.records if each.name == "holdfast.sqs"]
    assert "this is not allowed" in warning
    with pytest.raises(EngineUnavailable, match="this is not allowed"):
        await place.lease(**request | {"wait_ms": 0})


async def test_polls_of_many_queues_do_not_delay_each_other(place: Place) -> None:
    """A full answer is followed by more receives: its messages are hidden only for their lease."""
    names = tuple(f"q{n}" for n in range(40))
    await asyncio.gather(*(place.engine.declare(Queue(name=name)) for name in names))
    waiting = asyncio.create_task(place.lease(queues=names, limit=30, wait_ms=60_000))
    await asyncio.sleep(3)
    full = [a_job(f"a{n}", queue=names[-1]) for n in range(10)]
    await place.engine.enqueue(full)
    async with asyncio.timeout(10):
        assert {lease.id for lease in await waiting} == {job.id for job in full}


async def expire_settings(place: Place) -> None:
    """Another engine has not read the settings of any queue."""
    await place.engine.close()
    await place.open()


async def test_a_call_does_not_wait_anew_for_each_queue(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls that other calls began end at any time."""
    names = tuple("abcdef")
    for name in names:
        await place.engine.declare(Queue(name=name))
    plain = SqsClient.receive
    ended: list[str] = []

    async def end_one_by_one(self: SqsClient, url: str, **asked: Any) -> list[SqsMessage]:
        if asked["wait_s"] == 0:
            return await plain(self, url, **asked)
        await asyncio.sleep(0.8 * (names.index(url[-1]) + 1))
        ended.append(url[-1])
        return []

    monkeypatch.setattr(SqsClient, "receive", end_one_by_one)
    assert await place.lease(queues=names, wait_ms=1_500) == []
    assert len(ended) < len(names)


async def test_messages_are_not_dropped_if_the_settings_cannot_be_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.engine.enqueue(jobs("a"))
    plain = SqsQueues.find
    calls = 0

    async def fail_once_received(self: SqsQueues, name: str) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise EngineUnavailable("throttled")
        return await plain(self, name)

    monkeypatch.setattr(SqsQueues, "find", fail_once_received)
    assert (await place.one()).id == "a"
    assert calls == 2


async def test_a_lease_that_sqs_does_not_grant_is_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may ask for a longer lease than its queue has."""
    await place.engine.enqueue([a_job("a", overrides=Overrides(lease_ms=60_000))])

    async def fail(_: SqsClient, url: str, changes: Sequence[Any]) -> list[HoldfastError | None]:
        return [LeaseLost("it is gone") for _ in changes]

    monkeypatch.setattr(SqsClient, "change_visibility", fail)
    await place.engine.declare(a_queue(lease_ms=2_000))
    assert await place.lease() == []
