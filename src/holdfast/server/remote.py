"""The verbs of the engine, for the remote engine at the other end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import __version__
from holdfast.core.model import Job, Lease
from holdfast.engines.verbs import (
    CONTENT_TYPE,
    VERBS,
    About,
    Bounded,
    Find,
    Found,
    LeaseCall,
    Verb,
    number_of,
)
from holdfast.server import portions
from holdfast.server.calls import Call
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


def _handler(verb: Verb[Any]) -> Callable[..., Awaitable[Any]]:
    def handle(call: Call, body: Any) -> Awaitable[Any]:
        return verb.make(call.engine, body)

    return handle


def _lease(call: Call, body: LeaseCall) -> Awaitable[list[Lease]]:
    return portions.lease(call.engine, body.request)


async def _find(call: Call, body: Find) -> Found:
    after = number_of(body.after)
    return Found.of(await portions.find(call.engine, body.wanted, limit=body.limit, after=after))


def _finished(call: Call, body: Bounded) -> Awaitable[list[Job]]:
    return portions.finished(call.engine, body.limit)


_HANDLERS: dict[str, Callable[..., Awaitable[Any]]] = {
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
            handler=_HANDLERS.get(name) or _handler(verb),
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
