"""Lanes: which queues have them, their numbers, the flow lock, and moving jobs to other lanes.

Jobs that a leasing call need not distinguish wait in one lane. In a queue with lanes every waiting
job has one, at least by its task. The lock covers a domain: all queues that share a limit. When the
settings of a queue change, its waiting jobs move to their new lanes step by step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.lanes import Lane, fields_of, is_same_flow, lane_of
from holdfast.core.model import Job, NewJob, Queue, State
from holdfast.engines.postgres.rows import locked_job, queue_of
from holdfast.engines.postgres.script import CallContext, Script, Statement, only_value

RELANE_BATCH = 1_000
RELANE_BATCH_WITH_PAYLOAD = 64

_LOCK = "SELECT $schema.lock_flow($1::int[])"
_QUEUES_OF = """
SELECT DISTINCT q.number, q.name FROM unnest($2::text[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT c.queue FROM $schema.all_jobs c WHERE c.id = w.id AND c.ns + 0 = $1::int OFFSET 0
) j
CROSS JOIN LATERAL (
    SELECT x.number, x.name FROM $schema.queues x WHERE x.number = j.queue OFFSET 0
) q
"""
_QUEUES_BELOW = """
WITH RECURSIVE below (id, queue) AS (
    SELECT w.id COLLATE "C", NULL::int FROM unnest($2::text[]) AS w(id)
    UNION
    SELECT j.id, j.queue FROM below b
    CROSS JOIN LATERAL (
        SELECT e.child FROM $schema.edges e WHERE e.parent = b.id AND e.ns = $1::int OFFSET 0
    ) e
    CROSS JOIN LATERAL (
        SELECT c.id, c.queue FROM $schema.all_jobs c
        WHERE c.ns = $1::int AND c.seq = e.child OFFSET 0
    ) j
)
SELECT DISTINCT q.number, q.name FROM below b
CROSS JOIN LATERAL (
    SELECT x.number, x.name FROM $schema.queues x WHERE x.number = b.queue OFFSET 0
) q
"""
_LANES = """
SELECT $schema.lanes_for($1::int, $2::int[], $3::bytea[], $4::text[], $5::text[], $6::boolean[],
                         $7::int[], $8::text[], $9::text[])
"""
_OWN_FIELDS = frozenset({"queue", "task", "tenant", "group"})
_QUEUE_SETTINGS = "SELECT settings FROM $schema.queues WHERE number = $1::int AND name IS NOT NULL"
_TO_SORT = "SELECT * FROM $schema.to_sort($1::int, $2::int, $3::int, $4::boolean)"
_SORT = "SELECT $schema.sort_into_lanes($1::int, $2::bigint, $3::bigint[], $4::int[])"


class LaneSpot(NamedTuple):
    """The lane of a job in a queue with lanes: everything that distinguishes it from other
    lanes.
    """

    queue: int
    task: str
    lane: Lane | None

    @property
    def key(self) -> bytes:
        """The stored key of the lane, unique in its queue."""
        lane = self.lane
        parts = (self.task, lane and lane.tenant, lane and lane.slots)
        return hashlib.sha256(msgspec.json.encode(parts)).digest()[:16]


def is_laned(queue: Queue) -> bool:
    """Whether its jobs wait in lanes: because of limits, fairness, aging or group batches."""
    return (
        bool(queue.limits)
        or queue.fairness != "off"
        or queue.aging_ms is not None
        or queue.group_batch > 1
    )


def reads_payload(queue: Queue) -> bool:
    """Whether a limit's key uses a field of the payload, so that the lane depends on it."""
    return any(set(fields_of(limit.key)) - _OWN_FIELDS for limit in queue.limits)


def spot_of(job: NewJob | Job, queue: Queue, number: int) -> LaneSpot | None:
    """The lane that a job waits in; None if it does not wait, or its queue has no lanes."""
    waits = not isinstance(job, Job) or job.state is State.WAITING
    return LaneSpot(number, job.task, lane_of(job, queue)) if waits and is_laned(queue) else None


def queues_of(context: CallContext, ids: Collection[str]) -> Script[dict[int, str | None]]:
    """The queues that these jobs are in now, by number; a dropped one has no name."""
    rows = (yield Statement(_QUEUES_OF, (context.ns, list(ids)))) if ids else []
    return {row[0]: row[1] for row in rows}


def queues_below(context: CallContext, ids: Collection[str]) -> Script[dict[int, str | None]]:
    """The queues of all jobs that depend on these, directly or indirectly, by number."""
    rows = (yield Statement(_QUEUES_BELOW, (context.ns, list(ids)))) if ids else []
    return {row[0]: row[1] for row in rows}


def lock(numbers: Collection[int]) -> Script[None]:
    """Lock the domains of these queues, in the order of their numbers."""
    if numbers:
        yield Statement(_LOCK, (sorted(numbers),))


def resolve(context: CallContext, spots: Iterable[LaneSpot | None]) -> Script[dict[LaneSpot, int]]:
    """The numbers of these lanes; missing lanes are created."""
    known = list(dict.fromkeys(spot for spot in spots if spot is not None))
    if not known:
        return {}
    slots = [
        (position, slot.limit, slot.key)
        for position, spot in enumerate(known, 1)
        for slot in (spot.lane.slots if spot.lane else ())
    ]
    values = (
        context.ns,
        [spot.queue for spot in known],
        [spot.key for spot in known],
        [spot.task for spot in known],
        [spot.lane.tenant if spot.lane else None for spot in known],
        [spot.lane is None for spot in known],
        [position for position, _, _ in slots],
        [limit for _, limit, _ in slots],
        [key for _, _, key in slots],
    )
    numbers: list[int] = only_value((yield Statement(_LANES, values)))
    return dict(zip(known, numbers, strict=True))


def relane_step(context: CallContext, number: int) -> Script[bool]:
    """Move some jobs into the lanes of the new settings; True if there may be more."""
    yield from lock([number])
    rows = yield Statement(_QUEUE_SETTINGS, (number,))
    if not rows:
        return False
    queue = queue_of(rows[0][0])
    with_payload = reads_payload(queue)
    batch = RELANE_BATCH_WITH_PAYLOAD if with_payload else RELANE_BATCH
    rows = yield Statement(_TO_SORT, (context.ns, number, batch, with_payload))
    if not rows:
        return False
    jobs = [locked_job(row) for row in rows]
    spots = [spot_of(job, queue, number) for job in jobs]
    found = yield from resolve(context, spots)
    chosen = [None if spot is None else found[spot] for spot in spots]
    yield Statement(_SORT, (context.ns, context.given_ms, [job.seq for job in jobs], chosen))
    return True


def is_same_shape(before: Queue, after: Queue) -> bool:
    """Whether waiting jobs stay in their lanes when the settings of a queue change."""
    return is_same_flow(before, after) and is_laned(before) == is_laned(after)
