"""Reads the state of a queue's limits and tenants, and what one waiting job waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core import bounds, checks, fairness, limits
from holdfast.core.fairness import TenantView
from holdfast.core.lanes import lane_of
from holdfast.core.limits import Limit, Slot, SlotKey
from holdfast.core.model import Flow, Queue, State, Waits
from holdfast.engines.postgres.queues import read_queues
from holdfast.engines.postgres.rows import WHOLE_COLUMNS, whole_job
from holdfast.engines.postgres.script import CallContext, Row, Script, Statement, only_value

HOLDERS_MAX = 20
PARENTS_SHOWN_MAX = 100

_NOW = "SELECT $schema.now_ms($1::bigint), $schema.micros($1::bigint)"
_SLOTS = "SELECT * FROM $schema.slots_shown($1::int, $2::text[], $3::text[], $4::int)"
_NEEDED = "SELECT * FROM $schema.slots_needed($1::int, $2::int, $3::text[], $4::int, $5::int)"
_TENANTS = "SELECT * FROM $schema.tenants_shown($1::int, $2::int, $3::bigint, $4::int)"
_PENDING = """
SELECT at, tenants, took_ms FROM $schema.freed
WHERE queue = $1::int AND tenants IS NOT NULL ORDER BY number
"""
_JOB = f"""
SELECT {WHOLE_COLUMNS} FROM $schema.all_jobs j
JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.id = $2::text AND j.ns + 0 = $1::int
"""
_WAITS = "SELECT * FROM $schema.waits_shown($1::int, $2::bigint)"


def read_flow(context: CallContext, name: str, *, limit: int) -> Script[Flow]:
    """The slots and tenants of a queue."""
    queues = yield from read_queues(context, [name] if bounds.QUEUE_NAME.match(name) else [])
    queue = queues.find(name)
    if queue is None:
        raise checks.unknown_queue(name)
    slots: tuple[Slot, ...] = ()
    number = queues.number(name)
    if queue.limits:
        names = [each.name for each in queue.limits]
        rows = yield Statement(_NEEDED, (context.ns, number, names, bounds.SCAN_MAX, limit))
        slots = yield from _read_slots(context, queue, [SlotKey(*row) for row in rows])
    tenants = yield from _read_tenants(context, queue, number)
    return Flow(slots=slots, tenants=tuple(tenants[:limit]))


def read_waits(context: CallContext, id: str) -> Script[Waits | None]:
    """The parents, group head, slots and tenant that a job waits for; None if it does not wait."""
    rows = yield Statement(_JOB, (context.ns, id))
    job = whole_job(rows[0]) if rows else None
    if job is None or job.state is not State.WAITING:
        return None
    queues = yield from read_queues(context, [job.queue])
    queue = queues.find(job.queue)
    if queue is None:
        return None
    ((parents, head),) = yield Statement(_WAITS, (context.ns, job.seq))
    open_parents = set(parents)
    lane = lane_of(job, queue)
    slots = yield from _read_slots(context, queue, lane.slots if lane else ())
    tenants = yield from _read_tenants(context, queue, queues.number(job.queue))
    return Waits(
        parents=tuple(parent for parent in job.after if parent in open_parents)[:PARENTS_SHOWN_MAX],
        parent_count=len(open_parents),
        group_head=head,
        slots=slots,
        tenant=next((each for each in tenants if each.tenant == (job.tenant or "")), None),
    )


def _read_slots(
    context: CallContext, queue: Queue, keys: Sequence[SlotKey]
) -> Script[tuple[Slot, ...]]:
    if not keys:
        return ()
    ((_, now_us),) = yield Statement(_NOW, (context.given_ms,))
    values = (context.ns, [each.limit for each in keys], [each.key for each in keys], HOLDERS_MAX)
    rows = yield Statement(_SLOTS, values)
    bounds = {limit.name: limit for limit in queue.limits}
    return tuple(
        _slot(key, bounds[key.limit], row, now_us) for key, row in zip(keys, rows, strict=True)
    )


def _slot(key: SlotKey, limit: Limit, row: Row, now_us: int) -> Slot:
    used, free_us, holders = row
    rate = limit.rate
    free_ms = 0
    if rate is not None:
        free_ms = limits.free_ms(rate, limits.clamp_free_us(rate, free_us, now_us), now_us)
    return Slot(
        limit=key.limit, key=key.key, concurrency=limit.concurrency, rate=rate, used=used,
        free_ms=free_ms, holders=tuple(holders),
    )  # fmt: skip


def _read_tenants(context: CallContext, queue: Queue, number: int) -> Script[list[TenantView]]:
    """Tenants with waiting or leased jobs, by name; none if the queue has no fairness."""
    if queue.fairness == "off":
        return []
    now: int = only_value((yield Statement(_NOW, (context.given_ms,))))
    rows = yield Statement(_TENANTS, (context.ns, number, now, bounds.SCAN_MAX))
    leased = Counter({row[0]: row[2] for row in rows})
    busy = {row[0]: (row[4], row[5]) for row in rows if row[4] is not None}
    for at, names, spans in (yield Statement(_PENDING, (number,))):
        for name, took_ms in zip(names, spans, strict=True):
            busy_ms, busy_at = busy.get(name, (0.0, at))
            busy[name] = fairness.decayed(busy_ms, at - busy_at) + took_ms, at
    busy_us = {
        tenant: round(fairness.decayed(busy_ms, now - busy_at) * 1_000)
        for tenant, (busy_ms, busy_at) in busy.items()
    }
    busy_all = sum(busy_us.values())
    return [
        TenantView(
            tenant=tenant,
            weight=queue.weights.get(tenant, 1),
            waiting=waiting,
            leased=leased[tenant],
            share=round(busy_us.get(tenant, 0) / busy_all, 6) if busy_all else 0.0,
            oldest_age_ms=None if oldest_at is None else now - oldest_at,
            noisy=fairness.is_noisy(
                leased=leased[tenant],
                leased_all=leased.total(),
                busy_ms=busy_us.get(tenant, 0),
                busy_all_ms=busy_all,
            ),
        )
        for tenant, waiting, _, oldest_at, _, _ in rows
        if waiting or leased[tenant]
    ]
