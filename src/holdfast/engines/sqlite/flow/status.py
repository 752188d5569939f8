"""The state of a queue's limits and tenants, and what one job waits for; bounded reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from holdfast.core import bounds, checks, lanes
from holdfast.core.fairness import TenantView
from holdfast.core.limits import Limit, Slot, clamp_free_us, free_ms
from holdfast.core.model import Flow, Waits
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import dependencies, fairness, groups
from holdfast.engines.sqlite.transaction import QueueRow, Transaction, read_slots

HOLDERS_MAX = 20
PARENTS_SHOWN_MAX = 100
_WAITING = (
    "SELECT lane, count(*),"
    " min(due_at) FILTER (WHERE holds < 4 AND due_at <= ?2 AND ifnull(expires_at > ?2, 1))"
    " FROM (SELECT lane, holds, due_at, expires_at FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ?1 AND state = 0 AND holds <> 0 AND lane IS NOT NULL LIMIT ?3) GROUP BY lane"
)
_SLOTS = "SELECT id, name, key, used, free_us FROM hf_slots"


def flow_of(transaction: Transaction, name: str, limit: int) -> Flow:
    """The slots and tenants of a queue."""
    queue_row = transaction.queues.get(name)
    if queue_row is None:
        raise checks.unknown_queue(name)
    return Flow(
        slots=tuple(_slots(transaction, queue_row, limit)) if queue_row.settings.limits else (),
        tenants=tuple(_tenants(transaction, queue_row)[:limit])
        if queue_row.settings.fairness != "off"
        else (),
    )


def waits_of(transaction: Transaction, id: str) -> Waits | None:
    """The parents, group, slots and tenant that hold up a waiting job; None if it does not wait."""
    row = rows.fetch(transaction, id)
    job = None if row is None else rows.to_job(transaction, row)
    if row is None or job is None or row[rows.STATE] != rows.WAITING:
        return None
    queue_row = transaction.queues[job.queue]
    lane = lanes.lane_of(job, queue_row.settings)
    open_ = dependencies.open_parents(transaction, job.seq)
    after = rows.read_after(transaction, job.seq) if open_ else ()
    found = []
    for slot in lane.slots if lane else ():
        key = (transaction.namespace_id, slot.limit, slot.key)
        known = transaction.run(f"{_SLOTS} WHERE ns = ? AND name = ? AND key = ?", key).fetchone()
        found.append(known or (0, slot.limit, slot.key, 0, 0))
    tenants = _tenants(transaction, queue_row) if queue_row.settings.fairness != "off" else []
    return Waits(
        parents=tuple(parent for parent in after if parent in open_)[:PARENTS_SHOWN_MAX],
        parent_count=len(open_),
        group_head=None
        if job.group is None
        else groups.ahead(transaction, queue_row.id, job.group, id),
        slots=tuple(_views(transaction, queue_row, found)),
        tenant=next((each for each in tenants if each.tenant == (job.tenant or "")), None),
    )


def _slots(transaction: Transaction, queue_row: QueueRow, limit: int) -> list[Slot]:
    """The slots of the queue's limits that a lease holds or a waiting job needs."""
    names = msgspec.json.encode([each.name for each in queue_row.settings.limits]).decode()
    used = transaction.run(
        f"{_SLOTS} WHERE ns = ? AND name IN (SELECT value FROM json_each(?)) AND used > 0",
        (transaction.namespace_id, names),
    ).fetchall()
    waiting = transaction.run(
        f"{_SLOTS} WHERE id IN (SELECT slot.value FROM hf_lanes, json_each(hf_lanes.slots) slot"
        " WHERE hf_lanes.id IN (SELECT lane FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ? AND state = 0 AND holds <> 0 AND lane IS NOT NULL LIMIT ?))",
        (queue_row.id, bounds.SCAN_MAX),
    ).fetchall()
    known = {row[0]: row for row in (*used, *waiting)}
    found = sorted(known.values(), key=lambda row: row[1:3])[:limit]
    return _views(transaction, queue_row, found)


def _views(transaction: Transaction, queue_row: QueueRow, found: Collection[Any]) -> list[Slot]:
    limits_by_name = {each.name: each for each in queue_row.settings.limits}
    holders = _holders(transaction, {row[0] for row in found if row[3]})
    return [
        Slot(
            limit=name,
            key=key,
            concurrency=limits_by_name[name].concurrency,
            rate=limits_by_name[name].rate,
            used=used,
            free_ms=_free_ms(transaction, limits_by_name[name], free_us),
            holders=tuple(holders[slot][:HOLDERS_MAX]),
        )
        for slot, name, key, used, free_us in found
    ]


def _free_ms(transaction: Transaction, limit: Limit, free_us: int) -> int:
    if limit.rate is None:
        return 0
    now_us = transaction.boot * 1_000
    return free_ms(limit.rate, clamp_free_us(limit.rate, free_us, now_us), now_us)


def _holders(transaction: Transaction, slots: set[int]) -> dict[int, list[str]]:
    """The ids of the leased jobs that hold these slots, oldest lease first."""
    holders: dict[int, list[str]] = defaultdict(list)
    if not slots:
        return holders
    leased: Iterable[tuple[str, str]] = transaction.run(
        "SELECT j.id, l.slots FROM hf_jobs j INDEXED BY hf_leased"
        " CROSS JOIN hf_lanes l ON l.id = j.lane"
        " WHERE j.ns = ? AND j.state IN (1, 5) ORDER BY j.leased_at, j.seq LIMIT ?",
        (transaction.namespace_id, bounds.SCAN_MAX),
    )
    for id_, text in leased:
        for slot in slots.intersection(read_slots(text)):
            holders[slot].append(id_)
    return holders


def _tenants(transaction: Transaction, queue_row: QueueRow) -> list[TenantView]:
    """Tenants with waiting or leased jobs, by name."""
    waiting: dict[str, int] = defaultdict(int)
    oldest: dict[str, int] = {}
    names = dict(
        transaction.run(
            "SELECT id, tenant FROM hf_lanes WHERE queue = ?", (queue_row.id,)
        ).fetchall()
    )
    for lane, count, due_at in transaction.run(
        _WAITING, (queue_row.id, transaction.now, bounds.SCAN_MAX)
    ):
        name = names[lane]
        waiting[name] += count
        if due_at is not None:
            oldest[name] = min(due_at, oldest.get(name, due_at))
    shares = fairness.TenantShares(fairness.usage_of(transaction, queue_row.id), transaction.now)
    leased = {name: count for name, count in shares.leased.items() if count > 0}
    return [
        TenantView(
            tenant=name,
            weight=queue_row.settings.weights.get(name, 1),
            waiting=waiting.get(name, 0),
            leased=leased.get(name, 0),
            share=shares.share(name),
            oldest_age_ms=transaction.now - oldest[name] if name in oldest else None,
            noisy=shares.is_noisy(name),
        )
        for name in sorted(waiting.keys() | leased.keys())
    ]
