"""What commands that talk to the store share: opening it, and a bar while much is done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from holdfast.app import Holdfast
from holdfast.cli.exits import NotFound
from holdfast.cli.output import Common
from holdfast.cli.pages import program
from holdfast.errors import ConfigError


@asynccontextmanager
async def running(common: Common, *, create: bool = False) -> AsyncIterator[Holdfast]:
    """The application that the command line names, open. Only a command that puts something in
    creates a store, and none a folder: whoever mistyped the name is told, and nothing is left."""
    app = Holdfast(common.url)
    look = getattr(app.home.store, "missing", None)
    missing = await asyncio.to_thread(look, creating=create) if look is not None else ""
    if missing and create:
        raise ConfigError(f"{missing}: make it first, or correct the URL")
    if missing:
        begin = f"begin with {program()} up or {program()} enqueue"
        raise NotFound(f"{missing}: {begin}, or say with --url where the jobs are")
    async with app:
        yield app


async def is_missing(url: str) -> bool:
    """Would opening it make a store that is not there?"""
    look = getattr(Holdfast(url).home.store, "missing", None)
    return look is not None and bool(await asyncio.to_thread(look, creating=False))


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where that is a terminal, else nothing; call it with how many more."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    with bar:
        id_ = bar.add_task(what, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(id_, count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(id_, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
