"""Tenants of fair queues: their turns, their leases and the time their jobs took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.fairness import (
    BUSY_HALF_LIFE_MS,
    NOISY_LEASED_MIN,
    NOISY_SHARE,
    decayed,
    is_noisy,
)
from holdfast.engines.sqlite.transaction import Transaction

USAGE_AGE_MS_MAX = 500 * BUSY_HALF_LIFE_MS
"""Usage older than this is read again, before its weights leave the range of a float."""

_LEASED = (
    "INSERT INTO hf_tenants(queue, tenant, leased) VALUES (?, ?, ?)"
    " ON CONFLICT DO UPDATE SET leased = leased + excluded.leased"
)
_MORE_LEASED = "UPDATE hf_tenants SET leased = leased + ? WHERE queue = ? AND tenant = ?"
# A tenant that holds a lease has a row.
_ENDED = (
    "UPDATE hf_tenants SET leased = leased - ?, busy_ms = ?, busy_at = ?"
    " WHERE queue = ? AND tenant = ?"
)


def note_started(transaction: Transaction, queue_id: int, tenants: Mapping[str, int]) -> None:
    """Count newly leased jobs by tenant."""
    run = transaction.connection.executemany
    usage = transaction.lane_cache.tenants.get(queue_id)
    leased = {} if usage is None else usage.leased
    known = [(n, queue_id, tenant) for tenant, n in tenants.items() if tenant in leased]
    new = [(queue_id, tenant, n) for tenant, n in tenants.items() if tenant not in leased]
    run(_MORE_LEASED, known)
    run(_LEASED, new)
    if usage is not None:
        for tenant, count in tenants.items():
            leased[tenant] = leased.get(tenant, 0) + count


def note_ended(transaction: Transaction, busy: dict[tuple[int, str], list[int]]) -> None:
    """Count ended leases and their time; `busy` is that of `DeferredEffects`."""
    fair = {
        queue_row.id
        for queue_row in transaction.queues.values()
        if queue_row.settings.fairness != "off"
    }
    run, now = transaction.connection.executemany, transaction.now
    for queue_id in {queue_id for queue_id, _ in busy}:
        tenants = {tenant: spent for (each, tenant), spent in busy.items() if each == queue_id}
        if queue_id not in fair:
            forget_usage(transaction, queue_id)
            run(_MORE_LEASED, [(-count, queue_id, name) for name, (count, _) in tenants.items()])
            continue
        usage = transaction.lane_cache.tenants.get(queue_id)
        known = _busy_of(transaction, queue_id, list(tenants)) if usage is None else usage.busy
        spent = []
        for tenant, (count, took_ms) in tenants.items():
            busy_ms, busy_at = known.get(tenant, (0.0, 0))
            busy_ms = decayed(busy_ms, now - busy_at) + took_ms
            spent.append((count, busy_ms, now, queue_id, tenant))
        run(_ENDED, spent)
        if usage is not None:
            for count, busy_ms, _, _, tenant in spent:
                usage.leased[tenant] = usage.leased.get(tenant, 0) - count
                usage.busy[tenant] = (busy_ms, now)
            usage.weigh(tenants, now)


def usage_of(transaction: Transaction, queue_id: int) -> TenantUsage:
    """Leases and recent busy time of all tenants of a queue, cached."""
    cached = transaction.lane_cache.tenants
    usage = cached.get(queue_id)
    if usage is None or usage.is_old(transaction.now):
        found = transaction.run(
            "SELECT tenant, leased, busy_ms, busy_at FROM hf_tenants"
            " WHERE queue = ? AND (leased > 0 OR busy_ms > 0)",
            (queue_id,),
        )
        usage = cached[queue_id] = TenantUsage(found, transaction.now)
    return usage


def forget_usage(transaction: Transaction, queue_id: int) -> None:
    """Drop the cached usage, because tenants are changed without it."""
    transaction.lane_cache.tenants.pop(queue_id, None)


def noisy_tenants(transaction: Transaction, queue_id: int) -> frozenset[str]:
    """The tenants that currently hold up the others."""
    usage = usage_of(transaction, queue_id)
    if usage.is_even(transaction.now, leased_min=NOISY_LEASED_MIN, share=NOISY_SHARE):
        return frozenset()
    shares = TenantShares(usage, transaction.now)
    return frozenset(filter(shares.is_noisy, usage.leased))


class TenantShares:
    """The share of each tenant in a queue's leases and recent busy time."""

    def __init__(self, usage: TenantUsage, now: int) -> None:
        self.leased: dict[str, int] = usage.leased
        # In whole microseconds, as in every engine.
        self.busy_us: dict[str, int] = {
            tenant: round(decayed(busy_ms, now - busy_at) * 1_000)
            for tenant, (busy_ms, busy_at) in usage.busy.items()
        }
        self._leased_all = sum(self.leased.values())
        self._busy_all_us = sum(self.busy_us.values())

    def is_noisy(self, tenant: str) -> bool:
        """True if the tenant holds up the others."""
        return is_noisy(
            leased=self.leased.get(tenant, 0),
            leased_all=self._leased_all,
            busy_ms=self.busy_us.get(tenant, 0),
            busy_all_ms=self._busy_all_us,
        )

    def share(self, tenant: str) -> float:
        """The tenant's part of the recent busy time, from 0 to 1."""
        if not self._busy_all_us:
            return 0.0
        return round(self.busy_us.get(tenant, 0) / self._busy_all_us, 6)


