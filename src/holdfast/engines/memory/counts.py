"""Counts of queues, limits and tenants, computed from the jobs at each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.fairness import TenantView
from holdfast.core.lanes import lane_of
from holdfast.core.limits import Slot, SlotKey
from holdfast.core.model import Flow, LeaseRequest, Queue, QueueView, State, Waits
from holdfast.engines.memory.flow import is_at_work, limit_of, noisy
from holdfast.engines.memory.store import JobRow, MemoryStore

HOLDERS_MAX = 20
PARENTS_SHOWN_MAX = 100


def count_jobs(store: MemoryStore, view: QueueView) -> QueueView:
    """The queue's view with the counts of its jobs."""
    now, boot = store.clock.wall_ms(), store.clock.boot_ms()
    rows = _of_queue(store, view.queue.name)
    states = Counter(row.job.state for row in rows)
    blocked = sum(_is_blocked(store, row) for row in rows)
    delayed = sum(
        row.job.state is State.WAITING and not _is_blocked(store, row) and row.job.due_at > now
        for row in rows
    )
    due = [row.job.due_at for row in rows if _is_ready(store, row, now)]
    return replace(
        view,
        ready=len(due),
        delayed=delayed,
        blocked=blocked,
        leased=states[State.LEASED],
        overdue=sum(row.job.state is State.LEASED and row.deadline <= boot for row in rows),
        done=states[State.DONE],
        dead=states[State.DEAD],
        cancelled=states[State.CANCELLED],
        oldest_age_ms=now - min(due) if due else None,
    )


def flow_of(store: MemoryStore, queue: Queue, limit: int) -> Flow:
    """Use of the queue's limits and tenants."""
    names = {each.name for each in queue.limits}
    needed = {slot for slot, used in store.slots.used.items() if used and slot.limit in names}
    for row in _of_queue(store, queue.name):
        lane = lane_of(row.job, queue) if row.job.state is State.WAITING else None
        needed |= set(lane.slots if lane else ())
    tenants = _tenants(store, queue) if queue.fairness != "off" else []
    return Flow(
        slots=tuple(_slot(store, slot, queue) for slot in sorted(needed)[:limit]),
        tenants=tuple(tenants[:limit]),
    )


def waits_of(store: MemoryStore, row: JobRow) -> Waits | None:
    """The reasons why a job waits; None if it does not."""
    job = row.job
    if job.state is not State.WAITING:
        return None
    queue = store.queues[job.queue]
    lane = lane_of(job, queue)
    ahead = store.groups.ahead(job)
    tenants = _tenants(store, queue) if queue.fairness != "off" else []
    return Waits(
        parents=tuple(id_ for id_ in job.after if id_ in row.parents)[:PARENTS_SHOWN_MAX],
        parent_count=len(row.parents),
        group_head=None if ahead is None else ahead.job.id,
        slots=tuple(_slot(store, slot, queue) for slot in (lane.slots if lane else ())),
        tenant=next((each for each in tenants if each.tenant == (job.tenant or "")), None),
    )


def next_start_ms(store: MemoryStore, request: LeaseRequest) -> int | None:
    """The time to the next job that waits only for its due time or for a rate."""
    now = store.clock.wall_ms()
    ahead = []
    for row in store.rows.values():
        job = row.job
        if job.queue not in request.queues and job.id not in request.ids:
            continue
        if request.dead and job.state is State.DEAD and job.due_at > now:
            ahead.append(job.due_at - now)
        if request.dead or job.state is not State.WAITING or row.parents:
            continue
        lane = lane_of(job, queue := store.queues[job.queue])
        slots = lane.slots if lane else ()
        rates = (store.slots.free_ms(slot, queue) for slot in slots)
        next_ms = max(job.due_at - now, *rates, 0)
        if next_ms and not any(store.slots.is_full(slot, queue) for slot in slots):
            ahead.append(next_ms)
    return min(ahead, default=None)


def _of_queue(store: MemoryStore, name: str) -> list[JobRow]:
    return [row for row in store.rows.values() if row.job.queue == name]


def _is_blocked(store: MemoryStore, row: JobRow) -> bool:
    if row.job.state is not State.WAITING:
        return False
    return bool(row.parents) or store.groups.ahead(row.job) is not None


def _is_ready(store: MemoryStore, row: JobRow, now: int) -> bool:
    return lifecycle.is_ready(row.job, now) and not _is_blocked(store, row)


def _slot(store: MemoryStore, slot: SlotKey, queue: Queue) -> Slot:
    limit = limit_of(slot, queue)
    held = [row.job for row in store.rows.values() if slot in row.slots]
    held.sort(key=lambda job: (job.leased_at or 0, job.seq))
    return Slot(
        limit=slot.limit,
        key=slot.key,
        concurrency=limit.concurrency,
        rate=limit.rate,
        used=store.slots.used[slot],
        free_ms=store.slots.free_ms(slot, queue),
        holders=tuple(job.id for job in held[:HOLDERS_MAX]),
    )


def _tenants(store: MemoryStore, queue: Queue) -> list[TenantView]:
    """Tenants with waiting or leased jobs, by name."""
    now = store.clock.wall_ms()
    rows = _of_queue(store, queue.name)
    waiting = _by_tenant(row for row in rows if row.job.state is State.WAITING)
    leased = _by_tenant(row for row in rows if is_at_work(row.job))
    oldest: dict[str, int] = {}
    for row in rows:
        if _is_ready(store, row, now):
            name = row.job.tenant or ""
            oldest[name] = min(row.job.due_at, oldest.get(name, row.job.due_at))
    busy_us = store.tenants.busy_us(queue.name, now)
    busy_all = sum(busy_us.values())
    noisy_tenants = noisy(leased, busy_us)
    return [
        TenantView(
            tenant=name,
            weight=queue.weights.get(name, 1),
            waiting=waiting[name],
            leased=leased[name],
            share=round(busy_us.get(name, 0) / busy_all, 6) if busy_all else 0.0,
            oldest_age_ms=now - oldest[name] if name in oldest else None,
            noisy=name in noisy_tenants,
        )
        for name in sorted(waiting.keys() | leased.keys())
    ]


def _by_tenant(rows: Iterable[JobRow]) -> Counter[str]:
    return Counter(row.job.tenant or "" for row in rows)
