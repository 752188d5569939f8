"""Workers: who there is, how well each is, and orders to them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import limits
from holdfast.errors import NotFound, UsageError
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Name
from holdfast.views.workers import Ordered, WorkerDetails, worker_view
from holdfast.worker.registry import OrderName, Workers


class OrderBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is asked of these `workers`, or of `all`. stop: release what they have and end at once.
    drain: finish what they have, lease nothing more and end. cordon: lease nothing more, over
    restarts too; uncordon: lease again."""

    order: OrderName
    workers: Annotated[list[Name], Meta(min_length=1, max_length=limits.BATCH_MAX)] | None = None
    all: bool = False


class WorkerList(msgspec.Struct, frozen=True):
    """By name."""

    workers: list[WorkerDetails]


@operation("GET", "/v1/workers", needs=Scope.OPERATE)
async def list_workers(call: Call) -> WorkerList:
    """Every worker, and how well it is."""
    return WorkerList([worker_view(view) for view in await Workers(call.engine).all()])


@operation("GET", "/v1/workers/{name}", needs=Scope.OPERATE)
async def show_worker(call: Call, name: Name) -> WorkerDetails:
    """One worker, and how well it is."""
    view = await Workers(call.engine).get(name)
    if view is None:
        raise _missing([name])
    return worker_view(view)


@operation("POST", "/v1/workers/orders", needs=Scope.OPERATE, repeatable=True)
async def order_workers(call: Call, body: OrderBody) -> Ordered:
    """Ask something of workers; they hear of it within seconds."""
    if (body.workers is not None) == body.all:
        raise UsageError("name the workers, or say all for all of them")
    workers = Workers(call.engine)
    asked, missing = await workers.order(body.order, body.workers, by=call.caller.name)
    if missing and not asked:
        raise _missing(missing)
    return Ordered(workers=asked, missing=missing)


OPERATIONS: tuple[Operation, ...] = (list_workers, show_worker, order_workers)


def _missing(names: list[str] | tuple[str, ...]) -> NotFound:
    named = ", ".join(names)[:200]
    return NotFound(f"no worker is called {named}: GET /v1/workers lists those there are")
