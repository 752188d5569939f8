"""Lanes in the database: which queues have them, their numbers, and the lock of a queue's flow.

Whoever changes more than one plain job holds the flow of all queues it deals with, before it locks
anything else. In a queue with lanes every waiting job has one, if only to be told by its task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.lanes import Lane, fields_of, lane_of
from holdfast.core.model import Job, NewJob, Queue, State
from holdfast.engines.postgres.steps import Ask, Steps, Store, only

_LOCK = "SELECT $schema.lock_flow($1::int[])"
_QUEUES_OF = """
SELECT DISTINCT q.name FROM unnest($2::text[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT c.queue FROM $schema.jobs c WHERE c.id = w.id AND c.ns + 0 = $1::int OFFSET 0
) j
CROSS JOIN LATERAL (SELECT x.name FROM $schema.queues x WHERE x.number = j.queue OFFSET 0) q
WHERE q.name IS NOT NULL
"""
_LANES = """
SELECT $schema.lanes_for($1::int, $2::int[], $3::bytea[], $4::text[], $5::text[], $6::boolean[],
                         $7::int[], $8::text[], $9::text[])
"""
_OWN_FIELDS = frozenset({"queue", "task", "tenant", "group"})


class Spot(NamedTuple):
    """Where a job waits in a queue with lanes."""

    queue: int
    task: str
    lane: Lane | None

    @property
    def key(self) -> bytes:
        lane = self.lane
        told = (self.task, lane and lane.tenant, lane and lane.slots)
        return hashlib.sha256(msgspec.json.encode(told)).digest()[:16]


def is_laned(queue: Queue) -> bool:
    """Do its jobs wait for more than their time, so that a leaser cannot just take the first?"""
    return (
        bool(queue.limits)
        or queue.fairness != "off"
        or queue.aging_ms is not None
        or queue.group_batch > 1
    )


def reads_payload(queue: Queue) -> bool:
    """Does it take more than a job's columns to tell its lane?"""
    return any(set(fields_of(limit.key)) - _OWN_FIELDS for limit in queue.limits)


def spot_of(job: NewJob | Job, queue: Queue, number: int) -> Spot | None:
    """None: it does not wait in a lane."""
    waits = not isinstance(job, Job) or job.state is State.WAITING
    return Spot(number, job.task, lane_of(job, queue)) if waits and is_laned(queue) else None


def queues_of(store: Store, ids: Collection[str]) -> Steps[set[str]]:
    """The queues that these jobs are in, for now."""
    rows = (yield Ask(_QUEUES_OF, (store.ns, list(ids)))) if ids else []
    return {row[0] for row in rows}


def lock(numbers: Collection[int]) -> Steps[None]:
    """Hold the flow of these queues."""
    if numbers:
        yield Ask(_LOCK, (sorted(numbers),))


def resolve(store: Store, spots: Iterable[Spot | None]) -> Steps[dict[Spot, int]]:
    """The numbers of these lanes, which are made where they are missing."""
    known = list(dict.fromkeys(spot for spot in spots if spot is not None))
    if not known:
        return {}
    slots = [
        (position, slot.limit, slot.key)
        for position, spot in enumerate(known, 1)
        for slot in (spot.lane.slots if spot.lane else ())
    ]
    values = (
        store.ns,
        [spot.queue for spot in known],
        [spot.key for spot in known],
        [spot.task for spot in known],
        [spot.lane.tenant if spot.lane else None for spot in known],
        [spot.lane is None for spot in known],
        [position for position, _, _ in slots],
        [limit for _, limit, _ in slots],
        [key for _, _, key in slots],
    )
    numbers: list[int] = only((yield Ask(_LANES, values)))
    return dict(zip(known, numbers, strict=True))
