"""The remote engine and a faulty server: retries, and the errors that are raised."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Queue, Receipt, Record, Status
from holdfast.core.verdict import Cancel, Complete, Outcome, Settlement
from holdfast.engines import wire
from holdfast.engines.base import Saved
from holdfast.engines.remote import RemoteEngine, client, connection, engine
from holdfast.errors import (
    EngineClosed,
    EngineError,
    EngineUnavailable,
    Forbidden,
    HoldfastError,
    OutcomeUnknown,
    QueueFull,
    StorageFull,
    Unauthenticated,
    Unsupported,
    UsageError,
)
from tests.engines.scripted_server import (
    Act,
    Script,
    answer,
    cut,
    page,
    scripted,
    silence,
    words,
    wrong,
)
from tests.stream_server import stream_server

SLEEP = asyncio.sleep
NEW = [Receipt(id="a", status=Status.NEW)]
RECORD = Record(kind="setting", key="k", value=b"v")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await SLEEP(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


@asynccontextmanager
async def connected(
    *acts: Act, token: str | None = None
) -> AsyncIterator[tuple[Script, RemoteEngine]]:
    async with scripted(*acts) as script:
        remote = RemoteEngine(script.place, token=token)
        await remote.open()
        try:
            yield script, remote
        finally:
            await remote.close()


async def test_one_connection_is_enough_for_one_caller() -> None:
    async with connected(*[answer(NEW)] * 5, token="hf_a_b") as (script, remote):
        for _ in range(5):
            assert await remote.enqueue([a_job("a")]) == NEW
        assert script.connections == 1
        assert {said.headers["authorization"] for said in script.heard} == {"Bearer hf_a_b"}


async def test_calls_with_ids_or_tokens_are_repeated(pauses: list[float]) -> None:
    acts = (cut, cut, answer(NEW), cut, answer(["settled"]), cut, answer([]))
    async with connected(*acts) as (script, remote):
        assert await remote.enqueue([a_job("a")]) == NEW
        assert script.heard[0].body == script.heard[1].body == script.heard[2].body
        held = Settlement(lease=a_lease(), verdict=Complete())
        assert await remote.settle([held]) == [Outcome.SETTLED]
        assert await remote.lease(LeaseRequest(queues=("q",))) == []
    assert script.verbs == ["enqueue"] * 3 + ["settle"] * 2 + ["lease"] * 2
    assert len(pauses) == 4
    assert pauses[0] <= 0.05
    assert pauses[1] <= 0.1


async def test_a_field_that_an_older_server_would_ignore_is_not_sent() -> None:
    """It would apply the call to more jobs than those that were meant."""
    children = JobFilter(parent="p")
    async with connected() as (script, remote):
        calls: list[Awaitable[object]] = [
            remote.find(children, limit=1),
            remote.tally(children, "state", limit=1),
            remote.amend(children, Cancel(), limit=1),
            remote.declare(Queue(name="q", expires_ms=1_000)),
            remote.lease(LeaseRequest(queues=("q",), dead=True)),
        ]
        for call in calls:
            with pytest.raises(Unsupported, match=r"a newer server|another engine"):
                await call
        window = a_job("a", key="k", key_hold="window")
        [receipt] = await remote.enqueue([window])
        assert (receipt.status, receipt.code) == (Status.REFUSED, Unsupported.code)
        with pytest.raises(Unsupported, match="a newer server"):
            await remote.settle([Settlement(lease=a_lease(), verdict=Complete(then=(window,)))])
    assert script.verbs == []


@pytest.mark.parametrize(
    "act",
    [cut, page(502), page(504), words(b"HTTP/1.1 200 x\r\n")],
    ids=["nothing", "502", "504", "half"],
)
async def test_calls_that_may_have_happened_are_not_repeated(act: Act) -> None:
    async def cut_after(script: Script, writer: asyncio.StreamWriter) -> None:
        act(script, writer)
        writer.close()

    async with connected(cut_after, cut_after) as (script, remote):
        with pytest.raises(OutcomeUnknown):
            await remote.save([RECORD])
        with pytest.raises(OutcomeUnknown):
            await remote.amend(JobFilter(ids=("a",)), Cancel(), limit=1)
    assert script.verbs == ["save", "amend"]


async def test_a_connection_closed_by_the_server_is_not_reused() -> None:
    def last(script: Script, writer: asyncio.StreamWriter) -> None:
        answer([Saved.SAVED])(script, writer)
        writer.close()

    async with connected(last, last, answer([Saved.SAVED])) as (script, remote):
        for _ in range(3):
            assert await remote.save([RECORD]) == [Saved.SAVED]
            # Nothing here lets the loop see that the other end has hung up, but its own look.
            await script.left.wait() if script.acts else None
            script.left.clear()
    assert script.connections == 3


async def test_it_reconnects_when_the_server_is_back(pauses: list[float]) -> None:
    async with connected(answer(NEW)) as (script, remote):
        await script.stop()

        async def return_soon() -> None:
            while len(pauses) < 3:
                await SLEEP(0)
            await script.start()

        returning = asyncio.create_task(return_soon())
        assert await remote.enqueue([a_job("a")]) == NEW
        await returning
    assert all(pause <= 2.0 for pause in pauses)


async def test_a_long_outage_raises_unavailable() -> None:
    async with connected() as (script, remote):
        await script.stop()
        with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:\d+ cannot be reached"):
            await remote._opened.call("save", wire.SaveCall([RECORD]), retry_s_max=0)


async def test_an_overloaded_server_says_when_to_try_again(pauses: list[float]) -> None:
    busy = wrong("overloaded", 503, retry_after="3")
    async with connected(busy, busy, answer([Saved.SAVED])) as (script, remote):
        # Nothing was done, so that even this may be asked again.
        assert await remote.save([RECORD]) == [Saved.SAVED]
    assert pauses == [3.0, 3.0]
    assert len(script.heard) == 3


async def test_a_silent_server_is_given_up(pauses: list[float]) -> None:
    async with connected(wrong("overloaded", 503, retry_after="3600")) as (_, remote):
        with pytest.raises(EngineUnavailable, match="overloaded"):
            await remote.save([RECORD])
    assert pauses == []


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("unauthenticated", 401, Unauthenticated),
        ("forbidden", 403, Forbidden),
        ("queue_full", 429, QueueFull),
        ("storage_full", 507, StorageFull),
        ("unsupported", 501, Unsupported),
        ("outcome_unknown", 504, OutcomeUnknown),
        ("timed_out", 504, EngineUnavailable),
        ("of_a_later_version", 422, UsageError),
        ("error", 500, EngineError),
    ],
)
async def test_errors_keep_their_class_and_are_not_retried(
    code: str, status: int, kind: type[HoldfastError], pauses: list[float]
) -> None:
    async with connected(wrong(code, status)) as (script, remote):
        with pytest.raises(kind) as caught:
            await remote.enqueue([a_job("a")])
        assert type(caught.value) is kind
    assert (len(script.heard), pauses) == (1, [])


async def test_a_server_shutting_down_is_unavailable_not_closed(
    pauses: list[float],
) -> None:
    async with connected(wrong("closed", 503), answer(NEW)) as (_, remote):
        assert await remote.enqueue([a_job("a")]) == NEW


async def test_known_answers_of_a_batch_are_kept() -> None:
    problem = {
        "code": "outcome_unknown",
        "message": "m",
        "known": b"\x81\x01\xa7settled",
    }
    async with connected(answer({"error": problem}, status=504)) as (_, remote):
        held = Settlement(lease=a_lease(), verdict=Complete())
        with pytest.raises(OutcomeUnknown) as caught:
            await remote.settle([held, held])
    assert caught.value.known == {1: Outcome.SETTLED}


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (page(200), "answered 200 with text/html"),
        (page(404), "answered 404 with text/html"),
        (answer({"a": 1}), "is not a Holdfast server"),
        (answer(NEW, status=400), "is not a Holdfast server"),
    ],
    ids=["page", "no-page", "other", "other-error"],
)
async def test_answers_of_other_servers_are_rejected(act: Act, says: str) -> None:
    async with connected(act) as (_, remote):
        with pytest.raises(EngineError, match=says):
            await remote.enqueue([a_job("a")])


@pytest.mark.parametrize(
    "data",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 x\r\ncontent-length: 1001\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 400_000,
        b"HTTP/1.1 101 x\r\nupgrade: y\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no-http", "large", "head", "upgrade", "chunk"],
)
async def test_an_answer_is_bounded_and_must_be_http(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_BODY_MAX", 1000)
    async with connected(words(data)) as (_, remote):
        with pytest.raises(OutcomeUnknown):
            await remote.save([RECORD])


async def test_chunked_and_interim_answers_are_understood() -> None:
    body = b"\x91\xa5saved"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"content-type: application/msgpack\r\ntransfer-encoding: chunked\r\n\r\n"
    said = b"HTTP/1.1 103 x\r\nlink: y\r\n\r\nHTTP/1.1 200 x\r\n" + head + chunks
    async with connected(words(said), answer([Saved.SAVED])) as (script, remote):
        assert await remote.save([RECORD]) == [Saved.SAVED]
        assert await remote.save([RECORD]) == [Saved.SAVED]
    assert script.connections == 1


async def test_a_cancelled_wait_closes_the_connection() -> None:
    async with connected(silence) as (script, remote):
        waiting = asyncio.create_task(remote.lease(LeaseRequest(queues=("q",), wait_ms=60_000)))
        await script.came.get()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await script.left.wait()


async def test_leases_that_arrive_after_a_cancel_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is there, and its caller was cancelled before it could take it."""
    released = answer(["settled"])
    async with connected(answer([a_lease()]), released) as (script, remote):
        waiting = asyncio.create_task(remote.lease(LeaseRequest(queues=("q",), wait_ms=60_000)))
        taken = connection.HttpConnection.on_message_complete

        def cancelled_then(self: connection.HttpConnection) -> None:
            taken(self)
            waiting.cancel()
            monkeypatch.undo()

        monkeypatch.setattr(connection.HttpConnection, "on_message_complete", cancelled_then)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [(await script.came.get()).verb for _ in range(2)] == ["lease", "settle"]
        assert b"the caller was cancelled" in script.heard[1].body


