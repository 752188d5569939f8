"""Fairness between the tenants of a queue, or between several queues: the arithmetic.

Each tenant has a turn, a number that grows with every job it starts. The lowest turn goes first.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

Fairness = Literal["off", "shares", "noisy"]
"""off: by priority and time only. shares: tenants take turns, by weight. noisy: tenants that use
too much of the queue yield to the others.
"""


NOISY_SHARE = 0.1


NOISY_LEASED_MIN = 30


BUSY_HALF_LIFE_MS = 60_000


TURN = 1_000
"""Added to the turn of a tenant of weight 1 for each job it starts."""


CREDIT = 100 * TURN
"""The longest lag of an idle tenant's turn: its head start over the others when it returns."""


Taken = TypeVar("Taken")


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant of a queue. `share` is its part of the queue's recent processing time."""

    tenant: str
    weight: int
    waiting: int
    leased: int
    share: float
    oldest_age_ms: int | None
    noisy: bool


def quantum(limit: int) -> int:
    """How many jobs of one tenant a lease of `limit` jobs takes before the next tenant's turn."""
    return min(4, 1 + limit // 25)


def turn_now(turn: int, clock: int) -> int:
    """The effective turn: an idle tenant lags behind the clock by at most CREDIT."""
    return max(turn, clock - CREDIT)


def turn_after(turn: int, taken: int, weight: int) -> int:
    """The turn of a tenant after `taken` of its jobs were leased at `turn`."""
    return turn + taken * TURN // weight


def decayed(busy_ms: float, since_ms: int) -> float:
    """Processing time with exponential decay, `since_ms` after it was recorded."""
    return busy_ms * math.exp2(-max(0, since_ms) / BUSY_HALF_LIFE_MS)


def is_noisy(*, leased: int, leased_all: int, busy_ms: float, busy_all_ms: float) -> bool:
    """Amazon's published rule for a noisy neighbour. It also applies to a tenant that is alone:
    another tenant may arrive at any time and should not wait behind its backlog."""
    if leased >= NOISY_LEASED_MIN and leased > NOISY_SHARE * leased_all:
        return True
    return busy_ms > NOISY_SHARE * busy_all_ms


class FairTurns:
    """Weighted fair order over several queues. A queue that was idle gets a bounded head start."""

    def __init__(self, turns: Mapping[str, int] | None = None, clock: int = 0) -> None:
        self._turns = dict(turns or {})
        self._clock = clock

    def order(self, waiting: Mapping[str, int], room: int, weights: Mapping[str, int]) -> list[str]:
        """The queue to take from next, for each of `room` jobs. It only plans; `took` counts."""
        trial = FairTurns({name: self._turns.get(name, 0) for name in waiting}, self._clock)
        left = {name: count for name, count in waiting.items() if count > 0}
        heap = [(trial._now(name), name) for name in left]
        heapq.heapify(heap)
        order: list[str] = []
        while heap and len(order) < room:
            turn, name = heapq.heappop(heap)
            now = trial._now(name)
            if now > turn:
                # The clock has advanced since this entry was pushed.
                heapq.heappush(heap, (now, name))
                continue
            order.append(name)
            trial.took(name, weights.get(name, 1))
            left[name] -= 1
            if left[name]:
                heapq.heappush(heap, (trial._now(name), name))
        return order

    def took(self, name: str, weight: int = 1) -> None:
        """Record that one job of this queue was taken."""
        now = self._now(name)
        self._turns[name] = turn_after(now, 1, weight)
        self._clock = max(self._clock, now)

    def forget_others(self, names: Sequence[str]) -> None:
        """Drop the turns of queues that no longer exist."""
        for name in set(self._turns).difference(names):
            del self._turns[name]

    def _now(self, name: str) -> int:
        return turn_now(self._turns.get(name, 0), self._clock)


def interleaved(order: Iterable[str], taken: Mapping[str, deque[Taken]]) -> list[Taken]:
    """Items taken from each queue, in the order of the turns; more than planned goes last."""
    found = [taken[name].popleft() for name in order if taken.get(name)]
    return found + [each for rest in taken.values() for each in rest]
