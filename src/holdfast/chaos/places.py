"""Where chaos happens: a private store, gone afterwards, or a queue of its own in a user's store.

In a user's store it drops what it made and forgets its workers, whatever ended the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.chaos.striking import Server
from holdfast.core.model import QueueView
from holdfast.core.text import counted
from holdfast.core.workers import worker_queue
from holdfast.errors import ConfigError, UnknownQueue, UsageError
from holdfast.events import tell_nobody
from holdfast.upkeep import Reaper
from holdfast.upkeep.service import keep
from holdfast.worker.registry import Workers


class Place(NamedTuple):
    """`options` are for the workers. `server` is there only if it was started for this run."""

    url: str
    told: str
    queue: str
    options: tuple[str, ...] = ()
    server: Server | None = None


@contextlib.asynccontextmanager
async def private(home: Path, queue: str, *, postgres: bool) -> AsyncIterator[Place]:
    """A new, empty store."""
    if not postgres:
        yield Place(f"sqlite:///{home / 'jobs.db'}", "a private SQLite file", queue)
        return
    from holdfast.testing.services import PrivatePostgres, ServiceUnavailable

    try:
        # What is acknowledged must outlive the server's death, so here it syncs.
        server = PrivatePostgres(fsync=True)
        await asyncio.to_thread(server.start)
    except ServiceUnavailable as error:
        raise ConfigError(str(error)) from None
    try:
        yield Place(server.dsn, "a private PostgreSQL", queue, server=server)
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def within(app: Holdfast, queue: str, *, named: bool) -> AsyncIterator[Place]:
    """A queue of its own in the store of an open application; `named` if the user chose it."""
    if app.url is None or not app.engine.traits.shared:
        raise ConfigError(f"workers are processes of their own, and {app.place} is within one")
    before = {view.queue.name for view in await _allowed(app, queue, named=named)}
    stop = asyncio.Event()
    # The reaper alone: to prune what is old, or to tick schedules, is for the user's own upkeep.
    reaper = Reaper(app.engine)
    reaping = asyncio.create_task(keep(reaper, stop, tell_nobody))
    try:
        options = ("--no-upkeep", "--name", queue, "--label", f"chaos={queue}")
        yield Place(app.url, app.place, queue, options)
    finally:
        stop.set()
        await reaping
        await _tidy(app, queue, before)


async def _allowed(app: Holdfast, queue: str, *, named: bool) -> list[QueueView]:
    views = await app.queues()
    if any(view.queue.name == queue for view in views):
        raise UsageError(
            f"there is a queue {queue}, and chaos drops its own afterwards: name one that it may "
            "create, with --queue"
        )
    for view in views:
        jobs = view.ready + view.delayed + view.blocked + view.leased
        jobs += view.done + view.dead + view.cancelled
        if jobs and not named:
            raise UsageError(
                f"{app.place} has jobs of others, such as {counted(jobs, 'job')} in queue "
                f"{view.queue.name}: chaos slows them down. To go on, name a queue that it may "
                "create and drop, with --queue; or leave out --url for a private store"
            )
    return views


async def _tidy(app: Holdfast, queue: str, before: set[str]) -> None:
    """The queue with its jobs, what is known of the workers, and the queues of these."""
    workers = Workers(app.engine)
    ours = {view.name for view in await workers.all() if view.record.labels.get("chaos") == queue}
    for name in ours:
        await workers.forget(name)
    queues = {view.queue.name for view in await app.queues(counts=False)}
    theirs = {worker_queue(name) for name in ours}
    # One that was killed early has left no record. Somebody else's may begin with the same letters.
    named = re.compile(re.escape(worker_queue(queue)) + r"(-\d+)?\Z")
    theirs |= {name for name in queues if named.match(name)}
    for name in {queue, *theirs} - before:
        with contextlib.suppress(UnknownQueue):
            await app.drop(name)