async def test_a_wait_continues_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_PAUSE_S", 0.001)
    acts = (cut, page(502), wrong("stopping", 503), answer([]), answer([a_lease()]))
    async with connected(*acts) as (script, remote):
        leases = await remote.lease(LeaseRequest(queues=("q",), wait_ms=60_000))
        assert [lease.id for lease in leases] == ["a"]
    assert script.verbs == ["lease"] * 5
    asked = [wire.VERBS["lease"].read_call(said.body).request.wait_ms for said in script.heard]
    assert asked == [20_000] * 5


async def test_a_wait_raises_its_last_error_at_the_end() -> None:
    async with connected() as (script, remote):
        await script.stop()
        with pytest.raises(EngineUnavailable):
            await remote.lease(LeaseRequest(queues=("q",), wait_ms=20))


async def test_a_retry_waits_no_longer_than_the_time_left() -> None:
    async with connected(cut, answer([a_lease()])) as (script, remote):
        assert await remote.lease(LeaseRequest(queues=("q",), wait_ms=15_000))
    asked = [wire.VERBS["lease"].read_call(said.body).request.wait_ms for said in script.heard]
    assert 15_000 >= asked[0] >= asked[1]


async def test_closing_ends_a_wait_with_no_leases() -> None:
    async with connected(silence) as (script, remote):
        waiting = asyncio.create_task(remote.lease(LeaseRequest(queues=("q",), wait_ms=60_000)))
        await script.came.get()
        await remote.close()
        assert await waiting == []
        with pytest.raises(EngineClosed):
            await remote.enqueue([])


