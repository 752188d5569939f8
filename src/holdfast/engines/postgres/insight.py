"""How the limits and the tenants of a queue stand, and what keeps one waiting job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core import admission, flow, limits
from holdfast.core.flow import Flow, Limit, Slot, SlotKey, TenantView, Waits
from holdfast.core.lanes import lane_of
from holdfast.core.model import Queue, State
from holdfast.engines.postgres.queues import read_lines
from holdfast.engines.postgres.rows import WHOLE, whole_job
from holdfast.engines.postgres.steps import Ask, Row, Steps, Store, only

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
SELECT {WHOLE} FROM $schema.jobs j
JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.id = $2::text AND j.ns + 0 = $1::int
"""
_WAITS = "SELECT * FROM $schema.waits_shown($1::int, $2::bigint)"


def show_flow(store: Store, name: str, *, limit: int) -> Steps[Flow]:
    lines = yield from read_lines(store, [name] if limits.QUEUE_NAME.match(name) else [])
    queue = lines.find(name)
    if queue is None:
        raise admission.unknown(name)
    slots: tuple[Slot, ...] = ()
    number = lines.number(name)
    if queue.limits:
        names = [each.name for each in queue.limits]
        rows = yield Ask(_NEEDED, (store.ns, number, names, limits.SCAN_MAX, limit))
        slots = yield from _show_slots(store, queue, [SlotKey(*row) for row in rows])
    tenants = yield from _show_tenants(store, queue, number)
    return Flow(slots=slots, tenants=tuple(tenants[:limit]))


def show_waits(store: Store, id: str) -> Steps[Waits | None]:
    rows = yield Ask(_JOB, (store.ns, id))
    job = whole_job(rows[0]) if rows else None
    if job is None or job.state is not State.WAITING:
        return None
    lines = yield from read_lines(store, [job.queue])
    queue = lines.find(job.queue)
    if queue is None:
        return None
    ((parents, head),) = yield Ask(_WAITS, (store.ns, job.seq))
    open_ = set(parents)
    lane = lane_of(job, queue)
    slots = yield from _show_slots(store, queue, lane.slots if lane else ())
    tenants = yield from _show_tenants(store, queue, lines.number(job.queue))
    return Waits(
        parents=tuple(parent for parent in job.after if parent in open_)[:PARENTS_SHOWN_MAX],
        parent_count=len(open_),
        group_head=head,
        slots=slots,
        tenant=next((each for each in tenants if each.tenant == (job.tenant or "")), None),
    )


def _show_slots(store: Store, queue: Queue, keys: Sequence[SlotKey]) -> Steps[tuple[Slot, ...]]:
    if not keys:
        return ()
    ((_, now_us),) = yield Ask(_NOW, (store.given_ms,))
    values = (store.ns, [each.limit for each in keys], [each.key for each in keys], HOLDERS_MAX)
    rows = yield Ask(_SLOTS, values)
    bounds = {limit.name: limit for limit in queue.limits}
    return tuple(
        _slot(key, bounds[key.limit], row, now_us) for key, row in zip(keys, rows, strict=True)
    )


def _slot(key: SlotKey, limit: Limit, row: Row, now_us: int) -> Slot:
    used, free_us, holders = row
    rate = limit.rate
    free_ms = 0
    if rate is not None:
        free_ms = flow.free_ms(rate, flow.sane_us(rate, free_us, now_us), now_us)
    return Slot(
        limit=key.limit, key=key.key, concurrency=limit.concurrency, rate=rate, used=used,
        free_ms=free_ms, holders=tuple(holders),
    )  # fmt: skip


def _show_tenants(store: Store, queue: Queue, number: int) -> Steps[list[TenantView]]:
    """Those who have anything waiting or leased, by name; none where nobody is to be fair to."""
    if queue.fairness == "off":
        return []
    now: int = only((yield Ask(_NOW, (store.given_ms,))))
    rows = yield Ask(_TENANTS, (store.ns, number, now, limits.SCAN_MAX))
    leased = Counter({row[0]: row[2] for row in rows})
    busy = {row[0]: (row[4], row[5]) for row in rows if row[4] is not None}
    for at, names, spans in (yield Ask(_PENDING, (number,))):
        for name, took_ms in zip(names, spans, strict=True):
            busy_ms, busy_at = busy.get(name, (0.0, at))
            busy[name] = flow.decayed(busy_ms, at - busy_at) + took_ms, at
    busy_us = {
        tenant: round(flow.decayed(busy_ms, now - busy_at) * 1_000)
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
            noisy=flow.is_noisy(
                leased=leased[tenant],
                leased_all=leased.total(),
                busy_ms=busy_us.get(tenant, 0),
                busy_all_ms=busy_all,
            ),
        )
        for tenant, waiting, _, oldest_at, _, _ in rows
        if waiting or leased[tenant]
    ]
