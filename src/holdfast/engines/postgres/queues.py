"""Queues: declare, drop, list with counts, and read them for other calls. Also the small versioned
records of a namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from holdfast.core import bounds, checks
from holdfast.core.lanes import fields_of
from holdfast.core.limits import Limit
from holdfast.core.model import Job, NewJob, Queue, QueueView, Record
from holdfast.engines.base import ANY, Known, Saved
from holdfast.engines.postgres.flow import lanes
from holdfast.engines.postgres.rows import columns, encode, queue_of
from holdfast.engines.postgres.script import (
    CallContext,
    Restart,
    Row,
    Script,
    Statement,
    only_value,
)

PURGE_BATCH = 1_000
_LEASES_MAX = 1_000

NameLock = Literal["wait", "try", "none"]
"""Lock queue names by waiting, by trying (a failure restarts the script), or not at all."""

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
_WAKE = "SELECT $schema.wake_leases($1::int)"
_READ = "SELECT name, number, settings, laned FROM $schema.lines($1::int, $2::text[])"
_TRY_NAMES = """
SELECT bool_and(pg_try_advisory_xact_lock_shared($1::int, hashtext(w.name)))
FROM unnest($2::text[]) AS w(name)
"""
_READ_UNLOCKED = """
SELECT q.name, q.number, q.settings, q.laned FROM $schema.queues q
WHERE q.ns = $1::int AND q.name = ANY ($2::text[])
"""
_BEFORE = "SELECT settings, laned FROM $schema.queues WHERE ns = $1::int AND name = $2::text"
_JOIN_FLOW = "SELECT $schema.join_domain($1::int, $2::text, $3::text[])"
_DECLARE_FLOW = """
SELECT $schema.declare_lanes($1::int, $2::bigint, $3::int, $4::int, $5::boolean, $6::boolean,
    $7::smallint, $8::bigint, $9::int, $10::text[], $11::int[], $12::bigint[], $13::int[],
    $14::text[], $15::text[], $16::int[])
"""
_FAIRNESS = ("off", "shares", "noisy")
_LIST = "SELECT settings FROM $schema.queues WHERE ns = $1::int AND name IS NOT NULL ORDER BY name"
_LIST_NAMED = """
SELECT settings FROM $schema.queues
WHERE ns = $1::int AND name = ANY ($2::text[]) ORDER BY name
"""
_COUNT_REVISION = """
SELECT CASE WHEN current_setting('track_counts')::boolean THEN concat_ws(' ',
    (SELECT last_value FROM $schema.numbers), (SELECT last_value FROM $schema.tokens),
    (SELECT max(b.seq) FROM $schema.bodies b WHERE b.ns = $1::int),
    (SELECT concat_ws(' ', count(*), min(l.deadline_at), max(l.deadline_at)) FROM (
        SELECT j.deadline_at FROM $schema.jobs j
        WHERE j.ns = $1::int AND j.state IN (1, 5) LIMIT $2::int
    ) l),
    (SELECT md5(string_agg(md5(q.settings), '' ORDER BY q.number)) FROM $schema.queues q
     WHERE q.ns = $1::int AND q.name IS NOT NULL),
    (SELECT concat_ws(' ', sum(pg_stat_get_tuples_inserted(t.id)),
                      sum(pg_stat_get_tuples_updated(t.id)), sum(pg_stat_get_tuples_deleted(t.id)))
     FROM unnest(ARRAY['$schema.jobs', '$schema.done', '$schema.bodies']::regclass[]) AS t(id))
) END
"""
"""Arrivals and leases show at once, and so do numbers that are drawn before a commit. The server
adds up all writes of the tables within some seconds after the commit, which shows the rest."""
_COUNTS = "SELECT * FROM $schema.counts($1::int, $2::bigint, $3::int, $4::text[])"
_NOW = "SELECT $schema.now_ms($1::bigint)"
_DROP = """
UPDATE $schema.queues SET name = NULL, removed_at = $schema.now_ms(NULL)
WHERE ns = $1::int AND name = $2::text RETURNING number
"""
_PURGE = "SELECT count_, endings_ FROM $schema.purge_queue($1::int, $2::int, $3::int)"
_COUNTED = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")
_LOAD_RECORDS = """
SELECT key, value, version, greatest(0, $schema.now_ms($5::bigint) - saved_at)
FROM $schema.records
WHERE ns = $1::int AND kind = $2::text AND key > $3::text ORDER BY key LIMIT $4::bigint
"""
_SAVE_RECORDS = """
SELECT $schema.save_records($1::int, $2::bigint, $3::text[], $4::text[], $5::bigint[], $6::bytea[])
"""


class NumberedQueue(NamedTuple):
    """A queue, the number of its row, and whether its jobs may still be in lanes."""

    number: int
    queue: Queue
    laned: bool


class QueueSet:
    """The queues that a call works with, by name. A queue that is not in it does not exist."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_name = {row[0]: NumberedQueue(row[1], queue_of(row[2]), row[3]) for row in rows}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def add(self, more: QueueSet) -> None:
        """Add queues that were read later."""
        self._by_name.update(more._by_name)

    def number(self, name: str) -> int:
        """The number of an existing queue."""
        return self._by_name[name].number

    @property
    def names(self) -> set[str]:
        return set(self._by_name)

    @property
    def numbers(self) -> set[int]:
        return {entry.number for entry in self._by_name.values()}

    @property
    def laned(self) -> set[str]:
        """The names of those with lanes, by their settings or because jobs are still in them."""
        return {
            name
            for name, entry in self._by_name.items()
            if entry.laned or lanes.is_laned(entry.queue)
        }

    @property
    def reads_payload(self) -> bool:
        """Whether the lane of a job in one of them depends on the payload."""
        return any(lanes.reads_payload(entry.queue) for entry in self._by_name.values())

    def spot(self, job: NewJob | Job) -> lanes.LaneSpot | None:
        """The lane that the job waits in, if its queue has lanes."""
        entry = self._by_name[job.queue]
        return lanes.spot_of(job, entry.queue, entry.number)

    def find(self, name: str) -> Queue | None:
        """The settings of a queue, if it exists."""
        entry = self._by_name.get(name)
        return None if entry is None else entry.queue

    def policy(self, job: Job) -> Queue:
        """The settings of the job's queue, without a dead queue that does not exist."""
        return checks.effective_queue(self._by_name[job.queue].queue, self)

    @property
    def dead_queues(self) -> set[str]:
        """The names of their dead queues."""
        return {
            entry.queue.dead_queue for entry in self._by_name.values() if entry.queue.dead_queue
        }


