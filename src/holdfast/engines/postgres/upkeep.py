"""Upkeep: reads of overdue leases and of expired and finished jobs, and recounts of flow-control
counters.
"""

from __future__ import annotations

from holdfast.core.model import Job, Lease
from holdfast.engines.base import Expired, Overdue
from holdfast.engines.extras import Examination
from holdfast.engines.postgres.queues import purge
from holdfast.engines.postgres.rows import BARE_COLUMNS, WHOLE_COLUMNS, brief_job, whole_job
from holdfast.engines.postgres.script import CallContext, Script, Statement, only_value

KEYS_BATCH = 1_000

_NOW = "SELECT $schema.now_ms($1::bigint)"
_EXAMINE = """
SELECT $schema.now_ms($1::bigint), current_setting('server_version'),
    current_setting('synchronous_commit'), current_setting('fsync')
"""
_BODY = """
CROSS JOIN LATERAL (
    SELECT * FROM $schema.all_jobs x WHERE x.ns = $1::int AND x.seq = f.seq OFFSET 0
) j"""
_OVERDUE = f"""
SELECT {BARE_COLUMNS} FROM (
    SELECT x.seq FROM $schema.queues w CROSS JOIN LATERAL (
        SELECT y.seq, y.deadline_at FROM $schema.jobs y
        WHERE y.ns = $1::int AND y.queue = w.number AND y.state IN (1, 5)
          AND y.deadline_at <= $2::bigint
        ORDER BY y.deadline_at, y.seq LIMIT $3::bigint
    ) x
    WHERE w.ns = $1::int AND w.name IS NOT NULL
    ORDER BY x.deadline_at, x.seq LIMIT $3::bigint
) f {_BODY} JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
ORDER BY j.deadline_at, j.seq
"""
_NEXT_DEADLINE = """
SELECT min(x.deadline_at) FROM $schema.queues w CROSS JOIN LATERAL (
    SELECT y.deadline_at FROM $schema.jobs y
    WHERE y.ns = $1::int AND y.queue = w.number AND y.state IN (1, 5) AND y.deadline_at > $2::bigint
    ORDER BY y.deadline_at LIMIT 1
) x
WHERE w.ns = $1::int
"""
_EXPIRED = f"""
SELECT {BARE_COLUMNS} FROM (
    SELECT x.seq FROM $schema.jobs x
    WHERE x.ns = $1::int AND x.state = 0 AND x.expires_at <= $2::bigint
    ORDER BY x.expires_at, x.seq LIMIT $3::bigint
) f {_BODY} JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
ORDER BY j.expires_at, j.seq
"""
_NEXT_EXPIRY = """
SELECT expires_at FROM $schema.jobs
WHERE ns = $1::int AND state = 0 AND expires_at > $2::bigint ORDER BY expires_at, seq LIMIT 1
"""
_FINISHED = f"""
SELECT {WHOLE_COLUMNS} FROM (
    SELECT p.seq, p.finished_at
    FROM $schema.queues x CROSS JOIN LATERAL (
        (SELECT y.seq, y.finished_at FROM $schema.done y
         WHERE y.queue = x.number AND y.finished_at <= $2::bigint - x.retention_ms
         ORDER BY y.finished_at, y.seq LIMIT $3::bigint)
        UNION ALL
        (SELECT y.seq, y.finished_at FROM $schema.bodies y
         WHERE y.queue = x.number AND y.state = 2
           AND y.finished_at <= $2::bigint - x.retention_ms
         ORDER BY y.finished_at, y.seq LIMIT $3::bigint)
        UNION ALL
        (SELECT y.seq, y.finished_at FROM $schema.jobs y
         WHERE y.queue = x.number AND y.state = 3
           AND y.finished_at <= $2::bigint - x.dead_retention_ms
         ORDER BY y.finished_at, y.seq LIMIT $3::bigint)
        UNION ALL
        (SELECT y.seq, y.finished_at FROM $schema.jobs y
         WHERE y.queue = x.number AND y.state = 4
           AND y.finished_at <= $2::bigint - x.retention_ms
         ORDER BY y.finished_at, y.seq LIMIT $3::bigint)
    ) p
    WHERE x.ns = $1::int AND x.name IS NOT NULL
    ORDER BY p.finished_at, p.seq LIMIT $3::bigint
) f {_BODY}
JOIN $schema.queues q ON q.number = j.queue
LEFT JOIN $schema.notes n ON n.job = j.seq
ORDER BY f.finished_at, f.seq
"""
_FREE_KEYS = "SELECT $schema.remove_keys($1::int, $2::bigint, $3::int)"
_DROPPED = "SELECT number FROM $schema.queues WHERE ns = $1::int AND name IS NULL"
_DELETE_QUEUE = """
DELETE FROM $schema.queues
WHERE number = $1::int AND name IS NULL AND removed_at < $schema.now_ms(NULL) - 86400000
"""
_RECOUNT_SLOTS = "SELECT $schema.recount_slots($1::int, $2::int)"
_RECOUNT_PARKS = "SELECT $schema.recount_parks($1::int, $2::int)"
_RECOUNT_LANES = "SELECT $schema.recount_lanes($1::int, $2::int)"
_RECOUNT_HEADS = (
    "SELECT count_, next_ FROM $schema.recount_heads($1::int, $2::bigint, $3::int, $4::int)"
)
_RECOUNT_GROUPS = """
SELECT count_, next_queue, next_grp
FROM $schema.recount_groups($1::int, $2::bigint, $3::int, $4::text, $5::int)
"""
_UNTOLD_ENDINGS = "SELECT * FROM $schema.untold($1::int, $2::int)"
_PRUNE_FLOW = "SELECT $schema.prune_lanes($1::int, $2::bigint, $3::int)"


