"""What the one who writes remembers of lanes and tenants, from one transaction to the next.

It is true while nobody else has written to the file and nothing was rolled back. Whoever changes
the jobs of a lane in another way than by leasing from its beginning makes it forget that lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.flow import BUSY_HALF_LIFE_MS

LANES_MAX = 2_048
JOBS_MAX = 32
"""Of so many lanes so many jobs each: some megabytes."""

SINCE_MS_MAX = 500 * BUSY_HALF_LIFE_MS
Waiting = tuple[int, int, int, int | None]
"""(due_at, place, seq, expires_at)"""


class LaneAt:
    """A lane, and how far a call has come in it; lane 0 has the jobs that need none."""

    __slots__ = (
        *("at", "bar", "first", "id", "is_out", "jobs", "more", "slots", "tenant", "time"),
        "turn",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.id: int = row[0]
        self.turn: int = row[1]
        self.first: tuple[int, int] = row[2:4]
        self.tenant: str = row[4]
        self.slots: tuple[int, ...] = read_slots(row[6])
        self.bar: int = row[7]
        self.jobs: list[Waiting] = []
        self.at = 0
        self.more = True
        self.is_out = False
        self.time = self.first
        """Of the first job that is left, as far as it is known."""

    def pass_on(self, count: int = 1) -> None:
        """To its next job."""
        self.at += count
        if self.at < len(self.jobs):
            self.time = self.jobs[self.at][:2]


class Crowd:
    """What each tenant of a queue holds, and for how long theirs were held of late."""

    __slots__ = ("_base_at", "_latest_at", "_weights", "busy", "leased")

    def __init__(self, found: Iterable[tuple[str, int, float, int]], now: int) -> None:
        self._base_at = now
        self._latest_at = 0
        # As if all had been noted at one time: what decays alike keeps its proportions.
        self._weights: dict[str, float] = {}
        self.leased: dict[str, int] = {}
        self.busy: dict[str, tuple[float, int]] = {}
        for tenant, leased, busy_ms, busy_at in found:
            self.leased[tenant] = leased
            self.busy[tenant] = (busy_ms, busy_at)
            self.weigh((tenant,), busy_at)

    def is_old(self, now: int) -> bool:
        return not 0 <= now - self._base_at < SINCE_MS_MAX

    def weigh(self, tenants: Iterable[str], busy_at: int) -> None:
        """The time of these was noted anew, all at the same time."""
        self._latest_at = max(self._latest_at, busy_at)
        since_ms = min(busy_at - self._base_at, SINCE_MS_MAX)
        factor = math.exp2(since_ms / BUSY_HALF_LIFE_MS)
        for tenant in tenants:
            self._weights[tenant] = self.busy[tenant][0] * factor

    def is_even(self, now: int, *, leased_min: int, share: float) -> bool:
        """Surely nobody holds `leased_min`, or has more than this share of the time: seen without
        looking at each. Each counts in whole microseconds, so that a sum may be off by as many."""
        if max(self.leased.values(), default=0) >= leased_min or now < self._latest_at:
            return False
        most = max(self._weights.values(), default=0.0)
        scale = 1_000 * math.exp2((self._base_at - now) / BUSY_HALF_LIFE_MS)
        total = sum(self._weights.values()) * scale
        return most == 0 or most * scale * 1.000001 + 1 <= share * (total - len(self._weights))


class Picture:
    __slots__ = ("_version", "crowds", "lane_slots", "lanes")

    def __init__(self) -> None:
        self._version = 0
        self.lanes: dict[int, LaneAt] = {}
        self.lane_slots: dict[int, tuple[int, ...]] = {}
        self.crowds: dict[int, Crowd] = {}

    def clear(self) -> None:
        self.lanes.clear()
        self.lane_slots.clear()
        self.crowds.clear()

    def believe(self, version: int) -> None:
        """At the first look in a transaction: SQLite's number changes when another one wrote."""
        if version != self._version:
            self.clear()
            self._version = version

    def keep(self, lane: LaneAt) -> None:
        """As this call leaves it."""
        if len(self.lanes) >= LANES_MAX:
            self.lanes.clear()
        end = lane.at + JOBS_MAX
        lane.more = lane.more or len(lane.jobs) > end
        lane.jobs = lane.jobs[lane.at : end]
        lane.at = 0
        self.lanes[lane.id] = lane

    def keep_slots(self, lane: int, slots: tuple[int, ...]) -> None:
        """A lane's never change, and no number is used twice."""
        if len(self.lane_slots) >= LANES_MAX:
            self.lane_slots.clear()
        self.lane_slots[lane] = slots

    def forget_lane(self, lane: int) -> None:
        self.lanes.pop(lane, None)

    def recall(self, row: tuple[Any, ...]) -> LaneAt:
        """The lane of this row, with those of its jobs that are known."""
        lane = self.lanes.get(row[0])
        if lane is None or lane.jobs[0][:2] != row[2:4]:
            return LaneAt(row)
        lane.turn, lane.bar = row[1], row[7]
        lane.first = lane.time = row[2:4]
        lane.is_out = False
        return lane


@lru_cache(maxsize=4096)
def read_slots(text: str) -> tuple[int, ...]:
    return msgspec.json.decode(text, type=tuple[int, ...])
