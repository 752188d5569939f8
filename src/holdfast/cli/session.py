"""The application that a command works on: opens it, calls its server, and names the acting
person.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.app.application import Holdfast
from holdfast.cli.help_pages import program
from holdfast.cli.output import Common
from holdfast.engines.extras import FileBacked, SchemaBacked, ServerBacked, extra
from holdfast.engines.registry import default_url, with_namespace
from holdfast.errors import ConfigError, NotFound

Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def open_app(common: Common, *, create: bool = False) -> AsyncIterator[Holdfast]:
    """Open the application of --url. A missing store is created only with `create`, a missing
    folder never: a mistyped path must not become a second, empty store.
    """
    app = Holdfast(common.url)
    # A missing folder first: no command creates one.
    folder = await _missing(app, creating=True)
    if folder and create:
        raise ConfigError(f"{folder}: create it first, or correct the URL")
    if folder:
        raise NotFound(f"{folder}: correct the URL, or create the folder first")
    missing = "" if create else await _missing(app)
    if missing:
        start = f'start with "{program()} up" or "{program()} enqueue"'
        raise NotFound(f"{missing}: {start}, or give the store with --url")
    async with app:
        yield app


async def is_missing(url: str) -> bool:
    """True if opening this store would create it."""
    return bool(await _missing(Holdfast(url)))


async def _missing(app: Holdfast, *, creating: bool = False) -> str:
    """The file, folder or schema that opening would have to create, in words; "" if all exists.
    With `creating`, only a missing folder counts."""
    files = extra(app.engine, FileBacked)
    if files is not None:
        return await asyncio.to_thread(files.missing, creating=creating)
    schema = None if creating else extra(app.engine, SchemaBacked)
    return "" if schema is None else await schema.missing_schema()


@asynccontextmanager
async def open_token_store(common: Common, *, create: bool = False) -> AsyncIterator[Holdfast]:
    """Open the namespace `default`, where tokens are stored whichever namespace the URL names. A
    server does this itself.
    """
    url = common.url or default_url()
    if not url.startswith(("http:", "https:")):
        url = with_namespace(url, "default")
    async with open_app(Common(url=url, json=common.json), create=create) as app:
        yield app


def server_of(app: Holdfast) -> Ask | None:
    """A function that sends requests to the server of the URL; None if the URL names a store."""
    server = extra(app.engine, ServerBacked)
    if server is None:
        return None

    async def ask(method: str, path: str, body: Any = None) -> Any:
        given = b"" if body is None else msgspec.json.encode(body)
        answer = await server.ask(method, path, given)
        return msgspec.json.decode(answer) if answer else None

    return ask


def path_segment(name: str) -> str:
    """A name as one segment of a URL's path."""
    return quote(name, safe="")


def person() -> str:
    """The user and the machine, for timelines and the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:200]