def overdue(context: CallContext, limit: int) -> Script[Overdue]:
    """Leases past their deadline, the earliest first, and the time to the next deadline."""
    now: int = only_value((yield Statement(_NOW, (context.given_ms,), alone=True)))
    rows = yield Statement(_OVERDUE, (context.ns, now, limit), alone=True)
    jobs = [brief_job(row) for row in rows]
    leases = tuple(Lease(job=job, token=job.token or 0, lease_ms=0) for job in jobs)
    if len(leases) >= limit:
        return Overdue(leases=leases, next_ms=0)
    next_at = only_value((yield Statement(_NEXT_DEADLINE, (context.ns, now), alone=True)))
    return Overdue(leases=leases, next_ms=None if next_at is None else next_at - now)


def expired(context: CallContext, limit: int) -> Script[Expired]:
    """Waiting jobs past their expiry, the earliest first, and the time to the next expiry."""
    now: int = only_value((yield Statement(_NOW, (context.given_ms,), alone=True)))
    rows = yield Statement(_EXPIRED, (context.ns, now, limit), alone=True)
    jobs = tuple(brief_job(row) for row in rows)
    if len(jobs) >= limit:
        return Expired(jobs=jobs, next_ms=0)
    following = yield Statement(_NEXT_EXPIRY, (context.ns, now), alone=True)
    return Expired(jobs=jobs, next_ms=only_value(following) - now if following else None)


def finished(context: CallContext, limit: int) -> Script[list[Job]]:
    """Jobs past retention, the earliest first. Also removes free keys and leftover rows of dropped
    queues, a bounded number at a time.
    """
    now: int = only_value((yield Statement(_NOW, (context.given_ms,), alone=True)))
    rows = yield Statement(_FINISHED, (context.ns, now, limit), alone=True)
    yield Statement(_FREE_KEYS, (context.ns, now, KEYS_BATCH), alone=True)
    for (number,) in (yield Statement(_DROPPED, (context.ns,), alone=True)):
        if not (yield from purge(context, number)):
            # Kept for a day, for calls that read the queue before it was dropped.
            yield Statement(_DELETE_QUEUE, (number,), alone=True)
    return [whole_job(row) for row in rows]


def examine(context: CallContext) -> Script[Examination]:
    """The server's clock and version, and settings that can lose jobs."""
    [[now, version, commit, fsync]] = yield Statement(_EXAMINE, (context.given_ms,))
    trouble = []
    if fsync != "on":
        trouble.append("the server runs with fsync off: a crash of its machine loses jobs")
    if commit == "off":
        trouble.append("synchronous_commit is off: a crash of the server loses the last jobs")
    return Examination(now=now, versions={"PostgreSQL": version}, trouble=tuple(trouble))


class RecountProgress:
    """The position after the last recount; `untold` counts the endings of which children were not
    notified.
    """

    def __init__(self) -> None:
        self.untold = 0
        self.lane = 0
        self.group: tuple[int, str] = (0, "")


def recount(context: CallContext, progress: RecountProgress, limit: int) -> Script[int]:
    """Repair slots, parked lanes, lanes, heads and groups; returns how many were wrong. Endings of
    which the children were not notified are left to the engine as effects.
    """
    repaired: int = only_value((yield Statement(_RECOUNT_SLOTS, (context.ns, limit), alone=True)))
    repaired += only_value((yield Statement(_RECOUNT_PARKS, (context.ns, limit), alone=True)))
    repaired += only_value((yield Statement(_RECOUNT_LANES, (context.ns, limit), alone=True)))
    values = (context.ns, context.given_ms, progress.lane, limit)
    ((count, lane),) = yield Statement(_RECOUNT_HEADS, values, alone=True)
    repaired += count
    progress.lane = lane or 0
    groups = (context.ns, context.given_ms, *progress.group, limit)
    ((count, queue, group),) = yield Statement(_RECOUNT_GROUPS, groups, alone=True)
    repaired += count
    progress.group = (0, "") if queue is None else (queue, group)
    left = yield from untold_endings(context, limit)
    yield Statement(_PRUNE_FLOW, (context.ns, context.given_ms, limit), alone=True)
    progress.untold = len(left)
    context.effects.endings += left
    return repaired + len(left)


def untold_endings(context: CallContext, limit: int) -> Script[list[int]]:
    """Endings of which the children were not notified in time: the process that had to has died."""
    return [row[0] for row in (yield Statement(_UNTOLD_ENDINGS, (context.ns, limit), alone=True))]
