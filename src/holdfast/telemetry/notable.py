"""Notable events as they are stored: what happened, to whom, why. Kept for a while, read by all.

A record holds a few events of one process; its key begins with the instant, so that the records
sort by time, and is what a reader goes on from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.checks import clean_text
from holdfast.core.model import Record
from holdfast.engines.base import Engine

KIND: Final = "events"
EVENT_KEY = re.compile(r"\d{13}-[a-z0-9-]{1,100}\Z")
_TEXT_MAX = 300
_KEPT_MAX = 40
"""Of one process between two flushes: of a storm of deaths the counters tell the rest."""


class Kind(StrEnum):
    """What can happen that somebody may want to know at once."""

    JOB_DIED = "job.died"
    QUEUE_MADE = "queue.made"
    QUEUE_DROPPED = "queue.dropped"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_RESUMED = "queue.resumed"
    WORKER_CAME = "worker.came"
    WORKER_WENT = "worker.went"
    WORKER_UNWELL = "worker.unwell"
    WORKER_WELL = "worker.well"
    BREAKER_OPENED = "breaker.opened"
    BREAKER_CLOSED = "breaker.closed"
    REDRIVE_STARTED = "redrive.started"
    REDRIVE_ENDED = "redrive.ended"
    PARTITION_OUT = "partition.out"
    PARTITION_BACK = "partition.back"
    ALERT_RAISED = "alert.raised"
    ALERT_ENDED = "alert.ended"
    LEFT_OUT = "events.left_out"
    ACTIVITY = "activity"


SAYS: Final = {
    Kind.JOB_DIED: "A job's last attempt ended: it is a dead letter.",
    Kind.QUEUE_MADE: "A queue was declared.",
    Kind.QUEUE_DROPPED: "A queue is gone, with its jobs.",
    Kind.QUEUE_PAUSED: "Nothing is leased from the queue any more.",
    Kind.QUEUE_RESUMED: "It is leased from again.",
    Kind.WORKER_CAME: "A worker started, or is heard of again.",
    Kind.WORKER_WENT: "A worker ended, or has been silent for a minute.",
    Kind.WORKER_UNWELL: "A worker is degraded or unhealthy.",
    Kind.WORKER_WELL: "It is healthy again.",
    Kind.BREAKER_OPENED: "What keeps failing is left alone for a while.",
    Kind.BREAKER_CLOSED: "It works again.",
    Kind.REDRIVE_STARTED: "Dead letters are being put back to work.",
    Kind.REDRIVE_ENDED: "That is over; the reason says how.",
    Kind.PARTITION_OUT: "A process cannot use a partition, and goes on without it.",
    Kind.PARTITION_BACK: "It uses it again.",
    Kind.ALERT_RAISED: "A rule of the alerts holds.",
    Kind.ALERT_ENDED: "It holds no longer.",
    Kind.LEFT_OUT: "So many more happened than are told.",
    Kind.ACTIVITY: "What a queue did since the last.",
}
"""When each is told."""


class Notable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `id` is a job's or a redrive's, `name` that of a task, a worker, a breaker, an
    alert or a partition. `text` is hostile and was cleaned; `count` is of what was left out."""

    kind: Kind
    at: int = 0
    queue: str = ""
    id: str = ""
    name: str = ""
    reason: str = ""
    text: str = ""
    count: int = 0


class Notables:
    """What happened since the last flush; of too much the first, and how much more."""

    def __init__(self) -> None:
        self._kept: list[Notable] = []
        self._left_out = 0

    def add(self, event: Notable) -> None:
        if len(self._kept) < _KEPT_MAX:
            self._kept.append(event)
        else:
            self._left_out += 1

    def take(self, now: int) -> list[Notable]:
        kept, self._kept = self._kept, []
        left_out, self._left_out = self._left_out, 0
        if left_out:
            kept.append(Notable(kind=Kind.LEFT_OUT, count=left_out))
        return [told(each, now) for each in kept]


def told(event: Notable, now: int) -> Notable:
    """As it is stored."""
    text = clean_text(event.text)
    cut = text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
    return replace(event, at=event.at or now, text=cut)


def event_key(now: int, process: str, number: int) -> str:
    return f"{now:013d}-{process}-{number}"


def at_of(key: str) -> int:
    """When the events of a record were written."""
    return int(key[:13]) if EVENT_KEY.match(key) else 0


def record_of(key: str, events: Sequence[Notable]) -> Record:
    return Record(kind=KIND, key=key, value=msgspec.json.encode(events))


def events_of(record: Record) -> list[Notable]:
    """Nothing of what another version wrote and this one cannot read."""
    try:
        return msgspec.json.decode(record.value or b"[]", type=list[Notable])
    except msgspec.DecodeError:
        return []


async def note(engine: Engine, now: int, process: str, *events: Notable) -> None:
    """Store events of a service that has no flusher. Repeating it repeats nothing as long as
    `now` and `process` are the same."""
    await engine.save([record_of(event_key(now, process, 0), [told(each, now) for each in events])])
