"""The live feed: events are sent once, streams resume, and nothing is buffered for them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Queue, Record
from holdfast.core.verdict import Bury
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.tokens import TokenRequest
from holdfast.process import wall_ms
from holdfast.server.live.feed import KEEPALIVE, EventFeed
from holdfast.server.live.metrics import SnapshotReader
from holdfast.server.live.poll_loop import PollLoop
from holdfast.server.settings import ServerSettings
from holdfast.server.state import DEFAULT_NAMESPACE
from holdfast.telemetry.event_log import (
    EVENTS_KIND,
    FeedEvent,
    FeedEventKind,
    append_events,
    event_key,
    event_record,
)
from holdfast.telemetry.watch import StoreWatcher
from tests.server.metered_server import MeteredServer, metered_server

HELLO = b"retry: 2000\n\n"


class SentEvent(msgspec.Struct):
    """One event as a browser would read it."""

    id: str
    event: str
    data: Any


def parsed(text: bytes) -> list[SentEvent]:
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if "data" in fields:
            data = msgspec.json.decode(fields["data"])
            assert data["kind"] == fields["event"]
            found.append(SentEvent(fields.get("id", ""), fields["event"], data))
    return found


class FeedDriver:
    """A feed that is looked at by hand, on a store of its own."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.now = 1_000_000_000_000
        self.loop = PollLoop(poll_s=None)
        self.feed = EventFeed(
            lambda: app.engine,
            SnapshotReader(app, age_s_max=0),
            self.loop,
            now=lambda: self.now,
            ticks=lambda: self.now / 1000,
        )

    async def tell(self, *ids: str, at: int | None = None, queue: str = "default") -> str:
        """As a process does, in one record."""
        self.now += 1_000
        key = event_key(at or self.now, "p", 0)
        events = [
            FeedEvent(kind=FeedEventKind.JOB_DIED, at=self.now, queue=queue, id=id_) for id_ in ids
        ]
        await self.app.engine.save([event_record(key, events)])
        return key

    async def stream(
        self, after: str | None = None, queues: Sequence[str] = ()
    ) -> AsyncGenerator[bytes]:
        stream = self.feed.stream(after, lambda each: not queues or each.queue in queues)
        assert await anext(stream) == HELLO
        return stream


@pytest.fixture
async def driver() -> AsyncIterator[FeedDriver]:
    async with Holdfast(engine=MemoryEngine()) as app:
        yield FeedDriver(app)


def ids(text: bytes) -> list[str]:
    return [each.data["id"] for each in parsed(text)]


async def test_only_new_events_are_sent(driver: FeedDriver) -> None:
    await driver.tell("old")
    stream = await driver.stream()
    await driver.feed.poll()
    key = await driver.tell("a", "b")
    await driver.feed.poll()
    first = parsed(await anext(stream))
    assert [(each.id, each.data["id"]) for each in first] == [("", "a"), (key, "b")]
    assert first[0].data == {
        "kind": "job.died",
        "at": "2001-09-09T01:46:42Z",
        "queue": "default",
        "id": "a",
    }
    await driver.tell("c")
    await driver.feed.poll()
    assert ids(await anext(stream)) == ["c"]


async def test_a_stream_resumes_after_the_last_id(driver: FeedDriver) -> None:
    """From the recent entries, or from the store."""
    keys = [await driver.tell(name) for name in "abcd"]
    driver.feed = FeedDriver(driver.app).feed
    stream = await driver.stream(keys[1])
    await driver.tell("e")
    await driver.feed.poll()
    assert [ids(await anext(stream)) for _ in range(3)] == [["c"], ["d"], ["e"]]
    assert ids(await anext(await driver.stream(event_key(0, "x", 0)))) == ["a"]


async def test_no_event_is_missed_after_a_disconnect(driver: FeedDriver) -> None:
    """A client that comes back again and again, now before the feed has looked and now after, has
    seen everything."""
    other = await driver.stream()
    seen: list[str] = []
    last = event_key(0, "x", 0)
    for number in range(30):
        await driver.tell(f"{number}a", f"{number}b")
        if number % 2:
            await driver.feed.poll()
        stream = await driver.stream(last)
        await driver.feed.poll()
        for _ in range(1 if number % 3 else 2):
            told = parsed(await anext(stream))
            seen += [each.data["id"] for each in told]
            last = told[-1].id
            if seen[-1] == f"{number}b":
                break
        await stream.aclose()
    stream = await driver.stream(last)
    while "29b" not in seen:
        seen += ids(await anext(stream))
    assert seen == [f"{number}{part}" for number in range(30) for part in "ab"]
    await stream.aclose()
    await other.aclose()


