"""Requests and their answers: paths, queries, bodies, errors, streams, and what ends them."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from holdfast.app import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import OutcomeUnknown, QueueFull, Unsupported
from holdfast.server import connections
from holdfast.server.accesslog import AccessLog
from holdfast.server.application import Application
from holdfast.server.asking import whole_numbers
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.problems import STATUS
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from tests.server.asgi import Client


class Query(Struct):
    limit: Annotated[int, Meta(ge=1, le=9)] = 5
    states: list[str] = []
    ratio: float | None = None
    dry: bool = False


class Body(Struct, forbid_unknown_fields=True):
    count: int
    note: str = ""


class Loose(Struct, forbid_unknown_fields=True):
    note: str = "nothing"


@operation("GET", "/v1/things/{name}", needs=Scope.OPERATE)
async def thing(call: Call, name: str, query: Query) -> dict[str, Any]:
    return {"name": name, "query": query}


@operation("GET", "/v1/things/{name}/{number}", needs=Scope.OPERATE)
async def numbered(
    call: Call, name: Annotated[str, Meta(max_length=3)], number: Annotated[int, Meta(ge=0)]
) -> list[Any]:
    return [name, number]


@operation("POST", "/v1/things/count", needs=Scope.OPERATE, status=201, repeatable=True)
async def count(call: Call, body: Body) -> Body:
    return body


@operation("POST", "/v1/loose", needs=Scope.OPERATE, repeatable=True)
async def loose(call: Call, body: Loose) -> Loose:
    return body


@operation("DELETE", "/v1/things/{name}", needs=Scope.OPERATE, status=204)
async def remove(call: Call, name: str) -> None:
    match name:
        case "full":
            raise QueueFull("it is full")
        case "unsure":
            raise OutcomeUnknown("who knows")
        case "cannot":
            raise Unsupported("memory", "miracles")
        case "broken":
            raise ZeroDivisionError("the password is hunter2")
        case _:
            pass


@operation("GET", "/v1/text", needs=None)
async def text(call: Call) -> Annotated[bytes, "text/plain"]:
    return b"as it is"


THINGS = (thing, numbered, count, loose, remove, text)


def served(*operations: Operation, **settings: Any) -> tuple[Client, Server]:
    app = Holdfast(engine=MemoryEngine())
    server = Server(app=app, settings=ServerSettings(**settings))
    return Client(Application(server, operations or THINGS)), server


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/things/a", {"name": "a"}),
        ("/v1/things/a%2Fb%20c", {"name": "a/b c"}),
        ("/v1/things/%C3%A4", {"name": "ä"}),
        # The literal path is for another method: this is a thing of that name.
        ("/v1/things/count", {"name": "count"}),
        ("/v1/thing%73/a", {"name": "a"}),
    ],
)
async def test_a_path_is_found(path: str, wanted: dict[str, Any]) -> None:
    client, _ = served()
    said = await client.ask("GET", path)
    assert said.status == 200
    assert said.json["name"] == wanted["name"]


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v1/things", "/v1/things/", "//v1/things/a", "/v1/things/a/1/2", "/V1/text"],
)
async def test_what_is_not_there(path: str) -> None:
    client, _ = served()
    said = await client.ask("GET", path)
    assert (said.status, said.code) == (404, "unknown_path")


async def test_a_path_that_is_no_text() -> None:
    client, _ = served()
    assert (await client.ask("GET", "/v1/things/%ff")).status == 400
    assert (await client.ask("GET", "/v1/things/" + "a" * 9_000)).status == 400


async def test_a_wrong_method_hears_the_right_ones() -> None:
    client, _ = served()
    said = await client.ask("PUT", "/v1/things/a")
    assert (said.status, said.code) == (405, "wrong_method")
    assert said.headers["allow"] == "DELETE, GET, HEAD"
    # Of two that fit, the literal one is meant.
    assert (await client.ask("PUT", "/v1/things/count")).headers["allow"] == "POST"


async def test_head_is_get_without_a_body() -> None:
    client, _ = served()
    said = await client.ask("HEAD", "/v1/text")
    assert (said.status, said.body) == (200, b"")
    assert said.headers["content-length"] == "8"
    assert (await client.ask("GET", "/v1/text")).body == b"as it is"


async def test_a_path_is_typed() -> None:
    client, _ = served()
    assert (await client.ask("GET", "/v1/things/abc/7")).json == ["abc", 7]
    for path in ("/v1/things/abcd/7", "/v1/things/abc/-1", "/v1/things/abc/x", "/v1/things/a/07"):
        said = await client.ask("GET", path)
        assert (said.status, said.code) == (400, "invalid_request")


async def test_a_query_is_typed() -> None:
    client, _ = served()
    said = await client.ask("GET", "/v1/things/a?limit=7&states=x&states=y%2Cz&ratio=1.5&dry=true")
    assert said.json["query"] == {"limit": 7, "states": ["x", "y,z"], "ratio": 1.5, "dry": True}
    said = await client.ask("GET", "/v1/things/a")
    assert said.json["query"] == {"limit": 5, "states": [], "ratio": None, "dry": False}


@pytest.mark.parametrize(
    "query",
    [
        "limits=7",
        "limit=7&limit=8",
        "limit=",
        "limit=10",
        "limit=7.5",
        "limit=+7",
        "limit=1_0",
        "limit=null",
        "ratio=nan",
        "ratio=null",
        "dry=1",
        "dry=True",
        "limit",
        "states=%ff",
        "&".join(["states=x"] * 2_000),
    ],
)
async def test_a_query_that_says_something_else_is_refused(query: str) -> None:
    client, _ = served()
    assert (await client.ask("GET", f"/v1/things/a?{query}")).status == 400


async def test_a_query_where_there_is_none() -> None:
    client, _ = served()
    assert (await client.ask("GET", "/v1/text?a=1")).code == "invalid_request"


async def test_a_body() -> None:
    client, _ = served()
    said = await client.ask("POST", "/v1/things/count", {"count": 3})
    assert (said.status, said.json) == (201, {"count": 3, "note": ""})
    typed = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await client.ask("POST", "/v1/things/count", {"count": 3}, headers=typed)).status == 201


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_request"),
        (b"{", 400, "bad_request"),
        (b'{"count":1}x', 400, "bad_request"),
        (b'{"count":"1"}', 400, "invalid_request"),
        (b'{"count":1.5}', 400, "invalid_request"),
        (b'{"count":1.0,"note":"1', 400, "bad_request"),
        (b'{"count":1,"more":2}', 400, "invalid_request"),
        (b'{"count":1,"note":"\xff"}', 400, "bad_request"),
        (b"[" * 100_000, 400, "invalid_request"),
        (b'{"count":1,"more":' + b"[" * 100_000, 400, "invalid_request"),
        (b'{"note":' + b'{"a":' * 100_000, 400, "invalid_request"),
        (b'{"count":' + b"9" * 100_000 + b"}", 400, "invalid_request"),
    ],
)
async def test_a_body_that_cannot_be_used(body: bytes, status: int, code: str) -> None:
    client, _ = served()
    said = await client.ask("POST", "/v1/things/count", body)
    assert said.status == status
    assert said.code in (code, "bad_request")
    assert set(said.json["error"]) == {"code", "message", "detail"}


async def test_a_body_nested_too_deeply() -> None:
    @operation("POST", "/v1/any", needs=Scope.OPERATE, repeatable=True)
    async def anything(call: Call, body: Any) -> int:
        return 1

    client, _ = served(anything)
    for opening in (b"[", b'{"a":'):
        said = await client.ask("POST", "/v1/any", opening * 100_000)
        assert (said.status, said.code) == (400, "bad_request")
        assert "deep" in said.json["error"]["message"]


async def test_a_whole_number_may_be_written_with_a_point() -> None:
    client, _ = served()
    said = await client.ask("POST", "/v1/things/count", b'{"count":3.0,"note":"1.0 \\" 2.0"}')
    assert said.json == {"count": 3, "note": '1.0 " 2.0'}
    assert whole_numbers(b'{"1.0":[1.0,-2e3,2.5,1e400,7,"\\\\"],"a":0.0') == (
        b'{"1.0":[1,-2000,2.5,1e400,7,"\\\\"],"a":0'
    )


def test_what_is_kept_to_the_byte_is_not_written_anew() -> None:
    jobs = b'{"jobs":[{"payload":%b,"priority":5.0},{"priority":1.0,"payload":2.0},{"delay":1.0}]}'
    for payload in (
        b"1.0",
        b'{"payload":{"a":[1.0,{}]},"b":2.0}',
        b'[[1.0],{"a,":3.0}]',
        b'"1.0}"',
    ):
        said = jobs % payload
        whole = said.replace(b"5.0", b"5").replace(b'"priority":1.0', b'"priority":1')
        assert whole_numbers(said) == whole.replace(b'"delay":1.0', b'"delay":1')


async def test_a_large_body_is_not_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # A number is looked at in microseconds, and millions of them would keep everybody waiting.
    monkeypatch.setattr("holdfast.server.asking.whole_numbers", None)
    client, _ = served()
    body = b'{"count":3.0,"note":"%b"}' % (b"x" * 20_000)
    assert (await client.ask("POST", "/v1/things/count", body)).code == "invalid_request"


async def test_a_body_of_another_kind() -> None:
    client, _ = served()
    for headers in (
        {"content-type": "text/plain"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ):
        said = await client.ask("POST", "/v1/things/count", b"{}", headers=headers)
        assert (said.status, said.code) == (415, "wrong_content")


async def test_no_body_where_nothing_must_be_said() -> None:
    client, _ = served()
    assert (await client.ask("POST", "/v1/loose")).json == {"note": "nothing"}
    assert (await client.ask("POST", "/v1/things/count")).status == 415


async def test_a_body_that_is_too_large() -> None:
    client, _ = served(body_max=100)
    declared = {"content-length": "101", "content-type": "application/json"}
    for parts in ([b"x" * 60, b"x" * 60], [b"x" * 101]):
        said = await client.ask("POST", "/v1/things/count", b"", parts=parts)
        assert (said.status, said.code) == (413, "too_large")
    # It is refused before it comes.
    said = await client.ask("POST", "/v1/things/count", b"", parts=[], headers=declared)
    assert said.status == 413
    assert said.headers["connection"] == "close"


async def test_headers_that_could_be_read_two_ways() -> None:
    client, _ = served()
    said: list[Any] = []

    async def send(event: Any) -> None:
        said.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/text",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"host", b"elsewhere")],
        "client": ("127.0.0.1", 1),
    }
    await client.application(scope, receive, send)
    assert said[0]["status"] == 400


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("full", 429, "queue_full"),
        ("unsure", 504, "outcome_unknown"),
        ("cannot", 501, "unsupported"),
        ("broken", 500, "error"),
    ],
)
async def test_errors_have_a_status_and_a_code(name: str, status: int, code: str) -> None:
    client, _ = served()
    said = await client.ask("DELETE", f"/v1/things/{name}")
    assert (said.status, said.code) == (status, code)
    assert "hunter2" not in said.body.decode()
    assert "Traceback" not in said.body.decode()
    if name == "cannot":
        assert said.json["error"]["detail"] == {"engine": "memory", "feature": "miracles"}
    if name == "full":
        assert int(said.headers["retry-after"]) > 0


def test_what_is_refused_with_the_connection_has_a_code_that_is_known() -> None:
    for status, (_phrase, code, _text) in connections._PHRASES.items():
        assert STATUS[code] == status or code == "too_large"


async def test_nothing_to_say() -> None:
    client, _ = served()
    said = await client.ask("DELETE", "/v1/things/a")
    assert (said.status, said.body) == (204, b"")
    assert "content-length" not in said.headers


class Waiting:
    """An operation that waits, and says how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = ""

        @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
        async def wait(call: Call) -> str:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.ended = "cancelled"
                raise
            return "done"

        self.operation = wait


