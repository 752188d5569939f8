"""How a queue's limits and tenants stand, and what keeps one job: read, over bounded numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from holdfast.core import admission, flow, lanes, limits
from holdfast.core.flow import Flow, Limit, Slot, TenantView, Waits
from holdfast.engines.sqlite import edges, fair, groups, rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.picture import read_slots
from holdfast.engines.sqlite.unit import Unit

HOLDERS_MAX = 20
PARENTS_SHOWN_MAX = 100
_WAITING = (
    "SELECT lane, count(*),"
    " min(due_at) FILTER (WHERE holds < 4 AND due_at <= ?2 AND ifnull(expires_at > ?2, 1))"
    " FROM (SELECT lane, holds, due_at, expires_at FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ?1 AND state = 0 AND holds <> 0 AND lane IS NOT NULL LIMIT ?3) GROUP BY lane"
)
_SLOTS = "SELECT id, name, key, used, free_us FROM hf_slots"


def flow_of(unit: Unit, name: str, limit: int) -> Flow:
    line = unit.catalog.lines.get(name)
    if line is None:
        raise admission.unknown(name)
    return Flow(
        slots=tuple(_slots(unit, line, limit)) if line.queue.limits else (),
        tenants=tuple(_tenants(unit, line)[:limit]) if line.queue.fairness != "off" else (),
    )


def waits_of(unit: Unit, id: str) -> Waits | None:
    row = rows.fetch(unit, id)
    job = None if row is None else rows.job_of(unit, row)
    if row is None or job is None or row[rows.STATE] != rows.WAITING:
        return None
    line = unit.catalog.lines[job.queue]
    lane = lanes.lane_of(job, line.queue)
    open_ = edges.open_parents(unit, job.seq)
    after = rows.after(unit, job.seq) if open_ else ()
    found = []
    for slot in lane.slots if lane else ():
        key = (unit.namespace_id, slot.limit, slot.key)
        known = unit.run(f"{_SLOTS} WHERE ns = ? AND name = ? AND key = ?", key).fetchone()
        found.append(known or (0, slot.limit, slot.key, 0, 0))
    tenants = _tenants(unit, line) if line.queue.fairness != "off" else []
    return Waits(
        parents=tuple(parent for parent in after if parent in open_)[:PARENTS_SHOWN_MAX],
        parent_count=len(open_),
        group_head=None if job.group is None else groups.ahead(unit, line.id, job.group, id),
        slots=tuple(_shown(unit, line, found)),
        tenant=next((each for each in tenants if each.tenant == (job.tenant or "")), None),
    )


def _slots(unit: Unit, line: Line, limit: int) -> list[Slot]:
    """Those of the queue's limits that somebody holds, or that a waiting job needs."""
    names = msgspec.json.encode([each.name for each in line.queue.limits]).decode()
    used = unit.run(
        f"{_SLOTS} WHERE ns = ? AND name IN (SELECT value FROM json_each(?)) AND used > 0",
        (unit.namespace_id, names),
    ).fetchall()
    waiting = unit.run(
        f"{_SLOTS} WHERE id IN (SELECT slot.value FROM hf_lanes, json_each(hf_lanes.slots) slot"
        " WHERE hf_lanes.id IN (SELECT lane FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ? AND state = 0 AND holds <> 0 AND lane IS NOT NULL LIMIT ?))",
        (line.id, limits.SCAN_MAX),
    ).fetchall()
    known = {row[0]: row for row in (*used, *waiting)}
    found = sorted(known.values(), key=lambda row: row[1:3])[:limit]
    return _shown(unit, line, found)


def _shown(unit: Unit, line: Line, found: Collection[Any]) -> list[Slot]:
    bounds = {each.name: each for each in line.queue.limits}
    holders = _holders(unit, {row[0] for row in found if row[3]})
    return [
        Slot(
            limit=name,
            key=key,
            concurrency=bounds[name].concurrency,
            rate=bounds[name].rate,
            used=used,
            free_ms=_free_ms(unit, bounds[name], free_us),
            holders=tuple(holders[slot][:HOLDERS_MAX]),
        )
        for slot, name, key, used, free_us in found
    ]


def _free_ms(unit: Unit, limit: Limit, free_us: int) -> int:
    if limit.rate is None:
        return 0
    now_us = unit.boot * 1_000
    return flow.free_ms(limit.rate, flow.sane_us(limit.rate, free_us, now_us), now_us)


def _holders(unit: Unit, slots: set[int]) -> dict[int, list[str]]:
    """The ids of the leased jobs that hold these, longest first."""
    holders: dict[int, list[str]] = defaultdict(list)
    if not slots:
        return holders
    leased: Iterable[tuple[str, str]] = unit.run(
        "SELECT j.id, l.slots FROM hf_jobs j INDEXED BY hf_leased"
        " CROSS JOIN hf_lanes l ON l.id = j.lane"
        " WHERE j.ns = ? AND j.state = 1 ORDER BY j.leased_at, j.seq LIMIT ?",
        (unit.namespace_id, limits.SCAN_MAX),
    )
    for id_, text in leased:
        for slot in slots.intersection(read_slots(text)):
            holders[slot].append(id_)
    return holders


def _tenants(unit: Unit, line: Line) -> list[TenantView]:
    """Those who have anything waiting or leased, by name."""
    waiting: dict[str, int] = defaultdict(int)
    oldest: dict[str, int] = {}
    names = dict(unit.run("SELECT id, tenant FROM hf_lanes WHERE queue = ?", (line.id,)).fetchall())
    for lane, count, due_at in unit.run(_WAITING, (line.id, unit.now, limits.SCAN_MAX)):
        name = names[lane]
        waiting[name] += count
        if due_at is not None:
            oldest[name] = min(due_at, oldest.get(name, due_at))
    load = fair.Load(fair.crowd_of(unit, line.id), unit.now)
    leased = {name: count for name, count in load.leased.items() if count > 0}
    return [
        TenantView(
            tenant=name,
            weight=line.queue.weights.get(name, 1),
            waiting=waiting.get(name, 0),
            leased=leased.get(name, 0),
            share=load.share(name),
            oldest_age_ms=unit.now - oldest[name] if name in oldest else None,
            noisy=load.is_noisy(name),
        )
        for name in sorted(waiting.keys() | leased.keys())
    ]
