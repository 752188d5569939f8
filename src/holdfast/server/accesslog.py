"""A line of JSON for each request, where that is asked for: never a query, a header or a body, nor
the secret of a token that somebody wrote into a path."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import MutableMapping
from typing import Any

import msgspec

from holdfast.server.calls import AsgiScope, Receive, Send
from holdfast.server.tokens import FORM

_log = logging.getLogger("holdfast.access")
_PATH_MAX = 200


class Line(msgspec.Struct):
    method: str
    path: str
    status: int | None
    ms: float
    peer: str | None


class AccessLog:
    """An ASGI application around another."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        status: int | None = None

        @functools.wraps(send)
        async def noted(event: MutableMapping[str, Any]) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
            await send(event)

        began = time.perf_counter()
        try:
            await self._app(scope, receive, noted)
        finally:
            took_ms = round((time.perf_counter() - began) * 1000, 2)
            peer = scope.get("client")
            path = FORM.sub(r"hf_\1_…", scope["path"])[:_PATH_MAX]
            line = Line(scope["method"], path, status, took_ms, peer and peer[0])
            _log.info("%s", msgspec.json.encode(line).decode())
