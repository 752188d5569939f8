"""Queues and their settings: declared, dropped, listed with counts, and read by other calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.core import admission, limits
from holdfast.core.flow import Limit
from holdfast.core.lanes import fields_of
from holdfast.core.model import Job, NewJob, Queue, QueueView
from holdfast.engines.base import ANY, Known
from holdfast.engines.postgres import lanes, sorting
from holdfast.engines.postgres.rows import encode, queue_of
from holdfast.engines.postgres.steps import Again, Ask, Row, Steps, Store, only

PURGE_BATCH = 1_000

_DECLARE = """
INSERT INTO $schema.queues AS q (ns, name, lease_ms, retention_ms, dead_retention_ms, payload_max,
                            paused, plain, settings)
VALUES ($1::int, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::int, $7::boolean, $8::boolean,
        $9::bytea)
ON CONFLICT (ns, name) DO UPDATE SET
    lease_ms = excluded.lease_ms, retention_ms = excluded.retention_ms,
    dead_retention_ms = excluded.dead_retention_ms, payload_max = excluded.payload_max,
    paused = excluded.paused, plain = excluded.plain, settings = excluded.settings
RETURNING number
"""
_DECLARE_PLAIN = _DECLARE.replace("RETURNING", "WHERE NOT q.laned RETURNING")
_DECLARE_NEW = _DECLARE.partition("DO UPDATE")[0] + "DO NOTHING RETURNING number"
_DECLARE_OVER = """
UPDATE $schema.queues SET
    lease_ms = $3::bigint, retention_ms = $4::bigint, dead_retention_ms = $5::bigint,
    payload_max = $6::int, paused = $7::boolean, plain = $8::boolean, settings = $9::bytea
WHERE ns = $1::int AND name = $2::text AND settings = $10::bytea
RETURNING number
"""
_WAKE = "SELECT $schema.wake($1::int)"
_READ = "SELECT name, number, settings FROM $schema.lines($1::int, $2::text[])"
_READ_HELD = """
SELECT q.name, q.number, q.settings FROM $schema.queues q
WHERE q.ns = $1::int AND q.name = ANY ($2::text[])
"""
_BEFORE = "SELECT settings, laned FROM $schema.queues WHERE ns = $1::int AND name = $2::text"
_JOIN_FLOW = "SELECT $schema.join_flow($1::int, $2::text, $3::text[])"
_DECLARE_FLOW = """
SELECT $schema.declare_flow($1::int, $2::bigint, $3::int, $4::int, $5::boolean, $6::boolean,
    $7::smallint, $8::bigint, $9::int, $10::text[], $11::int[], $12::bigint[], $13::int[],
    $14::text[], $15::text[], $16::int[])
