"""All operations as one ASGI application: routing, CORS, and one endpoint for each operation."""

from __future__ import annotations

import functools
from collections.abc import Iterable, MutableMapping
from typing import Any

from holdfast import tracing
from holdfast.errors import HoldfastError
from holdfast.server.access.admission import Admission
from holdfast.server.dashboard import files
from holdfast.server.http.endpoint import Endpoint, EndpointServices, StreamGuard, TracedEndpoint
from holdfast.server.http.idempotency import IdempotencyKeys
from holdfast.server.http.openapi import TO_DOCS, with_api_docs
from holdfast.server.http.operation import Operation, Routes
from holdfast.server.http.pressure import Pressure
from holdfast.server.http.request import AsgiScope, Receive, Send
from holdfast.server.http.response import error_reply, send_reply
from holdfast.server.live import feed, history, metrics, overview, stream
from holdfast.server.rest import (
    acts,
    admin,
    dead_letters,
    engine_verbs,
    enqueue,
    gates,
    jobs,
    leases,
    queues,
    schedules,
    session,
    settle,
    status,
    workers,
)
from holdfast.server.sqs.endpoint import SqsEndpoint
from holdfast.server.state import ServerState

OPERATIONS: tuple[Operation, ...] = with_api_docs(
    (
        *status.OPERATIONS,
        *overview.OPERATIONS,
        *enqueue.OPERATIONS,
        *jobs.OPERATIONS,
        *acts.OPERATIONS,
        *leases.OPERATIONS,
        *settle.OPERATIONS,
        *queues.OPERATIONS,
        *dead_letters.OPERATIONS,
        *schedules.OPERATIONS,
        *gates.OPERATIONS,
        *workers.OPERATIONS,
        *metrics.OPERATIONS,
        *history.OPERATIONS,
        *feed.OPERATIONS,
        *stream.OPERATIONS,
        *admin.OPERATIONS,
        *session.OPERATIONS,
        *engine_verbs.OPERATIONS,
    )
)
"""The operations of the API. At `/` is the dashboard, or what leads to their description."""

_API = b"/v1/"
_CORS_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_CORS_HEADERS = b"authorization, content-type, holdfast-namespace, idempotency-key, last-event-id"
_CORS_EXPOSED = b"retry-after, location"
_CORS_MAX_AGE_S = b"600"


class AsgiApplication:
    """Routes each request to the endpoint of its operation. The server's application is open."""

    def __init__(
        self, server: ServerState, operations: tuple[Operation, ...] | None = None
    ) -> None:
        self.pressure: Pressure = Pressure(server)
        settings = server.settings
        self._operations, self._routes = (
            _own_operations(dashboard=settings.dashboard)
            if operations is None
            else (operations, _routes_of(operations))
        )
        self._meter = server.app.telemetry.meter
        self._services = EndpointServices(
            admission=Admission(server),
            pressure=self.pressure,
            keys=IdempotencyKeys(request_ms_max=settings.request_ms_max + settings.wait_ms_max),
            meter=self._meter,
            streams=StreamGuard(server),
            body_max=settings.body_max,
        )
        self._cors = Cors(settings.origins) if settings.origins else None
        self._endpoint_class = TracedEndpoint if tracing.is_on() else Endpoint
        self._endpoints: dict[int, Endpoint] = {}
        """By the position of their operations. Each is made for its first request."""
        self.sqs: SqsEndpoint | None = (
            None if settings.sqs == "off" else SqsEndpoint(server, self._services)
        )

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _handle_other(scope, receive, send)
            return
        path = scope.get("raw_path") or scope["path"].encode()
        method = scope["method"]
        origin = None if self._cors is None else self._cors.allowed_origin(scope)
        if self._cors is not None and origin is not None:
            send = self._cors.add_headers(origin, send)
            if _is_preflight(scope):
                await self._cors.answer_preflight(send)
                return
        if self.sqs is not None and not path.startswith(_API):
            sqs_arguments = self.sqs.arguments_of(scope, path)
            if sqs_arguments is not None:
                await self.sqs(scope, receive, send, sqs_arguments)
                return
        try:
            position, arguments = self._routes.find(method, path)
        except HoldfastError as error:
            reply = error_reply(error)
            self._meter.requested("unknown", reply.status, 0.0)
            await send_reply(send, reply, head=method == "HEAD")
            return
        endpoint = self._endpoints.get(position) or self._make_endpoint(position)
        await endpoint(scope, receive, send, arguments)

    def _make_endpoint(self, position: int) -> Endpoint:
        endpoint = self._endpoint_class(self._operations[position], self._services)
        self._endpoints[position] = endpoint
        return endpoint


@functools.cache
def _own_operations(*, dashboard: bool) -> tuple[tuple[Operation, ...], Routes[int]]:
    """The operations of this package and the routes to them, once for all applications."""
    operations = (*OPERATIONS, *(files.OPERATIONS if dashboard else (TO_DOCS,)))
    return operations, _routes_of(operations)


def _routes_of(operations: tuple[Operation, ...]) -> Routes[int]:
    """Routes to the positions of operations. HEAD is answered like GET."""
    routes: Routes[int] = Routes()
    for position, operation in enumerate(operations):
        routes.add(operation.method, operation.path, position)
        if operation.method == "GET":
            routes.add("HEAD", operation.path, position)
    return routes


async def _handle_other(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Acknowledge the ASGI lifespan, and refuse web sockets."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
    while scope["type"] == "lifespan":
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


class Cors:
    """CORS headers for pages of the allowed origins, written as browsers do:
    https://queue.example.com. `Admission` refuses pages of other origins."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = {origin.lower().encode("latin-1") for origin in origins}

    def allowed_origin(self, scope: AsgiScope) -> bytes | None:
        """The origin of the request, if it is allowed."""
        for name, value in scope["headers"]:
            if name == b"origin":
                origin: bytes = value
                return origin if origin.lower() in self._origins else None
        return None

    def add_headers(self, origin: bytes, send: Send) -> Send:
        """A `send` that lets the page read the response. Credentials are not allowed: the cookie of
        a session counts only for the server's own page."""

        @functools.wraps(send)
        async def send_with_headers(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [
                    *event.get("headers", ()),
                    (b"access-control-allow-origin", origin),
                    (b"access-control-expose-headers", _CORS_EXPOSED),
                    (b"vary", b"origin"),
                ]
            await send(event)

        return send_with_headers

    async def answer_preflight(self, send: Send) -> None:
        """Answer the OPTIONS request that a browser sends before the page's own."""
        headers = [
            (b"access-control-allow-methods", _CORS_METHODS),
            (b"access-control-allow-headers", _CORS_HEADERS),
            (b"access-control-max-age", _CORS_MAX_AGE_S),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _is_preflight(scope: AsgiScope) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )
