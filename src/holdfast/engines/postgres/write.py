"""Job rows in a transaction: locked in one order, added, and written back with their timelines.

Every call takes its locks in this order, so that calls do not deadlock: 1 queue names (advisory) ·
2 domains of flow control by number (advisory) · 3 keys by queue and key · 4 job rows by seq ·
5 queue rows by number · 6 ids of new jobs by id · 7 awaited parents by id. Rows locked at 4 are
written after 6: an insert waits for a row that another call has written, not for a locked one.
A lock needed out of order is only tried; completions, which write rows before they hold all of
them, wait 50 ms at most. All else that a call writes belongs to a row or domain that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.lifecycle import Change, inherits_expiry, with_queue_expiry
from holdfast.core.model import Event, Job, NewJob
from holdfast.engines.postgres.flow import lanes
from holdfast.engines.postgres.flow.lanes import LaneSpot
from holdfast.engines.postgres.queues import QueueSet, read_queues
from holdfast.engines.postgres.rows import ALONE_BIT, columns, encode, extra_of, locked_job
from holdfast.engines.postgres.script import (
    CallContext,
    Restart,
    Script,
    Statement,
    chunks,
    only_value,
)

HAS_LANE, HAS_GROUP, HAS_PARENTS, HAS_CHILDREN, IS_BEHIND = 1, 2, 4, 8, 16
"""Bits of the column `flow`."""

_ADD = """
SELECT $schema.insert_jobs($1::int, $2::bigint, true, $3::int[], $4::int[], $5::bigint[],
    $6::text[], $7::text[], $8::bytea[], $9::smallint[], $10::bigint[], $11::bigint[], $12::text[],
    $13::text[], $14::text[], $15::bigint[], $16::bytea[], $17::int[], $18::smallint[],
    $19::int[])
"""
_REWRITE = """
SELECT $schema.rewrite_jobs($1::int, $2::bigint, $3::boolean, $4::bigint[], $5::int[], $6::int[],
    $7::smallint[], $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::int[],
    $13::int[], $14::int[], $15::int[], $16::bigint[], $17::bigint[], $18::bigint[],
    $19::bigint[], $20::boolean[], $21::boolean[], $22::text[], $23::text[], $24::text[],
    $25::text[], $26::bytea[], $27::text[], $28::int[])
"""
_REWRITE_BODIES = """
SELECT $schema.rewrite_bodies($1::int, $2::bigint[], $3::text[], $4::text[], $5::text[],
    $6::text[], $7::text[], $8::bytea[], $9::bytea[])
"""
_DRAW = """
SELECT $schema.now_ms($1::bigint),
       ARRAY(SELECT nextval('$schema.numbers') FROM generate_series(1, $2::int))