"""
_FAIRNESS = ("off", "shares", "noisy")
_LIST = "SELECT settings FROM $schema.queues WHERE ns = $1::int AND name IS NOT NULL ORDER BY name"
_COUNTS = "SELECT * FROM $schema.counts($1::int, $2::bigint, $3::int)"
_NOW = "SELECT $schema.now_ms($1::bigint)"
_DROP = """
UPDATE $schema.queues SET name = NULL, dropped_at = $schema.now_ms(NULL)
WHERE ns = $1::int AND name = $2::text RETURNING number
"""
_PURGE = "SELECT count_, endings_ FROM $schema.purge($1::int, $2::int, $3::int)"
_COUNTED = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")


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

    @property
    def numbers(self) -> set[int]:
        return {line.number for line in self._by_name.values()}

    @property
    def laned(self) -> set[str]:
        return {name for name, line in self._by_name.items() if lanes.is_laned(line.queue)}

    @property
    def reads_payload(self) -> bool:
        return any(lanes.reads_payload(line.queue) for line in self._by_name.values())

    def spot(self, job: NewJob | Job) -> lanes.Spot | None:
        """Where the job waits, if its queue has lanes."""
        line = self._by_name[job.queue]
        return lanes.spot_of(job, line.queue, line.number)

    def find(self, name: str) -> Queue | None:
        line = self._by_name.get(name)
        return None if line is None else line.queue

    def policy(self, job: Job) -> Queue:
        return admission.policy(self._by_name[job.queue].queue, self)

    @property
    def dead_queues(self) -> set[str]:
        return {line.queue.dead_queue for line in self._by_name.values() if line.queue.dead_queue}


def read_lines(store: Store, names: Iterable[str], *, held: bool = False) -> Steps[Lines]:
    """These queues and their dead queues, as they are now. `held` says that flow is held: whoever
    declares a queue waits for it with the name locked, so that to ask for the name would deadlock.
    """
    read = _READ_HELD if held else _READ
    known = sorted(set(names))
    rows = list((yield Ask(read, (store.ns, known))))
    further = Lines(rows).dead_queues.difference(known)
    if further:
        rows += yield Ask(read, (store.ns, sorted(further)))
    return Lines(rows)


def declare(store: Store, queue: Queue, instead_of: Known) -> Steps[tuple[bool, int | None]]:
    """Whether it was written, and the number of the queue if its jobs have to be sorted."""
    if queue.dead_queue is not None:
        found = yield Ask(_BEFORE, (store.ns, queue.dead_queue))
        admission.check_dead_queue(queue, {queue.dead_queue} if found else ())
    rows = yield Ask(_BEFORE, (store.ns, queue.name))
    if not (lanes.is_laned(queue) or any(row[1] for row in rows)):
        rows = yield from _write(store, queue, instead_of, rows, plain=True)
        if rows:
            yield Ask(_WAKE, (store.ns,))
        elif instead_of is ANY:
            # It came to have lanes meanwhile.
            raise Again
        return bool(rows), None
    names = [limit.name for limit in queue.limits]
    domain = only((yield Ask(_JOIN_FLOW, (store.ns, queue.name, names))))
    # Now nobody else changes its shape.
    rows = yield Ask(_BEFORE, (store.ns, queue.name))
    before = queue_of(only(rows)) if rows else Queue(name=queue.name)
    anew = not sorting.is_same_shape(before, queue)
    rows = yield from _write(store, queue, instead_of, rows)
    if not rows:
        return False, None
    number: int = only(rows)
    values = (
        store.ns, store.given_ms, number, domain, lanes.is_laned(queue), anew,
        *_flow_values(queue),
    )  # fmt: skip
    is_sorting = only((yield Ask(_DECLARE_FLOW, values)))
    yield Ask(_WAKE, (store.ns,))
    return True, number if is_sorting else None


def _write(
    store: Store, queue: Queue, instead_of: Known, found: Sequence[Row], *, plain: bool = False
) -> Steps[Sequence[Row]]:
    """The number of the queue, if it was written over what was found there. `plain` says that its
    flow is not held: then it must have none."""
    if instead_of is None:
        return (yield Ask(_DECLARE_NEW, _values(store, queue)))
    if instead_of is ANY:
        statement = _DECLARE_PLAIN if plain else _DECLARE
        return (yield Ask(statement, _values(store, queue)))
    if not found or queue_of(only(found)) != instead_of:
        return []
    return (yield Ask(_DECLARE_OVER, (*_values(store, queue), only(found))))


def _flow_values(queue: Queue) -> tuple[object, ...]:
    rates = [limit.rate for limit in queue.limits]
    return (
        _FAIRNESS.index(queue.fairness), queue.aging_ms, queue.group_batch,
        [limit.name for limit in queue.limits],
        [limit.concurrency for limit in queue.limits],
        [rate and rate.apart_us for rate in rates],
        [rate and rate.burst for rate in rates],
        [_wide(limit) for limit in queue.limits],
        list(queue.weights), list(queue.weights.values()),
    )  # fmt: skip


def _wide(limit: Limit) -> str | None:
    """The key that all jobs of the queue have in common."""
    is_wide = limit.task is None and not fields_of(limit.key)
    return limit.key if is_wide else None


def declare_default(store: Store) -> Steps[None]:
    yield Ask(_DECLARE_NEW, _values(store, Queue(name="default")), alone=True)


def _values(store: Store, queue: Queue) -> tuple[object, ...]:
    return (
        store.ns, queue.name, queue.lease_ms, queue.retention_ms,
        max(queue.dead_retention_ms, queue.retention_ms), queue.payload_max, queue.paused,
        queue.accepting and queue.max_depth is None and not lanes.is_laned(queue), encode(queue),
    )  # fmt: skip


def take_name(store: Store, name: str) -> Steps[int | None]:
    """The queue and its jobs are gone for every reader; the number is left to be purged."""
    rows = yield Ask(_DROP, (store.ns, name), alone=True)
    return only(rows) if rows else None


def purge(store: Store, number: int) -> Steps[int]:
    """Remove a bounded number of jobs of a dropped queue; how many."""
    rows = yield Ask(_PURGE, (store.ns, number, PURGE_BATCH), alone=True)
    count: int
    count, endings = rows[0]
    store.duties.endings += endings or ()
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
