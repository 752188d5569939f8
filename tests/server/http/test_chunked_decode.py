"""Work that clients can cause, counted and not timed: decoded values, yields to the event loop, and
writes per stream."""

import asyncio
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import NewJob
from holdfast.core.verdict import Complete, Retry
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.wire import EnqueueCall, SentLease, SentSettlement, SettleCall
from holdfast.server.application import AsgiApplication
from holdfast.server.http import chunked_decode
from holdfast.server.http.chunked_decode import ChunkedDecoder
from holdfast.server.http.connection import DisconnectQueue
from holdfast.server.http.problems import TooLarge
from holdfast.server.live.feed import EventFeed
from holdfast.server.live.metrics import SnapshotReader
from holdfast.server.live.poll_loop import PollLoop
from holdfast.server.rest.enqueue import NewBatch, NewJobs, map_yielding
from holdfast.server.rest.leases import LeaseBody
from holdfast.server.rest.settle import SettleBody
from holdfast.server.rest.shapes import NewJobBody
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from holdfast.telemetry.event_log import FeedEvent, FeedEventKind, event_key, event_record
from tests.server.asgi_client import AsgiClient

JOB = b'{"task":"noop","payload":{"text":"%b"}}' % (b"x" * 300)
LONG = b'"a",' * 200_000 + b'"a"'
PAIRS = b",".join(b'"%d":"a"' % number for number in range(100_000))


def jobs(*each: bytes) -> bytes:
    return b'{"jobs":[%b]}' % b",".join(each)


