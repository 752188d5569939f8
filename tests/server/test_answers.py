"""Answers: errors have a status and a code, waits end, and what nobody hears is taken back."""

import asyncio
import dataclasses
from typing import Any

import pytest

from holdfast.server import connections
from holdfast.server.accesslog import AccessLog
from holdfast.server.calls import Call
from holdfast.server.operations import Scope, operation
from holdfast.server.problems import STATUS
from tests.server.things import Loose, served


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
