"""What strangers can make a server do is counted here, and not timed: values that are made, turns
that others have meanwhile, writings for each stream."""

import asyncio
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.app import Holdfast
from holdfast.core import limits
from holdfast.core.model import NewJob
from holdfast.core.verdict import Complete, Retry
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.verbs import Enqueue, Held, Settle, Settled
from holdfast.server import pieces
from holdfast.server.application import application
from holdfast.server.batches import NewBatch
from holdfast.server.bodies import NewJobBody
from holdfast.server.connections import Leaving
from holdfast.server.enqueuing import NewJobs, in_turns
from holdfast.server.feed import Feed
from holdfast.server.leases import LeaseBody, SettleBody
from holdfast.server.pieces import Pieces
from holdfast.server.refusals import TooLarge
from holdfast.server.seeing import Seen
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from holdfast.telemetry.notable import Kind, Notable, event_key, record_of
from tests.server.asgi import Client

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
async def test_what_is_too_much_is_not_made_to_be_counted(body: bytes) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        client = Client(application(Server(app=app, settings=ServerSettings())))
        # What is made once for all bodies of the kind is made now.
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


def settled(**said: Any) -> Settle:
    held = Held("a", 1, 2, "q", "t")
    then = NewJob(id="b", task="t", payload=b"y", labels={"a": "b"}, after=("c", "d"))
    return Settle([Settled(held, Complete(b"x", (then, then))), Settled(held, Retry(**said))])


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
    "enqueue": (Enqueue, Enqueue([NewJob(id="a", task="t", payload=b"x")])),
    "settle": (Settle, settled(delay_ms=3)),
    "settle wrongly": (Settle, settled(delay_ms="3")),
    "no tag": (Settle, {"settlements": [[["a", 1, 2, "q", "t"], {"type": "other"}]]}),
    "too short": (Settle, {"settlements": [[["a", 1, 2, "q", "t"]]]}),
}
ALIKE = {
    **{name: (wanted, msgspec.json, body) for name, (wanted, body) in IN_JSON.items()},
    **{
        f"msgpack: {name}": (wanted, msgspec.msgpack, msgspec.msgpack.encode(body))
        for name, (wanted, body) in IN_MSGPACK.items()
    },
}


@pytest.mark.parametrize(("wanted", "codec", "body"), ALIKE.values(), ids=ALIKE)
async def test_what_is_read_in_pieces_is_read_as_at_once(
    wanted: Any, codec: Any, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LARGE", len(codec.encode(None)))
    assert await outcome(codec, Pieces(wanted, codec).read(body)) == await outcome(
        codec, asyncio.to_thread(codec.decode, body, type=wanted)
    )


async def outcome(codec: Any, reading: Any) -> tuple[object, object]:
    """Where it is broken may be told of the piece, and not of the whole."""
    try:
        found = await reading
    except msgspec.ValidationError as error:
        return msgspec.ValidationError, str(error)
    except msgspec.DecodeError as error:
        return type(error), None
    return type(found), codec.encode(found)


async def test_a_large_payload_is_read_and_other_large_things_are_not() -> None:
    text = b'"%b"' % (b"x" * 1_000_000)
    found = await Pieces(NewJobs, msgspec.json).read(jobs(b'{"task":"a","payload":%b}' % text))
    assert bytes(found.jobs[0].payload) == text
    with pytest.raises(TooLarge, match="labels"):
        await Pieces(NewJobs, msgspec.json).read(jobs(b'{"task":"a","labels":{%b}}' % PAIRS))


async def turns_beside(doing: Any) -> int:
    """How often others could go on while it was done."""
    task = asyncio.ensure_future(doing)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


MANY = jobs(*[JOB] * limits.BATCH_MAX)


async def test_others_have_turns_while_a_large_body_is_read() -> None:
    assert await turns_beside(Pieces(NewJobs, msgspec.json).read(MANY)) >= 10


async def test_others_have_turns_while_many_jobs_are_made() -> None:
    made: list[NewJobBody] = []
    bodies = msgspec.json.decode(MANY, type=NewJobs).jobs
    assert await turns_beside(in_turns(bodies, made.append)) >= 10
    assert made == bodies
    large = [NewJobBody(task="a", payload=msgspec.Raw(b"1" * 300_000))] * 5
    assert await turns_beside(in_turns(large, made.append)) >= 5
    assert await turns_beside(in_turns(bodies[:100], made.append)) <= 2


async def test_streams_are_woken_some_at_a_time_and_told_all_at_once() -> None:
    """However many streams there are, and however much there is to tell."""
    pauses: list[int] = []
    told: list[bytes] = []

    async def pause(_seconds: float) -> None:
        before = len(told)
        for _ in range(5):
            await asyncio.sleep(0)
        pauses.append(len(told) - before)

    async with Holdfast(engine=MemoryEngine()) as app:
        feed = Feed(lambda: app.engine, Seen(app), now=lambda: 10**12, poll_s=None, pause=pause)
        streams = [feed.stream(None, lambda _event: True) for _ in range(95)]
        for stream in streams:
            await anext(stream)

        async def read(stream: Any) -> None:
            told.append(await anext(stream))

        reading = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        for number in range(20):
            event = Notable(kind=Kind.JOB_DIED, at=10**12, queue="default", id=f"j{number}")
            await app.engine.save([record_of(event_key(10**12, "p", number), [event])])
        await feed.round()
        await asyncio.gather(*reading)
        for stream in streams:
            await stream.aclose()
    assert pauses == [10] * 9
    assert len(told) == 95
    assert {text.count(b"job.died") // 2 for text in told} == {20}


async def test_those_who_leave_together_are_let_go_some_at_a_time() -> None:
    ended: list[int] = []
    later: list[Callable[[], None]] = []
    leaving = Leaving(lambda _seconds, act: later.append(act))
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
    # Who leaves alone does not wait.
    leaving.add(partial(ended.append, 25))
    await _turn()
    assert ended[-1] == 25


async def test_one_that_cannot_be_let_go_keeps_nobody_else() -> None:
    ended: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: ended.append(-1))
    leaving = Leaving(lambda _seconds, act: act())
    leaving.add(partial(divmod, 1, 0))
    for number in range(25):
        leaving.add(partial(ended.append, number))
    await _turn()
    assert ended == [-1, *range(25)]


async def _turn() -> None:
    """What was to be done soon has been done, and what that asked for."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
