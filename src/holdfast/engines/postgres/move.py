"""Exports and imports complete jobs of a database: see `core.transfer.Mover`.

A waiting job is added as a new one, so that lanes and groups count it, and gets its history in the
same transaction. A finished job affects no other: it is only a row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from holdfast.core import transfer
from holdfast.core.model import Job, NewJob, Receipt, State, Status
from holdfast.core.transfer import HeldKey, Stretch, Whole
from holdfast.engines.postgres import write
from holdfast.engines.postgres.flow import dependencies
from holdfast.engines.postgres.queues import QueueSet, read_queues
from holdfast.engines.postgres.rows import (
    ALONE_BIT,
    WHOLE_COLUMNS,
    columns,
    encode,
    extra_of,
    whole_job,
)
from holdfast.engines.postgres.script import CallContext, Restart, Script, Statement, chunks
from holdfast.engines.postgres.write import lock_flow

_SIZES = """
SELECT j.seq, octet_length(j.payload) + coalesce(octet_length(j.result), 0)
    + coalesce(octet_length(n.checkpoint) + octet_length(n.output), 0) + 1000
FROM $schema.all_jobs j LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.ns = $1::int AND j.seq > $2::bigint ORDER BY j.seq LIMIT $3::bigint
"""
_OLDEST = f"""
SELECT {WHOLE_COLUMNS},
    ARRAY(SELECT e.parent FROM $schema.edges e WHERE e.child = j.seq ORDER BY e.parent)
FROM $schema.all_jobs j
JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.ns = $1::int AND j.seq > $2::bigint AND j.seq <= $3::bigint ORDER BY j.seq
"""
_KNOWN = "SELECT * FROM $schema.known($1::int, $2::text[])"
_FILL = """
WITH bodies_ AS (
    UPDATE $schema.bodies b SET created_at = u.created_at, origin = u.origin, extra = u.extra
    FROM unnest($2::bigint[], $14::bigint[], $15::text[], $16::bytea[])
        AS u(seq, created_at, origin, extra)
    WHERE b.ns = $1::int AND b.seq = u.seq
)
UPDATE $schema.jobs j SET attempt = u.attempt, crashes = u.crashes, releases = u.releases,
    version = u.version, leased_at = u.leased_at, cancel = u.cancel, noted = u.noted,
    worker = u.worker, reason = u.reason, finished_at = u.finished_at, fingerprint = u.fingerprint
FROM unnest($2::bigint[], $3::int[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::boolean[],
            $9::boolean[], $10::text[], $11::text[], $12::bigint[], $13::text[])
    AS u(seq, attempt, crashes, releases, version, leased_at, cancel, noted, worker, reason,
         finished_at, fingerprint)
WHERE j.ns = $1::int AND j.seq = u.seq
"""
_ENDED_BODIES = """
INSERT INTO $schema.bodies (seq, ns, created_at, origin, extra, id, task, key, tenant, grp, payload)
SELECT u.seq, $1::int, u.created_at, u.origin, u.extra, u.id, u.task, u.key, u.tenant, u.grp,
    u.payload
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[],
            $8::text[], $9::text[], $10::text[], $11::bytea[])
    AS u(seq, created_at, origin, extra, id, task, key, tenant, grp, payload)
ON CONFLICT (id, ns) DO NOTHING RETURNING seq
"""
_ENDED = """
WITH ended AS (
    SELECT * FROM unnest($2::bigint[], $3::int[], $4::int[], $5::int[], $6::int[], $7::bigint[],
            $8::boolean[], $9::boolean[], $10::text[], $11::text[], $12::bigint[], $13::text[],
            $14::int[], $15::smallint[], $16::smallint[], $17::smallint[], $18::bigint[],
            $19::bigint[], $20::bigint[], $21::text[], $22::text[], $23::text[], $24::bytea[])
    AS u(seq, attempt, crashes, releases, version, leased_at, cancel, noted, worker, reason,
         finished_at, fingerprint, queue, state, flow, rank, due_at, expires_at, lease_ms, task,
         tenant, grp, result)
), done_ AS (
    INSERT INTO $schema.done (seq, ns, queue, due_at, expires_at, leased_at, finished_at, attempt,
        crashes, releases, version, rank, cancel, noted, worker, result)
    SELECT e.seq, $1::int, e.queue, e.due_at, e.expires_at, e.leased_at, e.finished_at, e.attempt,
        e.crashes, e.releases, e.version, e.rank, e.cancel, e.noted, e.worker, e.result
    FROM ended e WHERE e.state = 2
)
INSERT INTO $schema.jobs (seq, place, ns, queue, state, flow, attempt, crashes, releases, version,
    leased_at, cancel, noted, worker, reason, rank, due_at, expires_at, finished_at, lease_ms, task,
    tenant, grp, fingerprint)
