"""What one transaction has changed beside the jobs themselves, to be seen to before it ends."""

from __future__ import annotations

from holdfast.core.model import State

LaneName = tuple[int, str, str, int]


class Aftermath:
    __slots__ = ("busy", "ended", "freed", "lane_ids", "lanes", "parted")

    def __init__(self) -> None:
        self.lanes: set[int] = set()
        """Whose first job may be another one now."""
        self.ended: list[tuple[int, str, State | None]] = []
        """Jobs with children, by seq, and how they ended; None is a job that was deleted before."""
        self.parted = 0
        self.freed: dict[int, int] = {}
        """Lanes of which leases are over, and how many."""
        self.busy: dict[tuple[int, str], list[int]] = {}
        """Tenants of queues: how many leases ended, and how long they took together."""
        self.lane_ids: dict[LaneName, int] = {}