"""
_REWRITE_COLUMNS = 25
_EVENTS = """
INSERT INTO $schema.events (job, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])
"""
_CLEAR_NOTES = """
UPDATE $schema.notes SET progress = NULL, checkpoint = NULL WHERE job = ANY ($1::bigint[])
"""
_HAVE_FLOW = """
SELECT EXISTS (
    SELECT FROM (
        SELECT u.id FROM unnest($2::text[]) AS u(id)
        UNION ALL
        SELECT k.id FROM unnest($3::int[], $4::text[]) AS u(queue, key)
        CROSS JOIN LATERAL (
            SELECT x.id FROM $schema.keys x WHERE x.queue = u.queue AND x.key = u.key OFFSET 0
        ) k
    ) w
    CROSS JOIN LATERAL (
        SELECT FROM $schema.bodies b JOIN $schema.jobs j ON j.ns = b.ns AND j.seq = b.seq
        WHERE b.id = w.id AND b.ns + 0 = $1::int AND j.flow <> 0 OFFSET 0
    ) j
)
"""
ERASE = "SELECT $schema.erase_jobs($1::int, $2::bigint, $3::bigint[])"
"""Deletes jobs with everything that belongs to them; returns the endings to notify children of."""

_HOLD = "SELECT * FROM $schema.hold_ids($1::int, $2::text[], $3::boolean)"
_NOTED = 29
"""The position of `noted` in a row of the SQL type `kept`."""


class LockedJob(NamedTuple):
    """A job whose row is locked: as read, as it is to be written, and what is written with it."""

    before: Job
    after: Job
    noted: bool
    place: int | None = None
    events: tuple[Event, ...] = ()
    forgets: bool = False


def lock_flow(
    context: CallContext, jobs: Sequence[NewJob | Job], queues: QueueSet, ids: Collection[str] = ()
) -> Script[bool]:
    """Lock the domains of the queues, of the jobs' parents and of the jobs with these ids, if one
    of them has flow control. Returns whether they are locked.

    A caller's transaction also notifies the children of jobs that end in it, so it also locks the
    domains of all jobs that depend on these."""
    parents = {id_ for job in jobs for id_ in job.after}
    needed = bool(context.effects.locks or parents or queues.laned)
    needed = needed or any(job.group is not None for job in jobs)
    is_final = context.effects.is_final
    if is_final and not needed:
        keyed = [
            (queues.number(job.queue), job.key) for job in jobs if job.key and job.queue in queues
        ]
        needed = yield from have_flow(context, ids, keyed)
    if not needed:
        return False
    involved = parents.union(ids)
    found = yield from lanes.queues_of(context, involved)
    if is_final:
        ending = {*ids, *(job.id for job in jobs)}
        found |= yield from lanes.queues_below(context, ending)
    unread = {name for name in found.values() if name is not None and name not in queues}
    if unread:
        queues.add((yield from read_queues(context, unread)))
    # Jobs of a dropped queue still have its domain.
    numbers = queues.numbers.union(found)
    yield from lanes.lock(numbers)
    if is_final:
        # A job that arrived or moved before the lock may be in a queue that is not locked.
        found = yield from lanes.queues_of(context, involved)
        found |= yield from lanes.queues_below(context, ending)
        if not numbers.issuperset(found):
            raise Restart
    return True


def have_flow(
    context: CallContext, ids: Iterable[str], keys: Iterable[tuple[int, str]] = ()
) -> Script[bool]:
    """Whether one of the jobs with these ids, or a holder of these keys, has flow control. Rows are
    not locked."""
    values = (context.ns, list(ids), *columns(keys, 2))
    return bool(only_value((yield Statement(_HAVE_FLOW, values))))


def lock_jobs(
    context: CallContext, ids: Iterable[str], *, with_payload: bool
) -> Script[dict[str, LockedJob]]:
    """Lock the rows of these jobs in the order of seq, and read them."""
    rows = yield Statement(_HOLD, (context.ns, list(ids), with_payload))
    return {row[0]: LockedJob(job := locked_job(row), job, row[_NOTED]) for row in rows}


def add_queues(
    context: CallContext, queues: QueueSet, names: Iterable[str], *, locked: bool
) -> Script[None]:
    """Add queues that locked jobs were moved to. Queues are locked before jobs, so the script
    starts again with them; if it cannot, their locks must be free and they must have no lanes."""
    unread = {name for name in names if name not in queues}
    if not unread:
        return
    if locked or not context.effects.is_final:
        context.effects.queues |= unread
        context.effects.locks = True
        raise Restart
    further = yield from read_queues(context, unread, lock="try")
    if further.laned:
        raise Restart
    queues.add(further)


def with_change(job: LockedJob, change: Change, numbers: Iterator[int]) -> LockedJob:
    """The job after one more change; a change to the tail of the queue takes a new place."""
    event = () if change.event is None else (checks.clean_event(change.event),)
    return job._replace(
        after=change.job,
        place=next(numbers) if change.tail else job.place,
        events=job.events + event,
        forgets=job.forgets or change.forgets,
    )


def draw_numbers(context: CallContext, count: int) -> Script[tuple[int, Iterator[int]]]:
    """The instant of the call, and ascending numbers for arrivals and places."""
    ((now, numbers),) = yield Statement(_DRAW, (context.given_ms, count))
    return now, iter(numbers)


def job_columns(
    jobs: Sequence[NewJob], queue_expiries: Collection[str] = ()
) -> tuple[list[Any], ...]:
    """The columns of jobs: ids, tasks, payloads and so on. A column with only default values is
    sent empty, which means the same and costs less. `queue_expiries` are the ids of those that
    expire by the setting of their queue.
    """
    return (
        [job.id for job in jobs],
        [job.task for job in jobs],
        [job.payload for job in jobs],
        _unless_all([-job.priority for job in jobs], 0),
        _unless_all([job.delay_ms for job in jobs], 0),
        _unless_all([job.expires_ms for job in jobs], None),
        _unless_all([job.key for job in jobs], None),
        _unless_all([job.tenant for job in jobs], None),
        _unless_all([job.group for job in jobs], None),
        _unless_all([job.overrides.lease_ms for job in jobs], None),
        _unless_all([extra_of(job, queue_expiry=job.id in queue_expiries) for job in jobs], None),
    )


def _unless_all(column: list[Any], default: object) -> list[Any]:
    """The column, or an empty one if it holds only the default."""
    return [] if column.count(default) == len(column) else column


def add_jobs(
    context: CallContext,
    now: int,
    added: dict[int, NewJob],
    queues: QueueSet,
    parent_counts: dict[int, int],
) -> Script[None]:
    """Insert admitted jobs, given by number, with how many parents each of them waits for."""
    spots = {number: queues.spot(job) for number, job in added.items()}
    lane_numbers = yield from lanes.resolve(context, spots.values())
    # New ids are locked in their order.
    ordered = sorted(added.items(), key=lambda entry: entry[1].id)
    for chunk in chunks(ordered, lambda entry: len(entry[1].payload)):
        jobs = [job for _, job in chunk]
        expiring = {job.id: _queue_expiry_ms(job, queues) for job in jobs}
        expiring = {id_: ms for id_, ms in expiring.items() if ms is not None}
        jobs = [
            replace(job, expires_ms=expiring[job.id]) if job.id in expiring else job for job in jobs
        ]
        names = sorted({job.queue for job in jobs})
        refs = {name: position for position, name in enumerate(names, 1)}
        values = (
            context.ns, now, [queues.number(name) for name in names],
            [refs[job.queue] for job in jobs] if len(names) > 1 else [],
            [number for number, _ in chunk], *job_columns(jobs, expiring),
            _unless_all([_lane(spots[number], lane_numbers) for number, _ in chunk], None),
            _unless_all(
                [_flow(job, spots[number], parent_counts.get(number, 0)) for number, job in chunk],
                0,
            ),
            _unless_all(
                [parent_counts.get(number, 0) + (job.group is not None) for number, job in chunk],
                0,
            ),
        )  # fmt: skip
        yield Statement(_ADD, values)


def _queue_expiry_ms(job: NewJob, queues: QueueSet) -> int | None:
    """When the job expires by the setting of its queue, from now; None if it does not."""
    queue = queues.find(job.queue)
    if queue is None or queue.expires_ms is None or not inherits_expiry(job, queue):
        return None
    return job.delay_ms + queue.expires_ms


def _lane(spot: LaneSpot | None, lane_numbers: dict[LaneSpot, int]) -> int | None:
    return None if spot is None else lane_numbers[spot]


def _flow(job: NewJob, spot: LaneSpot | None, parents: int) -> int:
    """The column `flow` of a new job. One in a group is behind until the group exposes it."""
    grouped = (HAS_GROUP | IS_BEHIND) * (job.group is not None)
    return HAS_LANE * (spot is not None) | grouped | HAS_PARENTS * bool(parents)


def rewrite(
    context: CallContext, jobs: Iterable[LockedJob], queues: QueueSet, *, now: int, locked: bool
) -> Script[None]:
    """Write changed jobs back, each on the version that was read, and their events. `locked` is
    true if the flow locks are held.
    """
    changed = [_with_queue_expiry(job, queues) for job in jobs if job.after is not job.before]
    spots = [queues.spot(job.after) for job in changed]
    if any(spots) and not locked:
        context.effects.locks = True
        raise Restart
    lane_numbers = yield from lanes.resolve(context, spots)
    rows = [(job, _lane(spot, lane_numbers)) for job, spot in zip(changed, spots, strict=True)]
    for chunk in chunks(rows, lambda entry: len(entry[0].after.result or b"")):
        values = columns((_row(job, lane, queues) for job, lane in chunk), _REWRITE_COLUMNS)
        endings = only_value((yield Statement(_REWRITE, (context.ns, now, locked, *values))))
        if endings is None:
            # A job was changed by another call, or turned out to have flow control.
            context.effects.locks = True
            raise Restart
        context.effects.endings += endings
    bodies = [body for job in changed if (body := _changed_body(job)) is not None]
    for some_bodies in chunks(bodies, lambda body: len(body[-1] or b"")):
        yield Statement(_REWRITE_BODIES, (context.ns, *columns(some_bodies, 8)))
    forgetting = [job.before.seq for job in changed if job.forgets and job.noted]
    if forgetting:
        yield Statement(_CLEAR_NOTES, (forgetting,))
    events = [(job.before.seq, encode(event)) for job in changed for event in job.events]
    for some in chunks(events, lambda row: len(row[1])):
        yield Statement(_EVENTS, columns(some, 2))


def _with_queue_expiry(job: LockedJob, queues: QueueSet) -> LockedJob:
    queue = queues.find(job.after.queue)
    after = job.after if queue is None else with_queue_expiry(job.after, queue)
    return job if after is job.after else job._replace(after=after)


def _changed_body(locked: LockedJob) -> tuple[Any, ...] | None:
    """The columns of a body that has changed; the payload is NULL if it stays."""
    before, after = locked.before, locked.after
    payload = None if after.payload is before.payload else after.payload
    fields = _body_fields(after)
    if payload is None and fields == _body_fields(before):
        return None
    return (before.seq, *fields, payload)


def _body_fields(job: Job) -> tuple[Any, ...]:
    return (job.task, job.key, job.tenant, job.group, job.origin, extra_of(job))


_WRONG_EXPIRIES = """
SELECT j.seq, b.id, j.flow FROM $schema.jobs j
CROSS JOIN LATERAL (
    SELECT x.id, x.extra FROM $schema.bodies x WHERE x.ns = j.ns AND x.seq = j.seq OFFSET 0
) b
WHERE j.ns = $1::int AND j.seq > $3::bigint AND j.state = 0 AND j.queue = $2::int
  AND j.expires_at IS DISTINCT FROM j.due_at + $4::bigint
  AND (j.expires_at IS NULL OR convert_from(b.extra, 'UTF8')::jsonb ? 'queue_expiry')