SELECT e.seq, e.seq, $1::int, e.queue, e.state, e.flow, e.attempt, e.crashes, e.releases, e.version,
    e.leased_at, e.cancel, e.noted, e.worker, e.reason, e.rank, e.due_at, e.expires_at,
    e.finished_at, e.lease_ms, e.task, e.tenant, e.grp, e.fingerprint
FROM ended e WHERE e.state <> 2
"""
_NOTES = """
INSERT INTO $schema.notes (job, progress, checkpoint, output)
SELECT * FROM unnest($1::bigint[], $2::float8[], $3::bytea[], $4::bytea[])
"""
_EVENTS = """
INSERT INTO $schema.events (job, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])
"""
# Children may have been moved before their parent, or wait for a deleted one.
_RECOGNISE = "SELECT $schema.recognise($1::int, $2::text[])"
_AWAIT = """
INSERT INTO $schema.awaited (ns, parent) SELECT $1::int, w.id FROM unnest($2::text[]) AS w(id)
WHERE NOT EXISTS (SELECT FROM $schema.bodies b WHERE b.id = w.id AND b.ns = $1::int)
ON CONFLICT DO NOTHING
"""
_KEYS = """
SELECT k.key, k.id, k.until_at FROM $schema.keys k
WHERE k.queue = (SELECT q.number FROM $schema.queues q WHERE q.ns = $1::int AND q.name = $2::text)
  AND k.key > $3::text ORDER BY k.key LIMIT $4::bigint
