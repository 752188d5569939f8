"""What reaper and pruner ask for: lapsed leases, expired jobs, finished jobs past retention."""

from __future__ import annotations

from holdfast.core.model import Job, Lease
from holdfast.engines.base import Examination, Expired, Overdue
from holdfast.engines.postgres.queues import purge
from holdfast.engines.postgres.rows import BARE, WHOLE, brief_job, whole_job
from holdfast.engines.postgres.steps import Ask, Steps, Store, only

KEYS_BATCH = 1_000

_NOW = "SELECT $schema.now_ms($1::bigint)"
_EXAMINE = """
SELECT $schema.now_ms($1::bigint), current_setting('server_version'),
    current_setting('synchronous_commit'), current_setting('fsync')
"""
_OVERDUE = f"""
SELECT {BARE} FROM (
    SELECT * FROM $schema.jobs j
    WHERE j.ns = $1::int AND j.state = 1 AND j.deadline_at <= $2::bigint
    ORDER BY j.deadline_at, j.seq LIMIT $3::bigint
) j JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
ORDER BY j.deadline_at, j.seq
"""
_NEXT_DEADLINE = """
SELECT deadline_at FROM $schema.jobs
WHERE ns = $1::int AND state = 1 AND deadline_at > $2::bigint ORDER BY deadline_at, seq LIMIT 1
"""
_EXPIRED = f"""
SELECT {BARE} FROM (
    SELECT * FROM $schema.jobs j
    WHERE j.ns = $1::int AND j.state = 0 AND j.expires_at <= $2::bigint
    ORDER BY j.expires_at, j.seq LIMIT $3::bigint
) j JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
ORDER BY j.expires_at, j.seq
"""
_NEXT_EXPIRY = """
SELECT expires_at FROM $schema.jobs
WHERE ns = $1::int AND state = 0 AND expires_at > $2::bigint ORDER BY expires_at, seq LIMIT 1
"""
_FINISHED = f"""
SELECT {WHOLE} FROM (
    SELECT p.seq, p.finished_at
    FROM $schema.queues x CROSS JOIN (VALUES (2), (3), (4)) s(state) CROSS JOIN LATERAL (
        SELECT y.seq, y.finished_at FROM $schema.jobs y
        WHERE y.queue = x.number AND y.state >= 2 AND y.state = s.state AND y.finished_at
            <= $2::bigint - CASE s.state WHEN 3 THEN x.dead_retention_ms ELSE x.retention_ms END
        ORDER BY y.finished_at, y.seq LIMIT $3::bigint
    ) p
    WHERE x.ns = $1::int AND x.name IS NOT NULL
    ORDER BY p.finished_at, p.seq LIMIT $3::bigint
) f
JOIN $schema.jobs j ON j.ns = $1::int AND j.seq = f.seq
JOIN $schema.queues q ON q.number = j.queue
LEFT JOIN $schema.notes n ON n.job = j.seq
ORDER BY f.finished_at, f.seq
"""
_FREE_KEYS = "SELECT $schema.free_keys($1::int, $2::bigint, $3::int)"
_DROPPED = "SELECT number FROM $schema.queues WHERE ns = $1::int AND name IS NULL"
_FORGET = """
DELETE FROM $schema.queues
WHERE number = $1::int AND name IS NULL AND dropped_at < $schema.now_ms(NULL) - 86400000
"""


def overdue(store: Store, limit: int) -> Steps[Overdue]:
    now: int = only((yield Ask(_NOW, (store.given_ms,), alone=True)))
    rows = yield Ask(_OVERDUE, (store.ns, now, limit), alone=True)
    jobs = [brief_job(row) for row in rows]
    leases = tuple(Lease(job=job, token=job.token or 0, lease_ms=0) for job in jobs)
    if len(leases) >= limit:
        return Overdue(leases=leases, next_ms=0)
    ahead = yield Ask(_NEXT_DEADLINE, (store.ns, now), alone=True)
    return Overdue(leases=leases, next_ms=only(ahead) - now if ahead else None)


def expired(store: Store, limit: int) -> Steps[Expired]:
    now: int = only((yield Ask(_NOW, (store.given_ms,), alone=True)))
    rows = yield Ask(_EXPIRED, (store.ns, now, limit), alone=True)
    jobs = tuple(brief_job(row) for row in rows)
    if len(jobs) >= limit:
        return Expired(jobs=jobs, next_ms=0)
    ahead = yield Ask(_NEXT_EXPIRY, (store.ns, now), alone=True)
    return Expired(jobs=jobs, next_ms=only(ahead) - now if ahead else None)


def finished(store: Store, limit: int) -> Steps[list[Job]]:
    """Also lets go of free keys and of what dropped queues left, a bounded number at a time."""
    now: int = only((yield Ask(_NOW, (store.given_ms,), alone=True)))
    rows = yield Ask(_FINISHED, (store.ns, now, limit), alone=True)
    yield Ask(_FREE_KEYS, (store.ns, now, KEYS_BATCH), alone=True)
    for (number,) in (yield Ask(_DROPPED, (store.ns,), alone=True)):
        if not (yield from purge(store, number)):
            # A call that read the queue before it was dropped may still be on its way: a day later
            # it is not.
            yield Ask(_FORGET, (number,), alone=True)
    return [whole_job(row) for row in rows]


def examine(store: Store) -> Steps[Examination]:
    """The server's clock, its version, and whether it keeps what it promised."""
    [[now, version, commit, sync]] = yield Ask(_EXAMINE, (store.given_ms,))
    trouble = []
    if sync != "on":
        trouble.append("the server runs with fsync off: a crash of its machine loses jobs")
    if commit == "off":
        trouble.append("synchronous_commit is off: a crash of the server loses the last jobs")
    return Examination(now=now, versions={"PostgreSQL": version}, trouble=tuple(trouble))