def vclock(transaction: Transaction, queue_id: int) -> int:
    """The virtual clock of a queue: the highest turn that was served."""
    found: int | None = transaction.run(
        "SELECT vclock FROM hf_flows WHERE queue = ?", (queue_id,)
    ).get
    return found or 0


def write_turns(
    transaction: Transaction,
    queue_id: int,
    turns: dict[str, int],
    leased: dict[str, int],
    vclock: int,
) -> None:
    """Store the new turns of served tenants, their new leases, and the queue's virtual clock."""
    forget_usage(transaction, queue_id)
    run = transaction.connection.executemany
    run(
        "INSERT INTO hf_tenants(queue, tenant, turn, leased) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET turn = excluded.turn, leased = leased + excluded.leased",
        [(queue_id, tenant, turn, leased.get(tenant, 0)) for tenant, turn in turns.items()],
    )
    # All lanes of a tenant have the same turn; the served one has it already.
    run(
        "UPDATE hf_lanes SET turn = ?1 WHERE queue = ?2 AND tenant = ?3 AND turn <> ?1",
        [(turn, queue_id, tenant) for tenant, turn in turns.items()],
    )
    transaction.run(
        "INSERT INTO hf_flows(queue, vclock) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET vclock = excluded.vclock",
        (queue_id, vclock),
    )


def _busy_of(
    transaction: Transaction, queue_id: int, tenants: list[str]
) -> dict[str, tuple[float, int]]:
    found = transaction.run(
        "SELECT tenant, busy_ms, busy_at FROM hf_tenants WHERE queue = ?"
        " AND tenant IN (SELECT value FROM json_each(?))",
        (queue_id, msgspec.json.encode(tenants).decode()),
    )
    return {tenant: (busy_ms, busy_at) for tenant, busy_ms, busy_at in found}


class TenantUsage:
    """Leases of each tenant of a queue, and how long their jobs were leased recently."""

    __slots__ = ("_base_at", "_latest_at", "_weights", "busy", "leased")

    def __init__(self, found: Iterable[tuple[str, int, float, int]], now: int) -> None:
        self._base_at = now
        self._latest_at = 0
        # Scaled to one instant: all decay alike, so their proportions stay.
        self._weights: dict[str, float] = {}
        self.leased: dict[str, int] = {}
        self.busy: dict[str, tuple[float, int]] = {}
        for tenant, leased, busy_ms, busy_at in found:
            self.leased[tenant] = leased
            self.busy[tenant] = (busy_ms, busy_at)
            self.weigh((tenant,), busy_at)

    def is_old(self, now: int) -> bool:
        """True if it must be read again."""
        return not 0 <= now - self._base_at < USAGE_AGE_MS_MAX

    def weigh(self, tenants: Iterable[str], busy_at: int) -> None:
        """Update the weights of these tenants, whose busy time was stored at `busy_at`."""
        self._latest_at = max(self._latest_at, busy_at)
        since_ms = min(busy_at - self._base_at, USAGE_AGE_MS_MAX)
        factor = math.exp2(since_ms / BUSY_HALF_LIFE_MS)
        for tenant in tenants:
            self._weights[tenant] = self.busy[tenant][0] * factor

    def is_even(self, now: int, *, leased_min: int, share: float) -> bool:
        """True if certainly no tenant holds `leased_min` leases or exceeds `share` of the time.

        Cheaper than computing each share. Shares are rounded to microseconds, so a sum may be off
        by one for each tenant.
        """
        if max(self.leased.values(), default=0) >= leased_min or now < self._latest_at:
            return False
        most = max(self._weights.values(), default=0.0)
        scale = 1_000 * math.exp2((self._base_at - now) / BUSY_HALF_LIFE_MS)
        total = sum(self._weights.values()) * scale
        return most == 0 or most * scale * 1.000001 + 1 <= share * (total - len(self._weights))