ORDER BY j.seq LIMIT 500
"""


def correct_expiries(context: CallContext, name: str, after: int) -> Script[int | None]:
    """Give the next waiting jobs of a queue the expiry that its settings demand; returns the seq to
    continue after, None at the end."""
    queues = yield from read_queues(context, [name])
    queue = queues.find(name)
    if queue is None:
        return None
    values = (context.ns, queues.number(name), after, queue.expires_ms)
    found = yield Statement(_WRONG_EXPIRIES, values)
    if not found:
        return None
    locked = context.effects.locks or bool(queues.laned) or any(flow for *_, flow in found)
    if locked:
        yield from lanes.lock(queues.numbers)
    ids = [id_ for _, id_, _ in found]
    jobs = yield from lock_jobs(context, ids, with_payload=queues.reads_payload)
    now, _ = yield from draw_numbers(context, 0)
    changed = [
        job._replace(after=with_queue_expiry(job.before, queue))
        for job in jobs.values()
        if job.before.queue == name
    ]
    yield from rewrite(context, changed, queues, now=now, locked=locked)
    last: int = found[-1][0]
    return last


def _row(locked: LockedJob, lane: int | None, queues: QueueSet) -> tuple[Any, ...]:
    before, job = locked.before, locked.after
    return (
        before.seq, before.version, queues.number(job.queue), job.state_code, -job.priority,
        job.due_at, locked.place, job.expires_at, job.version, job.attempt, job.crashes,
        job.releases | ALONE_BIT * job.alone, job.token, job.deadline_at, job.finished_at,
        job.overrides.lease_ms, job.cancel_requested, locked.noted, job.task, job.tenant,
        job.group, job.reason and str(job.reason), job.result, job.fingerprint, lane,
    )  # fmt: skip
