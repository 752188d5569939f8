"""Fair turns between lines of jobs, by weight: the sums of `flow`, for whoever takes from several
lines and puts what it took into one."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from holdfast.core.flow import turn_after, turn_now


class Turns:
    """Who had how much. A line that was quiet for a while gets a little more, not all it missed."""

    def __init__(self, turns: Mapping[str, int] | None = None, clock: int = 0) -> None:
        self._turns = dict(turns or {})
        self._clock = clock

    def order(self, waiting: Mapping[str, int], room: int, weights: Mapping[str, int]) -> list[str]:
        """Whose job is next, so many times, if all that wait can be had. Nothing is counted."""
        trial = Turns({name: self._turns.get(name, 0) for name in waiting}, self._clock)
        left = {name: count for name, count in waiting.items() if count > 0}
        heap = [(trial._now(name), name) for name in left]
        heapq.heapify(heap)
        order: list[str] = []
        while heap and len(order) < room:
            turn, name = heapq.heappop(heap)
            now = trial._now(name)
            if now > turn:
                # The clock went on since it was put there.
                heapq.heappush(heap, (now, name))
                continue
            order.append(name)
            trial.took(name, weights.get(name, 1))
            left[name] -= 1
            if left[name]:
                heapq.heappush(heap, (trial._now(name), name))
        return order

    def took(self, name: str, weight: int = 1) -> None:
        """One job of this line was taken."""
        now = self._now(name)
        self._turns[name] = turn_after(now, 1, weight)
        self._clock = max(self._clock, now)

    def forget_others(self, names: Sequence[str]) -> None:
        """Lines that are no more."""
        for name in set(self._turns).difference(names):
            del self._turns[name]

    def _now(self, name: str) -> int:
        return turn_now(self._turns.get(name, 0), self._clock)