async def test_late_events_have_no_id(driver: FeedDriver) -> None:
    """Its key sorts before keys that were sent: a client must not resume from it."""
    stream = await driver.stream()
    await driver.tell("a")
    await driver.feed.poll()
    await driver.tell("late", at=driver.now - 5_000)
    await driver.feed.poll()
    await driver.feed.poll()
    await driver.tell("b")
    await driver.feed.poll()
    told = parsed(await anext(stream))
    assert [(each.data["id"], bool(each.id)) for each in told] == [
        ("a", True),
        ("late", False),
        ("b", True),
    ]


async def test_unwanted_events_are_left_out(driver: FeedDriver) -> None:
    stream = await driver.stream(queues=["mail"])
    await driver.tell("a")
    key = await driver.tell("b", queue="mail")
    await driver.tell("c")
    await driver.feed.poll()
    [told] = parsed(await anext(stream))
    assert (told.id, told.data["id"]) == (key, "b")


async def test_a_quiet_stream_gets_keepalives(driver: FeedDriver) -> None:
    """Also when there is much for others, and when the store is away."""
    quiet, busy = await driver.stream(queues=["mail"]), await driver.stream()
    for number in range(70):
        if number < 30:
            await driver.tell(f"{number}")
        if number == 30:
            await driver.app.home.store.close()
        driver.now += 1_000
        await driver.feed.poll()
    assert (await anext(quiet)).startswith(KEEPALIVE * 2)
    told, _, beats = (await anext(busy)).partition(KEEPALIVE)
    assert len(ids(told)) == 30
    assert not ids(beats)
    await quiet.aclose()
    await busy.aclose()


async def test_only_a_slow_stream_is_dropped(driver: FeedDriver) -> None:
    slow, quick = await driver.stream(), await driver.stream()
    keys, seen = [], []
    for number in range(600):
        keys.append(await driver.tell(f"{number}"))
        await driver.feed.poll()
        seen += ids(await anext(quick))
    assert seen == [f"{number}" for number in range(600)]
    assert [part async for part in slow] == []
    # It comes back with the last id that it has.
    again = await driver.stream(keys[0])
    assert ids(await anext(again)) == ["1"]


class Counted(MemoryEngine):
    """How often the events were read."""

    looks = 0

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self.looks += kind == EVENTS_KIND
        return await super().load(kind, after=after, limit=limit)


async def test_one_poll_serves_all_streams_and_stops_without_any() -> None:
    engine = Counted()
    async with Holdfast(engine=engine) as app:
        driver = FeedDriver(app)
        streams = [await driver.stream() for _ in range(50)]
        before = engine.looks
        await driver.tell("a")
        await driver.feed.poll()
        assert [ids(await anext(stream)) for stream in streams] == [["a"]] * 50
        assert engine.looks == before + 1
        driver.loop.poll_s = 0.001
        other = await driver.stream()
        assert driver.loop.task is not None
        for stream in (*streams, other):
            await stream.aclose()
        assert driver.loop.task is None


async def test_many_resumed_streams_share_one_read() -> None:
    engine = Counted()
    async with Holdfast(engine=engine) as app:
        driver = FeedDriver(app)
        keys = [await driver.tell(f"{number}") for number in range(20)]
        streams = [await driver.stream(keys[number % 20]) for number in range(19)]
        for number, stream in enumerate(streams):
            assert ids(await anext(stream)) == [f"{number + 1}"]
        assert engine.looks == 1


async def test_the_feed_outlives_an_outage(
    driver: FeedDriver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.loop.poll_s = 0.001
    stream = await driver.stream()
    reading = asyncio.ensure_future(anext(stream))
    engine = driver.app.home.store
    await engine.close()
    while "the live feed pauses" not in caplog.text:  # noqa: ASYNC110 (a log has no event)
        await asyncio.sleep(0.001)
    await engine.open()
    await driver.tell("a")
    assert ids(await reading) == ["a"]
    await stream.aclose()


@asynccontextmanager
async def events(
    serving: MeteredServer, *, headers: dict[str, str] | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[bytes]]:
    """A stream over HTTP, after its first part."""
    async with serving.client.stream(
        "GET", "/v1/events", params=query, headers=headers or {}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        parts = answer.aiter_raw()
        assert await anext(parts) == HELLO
        yield parts


async def next_events(parts: AsyncIterator[bytes], count: int = 1) -> list[SentEvent]:
    text = b""
    while len(found := parsed(text)) < count:
        text += await anext(parts)
    return found


async def test_events_of_other_processes_arrive_over_http() -> None:
    """A worker attached directly to the store, and an operator who pauses a queue."""
    async with metered_server(MemoryEngine()) as serving:
        watcher = StoreWatcher(serving.app.engine, wall_ms)
        await watcher.once()
        async with events(serving) as parts:
            await serving.work(3)
            await serving.feed.poll()
            [activity] = await next_events(parts)
            assert (activity.id, activity.event) == ("", "activity")
            assert activity.data["counts"] == {"enqueued": 3, "leased": 3, "completed": 3}
            await serving.work(1, Bury())
            await serving.feed.poll()
            died, activity = await next_events(parts, 2)
            assert (died.event, died.data["reason"]) == ("job.died", "explicit")
            assert activity.data["counts"] == {"enqueued": 1, "leased": 1, "dead": 1}
            await serving.app.engine.declare(Queue(name="default", paused=True))
            await watcher.once()
            await serving.feed.poll()
            [paused] = await next_events(parts)
            assert (paused.event, paused.data["queue"]) == ("queue.paused", "default")
        for how in ({"headers": {"Last-Event-ID": died.id}}, {"after": died.id}):
            async with events(serving, **how) as parts:
                assert [each.event for each in await next_events(parts)] == ["queue.paused"]
        async with events(serving, after=event_key(0, "x", 0), kind="queue.paused") as parts:
            assert [each.event for each in await next_events(parts)] == ["queue.paused"]


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Last-Event-ID": "yesterday"}, {}),
        ({}, {"after": "yesterday"}),
        ({}, {"kind": "gossip"}),
        ({}, {"queue": "no such name!"}),
        ({}, {"colour": "red"}),
    ],
)
async def test_invalid_values_are_refused(headers: dict[str, str], query: dict[str, str]) -> None:
    async with metered_server(MemoryEngine()) as serving:
        answer = await serving.client.get("/v1/events", params=query, headers=headers)
        assert answer.status_code == 400, answer.text


