"""Servers in the test's own event loop, many of them on one loopback port."""

import asyncio
import contextlib
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn

from holdfast.app.application import Holdfast
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Amendment
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.remote import RemoteEngine
from holdfast.server.access.caller import Caller, Scope, with_implied
from holdfast.server.access.peers import OWN_USER
from holdfast.server.application import AsgiApplication
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from holdfast.testing.clock import ManualClock


class LoopServer:
    """One web server for many applications, each under a path of its own."""

    def __init__(self) -> None:
        # asyncio turns Nagle's delay off only on sockets that it made itself.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.place = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._numbers = itertools.count(1)
        self._apps: dict[bytes, Any] = {}
        self.only_app: Any = None
        """The application of a server that has no other."""
        self.asks_as_own_user = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Like `uvicorn.Server.serve`, without its polling for the end and without signals."""
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

    def mount(self, app: Any) -> str:
        """Serve `app` under a path of its own, and return its URL."""
        name = f"/{next(self._numbers)}"
        self._apps[name.encode()] = app
        return self.place + name

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        scope["state"] = {OWN_USER: True} if self.asks_as_own_user else {}
        if self.only_app is not None:
            await self.only_app(scope, receive, send)
            return
        _, name, rest = scope["raw_path"].split(b"/", 2)
        inside = {**scope, "raw_path": b"/" + rest, "path": f"/{rest.decode('latin-1')}"}
        await self._apps[b"/" + name](inside, receive, send)


class NamingEngine(RemoteEngine):
    """Amends jobs as the operator that the amendment names: a server believes only the token."""

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        # As a server cleans the texts it gets.
        _Trusting.name = re.sub("[\ud800-\udfff]", "\ufffd", getattr(amendment, "by", ""))
        return await super().amend(wanted, amendment, limit=limit)


class ServedEngine(NamingEngine):
    """An engine behind a server of its own, which runs while this engine is open. On a shared
    `loop_server` every token is accepted; otherwise no token is needed."""

    def __init__(
        self,
        store: Engine,
        settings: ServerSettings | None = None,
        *,
        loop_server: LoopServer | None = None,
    ) -> None:
        self._app = Holdfast(engine=store)
        self._settings = settings or ServerSettings()
        self._loop_server = loop_server or LoopServer()
        self._is_alone = loop_server is None
        self._ends = contextlib.AsyncExitStack()
        self._served = False
        super().__init__(self._loop_server.place, token=None if self._is_alone else "hf_any")

    async def open(self) -> None:
        if not self._served:
            self._served = True
            await self._app.open()
            self._ends.push_async_callback(self._app.close)
            server = ServerState(app=self._app, settings=self._settings)
            if not self._is_alone:
                server.tokens = _Trusting()  # type: ignore[assignment]
            served = AsgiApplication(server)
            if self._is_alone:
                self._loop_server.only_app = served
                await self._ends.enter_async_context(self._loop_server.running())
            else:
                self.place = self._loop_server.mount(served)
        await super().open()

    async def close(self) -> None:
        await super().close()
        await self._ends.aclose()


class _Trusting:
    """Accepts any token, so that no token is stored in an engine under test."""

    name = "tests"

    async def authenticate(self, text: str) -> Caller:
        scopes = with_implied((Scope.ADMIN, Scope.RUN_COMMANDS))
        return Caller(name=self.name, scopes=scopes, token=f"{text} of {self.name}")

    async def require(self, id: str) -> None:
        pass


def single_server(loop_server: LoopServer) -> Callable[[ManualClock], Engine]:
    """Makes engines of one server on a memory engine; it runs while the first one is open."""
    made: list[ServedEngine] = []

    def make(clock: ManualClock) -> Engine:
        if made:
            return NamingEngine(made[0].place, token="hf_any")
        made.append(ServedEngine(MemoryEngine(clock=clock), loop_server=loop_server))
        return made[0]

    return make


async def _end(server: uvicorn.Server) -> None:
    """Accept no new connections, and close the others once they are answered."""
    for each in server.servers:
        each.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    while state.connections or state.tasks:
        if state.tasks:
            await asyncio.wait(state.tasks)
        await asyncio.sleep(0)