BOMBS = {
    "jobs that say nothing": jobs(*[b"{}"] * 500_000),
    "jobs that say little": jobs(*[b'{"task":"a"}'] * 200_000),
    "too many before it": jobs(b'{"task":"a","after":[%b]}' % LONG),
    "too many labels": jobs(b'{"task":"a","labels":{%b}}' % PAIRS),
    "a long command": jobs(b'{"command":[%b]}' % LONG),
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
async def test_oversized_lists_are_refused_before_decoding(body: bytes) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        client = AsgiClient(AsgiApplication(ServerState(app=app, settings=ServerSettings())))
        # Create the cached decoders now.
        await client.ask("POST", "/v1/queues/default/jobs", body)
        tracemalloc.start()
        try:
            said = await client.ask("POST", "/v1/queues/default/jobs", body)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert said.status in (400, 413, 422), said.body[:300]
    # Ten thousand are cut up before there is one too many.
    assert peak < 2_000_000


def settled(**said: Any) -> SettleCall:
    held = SentLease("a", 1, 2, "q", "t")
    then = NewJob(id="b", task="t", payload=b"y", labels={"a": "b"}, after=("c", "d"))
    return SettleCall(
        [SentSettlement(held, Complete(b"x", (then, then))), SentSettlement(held, Retry(**said))]
    )


IN_JSON: dict[str, tuple[Any, bytes]] = {
    "jobs": (NewJobs, jobs(JOB, b'{"command":["a","b"],"after":["x"],"delay":2,"labels":null}')),
    "none": (NewJobs, jobs()),
    "no list": (NewJobs, b'{"dry_run":true}'),
    "no object": (NewJobs, b"[]"),
    "null": (NewJobs, b'{"jobs":null}'),
    "unknown": (NewJobs, jobs(JOB, b'{"`$x":1}')),
    "wrong deep inside": (NewJobs, jobs(JOB, b'{"task":"a","after":["a",7]}')),
    "wrong outside": (NewJobs, b'{"jobs":[{}],"dry_run":7}'),
    "out of bounds": (NewJobs, jobs(b'{"task":"a b"}')),
    "twice": (NewJobs, b'{"jobs":[{"task":"a"}],"jobs":[{"task":"b"}]}'),
    "broken": (NewJobs, b'{"jobs":[{"task":"a"}'),
    "lists that may be left out": (LeaseBody, b'{"queues":["a","b"],"ids":null,"limit":3}'),
    "a batch": (NewBatch, b'{"jobs":[{"task":"a"},{"to":"w"}],"then":{"task":"c"}}'),
    "one is missing": (NewBatch, b'{"jobs":[{"task":"a"}]}'),
    "verdicts": (
        SettleBody,
        b"""{"verdicts":[
            {"id":"a","token":1,"verdict":"complete","result":[1],"then":[{"task":"b"}]},
            {"id":"b","token":2,"verdict":"failed","error":{"message":"no"}}
        ]}""",
    ),
    "no token": (SettleBody, b'{"verdicts":[{"id":"a"}]}'),
}
IN_MSGPACK: dict[str, tuple[Any, Any]] = {
    "enqueue": (EnqueueCall, EnqueueCall([NewJob(id="a", task="t", payload=b"x")])),
    "settle": (SettleCall, settled(delay_ms=3)),
    "settle wrongly": (SettleCall, settled(delay_ms="3")),
    "no tag": (SettleCall, {"settlements": [[["a", 1, 2, "q", "t"], {"type": "other"}]]}),
    "too short": (SettleCall, {"settlements": [[["a", 1, 2, "q", "t"]]]}),
}
ALIKE = {
    **{name: (wanted, msgspec.json, body) for name, (wanted, body) in IN_JSON.items()},
    **{
        f"msgpack: {name}": (wanted, msgspec.msgpack, msgspec.msgpack.encode(body))
        for name, (wanted, body) in IN_MSGPACK.items()
    },
}


@pytest.mark.parametrize(("wanted", "codec", "body"), ALIKE.values(), ids=ALIKE)
async def test_chunked_decoding_equals_msgspec(
    wanted: Any, codec: Any, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_decode, "LARGE", len(codec.encode(None)))
    assert await outcome(codec, ChunkedDecoder(wanted, codec).decode(body)) == await outcome(
        codec, asyncio.to_thread(codec.decode, body, type=wanted)
    )


async def outcome(codec: Any, reading: Any) -> tuple[object, object]:
    """The position of a syntax error may be relative to the chunk."""
    try:
        found = await reading
    except msgspec.ValidationError as error:
        return msgspec.ValidationError, str(error)
    except msgspec.DecodeError as error:
        return type(error), None
    return type(found), codec.encode(found)


async def test_only_payloads_may_be_large() -> None:
    text = b'"%b"' % (b"x" * 1_000_000)
    found = await ChunkedDecoder(NewJobs, msgspec.json).decode(
        jobs(b'{"task":"a","payload":%b}' % text)
    )
    assert bytes(found.jobs[0].payload) == text
    with pytest.raises(TooLarge, match="labels"):
        await ChunkedDecoder(NewJobs, msgspec.json).decode(
            jobs(b'{"task":"a","labels":{%b}}' % PAIRS)
        )


async def turns_beside(doing: Any) -> int:
    """How often others could go on while it was done."""
    task = asyncio.ensure_future(doing)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


MANY = jobs(*[JOB] * bounds.BATCH_MAX)


async def test_decoding_a_large_body_yields() -> None:
    assert await turns_beside(ChunkedDecoder(NewJobs, msgspec.json).decode(MANY)) >= 10


async def test_building_many_jobs_yields() -> None:
    made: list[NewJobBody] = []
    bodies = msgspec.json.decode(MANY, type=NewJobs).jobs
    assert await turns_beside(map_yielding(bodies, made.append)) >= 10
    assert made == bodies
    large = [NewJobBody(task="a", payload=msgspec.Raw(b"1" * 300_000))] * 5
    assert await turns_beside(map_yielding(large, made.append)) >= 5
    assert await turns_beside(map_yielding(bodies[:100], made.append)) <= 2


async def test_streams_are_woken_in_batches() -> None:
    """For any number of streams and events."""
    pauses: list[int] = []
    told: list[bytes] = []

    async def pause(_seconds: float) -> None:
        before = len(told)
        for _ in range(5):
            await asyncio.sleep(0)
        pauses.append(len(told) - before)

    async with Holdfast(engine=MemoryEngine()) as app:
        feed = EventFeed(
            lambda: app.engine,
            SnapshotReader(app),
            PollLoop(poll_s=None),
            now=lambda: 10**12,
            pause=pause,
        )
        streams = [feed.stream(None, lambda _event: True) for _ in range(95)]
        for stream in streams:
            await anext(stream)

        async def read(stream: Any) -> None:
            told.append(await anext(stream))

        reading = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        for number in range(20):
            event = FeedEvent(
                kind=FeedEventKind.JOB_DIED, at=10**12, queue="default", id=f"j{number}"
            )
            await app.engine.save([event_record(event_key(10**12, "p", number), [event])])
        await feed.poll()
        await asyncio.gather(*reading)
        for stream in streams:
            await stream.aclose()
    assert pauses == [10] * 9
    assert len(told) == 95
    assert {text.count(b"job.died") // 2 for text in told} == {20}


async def test_disconnects_are_finished_in_batches() -> None:
    ended: list[int] = []
    later: list[Callable[[], None]] = []
    leaving = DisconnectQueue(lambda _seconds, act: later.append(act))
    for number in range(25):
        leaving.add(partial(ended.append, number))
    assert ended == []
    await _turn()
    assert ended == list(range(10))
    later.pop()()
    await _turn()
    assert ended == list(range(20))
    later.pop()()
    await _turn()
    assert ended == list(range(25))
    assert not later
    # A single disconnect is finished at once.
    leaving.add(partial(ended.append, 25))
    await _turn()
    assert ended[-1] == 25


async def test_a_failing_disconnect_does_not_affect_others() -> None:
    ended: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: ended.append(-1))
    leaving = DisconnectQueue(lambda _seconds, act: act())
    leaving.add(partial(divmod, 1, 0))
    for number in range(25):
        leaving.add(partial(ended.append, number))
    await _turn()
    assert ended == [-1, *range(25)]


async def _turn() -> None:
    """Run the callbacks that are due, and those that they schedule."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