def read_queues(
    context: CallContext, names: Iterable[str], *, lock: NameLock = "wait"
) -> Script[QueueSet]:
    """These queues and their dead queues, as they are now.

    A shared lock on the name keeps a queue from getting or losing lanes. A call that already holds
    a lock of a later level must not wait for it: it tries, and starts again if another call is just
    declaring the queue. It needs none if it holds the flow lock of the queue.
    """
    known = sorted(set(names))
    rows = yield from _read(context, known, lock)
    further = QueueSet(rows).dead_queues.difference(known)
    if further:
        rows += yield from _read(context, sorted(further), lock)
    return QueueSet(rows)


def _read(context: CallContext, names: list[str], lock: NameLock) -> Script[list[Row]]:
    if lock == "wait":
        return list((yield Statement(_READ, (context.ns, names))))
    if lock == "try" and not only_value((yield Statement(_TRY_NAMES, (context.ns, names)))):
        raise Restart
    return list((yield Statement(_READ_UNLOCKED, (context.ns, names))))


def declare(
    context: CallContext, queue: Queue, instead_of: Known
) -> Script[tuple[bool, int | None]]:
    """Create or change a queue; returns whether it was written, and its number if its waiting jobs
    must be sorted into lanes.
    """
    if queue.dead_queue is not None:
        found = yield Statement(_BEFORE, (context.ns, queue.dead_queue))
        checks.check_dead_queue(queue, {queue.dead_queue} if found else ())
    rows = yield Statement(_BEFORE, (context.ns, queue.name))
    if not (lanes.is_laned(queue) or any(row[1] for row in rows)):
        rows = yield from _write(context, queue, instead_of, rows, plain=True)
        if rows:
            yield Statement(_WAKE, (context.ns,))
        elif instead_of is ANY:
            # Another call has given it lanes in the meantime.
            raise Restart
        return bool(rows), None
    names = [limit.name for limit in queue.limits]
    domain = only_value((yield Statement(_JOIN_FLOW, (context.ns, queue.name, names))))
    # The locks of `join_flow` keep other calls from changing its lanes.
    rows = yield Statement(_BEFORE, (context.ns, queue.name))
    before = queue_of(only_value(rows)) if rows else Queue(name=queue.name)
    anew = not lanes.is_same_shape(before, queue)
    rows = yield from _write(context, queue, instead_of, rows)
    if not rows:
        return False, None
    number: int = only_value(rows)
    values = (
        context.ns, context.given_ms, number, domain, lanes.is_laned(queue), anew,
        *_flow_values(queue),
    )  # fmt: skip
    is_sorting = only_value((yield Statement(_DECLARE_FLOW, values)))
    yield Statement(_WAKE, (context.ns,))
    return True, number if is_sorting else None


