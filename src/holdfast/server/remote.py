"""The verbs of the engine, for the remote engine at the other end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import __version__
from holdfast.core import checks
from holdfast.core.model import Job, Lease, NewJob
from holdfast.core.verdict import Complete
from holdfast.engines.verbs import (
    CONTENT_TYPE,
    VERBS,
    About,
    Bounded,
    Enqueue,
    Find,
    Found,
    LeaseCall,
    Settle,
    Verb,
    number_of,
)
from holdfast.server import portions
from holdfast.server.calls import Call
from holdfast.server.enqueuing import check_together
from holdfast.server.operations import Operation, Scope
from holdfast.upkeep import wall_ms

_NEEDS = {
    "enqueue": Scope.PRODUCE,
    "lease": Scope.CONSUME,
    "renew": Scope.CONSUME,
    "settle": Scope.CONSUME,
    "overdue": Scope.CONSUME,
    "expired": Scope.CONSUME,
    "flow": Scope.CONSUME,
    "amend": Scope.CONSUME,
    "finished": Scope.OPERATE,
    "recount": Scope.OPERATE,
    "drop": Scope.ADMIN,
}
"""The least that may be enough; the engine that the caller gets looks more closely."""


def _check_enqueue(body: Enqueue) -> None:
    checks.check_batch(len(body.jobs))
    check_together(body.jobs)


def _check_settle(body: Settle) -> None:
    checks.check_batch(len(body.settlements))
    follow_ups: list[NewJob] = []
    for each in body.settlements:
        if isinstance(each.verdict, Complete):
            follow_ups += each.verdict.then
    check_together(follow_ups)


_BOUNDS: dict[str, Callable[[Any], None]] = {
    "enqueue": _check_enqueue,
    "settle": _check_settle,
    "renew": lambda body: checks.check_batch(len(body.renewals)),
    "save": lambda body: checks.check_batch(len(body.records)),
    "find": lambda body: checks.check_filter(body.wanted),
    "tally": lambda body: checks.check_filter(body.wanted),
    "amend": lambda body: checks.check_filter(body.wanted),
}
"""What is too much for one call, before anything is looked up to see whether the caller may."""


def _handler(name: str, verb: Verb[Any]) -> Callable[..., Awaitable[Any]]:
    check = _BOUNDS.get(name)
    make = _MAKERS.get(name)

    def handle(call: Call, body: Any) -> Awaitable[Any]:
        if check is not None:
            check(body)
        return verb.make(call.engine, body) if make is None else make(call, body)

    return handle


def _lease(call: Call, body: LeaseCall) -> Awaitable[list[Lease]]:
    return portions.lease(call.engine, body.request, portions.sizes_of(call.app))


async def _find(call: Call, body: Find) -> Found:
    after = number_of(body.after)
    return Found.of(await portions.find(call.engine, body.wanted, limit=body.limit, after=after))


def _finished(call: Call, body: Bounded) -> Awaitable[list[Job]]:
    return portions.finished(call.engine, body.limit)


_MAKERS: dict[str, Callable[..., Awaitable[Any]]] = {
    "lease": _lease,
    "find": _find,
    "finished": _finished,
}
"""Whose answers could be too large to be made at once."""


async def _give_back(call: Call, leases: list[Lease]) -> None:
    await portions.give_back(call.app.engine, leases)


async def _about(call: Call) -> About:
    return About(__version__, call.engine.traits, wall_ms())


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/engine",
        needs=Scope.KNOWN,
        handler=_about,
        name="engine",
        says="What the engine behind this server can do.",
        answer=About,
        content_type=CONTENT_TYPE,
        internal=True,
    ),
    *(
        Operation(
            method="POST",
            path=f"/v1/engine/{name}",
            needs=_NEEDS.get(name, Scope.KNOWN),
            handler=_handler(name, verb),
            name=f"engine_{name}",
            says="A verb of the engine.",
            body=verb.carries,
            content_type=CONTENT_TYPE,
            waits=name == "lease",
            undo=_give_back if name == "lease" else None,
            internal=True,
        )
        for name, verb in VERBS.items()
    ),
)