async def test_opening_names_the_server_it_did_not_reach() -> None:
    async with scripted() as script:
        await script.stop()
        remote = RemoteEngine(script.place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "_OPEN_RETRY_S_MAX", 0.0)
            with pytest.raises(EngineUnavailable, match="cannot be reached: Connection refused"):
                await remote.open()


async def test_opening_hints_at_http_instead_of_https(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server with TLS hangs up on what is none; one without it answers in plain words."""
    monkeypatch.setattr(engine, "_OPEN_RETRY_S_MAX", 0.0)
    async with _saying(b"") as port:
        with pytest.raises(EngineUnavailable, match="does it serve https://"):
            await RemoteEngine(f"http://127.0.0.1:{port}").open()
    async with _saying(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as port:
        with pytest.raises(EngineUnavailable, match="does it serve plain http://"):
            await RemoteEngine(f"https://127.0.0.1:{port}").open()


@asynccontextmanager
async def _saying(answer: bytes) -> AsyncIterator[int]:
    """A server that gives this answer to every request; yields its port."""

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)

    async with stream_server(tell) as port:
        yield port


async def test_another_version_is_distinguished_from_another_server() -> None:
    body = b'{"error":{"code":"unknown_path","message":"there is nothing","detail":{}}}'
    head = b"HTTP/1.1 404 x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with connected(words(head % len(body) + body)) as (_, remote):
        with pytest.raises(EngineError, match="the same version"):
            await remote.enqueue([a_job("a")])


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CONNECTIONS_MAX", 2)
    async with connected(*[answer(NEW)] * 20) as (script, remote):
        await asyncio.gather(*(remote.enqueue([a_job("a")]) for _ in range(20)))
        assert len(script.heard) == 20
        assert script.connections <= 2


def a_lease() -> Lease:
    job = Job(id="a", task="t", queue="q", token=7)
    return Lease(job=job, token=7, lease_ms=1_000)