async def test_streams_are_bounded_and_end_when_the_server_stops() -> None:
    async with (
        metered_server(MemoryEngine(), ServerSettings(streams_max=4)) as serving,
        events(serving) as one,
        events(serving),
    ):
        # One namespace has at most half of them.
        assert (await serving.client.get("/v1/events")).status_code == 503
        serving.server.stopping.set()
        assert [part async for part in one] == []


async def test_prefixes_and_namespaces_see_only_their_events() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        serving.server.namespaces._make = lambda _name: Holdfast(engine=MemoryEngine())
        other = await serving.server.namespaces.get("other")
        tokens = serving.server.tokens
        heads = []
        for namespace, prefix in (
            (DEFAULT_NAMESPACE, ""),
            (DEFAULT_NAMESPACE, "mail"),
            ("other", ""),
        ):
            wanted = TokenRequest(name="t", scopes=("operate",), namespace=namespace, prefix=prefix)
            text, _ = await tokens.create(wanted)
            heads.append({"Authorization": f"Bearer {text}"})
        now = wall_ms()
        for queue in ("default", "mail", ""):
            event = FeedEvent(kind=FeedEventKind.JOB_DIED, queue=queue, id=f"in-{queue}")
            await append_events(serving.app.engine, now, f"p{queue}", event)
        await append_events(
            other.engine, now, "p", FeedEvent(kind=FeedEventKind.JOB_DIED, queue="mail", id="other")
        )
        told = []
        for head in heads:
            async with events(serving, headers=head, after=event_key(0, "x", 0)) as parts:
                told.append(await next_events(parts))
        assert [each.data["id"] for each in told[1]] == ["in-mail"]
        assert [each.data["id"] for each in told[2]] == ["other"]
        assert "other" not in [each.data["id"] for each in told[0]]
        assert (await serving.client.get("/v1/events")).status_code == 401
        await other.close()


async def test_a_stream_ends_when_its_token_is_revoked() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        tokens = serving.server.tokens
        text, token = await tokens.create(TokenRequest(name="t", scopes=("operate",)))
        async with events(serving, headers={"Authorization": f"Bearer {text}"}) as parts:
            await tokens.revoke(token.id)
            await append_events(
                serving.app.engine, wall_ms(), "p", FeedEvent(kind=FeedEventKind.QUEUE_MADE)
            )
            await serving.feed.poll()
            assert [part async for part in parts] == []


__all__ = ["driver"]

HOUR_MS = 3_600_000


async def test_a_clock_that_is_ahead_hides_no_events(driver: FeedDriver) -> None:
    stream = await driver.stream()
    await driver.tell("ahead", at=driver.now + HOUR_MS)
    await driver.feed.poll()
    assert [(each.id, each.data["id"]) for each in parsed(await anext(stream))] == [("", "ahead")]
    for name in ("a", "b"):
        key = await driver.tell(name)
        await driver.feed.poll()
        await driver.feed.poll()
        told = parsed(await anext(stream))
        assert [(each.id, each.data["id"]) for each in told] == [(key, name)]
    key = await driver.tell("c")
    driver.feed = FeedDriver(driver.app).feed
    again = await driver.stream(key)
    await driver.tell("d")
    await driver.feed.poll()
    assert ids(await anext(again)) == ["d"]


async def test_a_clock_that_was_set_back_hides_no_events(driver: FeedDriver) -> None:
    stream = await driver.stream()
    await driver.tell("before")
    await driver.feed.poll()
    assert ids(await anext(stream)) == ["before"]
    driver.now -= HOUR_MS
    await driver.tell("after")
    await driver.feed.poll()
    assert ids(await anext(stream)) == ["after"]