async def test_a_wait_ends_when_its_caller_leaves() -> None:
    waiting = Waiting()
    client, _ = served(waiting.operation)
    asking = asyncio.create_task(client.ask("POST", "/v1/wait"))
    await waiting.begun.wait()
    client.left.set()
    said = await asking
    assert (waiting.ended, said.status) == ("cancelled", 0)
    assert client.application.pressure.under_way() == dict.fromkeys(
        client.application.pressure.under_way(), 0
    )


async def test_an_answer_that_nobody_hears_is_taken_back() -> None:
    undone = []

    @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
    async def wait(call: Call) -> str:
        # The watch is waiting; it hears of it while this is about to return.
        await asyncio.sleep(0)
        client.left.set()
        await asyncio.sleep(0)
        return "done"

    async def undo(call: Call, answer: Any) -> None:
        await asyncio.sleep(0)
        undone.append(answer)

    client, _ = served(dataclasses.replace(wait, undo=undo))
    said = await client.ask("POST", "/v1/wait", parts=[])
    assert (said.status, undone) == (0, ["done"])


class Reader:
    """Reads answers as a connection of the web server does, and may leave or stall at a part."""

    def __init__(self, at: int, stalls: bool) -> None:
        self.disconnected = False
        self.transport = self
        self.aborted = False
        self._at = at
        self._stalls = stalls
        self._parts = 0

    def abort(self) -> None:
        self.aborted = True

    async def send(self, event: Any) -> None:
        self._parts += event["type"] == "http.response.body"
        if self._parts == self._at and self._stalls:
            await asyncio.Event().wait()
        self.disconnected |= self._parts >= self._at and event.get("more_body", False)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("behind", ["", "log", "page"])
