"""Events as a stream carries them: each is encoded once, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from holdfast.core.model import Record
from holdfast.durations import show_at
from holdfast.telemetry.accounts import Fleet, is_anew
from holdfast.telemetry.notable import Kind, Notable, events_of

BEAT: Final = b": still there\n\n"

Wanted = Callable[[Notable], bool]


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `counts` are by how much a queue's counters grew."""

    kind: Kind
    at: str
    queue: str = ""
    id: str = ""
    name: str = ""
    reason: str = ""
    text: str = ""
    count: int = 0
    counts: dict[str, int] = {}


class Part(NamedTuple):
    """The events of one record, each encoded. `key` is None for what cannot be resumed from:
    what came late and what sums up."""

    key: str | None
    events: tuple[tuple[Notable, bytes], ...]

    def encoded(self, wanted: Wanted) -> bytes:
        """The id comes with the last one: who was cut off before it gets the whole record again."""
        told = [text for event, text in self.events if wanted(event)]
        if not told:
            return b""
        if self.key is not None:
            told[-1] = b"id: %s\n%s" % (self.key.encode(), told[-1])
        return b"\n".join((*told, b""))


SIGN: Final = Part(None, ())
"""Who got nothing since the last one gets a sign of life."""


def part_of(record: Record) -> Part:
    return Part(record.key, tuple((event, _encoded(event)) for event in events_of(record)))


def activity(before: Fleet | None, fleet: Fleet, at: int) -> list[Part]:
    """How much the counts of each queue grew."""
    if before is None or before is fleet or is_anew(before.epoch, fleet.epoch):
        return []
    found = []
    for name, totals in fleet.totals.queues.items():
        was = before.totals.queues.get(name)
        known = {} if was is None else was.counts
        grown = {
            counter: count - known.get(counter, 0)
            for counter, count in totals.counts.items()
            if count > known.get(counter, 0)
        }
        if grown:
            event = Notable(kind=Kind.ACTIVITY, at=at, queue=name)
            found.append((event, _encoded(event, grown)))
    return [Part(None, tuple(found))] if found else []


def _encoded(event: Notable, counts: dict[str, int] | None = None) -> bytes:
    told = Told(
        kind=event.kind,
        at=show_at(event.at),
        queue=event.queue,
        id=event.id,
        name=event.name,
        reason=event.reason,
        text=event.text,
        count=event.count,
        counts=counts or {},
    )
    return b"event: %s\ndata: %s\n" % (event.kind.encode(), msgspec.json.encode(told))
