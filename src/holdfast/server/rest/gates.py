"""Gates over REST. They are run by the workers and servers that were given their broker."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core import bounds, checks
from holdfast.notation.job import QueueName
from holdfast.notation.patterns import NO_NUL
from holdfast.ops.gates import PREFETCH, Direction, Gate, Gates, GateView, gate_view, unknown_gate
from holdfast.ops.queues import find_queue
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation

GateName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,40}$", examples=["orders"])]
Place = Annotated[str, Meta(max_length=255, pattern=NO_NUL)]
Template = Annotated[str, Meta(max_length=1_000, pattern=NO_NUL, examples=["{header.kind|send}"])]


class GateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An inlet has a `source`, a queue at the broker, and a `task`; with `dead` its messages become
    dead letters. An outlet has an `exchange`, a `routing_key`, or both. `broker` is only a name:
    URLs are given to the processes that run gates."""

    direction: Direction
    broker: GateName
    queue: QueueName
    source: Place = ""
    task: Template = ""
    tenant: Template | None = None
    group: Template | None = None
    key: Template | None = None
    content_type: Annotated[str, Meta(max_length=127, pattern=NO_NUL)] = ""
    dead: bool = False
    exchange: Place = ""
    routing_key: Template = ""
    prefetch: Annotated[int, Meta(ge=1, le=bounds.BATCH_MAX)] = PREFETCH

    def gate(self, name: str) -> Gate:
        """The gate under this name."""
        fields: dict[str, Any] = {each: getattr(self, each) for each in self.__struct_fields__}
        return Gate(name=name, **fields)


class GateList(msgspec.Struct, frozen=True):
    """All gates, by name."""

    gates: list[GateView]


@operation("GET", "/v1/gates", needs=Scope.OBSERVE)
async def list_gates(call: ApiCall) -> GateList:
    """List gates, with their state and what they moved."""
    return GateList(await Gates(call.engine).views())


@operation("GET", "/v1/gates/{name}", needs=Scope.OBSERVE)
async def show_gate(call: ApiCall, name: GateName) -> GateView:
    """Show a gate, with its state and what it moved."""
    return await Gates(call.engine).view(name)


@operation("PUT", "/v1/gates/{name}", needs=Scope.OPERATE)
async def put_gate(call: ApiCall, name: GateName, body: GateBody) -> GateView:
    """Add or replace a gate. The processes that were given its broker run it within seconds. A
    paused gate stays paused."""
    gate = body.gate(name)
    if await find_queue(call.engine, gate.queue) is None:
        raise checks.unknown_queue(gate.queue)
    await Gates(call.engine).put(gate)
    return await Gates(call.engine).view(name)


@operation("DELETE", "/v1/gates/{name}", needs=Scope.OPERATE)
async def remove_gate(call: ApiCall, name: GateName) -> GateView:
    """Remove a gate. Its jobs, and messages at the broker, stay. The answer is the removed gate."""
    gates = Gates(call.engine)
    gate = await gates.get(name)
    if not await gates.remove(name):
        raise unknown_gate(name)
    return gate_view(gate, ())


@operation("POST", "/v1/gates/{name}/pause", needs=Scope.OPERATE, repeatable=True)
async def pause_gate(call: ApiCall, name: GateName) -> GateView:
    """Pause a gate in all processes until it is resumed."""
    await Gates(call.engine).pause(name)
    return await Gates(call.engine).view(name)


@operation("POST", "/v1/gates/{name}/resume", needs=Scope.OPERATE, repeatable=True)
async def resume_gate(call: ApiCall, name: GateName) -> GateView:
    """Resume a gate."""
    await Gates(call.engine).pause(name, paused=False)
    return await Gates(call.engine).view(name)


OPERATIONS: tuple[Operation, ...] = (
    list_gates,
    show_gate,
    put_gate,
    remove_gate,
    pause_gate,
    resume_gate,
)
