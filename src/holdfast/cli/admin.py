"""What the commands of an admin share: a store is changed where it is, a server is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.app import Holdfast
from holdfast.cli.output import Common
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.engines.url import default_url, with_namespace
from holdfast.server.audit import Act, Audit
from holdfast.upkeep import wall_ms

Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def at_home(common: Common, *, create: bool = False) -> AsyncIterator[Holdfast]:
    """Where tokens are kept: in the namespace `default`, whatever the URL says. A server knows
    that itself."""
    url = common.url or default_url()
    if not url.startswith(("http:", "https:")):
        url = with_namespace(url, "default")
    async with running(Common(url=url, json=common.json), create=create) as app:
        yield app


def server_of(app: Holdfast) -> Ask | None:
    """How to ask the server that the URL names; None where it names a store."""
    able = getattr(app.home.store, "ask", None)
    if able is None:
        return None

    async def ask(method: str, path: str, body: Any = None) -> Any:
        given = b"" if body is None else msgspec.json.encode(body)
        answer: bytes = await able(method, path, given)
        return msgspec.json.decode(answer) if answer else None

    return ask


def in_path(name: str) -> str:
    return quote(name, safe="")


def audit_of(app: Holdfast) -> Audit:
    return Audit(lambda: app.engine, wall_ms)


def act(what: str, on: str) -> Act:
    return Act(at=0, who=person(), what=what, on=on)
