"""Tenants of fair queues: whose turn it is, how much they hold, how long their jobs took."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core import flow
from holdfast.engines.sqlite.picture import Crowd
from holdfast.engines.sqlite.unit import Unit

_LEASED = (
    "INSERT INTO hf_tenants(queue, tenant, leased) VALUES (?, ?, ?)"
    " ON CONFLICT DO UPDATE SET leased = leased + excluded.leased"
)
_MORE_LEASED = "UPDATE hf_tenants SET leased = leased + ? WHERE queue = ? AND tenant = ?"
# Whoever holds a lease has its row.
_ENDED = (
    "UPDATE hf_tenants SET leased = leased - ?, busy_ms = ?, busy_at = ?"
    " WHERE queue = ? AND tenant = ?"
)


def started(unit: Unit, queue_id: int, tenants: Mapping[str, int]) -> None:
    """Jobs of these were leased."""
    run = unit.connection.executemany
    crowd = unit.picture.crowds.get(queue_id)
    there = {} if crowd is None else crowd.leased
    known = [(n, queue_id, tenant) for tenant, n in tenants.items() if tenant in there]
    new = [(queue_id, tenant, n) for tenant, n in tenants.items() if tenant not in there]
    run(_MORE_LEASED, known)
    run(_LEASED, new)
    if crowd is not None:
        for tenant, count in tenants.items():
            there[tenant] = there.get(tenant, 0) + count


def ended(unit: Unit, busy: dict[tuple[int, str], list[int]]) -> None:
    """So many leases of these are over, and took so long together."""
    fair = {line.id for line in unit.catalog.lines.values() if line.queue.fairness != "off"}
    run, now = unit.connection.executemany, unit.now
    for queue_id in {queue_id for queue_id, _ in busy}:
        tenants = {tenant: spent for (each, tenant), spent in busy.items() if each == queue_id}
        if queue_id not in fair:
            forget(unit, queue_id)
            given = [(-count, queue_id, tenant) for tenant, (count, _) in tenants.items()]
            run(_MORE_LEASED, given)
            continue
        crowd = unit.picture.crowds.get(queue_id)
        known = _busy_of(unit, queue_id, list(tenants)) if crowd is None else crowd.busy
        spent = []
        for tenant, (count, took_ms) in tenants.items():
            busy_ms, busy_at = known.get(tenant, (0.0, 0))
            busy_ms = flow.decayed(busy_ms, now - busy_at) + took_ms
            spent.append((count, busy_ms, now, queue_id, tenant))
        run(_ENDED, spent)
        if crowd is not None:
            for count, busy_ms, _, _, tenant in spent:
                crowd.leased[tenant] = crowd.leased.get(tenant, 0) - count
                crowd.busy[tenant] = (busy_ms, now)
            crowd.weigh(tenants, now)


def _busy_of(unit: Unit, queue_id: int, tenants: list[str]) -> dict[str, tuple[float, int]]:
    found = unit.run(
        "SELECT tenant, busy_ms, busy_at FROM hf_tenants WHERE queue = ?"
        " AND tenant IN (SELECT value FROM json_each(?))",
        (queue_id, msgspec.json.encode(tenants).decode()),
    )
    return {tenant: (busy_ms, busy_at) for tenant, busy_ms, busy_at in found}


def crowd_of(unit: Unit, queue_id: int) -> Crowd:
    """How all tenants of a queue stand."""
    crowds = unit.picture.crowds
    crowd = crowds.get(queue_id)
    if crowd is None or crowd.is_old(unit.now):
        found = unit.run(
            "SELECT tenant, leased, busy_ms, busy_at FROM hf_tenants"
            " WHERE queue = ? AND (leased > 0 OR busy_ms > 0)",
            (queue_id,),
        )
        crowd = crowds[queue_id] = Crowd(found, unit.now)
    return crowd


def forget(unit: Unit, queue_id: int) -> None:
    """Tenants were changed beside what is kept in mind of them."""
    unit.picture.crowds.pop(queue_id, None)


def noisy(unit: Unit, queue_id: int) -> frozenset[str]:
    """Those who hold up the others now."""
    crowd = crowd_of(unit, queue_id)
    if crowd.is_even(unit.now, leased_min=flow.NOISY_LEASED_MIN, share=flow.NOISY_SHARE):
        return frozenset()
    load = Load(crowd, unit.now)
    return frozenset(filter(load.is_noisy, crowd.leased))


class Load:
    """What each tenant of a queue holds and has held of late."""

    def __init__(self, crowd: Crowd, now: int) -> None:
        self.leased = crowd.leased
        # In whole microseconds, as in every engine.
        self.busy_us = {
            tenant: round(flow.decayed(busy_ms, now - busy_at) * 1_000)
            for tenant, (busy_ms, busy_at) in crowd.busy.items()
        }
        self._leased_all = sum(self.leased.values())
        self._busy_all_us = sum(self.busy_us.values())

    def is_noisy(self, tenant: str) -> bool:
        return flow.is_noisy(
            leased=self.leased.get(tenant, 0),
            leased_all=self._leased_all,
            busy_ms=self.busy_us.get(tenant, 0),
            busy_all_ms=self._busy_all_us,
        )

    def share(self, tenant: str) -> float:
        if not self._busy_all_us:
            return 0.0
        return round(self.busy_us.get(tenant, 0) / self._busy_all_us, 6)


def vclock(unit: Unit, queue_id: int) -> int:
    found: int | None = unit.run("SELECT vclock FROM hf_flows WHERE queue = ?", (queue_id,)).get
    return found or 0


def took_turns(
    unit: Unit, queue_id: int, turns: dict[str, int], leased: dict[str, int], vclock: int
) -> None:
    """The new turns of those who were served, how many of theirs were leased, and the queue's."""
    forget(unit, queue_id)
    run = unit.connection.executemany
    run(
        "INSERT INTO hf_tenants(queue, tenant, turn, leased) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET turn = excluded.turn, leased = leased + excluded.leased",
        [(queue_id, tenant, turn, leased.get(tenant, 0)) for tenant, turn in turns.items()],
    )
    # A tenant's lanes have one turn; the one that was served has it already.
    run(
        "UPDATE hf_lanes SET turn = ?1 WHERE queue = ?2 AND tenant = ?3 AND turn <> ?1",
        [(turn, queue_id, tenant) for tenant, turn in turns.items()],
    )
    unit.run(
        "INSERT INTO hf_flows(queue, vclock) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET vclock = excluded.vclock",
        (queue_id, vclock),
    )
