"""A server without a socket: requests go straight to the application, from any address and with any
token, and its store can be compared as a whole."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from holdfast.app.application import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.wire import CONTENT_TYPE, VERBS
from holdfast.ops.tokens import TokenRequest
from holdfast.server.access.peers import OWN_USER
from holdfast.server.application import OPERATIONS, AsgiApplication
from holdfast.server.http.operation import JSON, Operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState

LOOPBACK = "127.0.0.1"
DASHBOARD = {
    "scheme": "https",
    "origin": f"https://{LOOPBACK}:7433",
    "holdfast_dashboard": "1",
}
"""How the dashboard asks over HTTPS."""


@dataclass(frozen=True)
class DirectReply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, in JSON or MessagePack."""
        if self.headers.get("content-type", "").startswith(JSON):
            found: str = self.json["error"]["code"]
        else:
            found = msgspec.msgpack.decode(self.body)["error"]["code"]
        return found


class DirectServer:
    """`apps` are the open applications by namespace. Requests are those of the server's own user
    while `asks_as_own_user` is True."""

    asks_as_own_user = True

    def __init__(self, server: ServerState) -> None:
        self.server = server
        self.application = AsgiApplication(server)

    @property
    def apps(self) -> dict[str, Holdfast]:
        return dict(self.server.namespaces.apps)

    def engine(self, namespace: str = "default") -> Engine:
        return self.apps[namespace].home.store

    async def token(self, *scopes: str, **more: Any) -> str:
        wanted = TokenRequest(name=more.pop("name", "t"), scopes=scopes or ("admin",), **more)
        text, _ = await self.server.tokens.create(wanted)
        return text

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        peer: str = LOOPBACK,
        content_type: str = JSON,
        scheme: str = "http",
        **headers: str | None,
    ) -> DirectReply:
        """Names of headers are written with _; None leaves one out. A stream is left after its
        first part."""
        named = {k.replace("_", "-"): v for k, v in {"host": f"{LOOPBACK}:7433", **headers}.items()}
        given = {name: value for name, value in named.items() if value is not None}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body)
        data = data.encode() if isinstance(data, str) else data
        if body is not None:
            given["content-type"] = content_type
        return await self._send(method, path, given, data, peer=peer, scheme=scheme)

    async def sign_in(self, token: str, **more: Any) -> str:
        """Sign in as the dashboard does, over HTTPS, and return the cookie that it gets."""
        body = {"token": token}
        reply = await self.ask("POST", "/v1/session", body, **{**DASHBOARD, **more})
        if reply.status >= 300:
            raise Refused(reply)
        return reply.headers["set-cookie"].partition(";")[0]

    async def call(self, verb: str, token: str | None = None, **carried: Any) -> Any:
        """A verb of the engine, as the remote engine says it."""
        body = msgspec.msgpack.encode(VERBS[verb].carries(**carried))
        path = f"/v1/engine/{verb}"
        reply = await self.ask("POST", path, body, token=token, content_type=CONTENT_TYPE)
        if reply.status >= 300:
            raise Refused(reply)
        return VERBS[verb].read_answer(reply.body)

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        peer: str,
        scheme: str,
    ) -> DirectReply:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "scheme": scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
            "client": (peer, 1234),
            "state": {OWN_USER: True} if self.asks_as_own_user else {},
        }
        told: list[Any] = []
        left = asyncio.Event()
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            told.append(event)
            if event["type"] == "http.response.body" and event.get("more_body"):
                left.set()

        await self.application(scope, receive, send)
        start = told[0]
        found = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        parts = [each.get("body", b"") for each in told[1:]]
        return DirectReply(start["status"], found, b"".join(parts))


class Refused(Exception):
    def __init__(self, reply: DirectReply) -> None:
        super().__init__(f"{reply.status} {reply.code}")
        self.reply = reply


@asynccontextmanager
async def direct_server(
    settings: ServerSettings | None = None, **engines: Engine
) -> AsyncIterator[DirectServer]:
    """With an engine in memory for each namespace; `engines` are others, by namespace."""

    def make(name: str) -> Holdfast:
        return Holdfast(engine=engines.get(name) or MemoryEngine())

    app = make("default")
    await app.open()
    server = ServerState(app=app, settings=settings or ServerSettings(), make=make)
    try:
        yield DirectServer(server)
    finally:
        server.stopping.set()
        await server.namespaces.close()
        await app.close()


def path_of(operation: Operation, names: Mapping[str, str], query: Mapping[str, Any] = {}) -> str:
    """The path with its names filled in."""
    path = operation.path
    for name in operation.path_names:
        path = path.replace(f"{{{name}}}", quote(names[name], safe=""))
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def operation_id(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


ALL_OPERATIONS = tuple(OPERATIONS)
"""Every operation there is."""
SCOPED_OPERATIONS = tuple(each for each in ALL_OPERATIONS if each.needs is not None)
"""Operations that need a scope."""
