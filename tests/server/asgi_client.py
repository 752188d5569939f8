"""Sends requests to an ASGI application without a socket."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.server.access.peers import OWN_USER
from holdfast.server.application import AsgiApplication


@dataclass
class AsgiResponse:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


@dataclass
class AsgiClient:
    """`left` is set when the caller has gone; `reads` is awaited before each part is taken."""

    application: AsgiApplication
    left: asyncio.Event = field(default_factory=asyncio.Event)
    reads: Callable[[], Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        parts: Sequence[bytes | None] | None = None,
    ) -> AsgiResponse:
        """`parts` are how a body comes; one that is None never comes."""
        given = {"host": "127.0.0.1", **(headers or {})}
        raw = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        if body is not None and "content-type" not in given:
            given["content-type"] = "application/json"
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "client": ("127.0.0.1", 1),
            "state": {OWN_USER: True},
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        coming: list[bytes | None] = [raw] if parts is None else list(parts)

        async def receive() -> dict[str, Any]:
            if not coming or coming[0] is None:
                await self.left.wait()
                return {"type": "http.disconnect"}
            part = coming.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(coming)}

        said = AsgiResponse()

        async def send(event: Any) -> None:
            if self.reads is not None:
                await self.reads()
            self.events.append(event)
            if event["type"] == "http.response.start":
                said.status = event["status"]
                said.headers = {name.decode(): value.decode() for name, value in event["headers"]}
            else:
                said.body += event.get("body", b"")

        await self.application(scope, receive, send)
        return said
