"""The first data of each page of the dashboard: the requests that a page makes, and an application
without a socket that answers them, so that the work of its engine can be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from math import inf
from typing import Any
from urllib.parse import quote

import apsw

from bench.dashboard_store import job_id, queue_name, schedule_name
from holdfast.app.application import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.server.access.peers import OWN_USER
from holdfast.server.application import AsgiApplication
from holdfast.server.live.metrics import snapshot_reader
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState

_QUEUE, _JOB = quote(queue_name(0)), quote(job_id(0))

PAGES: dict[str, tuple[str, ...]] = {
    "overview": ("/v1/live?topic=overview", "/v1/history?step=minute&from=1h"),
    "queue": (
        f"/v1/live?topic=queue:{_QUEUE}",
        f"/v1/history?queue={_QUEUE}&step=minute&from=1h",
        f"/v1/scaling?queue={_QUEUE}&target_wait=30s",
    ),
    "jobs": ("/v1/jobs?view=row&limit=50", "/v1/tally?by=state"),
    "jobs of a queue": (
        f"/v1/jobs?view=row&limit=50&queue={_QUEUE}&state=done",
        f"/v1/tally?queue={_QUEUE}&by=state",
    ),
    "jobs, none found": ("/v1/jobs?view=row&limit=50&tenant=nobody", "/v1/tally?tenant=x&by=state"),
    "job": (
        f"/v1/jobs/{_JOB}",
        f"/v1/jobs/{_JOB}/timeline",
        f"/v1/jobs/{_JOB}/explain",
        f"/v1/jobs?parent={_JOB}&view=row&limit=200",
        f"/v1/live?topic=job:{_JOB}",
    ),
    "dead letters": ("/v1/dead/groups?limit=100", "/v1/redrives"),
    "workers": (
        "/v1/live?topic=workers",
        "/v1/jobs?worker=worker-0&state=leased&view=row&limit=50",
    ),
    "schedules": (
        "/v1/schedules",
        *(f"/v1/schedules/{schedule_name(number)}/runs?count=20" for number in range(3)),
    ),
}
"""The requests of each page. The stream is left after its first snapshot."""


class PageApplication:
    """A server without a socket, for requests of its own user."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.server = ServerState(app=app, settings=ServerSettings())
        self._application = AsgiApplication(self.server)

    async def load(self, page: str) -> None:
        """Make the requests of a page, one after the other."""
        for path in PAGES[page]:
            await self.get(path)

    async def get(self, path: str) -> bytes:
        """The response to one request; of a stream everything up to its first snapshot."""
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:7433")],
            "client": ("127.0.0.1", 1),
            "state": {OWN_USER: True},
        }
        left = asyncio.Event()
        parts: list[bytes] = []
        status = 0
        asked = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            nonlocal status
            status = event.get("status", status)
            parts.append(event.get("body", b""))
            if b"event: snapshot" in parts[-1]:
                left.set()

        await self._application(scope, receive, send)
        body = b"".join(parts)
        assert status == 200, f"{path}?{query} was answered with {status}: {body[:300]!r}"
        assert not path.endswith("/live") or left.is_set(), f"{query} has no data: {body[:300]!r}"
        return body


@contextlib.asynccontextmanager
async def page_application(engine: Engine) -> AsyncIterator[PageApplication]:
    """Open the engine and answer the requests of pages. Nothing that was read is kept."""
    app = Holdfast(engine=engine)
    snapshots = snapshot_reader(app)
    # Counts are never taken from before, however long counting takes on a busy machine.
    snapshots.age_s_max, snapshots.slow_s = 0, inf
    async with app:
        pages = PageApplication(app)
        try:
            yield pages
        finally:
            pages.server.stopping.set()
            await pages.server.namespaces.close()


@contextlib.contextmanager
def vm_steps(engine: SQLiteEngine) -> Iterator[Sequence[int]]:
    """Count the VM steps of all statements of an open engine, one number for each statement."""
    steps: list[int] = []

    def count(trace: dict[str, Any]) -> None:
        steps.append(trace["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    database = engine._database
    found = [each.connection for each in (database._reader, database._writer)]
    connections = [each for each in found if each is not None]
    assert len(connections) == 2, "the engine has not read and written yet"
    for connection in connections:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    try:
        yield steps
    finally:
        for connection in connections:
            connection.trace_v2(0, None)


async def page_steps(engine: SQLiteEngine) -> dict[str, int]:
    """The VM steps of the first data of each page, loaded for the second time."""
    found: dict[str, int] = {}
    async with page_application(engine) as pages:
        for page in PAGES:
            await pages.load(page)
            with vm_steps(engine) as steps:
                await pages.load(page)
            found[page] = sum(steps)
    return found
