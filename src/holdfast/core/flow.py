"""What bounds the flow of a queue's jobs: limits by key, rates, shares. The nouns and the sums.

Rates are counted in microseconds, so that a thousand starts a second are evenly apart. Nothing
here knows a store: an engine keeps the numbers and asks these functions what they allow.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Fairness = Literal["off", "shares", "noisy"]
"""off: strictly by priority and time. shares: tenants in turn, by weight. noisy: tenants that hold
too much of the queue go behind the others."""

NOISY_SHARE = 0.1
NOISY_LEASED_MIN = 30
BUSY_HALF_LIFE_MS = 60_000
TURN = 1_000
"""What one started job adds to the turn of a tenant of weight 1."""
CREDIT = 100 * TURN
"""How far a tenant that was quiet may be ahead of the others when it comes back."""


class Rate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most `count` starts in any `per_ms`, evenly apart but for `burst` at once.

    With a burst of more than 1 any window may see `burst - 1` more.
    """

    count: int
    per_ms: int
    burst: int = 1

    @property
    def apart_us(self) -> int:
        return -(-self.per_ms * 1_000 // self.count)


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bound on the jobs of a queue, or of one task in it, that share a key.

    `key` is a template such as "{tenant}:{region}"; without one all share. Queues whose limits
    have the same `name` share its slots too.
    """

    name: str
    task: str | None = None
    key: str = ""
    concurrency: int | None = None
    rate: Rate | None = None


class SlotKey(msgspec.Struct, frozen=True, order=True):
    """One counter of one limit: its name, and what the template made of a job."""

    limit: str
    key: str


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A counter as it stands. `free_ms` is the time until its rate lets another job start, and
    `holders` are the first of the jobs that hold it, by id."""

    limit: str
    key: str
    concurrency: int | None
    rate: Rate | None
    used: int
    free_ms: int = 0
    holders: tuple[str, ...] = ()


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant in one queue. `share` is its part of the recent processing time there."""

    tenant: str
    weight: int
    waiting: int
    leased: int
    share: float
    oldest_age_ms: int | None
    noisy: bool


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue's limits and tenants stand, by (limit, key) and by tenant; at most so many."""

    slots: tuple[Slot, ...] = ()
    tenants: tuple[TenantView, ...] = ()


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a waiting job beside the clock: parents that have not ended as it needs (the
    first of `parent_count`), the job of its group that goes before it, its limits and its tenant.
    """

    parents: tuple[str, ...] = ()
    parent_count: int = 0
    group_head: str | None = None
    slots: tuple[Slot, ...] = ()
    tenant: TenantView | None = None


def starts_now(rate: Rate, free_us: int, now_us: int) -> int:
    """How many may start now, if the next evenly spaced one is at `free_us`."""
    ahead = max(0, free_us - now_us)
    return max(0, rate.burst * rate.apart_us - ahead) // rate.apart_us


def after_starts(rate: Rate, free_us: int, now_us: int, count: int) -> int:
    """The next `free_us` once `count` more have started."""
    return max(free_us, now_us) + count * rate.apart_us


def free_ms(rate: Rate, free_us: int, now_us: int) -> int:
    """The time until one more may start; 0 is now."""
    ahead = free_us - now_us - (rate.burst - 1) * rate.apart_us
    return max(0, -(-ahead // 1_000))


def sane_us(rate: Rate, free_us: int, now_us: int) -> int:
    """`free_us` as it can be: further ahead it was written under a clock that was set back, or
    under an older rate."""
    return min(free_us, now_us + rate.burst * rate.apart_us)


def quantum(limit: int) -> int:
    """How many jobs a tenant may start in one turn, for a call that asks for `limit`."""
    return min(4, 1 + limit // 25)


def turn_now(turn: int, clock: int) -> int:
    """A tenant's turn as it counts: whoever was quiet gets no more than the credit for it."""
    return max(turn, clock - CREDIT)


def turn_after(turn: int, taken: int, weight: int) -> int:
    """The next turn of a tenant whose jobs were taken at `turn_now`."""
    return turn + taken * TURN // weight


def decayed(busy_ms: float, since_ms: int) -> float:
    """Processing time as it counts after `since_ms`."""
    return busy_ms * math.exp2(-max(0, since_ms) / BUSY_HALF_LIFE_MS)


def is_noisy(*, leased: int, leased_all: int, busy_ms: float, busy_all_ms: float) -> bool:
    """Amazon's published rule for a tenant that holds up the others. One that is there alone counts
    as well: another may come at any time, and should not have to wait until it has run."""
    if leased >= NOISY_LEASED_MIN and leased > NOISY_SHARE * leased_all:
        return True
    return busy_ms > NOISY_SHARE * busy_all_ms
