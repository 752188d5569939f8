"""Servers in the test's own loop, on a free loopback port: one port for many of them."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn

from holdfast.app import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.remote import RemoteEngine
from holdfast.server.application import application
from holdfast.server.callers import Caller, Scope, implied
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from holdfast.testing.clock import ManualClock


class Hall:
    """Applications behind one web server, each under a path of its own, as a proxy has them."""

    def __init__(self) -> None:
        # asyncio turns Nagle's delay off only on sockets that it made itself.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.place = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._numbers = itertools.count(1)
        self._rooms: dict[bytes, Any] = {}
        self.alone: Any = None
        """The application of a server that has no other."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What `uvicorn.Server.serve` does, but for its looking every tenth of a second whether it
        is to end, and for signals."""
        config = uvicorn.Config(self, log_config=None, lifespan="off", access_log=False)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([self._socket])
        await server.on_tick(0)
        try:
            yield
        finally:
            await _end(server)

    def take_in(self, app: Any) -> str:
        """The address of `app` from now on."""
        name = f"/{next(self._numbers)}"
        self._rooms[name.encode()] = app
        return self.place + name

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if self.alone is not None:
            await self.alone(scope, receive, send)
            return
        _, name, rest = scope["raw_path"].split(b"/", 2)
        inside = {**scope, "raw_path": b"/" + rest, "path": f"/{rest.decode('latin-1')}"}
        await self._rooms[b"/" + name](inside, receive, send)


class Served(RemoteEngine):
    """An engine behind a server of its own, which lives as long as this is open. In a hall with
    others every token is for everything; else there is none."""

    def __init__(
        self, store: Engine, settings: ServerSettings | None = None, *, hall: Hall | None = None
    ) -> None:
        self._app = Holdfast(engine=store)
        self._settings = settings or ServerSettings()
        self._hall = hall or Hall()
        self._alone = hall is None
        self._ends = contextlib.AsyncExitStack()
        self._served = False
        super().__init__(self._hall.place, token=None if self._alone else "hf_any")

    async def open(self) -> None:
        if not self._served:
            self._served = True
            await self._app.open()
            self._ends.push_async_callback(self._app.close)
            server = Server(app=self._app, settings=self._settings)
            if not self._alone:
                server.tokens = _Trusting()  # type: ignore[assignment]
            served = application(server)
            if self._alone:
                self._hall.alone = served
                await self._ends.enter_async_context(self._hall.running())
            else:
                self.place = self._hall.take_in(served)
        await super().open()

    async def close(self) -> None:
        await super().close()
        await self._ends.aclose()


class _Trusting:
    """Instead of `Tokens`: nothing about them is kept in a store under test."""

    async def authenticate(self, text: str) -> Caller:
        scopes = implied((Scope.ADMIN, Scope.RUN_COMMANDS))
        return Caller(name="tests", scopes=scopes, token=text)

    async def require(self, id: str) -> None:
        pass


def one_server(hall: Hall) -> Callable[[ManualClock], Engine]:
    """Engines of one server, whose jobs are in memory; it lives as long as the first of them."""
    made: list[Served] = []

    def make(clock: ManualClock) -> Engine:
        if made:
            return RemoteEngine(made[0].place, token="hf_any")
        made.append(Served(MemoryEngine(clock=clock), hall=hall))
        return made[0]

    return make


async def _end(server: uvicorn.Server) -> None:
    """No new connections, and the end of those that there are when they have their answers."""
    for each in server.servers:
        each.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    while state.connections or state.tasks:
        if state.tasks:
            await asyncio.wait(state.tasks)
        await asyncio.sleep(0)
