"""The live feed: what happens in a namespace as server-sent events, resumable by their ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec

from holdfast.server.calls import Call
from holdfast.server.feed import feed_of
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.refusals import BadRequest
from holdfast.server.shapes import QueueName
from holdfast.telemetry.notable import EVENT_KEY, Kind, Notable


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only of these queues, and only of these kinds; without them all. `after` is the id of the
    last event that was seen, where the header Last-Event-ID cannot be set."""

    queue: Annotated[list[QueueName], msgspec.Meta(max_length=100)] = []
    kind: Annotated[list[Kind], msgspec.Meta(max_length=100)] = []
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{13}-[a-z0-9-]{1,100}$")] | None = None


@operation("GET", "/v1/events", needs=Scope.OPERATE, streams=True)
async def stream_events(call: Call, query: EventsQuery) -> AsyncGenerator[bytes]:
    """What happens, as it happens: jobs that die, workers that come and go, queues that are paused,
    breakers that open, and how much each queue does. It goes on where Last-Event-ID says."""
    after = call.headers.get("last-event-id") or query.after
    if after is not None and not EVENT_KEY.match(after):
        raise BadRequest("Last-Event-ID is not the id of an event: leave it out to begin now")
    queues, kinds, caller = frozenset(query.queue), frozenset(query.kind), call.caller

    def wanted(event: Notable) -> bool:
        if caller.prefix and not (event.queue and caller.owns(event.queue)):
            return False
        return (not queues or event.queue in queues) and (not kinds or event.kind in kinds)

    async with aclosing(feed_of(call.app).stream(after, wanted)) as parts:
        async for part in parts:
            if not await call.is_good():
                return
            yield part


OPERATIONS: tuple[Operation, ...] = (stream_events,)
