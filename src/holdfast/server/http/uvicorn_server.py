"""uvicorn with our own connections, bounds and shutdown, and the access log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Generator, MutableMapping
from typing import Any, Final, cast

import msgspec
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from holdfast.ops.tokens import TOKEN_FORM
from holdfast.server.http.connection import DisconnectQueue, H11Connection, check_connections
from holdfast.server.http.listener import BACKLOG, raise_connection_limit, server_url, tls_context
from holdfast.server.http.request import AsgiScope, Receive, Send
from holdfast.server.state import ServerState

_log = logging.getLogger("holdfast.server")
_access_log = logging.getLogger("holdfast.access")

_HANDSHAKE_S = 10.0
_CANCELLED_S = 1.0
"""The time for cancelled requests to send their errors."""
_LOGGED_PATH_MAX = 200


class UvicornServer(uvicorn.Server):
    """Serves an ASGI application. `at_once` is set when a second signal cuts the grace period
    short.
    """

    def __init__(self, server: ServerState, application: Any) -> None:
        settings = server.settings
        self._server = server
        self._tls = tls_context(settings)
        self._connections_max = raise_connection_limit(settings.connections_max)
        if self._connections_max < settings.connections_max:
            _log.warning(
                "the limit on open files allows %d connections instead of %d: raise it with"
                " ulimit -n",
                self._connections_max,
                settings.connections_max,
            )
        super().__init__(self._uvicorn_config(application))
        self.at_once: Final = asyncio.Event()
        self._dated_s = 0
        """The second of the date in the headers."""

    def _uvicorn_config(self, application: Any) -> uvicorn.Config:
        settings = self._server.settings
        if settings.access_log:
            application = AccessLog(application)
        if settings.proxies:
            application = ProxyHeadersMiddleware(application, list(settings.proxies))
        # Malformed requests are counted elsewhere: no log line for each.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        return uvicorn.Config(
            application,
            http=_connection_class(self._server, self._connections_max),
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_ms // 1000 + 1,
        )

    async def run(  # type: ignore[override]
        self, listening: socket.socket, started: Callable[[str], None] | None
    ) -> None:
        """Serve until a signal stops the server. `started` is called with its URL."""
        self.config.load()
        self.lifespan: Any = self.config.lifespan_class(self.config)
        await self.startup([listening])
        if started is not None:
            started(server_url(listening, self._server.settings))
        checks = asyncio.create_task(check_connections(self.server_state.connections))
        try:
            await self.main_loop()
            await self.shutdown([listening])
        finally:
            checks.cancel()

    async def on_tick(self, counter: int) -> bool:
        """Keep the date in the headers right: uvicorn renews it every ten ticks, which take much
        longer than a second on a busy machine, and clients correct their clocks by it."""
        now_s = int(time.time())
        is_old, self._dated_s = now_s != self._dated_s, now_s
        return await super().on_tick(0 if is_old else 1)

    def on_signal(self) -> None:
        """The first signal stops the server within its grace period, the second at once."""
        if self.should_exit:
            self.force_exit = True
            self.at_once.set()
        self.should_exit = True
        self._server.stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        config, state = self.config, self.lifespan.state

        def connection() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=state, _loop=loop
            )

        self.servers: list[asyncio.Server] = [
            await loop.create_server(
                connection,
                sock=each,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_S,
            )
            for each in sockets or []
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new connections, close idle ones, and close the others once they are
        answered.
        """
        for each in self.servers:
            each.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        end = asyncio.get_running_loop().time() + self._server.settings.grace_ms / 1000
        while (state.connections or state.tasks) and not self.force_exit:
            if asyncio.get_running_loop().time() >= end:
                _log.warning(
                    "%d requests were not answered within the grace period", len(state.tasks)
                )
                break
            await asyncio.sleep(0.02)
        # The warning above is enough: uvicorn would log an error for each request cut off.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        unanswered = list(state.tasks)
        for task in unanswered:
            task.cancel()
        if unanswered:
            await asyncio.wait(unanswered, timeout=_CANCELLED_S)
        for connection in list(state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: `main` handles signals."""
        yield


def _connection_class(server: ServerState, connections_max: int) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn: httptools if it is installed, otherwise h11."""
    base: type[Any] = H11Connection
    try:
        from holdfast.server.http.httptools_protocol import HttptoolsConnection
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
    else:
        base = HttptoolsConnection
    shared = {
        "settings": server.settings,
        "local_users": server.local_users,
        "connections_max": connections_max,
        "disconnects": DisconnectQueue(),
    }
    return cast("type[asyncio.Protocol]", type("Connection", (base,), shared))


class AccessLogLine(msgspec.Struct):
    """One line of the access log."""

    method: str
    path: str
    status: int | None
    ms: float
    peer: str | None


class AccessLog:
    """ASGI middleware that logs one line of JSON for each request. It never logs a query, a header,
    a body, or the secret of a token in a path.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        status: int | None = None

        @functools.wraps(send)
        async def send_noting_status(event: MutableMapping[str, Any]) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
            await send(event)

        started_at = time.perf_counter()
        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            took_ms = round((time.perf_counter() - started_at) * 1000, 2)
            peer = scope.get("client")
            path = TOKEN_FORM.sub(r"hf_\1_…", scope["path"])[:_LOGGED_PATH_MAX]
            line = AccessLogLine(scope["method"], path, status, took_ms, peer and peer[0])
            _access_log.info("%s", msgspec.json.encode(line).decode())
