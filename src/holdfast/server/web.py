"""uvicorn with connections, bounds and an end of our own. Nothing here looks into a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from holdfast.server.accesslog import AccessLog
from holdfast.server.application import application
from holdfast.server.binding import BACKLOG, connections_allowed, url_of
from holdfast.server.connections import connection_class, watch
from holdfast.server.state import Server
from holdfast.server.tls import tls_context

_log = logging.getLogger("holdfast.server")

_HANDSHAKE_S = 10.0
_LAST_WORDS_S = 1.0
"""What was cancelled may still say so."""


class Web(uvicorn.Server):
    """Accepts, answers, and ends. `at_once` is set when nothing more shall be waited for."""

    def __init__(self, server: Server) -> None:
        settings = server.settings
        self._server = server
        self._tls = tls_context(settings)
        self._connections_max = connections_allowed(settings.connections_max)
        if self._connections_max < settings.connections_max:
            _log.warning(
                "the system allows this process %d connections and not %d: raise its limit of "
                "open files",
                self._connections_max,
                settings.connections_max,
            )
        super().__init__(self._made_config(server))
        self.at_once = asyncio.Event()

    def _made_config(self, server: Server) -> uvicorn.Config:
        settings = server.settings
        asked: Any = application(server)
        if settings.access_log:
            asked = AccessLog(asked)
        if settings.proxies:
            asked = ProxyHeadersMiddleware(asked, list(settings.proxies))
        # What strangers send is no news; it is counted elsewhere.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        return uvicorn.Config(
            asked,
            http=connection_class(settings, self._connections_max),
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
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup([listening])
        if started is not None:
            started(url_of(listening, self._server.settings))
        watching = asyncio.create_task(watch(self.server_state.connections))
        try:
            await self.main_loop()
            await self.shutdown([listening])
        finally:
            watching.cancel()

    def hear(self) -> None:
        """A signal: the first is a wish, the second an order."""
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

        self.servers = [
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
        """No new connection; what is idle is closed, the others when they are answered."""
        for each in self.servers:
            each.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        end = asyncio.get_running_loop().time() + self._server.settings.grace_ms / 1000
        while (state.connections or state.tasks) and not self.force_exit:
            if asyncio.get_running_loop().time() >= end:
                _log.warning("%d requests were not answered in time", len(state.tasks))
                break
            await asyncio.sleep(0.02)
        # That they were cut off was said, and is no error of theirs.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        unanswered = list(state.tasks)
        for task in unanswered:
            task.cancel()
        if unanswered:
            await asyncio.wait(unanswered, timeout=_LAST_WORDS_S)
        for connection in list(state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are heard elsewhere."""
        yield
