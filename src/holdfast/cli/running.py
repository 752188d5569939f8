"""What commands that talk to the store share: opening it, and a bar while much is done."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from holdfast.app import Holdfast
from holdfast.cli.output import Common


@asynccontextmanager
async def running(common: Common) -> AsyncIterator[Holdfast]:
    """The application that the command line names, open."""
    async with Holdfast(common.url) as app:
        yield app


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
