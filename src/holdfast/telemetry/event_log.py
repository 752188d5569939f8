"""The stored events behind the live feed: notable changes of jobs, queues, workers and alerts.

A record holds a few events of one process. Its key begins with the instant, so that records sort
by time; readers use it as their cursor. Events are deleted after a while.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.bounds import Count, Instant
from holdfast.core.checks import clean_text
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.ops.records import LogKind

EVENTS_KIND: Final = "events"
EVENT_KEY = re.compile(r"\d{13}-[a-z0-9-]{1,100}\Z")
_TEXT_MAX = 300
EVENTS_MAX: Final = 40
"""Events of one process between two flushes; beyond that only the counters grow."""


class FeedEventKind(StrEnum):
    """Kinds of events in the live feed."""

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
    GATE_FAILING = "gate.failing"
    GATE_WORKING = "gate.working"
    ALERT_RAISED = "alert.raised"
    ALERT_ENDED = "alert.ended"
    LEFT_OUT = "events.left_out"
    ACTIVITY = "activity"


DESCRIPTIONS: Final = {
    FeedEventKind.JOB_DIED: "A job became a dead letter; `reason` says why.",
    FeedEventKind.QUEUE_MADE: "A queue was declared.",
    FeedEventKind.QUEUE_DROPPED: "A queue was dropped with its jobs.",
    FeedEventKind.QUEUE_PAUSED: "A queue was paused: no jobs are leased from it.",
    FeedEventKind.QUEUE_RESUMED: "A queue was resumed.",
    FeedEventKind.WORKER_CAME: "A worker started, or sent a heartbeat again.",
    FeedEventKind.WORKER_WENT: "A worker ended, or sent no heartbeat for a minute.",
    FeedEventKind.WORKER_UNWELL: "A worker became degraded or unhealthy.",
    FeedEventKind.WORKER_WELL: "A worker is healthy again.",
    FeedEventKind.BREAKER_OPENED: "A circuit breaker opened: its jobs wait for a while.",
    FeedEventKind.BREAKER_CLOSED: "A circuit breaker closed.",
    FeedEventKind.REDRIVE_STARTED: "A redrive of dead letters started.",
    FeedEventKind.REDRIVE_ENDED: "A redrive ended; the reason tells how.",
    FeedEventKind.PARTITION_OUT: "A process cannot reach a partition, and continues without it.",
    FeedEventKind.PARTITION_BACK: "A process uses a partition again.",
    FeedEventKind.GATE_FAILING: "A process cannot run a gate; `text` is the error.",
    FeedEventKind.GATE_WORKING: "A process runs a gate again.",
    FeedEventKind.ALERT_RAISED: "An alert was raised.",
    FeedEventKind.ALERT_ENDED: "An alert ended.",
    FeedEventKind.LEFT_OUT: "More events happened than are listed; `count` is their number.",
    FeedEventKind.ACTIVITY: "The counts of a queue since the last such event.",
}
"""When each kind of event is written."""


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `id` is of a job or a redrive; `name` is of a task, worker, breaker, gate, alert
    or partition. `text` comes from users and was cleaned; `count` is the number of omitted
    events."""

    kind: FeedEventKind
    at: Instant = 0
    queue: str = ""
    id: str = ""
    name: str = ""
    reason: str = ""
    text: str = ""
    count: Count = 0


EVENTS = LogKind(EVENTS_KIND, list[FeedEvent], label="events")


class EventBuffer:
    """Events since the last flush: the first ones, and the number of others."""

    def __init__(self) -> None:
        self._events: list[FeedEvent] = []
        self._left_out = 0

    def add(self, event: FeedEvent) -> bool:
        """Keep an event, or count it if there is no room. True if it is kept."""
        if len(self._events) < EVENTS_MAX:
            self._events.append(event)
            return True
        self.leave_out()
        return False

    def leave_out(self) -> None:
        """Count an event that is not kept."""
        self._left_out += 1

    def take(self, now: int) -> list[FeedEvent]:
        """Remove and return all events, as they are stored."""
        events, self._events = self._events, []
        left_out, self._left_out = self._left_out, 0
        if left_out:
            events.append(FeedEvent(kind=FeedEventKind.LEFT_OUT, count=left_out))
        return [clean_event(each, now) for each in events]


def clean_event(event: FeedEvent, now: int) -> FeedEvent:
    """The event as it is stored: stamped, its text cleaned and cut."""
    text = clean_text(event.text)
    cut = text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
    return replace(event, at=event.at or now, text=cut)


def event_key(now: int, process: str, number: int) -> str:
    """The key of a record of events; keys sort by time."""
    return f"{now:013d}-{process}-{number}"


def key_instant(key: str) -> int:
    """The instant in a key; 0 if it has none."""
    return int(key[:13]) if EVENT_KEY.match(key) else 0


def event_record(key: str, events: Sequence[FeedEvent]) -> Record:
    """The record to save."""
    return EVENTS.record(key, list(events))


def decode_events(record: Record) -> list[FeedEvent]:
    """The events in a record; none if this version cannot read it."""
    return EVENTS.decode(record) or []


async def append_events(engine: Engine, now: int, process: str, *events: FeedEvent) -> None:
    """Store events of a service without a flusher. Repeating it with the same `now` and `process`
    adds nothing."""
    await engine.save(
        [event_record(event_key(now, process, 0), [clean_event(each, now) for each in events])]
    )
