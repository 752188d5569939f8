"""Pages of other origins: those that were named may use the server from a browser, no others.

Only what a page must be told is here. Who asks, and whether from such a page, is the door's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, MutableMapping
from typing import Any

from holdfast.server.calls import AsgiScope, Send

_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADERS = b"authorization, content-type, holdfast-namespace, idempotency-key, last-event-id"
_EXPOSED = b"retry-after, location"
_REMEMBERED_S = b"600"


class Cors:
    """`origins` are written as browsers do: https://queue.example.com."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = {origin.lower().encode("latin-1") for origin in origins}

    def origin(self, scope: AsgiScope) -> bytes | None:
        """The one that the request is from, if it may be."""
        for name, value in scope["headers"]:
            if name == b"origin":
                found: bytes = value
                return found if found.lower() in self._origins else None
        return None

    def telling(self, origin: bytes, send: Send) -> Send:
        """Lets the page read the answer. No cookies are ever looked at, so none are allowed."""

        @functools.wraps(send)
        async def told(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [
                    *event.get("headers", ()),
                    (b"access-control-allow-origin", origin),
                    (b"access-control-expose-headers", _EXPOSED),
                    (b"vary", b"origin"),
                ]
            await send(event)

        return told

    async def preflight(self, send: Send) -> None:
        """What a browser asks before it sends what a page could not send by itself."""
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _HEADERS),
            (b"access-control-max-age", _REMEMBERED_S),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def is_preflight(scope: AsgiScope) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )
