"""`holdfast status`, `holdfast queue create` and `holdfast queue list`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json, print_table
from holdfast.core.model import Queue, QueueView
from holdfast.durations import show_ms
from holdfast.errors import InvalidQueue
from holdfast.options import QueueOptions

_COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead")


def status(*, common: Common = COMMON) -> None:
    """Show every queue and how it stands."""
    views = asyncio.run(_views(common, counts=True))
    if common.json:
        print_json({"queues": [_counted(view) for view in views]})
        return
    rows = [
        (
            view.queue.name + (" (paused)" if view.queue.paused else ""),
            *(_count(view, name) for name in _COUNTS),
            "" if view.oldest_age_ms is None else f"{view.oldest_age_ms / 1000:.1f}s",
        )
        for view in views
    ]
    print_table(("queue", *_COUNTS, "oldest"), rows)


def create(
    name: str,
    /,
    *,
    lease: Annotated[str, Parameter(help="How long a lease lasts: 30s.")] = "30s",
    max_attempts: Annotated[int, Parameter(help="Runs in all; 0 is unlimited.")] = 4,
    dead_queue: Annotated[str | None, Parameter(help="Where dead letters move to.")] = None,
    max_depth: Annotated[int | None, Parameter(help="Refuse more waiting jobs than this.")] = None,
    order: Annotated[
        Literal["tail", "keep"], Parameter(help="Where a retried job goes in the line.")
    ] = "tail",
    common: Common = COMMON,
) -> None:
    """Create a queue."""
    options: QueueOptions = {
        "lease": lease,
        "max_attempts": max_attempts,
        "dead_queue": dead_queue,
        "max_depth": max_depth,
        "order": order,
    }
    queue = asyncio.run(_create(common, name, options))
    if common.json:
        print_json(msgspec.to_builtins(queue))
    else:
        print(f"created queue {queue.name}")


def show_all(*, common: Common = COMMON) -> None:
    """List the queues and their settings."""
    queues = [view.queue for view in asyncio.run(_views(common, counts=False))]
    if common.json:
        print_json([msgspec.to_builtins(queue) for queue in queues])
        return
    columns = ("queue", "lease", "max attempts", "retention", "order", "dead queue", "state")
    rows = [
        (
            queue.name,
            show_ms(queue.lease_ms),
            queue.max_attempts,
            show_ms(queue.retention_ms),
            queue.order,
            queue.dead_queue or "",
            _state(queue),
        )
        for queue in queues
    ]
    print_table(columns, rows)


async def _views(common: Common, *, counts: bool) -> list[QueueView]:
    async with Holdfast(common.url) as app:
        return await app.queues(counts=counts)


async def _create(common: Common, name: str, options: QueueOptions) -> Queue:
    async with Holdfast(common.url) as app:
        if any(view.queue.name == name for view in await app.queues(counts=False)):
            raise InvalidQueue(f"queue {name} exists already")
        return await app.declare(name, **options)


def _counted(view: QueueView) -> dict[str, Any]:
    return {
        "name": view.queue.name,
        **{name: getattr(view, name) for name in (*_COUNTS, "cancelled")},
        "oldest_age_ms": view.oldest_age_ms,
        "paused": view.queue.paused,
        "accepting": view.queue.accepting,
        "estimated": sorted(view.estimated),
    }


def _count(view: QueueView, name: str) -> int | str:
    count: int = getattr(view, name)
    return f"{count}+" if name in view.estimated else count


def _state(queue: Queue) -> str:
    closed = "" if queue.accepting else "closed"
    return ", ".join(filter(None, ["paused" if queue.paused else "", closed])) or "open"