@pytest.mark.parametrize(("at", "taken_back"), [(1, True), (2, True), (9, False)])
async def test_what_is_not_read_to_its_end_is_taken_back(
    at: int, taken_back: bool, behind: str, stalls: bool
) -> None:
    undone = []

    @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
    async def wait(call: Call) -> str:
        return "x" * 200_000

    async def undo(call: Call, answer: Any) -> None:
        undone.append(answer)

    page = "https://tools.test"
    client, _ = served(dataclasses.replace(wait, undo=undo), slow_ms_max=1, origins=(page,))
    origin = [(b"origin", page.encode())] if behind == "page" else []
    application = AccessLog(client.application) if behind == "log" else client.application
    reader = Reader(at, stalls)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/wait",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), *origin],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        await asyncio.Event().wait()

    await application(scope, receive, reader.send)
    assert (len(undone), reader.aborted) == (int(taken_back), taken_back and stalls)


async def test_a_wait_ends_when_the_server_stops() -> None:
    waiting = Waiting()
    client, server = served(waiting.operation)
    asking = asyncio.create_task(client.ask("POST", "/v1/wait"))
    await waiting.begun.wait()
    server.stopping.set()
    said = await asking
    assert (said.status, said.code, waiting.ended) == (503, "stopping", "cancelled")
    assert (await client.ask("POST", "/v1/wait")).code == "stopping"