def _write(
    context: CallContext,
    queue: Queue,
    instead_of: Known,
    found: Sequence[Row],
    *,
    plain: bool = False,
) -> Script[Sequence[Row]]:
    """The number of the queue, if it was written over the settings found. With `plain` the flow
    lock is not held: then the queue must have no lanes.
    """
    if instead_of is None:
        return (yield Statement(_DECLARE_NEW, _values(context, queue)))
    if instead_of is ANY:
        statement = _DECLARE_PLAIN if plain else _DECLARE
        return (yield Statement(statement, _values(context, queue)))
    if not found or queue_of(only_value(found)) != instead_of:
        return []
    return (yield Statement(_DECLARE_OVER, (*_values(context, queue), only_value(found))))


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
    """The slot key that all jobs of the queue share, if the limit does not distinguish them."""
    is_wide = limit.task is None and not fields_of(limit.key)
    return limit.key if is_wide else None


def declare_default(context: CallContext) -> Script[None]:
    """Create the queue "default" if it does not exist."""
    yield Statement(_DECLARE_NEW, _values(context, Queue(name="default")), alone=True)


def _values(context: CallContext, queue: Queue) -> tuple[object, ...]:
    return (
        context.ns, queue.name, queue.lease_ms, queue.retention_ms,
        max(queue.dead_retention_ms, queue.retention_ms), queue.payload_max, queue.paused,
        _is_plain(queue), encode(queue),
    )  # fmt: skip


def _is_plain(queue: Queue) -> bool:
    """Whether jobs may enter without a look at the settings."""
    is_open = queue.accepting and queue.max_depth is None and queue.expires_ms is None
    return is_open and not lanes.is_laned(queue)


def drop(context: CallContext, name: str) -> Script[int | None]:
    """Drop a queue: no reader sees it or its jobs any more. Returns its number, to be purged."""
    rows = yield Statement(_DROP, (context.ns, name), alone=True)
    return only_value(rows) if rows else None


def purge(context: CallContext, number: int) -> Script[int]:
    """Remove a bounded number of the jobs of a dropped queue; returns how many."""
    rows = yield Statement(_PURGE, (context.ns, number, PURGE_BATCH), alone=True)
    count: int
    count, endings = rows[0]
    context.effects.endings += endings or ()
    return count


def list_queues(context: CallContext, names: Collection[str] | None) -> Script[list[QueueView]]:
    """The settings of the existing queues of `names`, or of all, by name."""
    if names is None:
        rows = yield Statement(_LIST, (context.ns,), alone=True)
    else:
        rows = yield Statement(_LIST_NAMED, (context.ns, _valid(names)), alone=True)
    return [QueueView(queue=queue_of(row[0])) for row in rows]


def _valid(names: Collection[str]) -> list[str]:
    """Those that a queue can have: PostgreSQL refuses some other texts."""
    return sorted({name for name in names if bounds.QUEUE_NAME.match(name)})


def count_revision(context: CallContext) -> Script[str | None]:
    """A text that changes with the counts of the queues, or with their settings; None if the server
    keeps no statistics of its tables."""
    values = (context.ns, _LEASES_MAX)
    found: str | None = only_value((yield Statement(_COUNT_REVISION, values, alone=True)))
    return found


def count_queues(
    context: CallContext, names: Collection[str] | None, *, most: int = bounds.COUNT_EXACT_MAX
) -> Script[list[QueueView]]:
    """The settings and counts of the existing queues of `names`, or of all, by name."""
    given = context.given_ms
    wanted = None if names is None else _valid(names)
    rows = yield Statement(_COUNTS, (context.ns, given, most, wanted), alone=True)
    now: int = only_value((yield Statement(_NOW, (given,), alone=True)))
    return [_view(row, now, most) for row in rows]


def _view(row: Row, now: int, most: int) -> QueueView:
    _, settings, *counts, oldest_at = row
    counted = dict(zip(_COUNTED, counts, strict=True))
    return QueueView(
        queue=queue_of(settings),
        oldest_age_ms=None if oldest_at is None else max(0, now - oldest_at),
        estimated=frozenset(name for name, count in counted.items() if count > most),
        **{name: min(count, most) for name, count in counted.items()},
    )


def load_records(
    context: CallContext, kind: str, *, after: str | None, limit: int
) -> Script[list[Record]]:
    """Records of a kind, by key."""
    rows = yield Statement(
        _LOAD_RECORDS, (context.ns, kind, after or "", limit, context.given_ms), alone=True
    )
    return [
        Record(kind=kind, key=key, value=value, version=version, age_ms=age_ms)
        for key, value, version, age_ms in rows
    ]


def save_records(context: CallContext, records: Sequence[Record]) -> Script[list[Saved]]:
    """Write each record if its version is still the stored one; returns an answer for each."""
    if not records:
        return []
    rows = ((record.kind, record.key, record.version, record.value) for record in records)
    values = (context.ns, context.given_ms, *columns(rows, 4))
    answers = only_value((yield Statement(_SAVE_RECORDS, values, alone=True)))
    return [Saved.SAVED if saved else Saved.STALE for saved in answers]
