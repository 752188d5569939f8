"""All operations as one ASGI application."""

from __future__ import annotations

from holdfast import tracing
from holdfast.errors import HoldfastError
from holdfast.server import (
    acts,
    admin,
    alerts,
    amending,
    enqueuing,
    health,
    history,
    jobs,
    leases,
    live,
    metrics,
    operating,
    remote,
)
from holdfast.server.answers import bad_reply, send_whole
from holdfast.server.calls import AsgiScope, Receive, Send
from holdfast.server.cors import Cors, is_preflight
from holdfast.server.door import Door
from holdfast.server.endpoint import Endpoint, Shared
from holdfast.server.idempotency import Keys
from holdfast.server.operations import Operation
from holdfast.server.pressure import Pressure
from holdfast.server.routes import Routes
from holdfast.server.state import Server
from holdfast.server.viewer import described

OPERATIONS: tuple[Operation, ...] = described(
    (
        *health.OPERATIONS,
        *enqueuing.OPERATIONS,
        *acts.OPERATIONS,
        *amending.OPERATIONS,
        *leases.OPERATIONS,
        *jobs.OPERATIONS,
        *operating.OPERATIONS,
        *metrics.OPERATIONS,
        *history.OPERATIONS,
        *live.OPERATIONS,
        *alerts.OPERATIONS,
        *admin.OPERATIONS,
        *remote.OPERATIONS,
    )
)


class Application:
    """For a server whose application is open."""

    def __init__(self, server: Server, operations: tuple[Operation, ...] = OPERATIONS) -> None:
        self.pressure = Pressure(server)
        settings = server.settings
        self._meter = server.app.telemetry.meter
        shared = Shared(
            door=Door(server),
            pressure=self.pressure,
            keys=Keys(request_ms_max=settings.request_ms_max + settings.wait_ms_max),
            meter=self._meter,
            body_max=settings.body_max,
        )
        self._cors = Cors(settings.origins) if settings.origins else None
        self._routes: Routes[Endpoint] = Routes()
        made = _endpoint_class()
        for operation in operations:
            endpoint = made(operation, shared)
            self._routes.add(operation.method, operation.path, endpoint)
            if operation.method == "GET":
                self._routes.add("HEAD", operation.path, endpoint)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        path = scope.get("raw_path") or scope["path"].encode()
        method = scope["method"]
        origin = None if self._cors is None else self._cors.origin(scope)
        if self._cors is not None and origin is not None:
            send = self._cors.telling(origin, send)
            if is_preflight(scope):
                await self._cors.preflight(send)
                return
        try:
            endpoint, given = self._routes.find(method, path)
        except HoldfastError as error:
            reply = bad_reply(error)
            self._meter.requested("unknown", reply.status, 0.0)
            await send_whole(send, reply, head=method == "HEAD")
            return
        await endpoint(scope, receive, send, given)


async def _other(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """The web server's own start and end need nothing; web sockets are not spoken."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
    while scope["type"] == "lifespan":
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


def _endpoint_class() -> type[Endpoint]:
    if not tracing.is_on():
        return Endpoint
    from holdfast.server.tracing import TracedEndpoint

    return TracedEndpoint


def application(server: Server) -> Application:
    return Application(server)