@pytest.mark.parametrize(
    ("method", "code"),
    [("GET", "timed_out"), ("POST", "outcome_unknown"), ("BODY", "slow_request")],
)
async def test_a_request_takes_no_longer_than_it_may(method: str, code: str) -> None:
    @operation("GET", "/v1/slow", needs=Scope.OPERATE)
    async def slow(call: Call) -> int:
        await asyncio.Event().wait()
        return 1

    @operation("POST", "/v1/slow", needs=Scope.OPERATE, repeatable=True)
    async def slow_write(call: Call, body: Loose) -> int:
        await asyncio.Event().wait()
        return 1

    client, _ = served(slow, slow_write, request_ms_max=1)
    parts: list[bytes] | None = [] if method == "BODY" else None
    said = await client.ask("GET" if method == "GET" else "POST", "/v1/slow", b"{}", parts=parts)
    assert said.code == code
    assert said.status == (408 if method == "BODY" else 504)


class Streaming:
    def __init__(self, *parts: bytes) -> None:
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.given: asyncio.Queue[bytes] = asyncio.Queue()
        for part in parts:
            self.given.put_nowait(part)
        self.made = 0

        @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
        async def stream(call: Call) -> AsyncIterator[bytes]:
            try:
                while True:
                    part = await self.given.get()
                    self.made += 1
                    self.begun.set()
                    if part == b"refuse":
                        raise QueueFull("no")
                    yield part
            finally:
                self.closed.set()

        self.operation = stream


async def test_a_stream_goes_out_part_by_part() -> None:
    streaming = Streaming(b"data: 1\n\n", b"data: 2\n\n", b"")
    client, _ = served(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert said.headers["content-type"] == "text/event-stream"
    assert "content-length" not in said.headers
    assert said.body == b"data: 1\n\ndata: 2\n\n"
    assert client.events[-1].get("more_body", False) is False
    assert streaming.closed.is_set()


async def test_a_stream_can_be_refused_before_it_begins() -> None:
    streaming = Streaming(b"refuse")
    client, _ = served(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert (said.status, said.code) == (429, "queue_full")


async def test_the_head_of_a_stream_has_no_end_to_wait_for() -> None:
    streaming = Streaming(b": hello\n\n")
    client, _ = served(streaming.operation)
    said = await client.ask("HEAD", "/v1/stream")
    assert (said.status, said.body) == (200, b"")
    assert streaming.closed.is_set()


@pytest.mark.parametrize("end", ["left", "stopping"])
async def test_a_stream_ends(end: str) -> None:
    streaming = Streaming(b": hello\n\n")
    client, server = served(streaming.operation)
    asking = asyncio.create_task(client.ask("GET", "/v1/stream"))
    await streaming.begun.wait()
    (client.left if end == "left" else server.stopping).set()
    said = await asking
    assert streaming.closed.is_set()
    assert said.status == 200
    # A reader who is still there is told that this is all.
    assert (client.events[-1].get("more_body") is None) == (end == "stopping")


async def test_a_slow_reader_is_dropped_and_nothing_is_kept_for_it() -> None:
    streaming = Streaming(*[b"x" * 1_000] * 100)
    client, _ = served(streaming.operation, slow_ms_max=1)
    stuck = asyncio.Event()

    async def reads() -> None:
        if len(client.events) >= 3:
            await stuck.wait()

    client.reads = reads
    with contextlib.suppress(asyncio.CancelledError):
        await client.ask("GET", "/v1/stream")
    assert streaming.closed.is_set()
    assert streaming.made <= 4
