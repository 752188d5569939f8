"""A queue whose flow has a new shape: its waiting jobs go into their new lanes, step by step."""

from __future__ import annotations

from holdfast.core.lanes import is_same_flow
from holdfast.core.model import Queue
from holdfast.engines.postgres import lanes
from holdfast.engines.postgres.rows import kept_job, queue_of
from holdfast.engines.postgres.steps import Ask, Steps, Store

STEP = 1_000
STEP_WHOLE = 64
"""With their payloads they may be large."""

_QUEUE = "SELECT settings FROM $schema.queues WHERE number = $1::int AND name IS NOT NULL"
_NEXT = "SELECT * FROM $schema.to_sort($1::int, $2::int, $3::int, $4::boolean)"
_SORT = "SELECT $schema.sort_into($1::int, $2::bigint, $3::bigint[], $4::int[])"


def step(store: Store, number: int) -> Steps[bool]:
    """Sort a bounded number of jobs; whether there may be more."""
    yield from lanes.lock([number])
    rows = yield Ask(_QUEUE, (number,))
    if not rows:
        return False
    queue = queue_of(rows[0][0])
    whole = lanes.reads_payload(queue)
    rows = yield Ask(_NEXT, (store.ns, number, STEP_WHOLE if whole else STEP, whole))
    if not rows:
        return False
    jobs = [kept_job(row) for row in rows]
    spots = [lanes.spot_of(job, queue, number) for job in jobs]
    found = yield from lanes.resolve(store, spots)
    chosen = [None if spot is None else found[spot] for spot in spots]
    yield Ask(_SORT, (store.ns, store.given_ms, [job.seq for job in jobs], chosen))
    return True


def is_same_shape(before: Queue, after: Queue) -> bool:
    """Do waiting jobs stay where they are?"""
    return is_same_flow(before, after) and lanes.is_laned(before) == lanes.is_laned(after)
