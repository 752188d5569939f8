"""Queues and their settings: declared, dropped, listed with counts, and read by other calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core import admission, limits
from holdfast.core.model import Job, Queue, QueueView
from holdfast.engines.postgres.rows import encode, queue_of
from holdfast.engines.postgres.steps import Ask, Row, Steps, Store, only

PURGE_BATCH = 1_000

_DECLARE = """
INSERT INTO $schema.queues (ns, name, lease_ms, retention_ms, dead_retention_ms, payload_max,
                            paused, plain, settings)
VALUES ($1::int, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::int, $7::boolean, $8::boolean,
        $9::bytea)
ON CONFLICT (ns, name) DO UPDATE SET
    lease_ms = excluded.lease_ms, retention_ms = excluded.retention_ms,
    dead_retention_ms = excluded.dead_retention_ms, payload_max = excluded.payload_max,
    paused = excluded.paused, plain = excluded.plain, settings = excluded.settings
"""
_DECLARE_NEW = _DECLARE.partition("DO UPDATE")[0] + "DO NOTHING RETURNING number"
_WAKE = "SELECT $schema.wake($1::int)"
_READ = """
SELECT name, number, settings FROM $schema.queues WHERE ns = $1::int AND name = ANY ($2::text[])
"""
_LIST = "SELECT settings FROM $schema.queues WHERE ns = $1::int AND name IS NOT NULL ORDER BY name"
_COUNTS = "SELECT * FROM $schema.counts($1::int, $2::bigint, $3::int)"
_NOW = "SELECT $schema.now_ms($1::bigint)"
_DROP = """
UPDATE $schema.queues SET name = NULL, dropped_at = $schema.now_ms(NULL)
WHERE ns = $1::int AND name = $2::text RETURNING number
"""
_PURGE = "SELECT $schema.purge($1::int, $2::int, $3::int)"
_COUNTED = ("ready", "delayed", "leased", "overdue", "done", "dead", "cancelled")


class Line(NamedTuple):
    number: int
    queue: Queue


class Lines:
    """The queues that a call deals with, by name; what is not among them does not exist."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_name = {row[0]: Line(row[1], queue_of(row[2])) for row in rows}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def add(self, more: Lines) -> None:
        self._by_name.update(more._by_name)

    def number(self, name: str) -> int:
        return self._by_name[name].number

    def find(self, name: str) -> Queue | None:
        line = self._by_name.get(name)
        return None if line is None else line.queue

    def policy(self, job: Job) -> Queue:
        return admission.policy(self._by_name[job.queue].queue, self)

    @property
    def dead_queues(self) -> set[str]:
        return {line.queue.dead_queue for line in self._by_name.values() if line.queue.dead_queue}


def read_lines(store: Store, names: Iterable[str]) -> Steps[Lines]:
    """These queues and their dead queues, as they are now."""
    known = sorted(set(names))
    rows = list((yield Ask(_READ, (store.ns, known))))
    further = Lines(rows).dead_queues.difference(known)
    if further:
        rows += yield Ask(_READ, (store.ns, sorted(further)))
    return Lines(rows)


def declare(store: Store, queue: Queue, only_new: bool) -> Steps[bool]:
    if queue.dead_queue is not None:
        found = yield Ask(_READ, (store.ns, [queue.dead_queue]))
        admission.check_dead_queue(queue, Lines(found))
    rows = yield Ask(_DECLARE_NEW if only_new else _DECLARE, _values(store, queue))
    if only_new and not rows:
        return False
    yield Ask(_WAKE, (store.ns,))
    return True


def declare_default(store: Store) -> Steps[None]:
    yield Ask(_DECLARE_NEW, _values(store, Queue(name="default")), alone=True)


def _values(store: Store, queue: Queue) -> tuple[object, ...]:
    return (
        store.ns, queue.name, queue.lease_ms, queue.retention_ms,
        max(queue.dead_retention_ms, queue.retention_ms), queue.payload_max, queue.paused,
        queue.accepting and queue.max_depth is None, encode(queue),
    )  # fmt: skip


def take_name(store: Store, name: str) -> Steps[int | None]:
    """The queue and its jobs are gone for every reader; the number is left to be purged."""
    rows = yield Ask(_DROP, (store.ns, name), alone=True)
    return only(rows) if rows else None


def purge(store: Store, number: int) -> Steps[int]:
    """Remove a bounded number of jobs of a dropped queue; how many."""
    count: int = only((yield Ask(_PURGE, (store.ns, number, PURGE_BATCH), alone=True)))
    return count


def list_queues(store: Store) -> Steps[list[QueueView]]:
    rows = yield Ask(_LIST, (store.ns,), alone=True)
    return [QueueView(queue=queue_of(row[0])) for row in rows]


def count_queues(store: Store) -> Steps[list[QueueView]]:
    most = limits.COUNT_EXACT_MAX
    given = store.given_ms
    rows = yield Ask(_COUNTS, (store.ns, given, most), alone=True)
    now: int = only((yield Ask(_NOW, (given,), alone=True)))
    return [_view(row, now, most) for row in rows]


def _view(row: Row, now: int, most: int) -> QueueView:
    _, settings, *counts, oldest_at = row
    told = dict(zip(_COUNTED, counts, strict=True))
    return QueueView(
        queue=queue_of(settings),
        oldest_age_ms=None if oldest_at is None else max(0, now - oldest_at),
        estimated=frozenset(name for name, count in told.items() if count > most),
        **{name: min(count, most) for name, count in told.items()},
    )
