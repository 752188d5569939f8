"""Responses: errors have a status and a code, waits end, and unread answers are undone."""

import asyncio
import dataclasses
from typing import Any

import pytest

from holdfast.server.access.admission import ApiCall
from holdfast.server.access.peers import OWN_USER
from holdfast.server.http import connection
from holdfast.server.http.operation import Scope, operation
from holdfast.server.http.problems import STATUS
from holdfast.server.http.uvicorn_server import AccessLog
from tests.server.sample_api import Loose, serve


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
    client, _ = serve()
    said = await client.ask("DELETE", f"/v1/things/{name}")
    assert (said.status, said.code) == (status, code)
    assert "hunter2" not in said.body.decode()
    assert "Traceback" not in said.body.decode()
    if name == "cannot":
        assert said.json["error"]["detail"] == {
            "engine": "memory",
            "feature": "miracles",
            "remedy": "",
        }
    if name == "full":
        assert int(said.headers["retry-after"]) > 0


def test_connection_errors_have_known_codes() -> None:
    for status, (_phrase, code, _text) in connection._PHRASES.items():
        assert STATUS[code] == status or code == "too_large"


async def test_status_204_has_no_body() -> None:
    client, _ = serve()
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
        async def wait(call: ApiCall) -> str:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.ended = "cancelled"
                raise
            return "done"

        self.operation = wait


async def test_a_wait_ends_when_its_client_disconnects() -> None:
    waiting = Waiting()
    client, _ = serve(waiting.operation)
    asking = asyncio.create_task(client.ask("POST", "/v1/wait"))
    await waiting.begun.wait()
    client.left.set()
    said = await asking
    assert (waiting.ended, said.status) == ("cancelled", 0)
    assert client.application.pressure.under_way() == dict.fromkeys(
        client.application.pressure.under_way(), 0
    )


async def test_an_unread_answer_is_undone() -> None:
    undone = []

    @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
    async def wait(call: ApiCall) -> str:
        # The watch is waiting; it hears of it while this is about to return.
        await asyncio.sleep(0)
        client.left.set()
        await asyncio.sleep(0)
        return "done"

    async def undo(call: ApiCall, answer: Any) -> None:
        await asyncio.sleep(0)
        undone.append(answer)

    client, _ = serve(dataclasses.replace(wait, undo=undo))
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

    def is_closing(self) -> bool:
        return False

    async def send(self, event: Any) -> None:
        self._parts += event["type"] == "http.response.body"
        if self._parts == self._at and self._stalls:
            await asyncio.Event().wait()
        self.disconnected |= self._parts >= self._at and event.get("more_body", False)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("behind", ["", "log", "page"])
@pytest.mark.parametrize(("at", "taken_back"), [(1, True), (2, True), (9, False)])
async def test_a_partly_read_answer_is_undone(
    at: int, taken_back: bool, behind: str, stalls: bool
) -> None:
    undone = []

    @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
    async def wait(call: ApiCall) -> str:
        return "x" * 200_000

    async def undo(call: ApiCall, answer: Any) -> None:
        undone.append(answer)

    page = "https://tools.test"
    client, _ = serve(dataclasses.replace(wait, undo=undo), slow_ms_max=1, origins=(page,))
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
        "state": {OWN_USER: True},
    }

    async def receive() -> Any:
        await asyncio.Event().wait()

    await application(scope, receive, reader.send)
    assert (len(undone), reader.aborted) == (int(taken_back), taken_back and stalls)


async def test_a_wait_ends_when_the_server_stops() -> None:
    waiting = Waiting()
    client, server = serve(waiting.operation)
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
async def test_a_late_request_is_cancelled(method: str, code: str) -> None:
    @operation("GET", "/v1/slow", needs=Scope.OPERATE)
    async def slow(call: ApiCall) -> int:
        await asyncio.Event().wait()
        return 1

    @operation("POST", "/v1/slow", needs=Scope.OPERATE, repeatable=True)
    async def slow_write(call: ApiCall, body: Loose) -> int:
        await asyncio.Event().wait()
        return 1

    client, _ = serve(slow, slow_write, request_ms_max=1)
    parts: list[bytes] | None = [] if method == "BODY" else None
    said = await client.ask("GET" if method == "GET" else "POST", "/v1/slow", b"{}", parts=parts)
    assert said.code == code
    assert said.status == (408 if method == "BODY" else 504)