"""
_HOLD = """
INSERT INTO $schema.keys (ns, queue, key, id, until_at, look_at)
SELECT $1::int, q.number, u.key, u.id, u.until_at, u.until_at
FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS u(queue, key, id, until_at)
JOIN $schema.queues q ON q.ns = $1::int AND q.name = u.queue
ORDER BY q.number, u.key COLLATE "C"
ON CONFLICT (queue, key) DO UPDATE
SET id = excluded.id, until_at = excluded.until_at, look_at = excluded.look_at
"""

RunScript = Callable[..., Awaitable[Any]]


class PostgresMover:
    """Copies jobs and keys; `read` and `run` run a script on a connection of the engine."""

    def __init__(self, read: RunScript, run: RunScript) -> None:
        self._read = read
        self._run = run

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        """Complete jobs, in order of arrival."""
        stretch: Stretch = await self._read(
            partial(_jobs, after=after, limit=limit, bytes_max=bytes_max)
        )
        return stretch

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        """Add jobs unchanged; returns a receipt for each."""
        receipts: list[Receipt] = await self._run(_adopt, wholes)
        return receipts

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        """The once-only keys of a queue, by key."""
        held: list[HeldKey] = await self._read(
            partial(_keys, queue=queue, after=after, limit=limit)
        )
        return held

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        """Write keys with their holders."""
        await self._run(_hold, keys)


def _jobs(context: CallContext, after: int, limit: int, bytes_max: int) -> Script[Stretch]:
    sizes = yield Statement(_SIZES, (context.ns, after, limit), alone=True)
    total = count = 0
    for _, size in sizes:
        count += 1
        total += size
        if total >= bytes_max:
            break
    if not count:
        return Stretch((), None)
    last = sizes[count - 1][0]
    rows = yield Statement(_OLDEST, (context.ns, after, last), alone=True)
    wholes = tuple(Whole(whole_job(row), tuple(row[34])) for row in rows)
    return Stretch(wholes, last if count < len(sizes) or count >= limit else None)


def _adopt(context: CallContext, wholes: Sequence[Whole]) -> Script[list[Receipt]]:
    queues = yield from read_queues(context, {whole.job.queue for whole in wholes})
    refused = {
        whole.job.id: refusal
        for whole in wholes
        if (refusal := transfer.refusal(whole.job, is_known_queue=whole.job.queue in queues))
    }
    accepted = [whole for whole in wholes if whole.job.id not in refused]
    yield from lock_flow(context, [whole.job for whole in accepted], queues)
    ids = [whole.job.id for whole in accepted]
    awaited = {parent for whole in accepted for parent in whole.awaits}
    yield from dependencies.lock_parents(context, awaited)
    known = {row[0] for row in (yield Statement(_KNOWN, (context.ns, ids)))}
    new = [whole for whole in accepted if whole.job.id not in known]
    now, numbers = yield from write.draw_numbers(context, len(new))
    numbered = [Whole(replace(whole.job, seq=next(numbers)), whole.awaits) for whole in new]
    yield from _add(context, now, numbered, queues)
    yield from _add_history(context, numbered)
    return [
        refused.get(whole.job.id)
        or Receipt(
            id=whole.job.id,
            status=Status.DUPLICATE if whole.job.id in known else Status.NEW,
        )
        for whole in wholes
    ]


def _add(context: CallContext, now: int, wholes: Sequence[Whole], queues: QueueSet) -> Script[None]:
    """Insert waiting and finished jobs in id order, because new ids are locked in that order."""
    ordered = sorted(wholes, key=lambda whole: whole.job.id)
    for waits, run in groupby(ordered, lambda whole: whole.job.state is State.WAITING):
        if waits:
            yield from _add_waiting(context, now, list(run), queues)
            continue
        for chunk in chunks((whole.job for whole in run), transfer.bytes_of):
            bodies = columns(map(_body, chunk), 10)
            if len((yield Statement(_ENDED_BODIES, (context.ns, *bodies)))) < len(chunk):
                # Another call added one of them since the known ids were read.
                raise Restart
            values = columns((_row(job, queues) for job in chunk), 23)
            yield Statement(_ENDED, (context.ns, *values))


def _add_waiting(
    context: CallContext, now: int, wholes: Sequence[Whole], queues: QueueSet
) -> Script[None]:
    added = {whole.job.seq: _as_new(whole.job, now) for whole in wholes}
    parents = {whole.job.seq: len(whole.awaits) for whole in wholes}
    yield from write.add_jobs(context, now, added, queues, parents)
    jobs = [whole.job for whole in wholes]
    rows = ((*_history(job), *_origin(job)) for job in jobs)
    yield Statement(_FILL, (context.ns, *columns(rows, 15)))


def _add_history(context: CallContext, wholes: Sequence[Whole]) -> Script[None]:
    """Insert notes, events and edges of jobs that were added."""
    jobs = [whole.job for whole in wholes]
    notes = [(job.seq, job.progress, job.checkpoint, job.output) for job in jobs if _is_noted(job)]
    for chunk in chunks(notes, lambda row: len(row[2] or b"") + len(row[3] or b"")):
        yield Statement(_NOTES, columns(chunk, 4))
    events = [(job.seq, encode(event)) for job in jobs for event in job.events]
    for some in chunks(events, lambda row: len(row[1])):
        yield Statement(_EVENTS, columns(some, 2))
    if jobs:
        yield Statement(_RECOGNISE, (context.ns, [job.id for job in jobs]))
    yield from dependencies.link(context, [(whole.job, whole.awaits) for whole in wholes])
    awaited = sorted({parent for whole in wholes for parent in whole.awaits})
    if awaited:
        yield Statement(_AWAIT, (context.ns, awaited))


def _as_new(job: Job, now: int) -> NewJob:
    """The fields that decide the place of a waiting job."""
    return NewJob(
        id=job.id, task=job.task, queue=job.queue, payload=job.payload,
        content_type=job.content_type, priority=job.priority, delay_ms=job.due_at - now,
        expires_ms=None if job.expires_at is None else job.expires_at - now, key=job.key,
        tenant=job.tenant, group=job.group, labels=job.labels, headers=job.headers,
        overrides=job.overrides, after=job.after, after_on=job.after_on,
        parent_death=job.parent_death,
    )  # fmt: skip


def _history(job: Job) -> tuple[Any, ...]:
    """The columns that a new job would not have."""
    return (
        job.seq, job.attempt, job.crashes, job.releases | ALONE_BIT * job.alone, job.version,
        job.leased_at, job.cancel_requested, _is_noted(job), job.worker,
        job.reason and str(job.reason), job.finished_at, job.fingerprint,
    )  # fmt: skip


def _origin(job: Job) -> tuple[Any, ...]:
    """The columns of a body that a new job would not have."""
    return (job.created_at, job.origin, extra_of(job))


def _body(job: Job) -> tuple[Any, ...]:
    return (
        job.seq, *_origin(job), job.id, job.task, job.key, job.tenant, job.group, job.payload,
    )  # fmt: skip


def _row(job: Job, queues: QueueSet) -> tuple[Any, ...]:
    grouped = write.HAS_GROUP * (job.group is not None)
    return (
        *_history(job), queues.number(job.queue), job.state_code,
        grouped | write.HAS_PARENTS * bool(job.after), -job.priority, job.due_at, job.expires_at,
        job.overrides.lease_ms, job.task, job.tenant, job.group, job.result,
    )  # fmt: skip


def _is_noted(job: Job) -> bool:
    return (job.progress, job.checkpoint, job.output) != (None, None, None)


def _keys(context: CallContext, queue: str, after: str, limit: int) -> Script[list[HeldKey]]:
    rows = yield Statement(_KEYS, (context.ns, queue, after, limit), alone=True)
    return [HeldKey(queue, key, id_, until) for key, id_, until in rows]


def _hold(context: CallContext, keys: Sequence[HeldKey]) -> Script[None]:
    rows = [(held.queue, held.key, held.id, held.until_at) for held in keys]
    yield Statement(_HOLD, (context.ns, *columns(rows, 4)))
