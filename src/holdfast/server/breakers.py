"""Circuit breakers: how they stand, and opening and closing them by hand."""

from __future__ import annotations

import msgspec

from holdfast.core import breaker as rules
from holdfast.core.breaker import BreakerState
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Name
from holdfast.views.breakers import BreakerView, breaker_view
from holdfast.worker.breaker_book import Change, breakers_of, change_by_hand, key_of


class BreakerList(msgspec.Struct, frozen=True):
    """By name: those of tasks, and of hosts that fail."""

    breakers: list[BreakerView]


class BreakerSet(msgspec.Struct, frozen=True):
    """How it stands now. A host about which there is nothing more to say is no longer listed."""

    name: str
    state: BreakerState


@operation("GET", "/v1/breakers", needs=Scope.OPERATE)
async def list_breakers(call: Call) -> BreakerList:
    """The breakers of tasks, and of hosts that fail."""
    known = await breakers_of(call.engine)
    return BreakerList([breaker_view(key, each) for key, each in known.items()])


@operation("GET", "/v1/breakers/{name}", needs=Scope.OPERATE)
async def show_breaker(call: Call, name: Name) -> BreakerView:
    """How a breaker stands: task:NAME, or host:NAME:PORT."""
    known = await breakers_of(call.engine)
    key = key_of(name, known)
    return breaker_view(key, known[key])


@operation("POST", "/v1/breakers/{name}/open", needs=Scope.OPERATE, repeatable=True)
async def open_breaker(call: Call, name: Name) -> BreakerSet:
    """Let no job start behind this breaker, until it is closed by hand."""
    by = call.caller.name
    return await _set(call, name, lambda record, _: rules.opened_by(record, by), BreakerState.OPEN)


@operation("POST", "/v1/breakers/{name}/close", needs=Scope.OPERATE, repeatable=True)
async def close_breaker(call: Call, name: Name) -> BreakerSet:
    """Let jobs start again; failures are counted from none."""
    return await _set(call, name, lambda record, _: rules.closed(record), BreakerState.CLOSED)


OPERATIONS: tuple[Operation, ...] = (list_breakers, show_breaker, open_breaker, close_breaker)


async def _set(call: Call, name: str, change: Change, state: BreakerState) -> BreakerSet:
    [key] = await change_by_hand(call.engine, [name], change)
    return BreakerSet(key, state)
