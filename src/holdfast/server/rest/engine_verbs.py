"""The engine's verbs in MessagePack, for the remote engine of another process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import __version__
from holdfast.core import checks
from holdfast.core.model import Job, Lease, NewJob
from holdfast.core.verdict import Complete
from holdfast.engines.wire import (
    CONTENT_TYPE,
    VERBS,
    About,
    AmendCall,
    EnqueueCall,
    FindCall,
    FoundPage,
    LeaseCall,
    LimitCall,
    SettleCall,
    Verb,
    number_of,
)
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http import bounded_reply
from holdfast.server.http.operation import Operation, Scope
from holdfast.server.rest.enqueue import check_batch_size
from holdfast.server.state import partitions_of

_NEEDS = {
    "enqueue": (Scope.PRODUCE,),
    "declare": (Scope.PRODUCE, Scope.CONSUME),
    "save": (Scope.PRODUCE, Scope.CONSUME),
    "lease": (Scope.CONSUME,),
    "renew": (Scope.CONSUME,),
    "settle": (Scope.CONSUME,),
    "overdue": (Scope.CONSUME,),
    "expired": (Scope.CONSUME,),
    "flow": (Scope.CONSUME, Scope.OBSERVE),
    "amend": (Scope.CONSUME,),
    "finished": (Scope.OPERATE,),
    "recount": (Scope.OPERATE,),
    "drop": (Scope.ADMIN,),
}
"""The scopes for each verb, of which one is enough; `AuthorizedEngine` checks in more detail."""

_READING = frozenset(
    (
        *("queues", "flow", "waits", "get", "find", "tally", "load", "examine"),
        *("overdue", "expired", "finished"),
    )
)
"""The verbs that change nothing."""


def _check_enqueue(body: EnqueueCall) -> None:
    checks.check_batch(len(body.jobs))
    check_batch_size(body.jobs)


def _check_settle(body: SettleCall) -> None:
    checks.check_batch(len(body.settlements))
    follow_ups: list[NewJob] = []
    for each in body.settlements:
        if isinstance(each.verdict, Complete):
            follow_ups += each.verdict.then
    check_batch_size(follow_ups)


def _check_amend(body: AmendCall) -> None:
    checks.check_page(body.limit)
    checks.check_filter(body.wanted)


_CHECKS: dict[str, Callable[[Any], None]] = {
    "enqueue": _check_enqueue,
    "settle": _check_settle,
    "renew": lambda body: checks.check_batch(len(body.renewals)),
    "save": lambda body: checks.check_batch(len(body.records)),
    "find": lambda body: checks.check_filter(body.wanted),
    "tally": lambda body: checks.check_filter(body.wanted),
    "amend": _check_amend,
}
"""Bounds of a call, checked before any permission is looked up in the store."""


def _handler(name: str, verb: Verb[Any]) -> Callable[..., Awaitable[Any]]:
    check = _CHECKS.get(name)
    bounded = _BOUNDED_HANDLERS.get(name)

    def handle(call: ApiCall, body: Any) -> Awaitable[Any]:
        if check is not None:
            check(body)
        return verb.make(call.engine, body) if bounded is None else bounded(call, body)

    return handle


def _lease(call: ApiCall, body: LeaseCall) -> Awaitable[list[Lease]]:
    return bounded_reply.lease(call.engine, body.request, bounded_reply.lease_sizes(call.app))


async def _find(call: ApiCall, body: FindCall) -> FoundPage:
    after = number_of(body.after)
    return FoundPage.of(
        await bounded_reply.find(call.engine, body.wanted, limit=body.limit, after=after)
    )


def _finished(call: ApiCall, body: LimitCall) -> Awaitable[list[Job]]:
    return bounded_reply.finished(call.engine, body.limit)


_BOUNDED_HANDLERS: dict[str, Callable[..., Awaitable[Any]]] = {
    "lease": _lease,
    "find": _find,
    "finished": _finished,
}
"""Verbs whose answers must be bounded in size."""


async def _release_unread(call: ApiCall, leases: list[Lease]) -> None:
    await bounded_reply.release_undelivered(call.app.engine, leases)


async def _about(call: ApiCall) -> About:
    partitions = tuple(each.out is None for each in partitions_of(call.app) or ())
    return About(__version__, call.engine.traits, wall_ms(), partitions)


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/engine",
        needs=(Scope.KNOWN,),
        handler=_about,
        name="engine",
        description="Show the traits of the engine behind this server.",
        answer=About,
        content_type=CONTENT_TYPE,
        internal=True,
    ),
    *(
        Operation(
            method="POST",
            path=f"/v1/engine/{name}",
            needs=_NEEDS.get(name, (Scope.KNOWN,)),
            handler=_handler(name, verb),
            name=f"engine_{name}",
            description="Call a verb of the engine.",
            body=verb.carries,
            answer=verb.answer,
            content_type=CONTENT_TYPE,
            waits=name == "lease",
            undo=_release_unread if name == "lease" else None,
            only_reads=name in _READING,
            internal=True,
        )
        for name, verb in VERBS.items()
    ),
)
