"""Flow-control counters: slots of limits, rates, and turns of tenants.

The arithmetic is in `core.limits` and `core.fairness`. Rates use the boot clock, which cannot be
set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from holdfast.core import fairness, limits
from holdfast.core.lanes import Lane
from holdfast.core.limits import Limit, SlotKey
from holdfast.core.model import Job, Queue, State
from holdfast.engines.clock import Clock


class Slots:
    """Used slots and next free start of every limit. Limits of one name are shared by queues; the
    bounds are those of the job's own queue."""

    def __init__(self, clock: Clock) -> None:
        self.used: Counter[SlotKey] = Counter()
        self._clock = clock
        self._free_us: dict[SlotKey, int] = {}

    def have_room(self, lane: Lane | None, queue: Queue) -> bool:
        return lane is None or all(self._has_room(slot, queue) for slot in lane.slots)

    def take(self, lane: Lane, queue: Queue) -> tuple[SlotKey, ...]:
        now_us = self._now_us()
        for slot in lane.slots:
            self.used[slot] += 1
            rate = limit_of(slot, queue).rate
            if rate is not None:
                free_us = limits.clamp_free_us(rate, self._free_us.get(slot, 0), now_us)
                self._free_us[slot] = limits.after_starts(rate, free_us, now_us, 1)
        return lane.slots

    def give_back(self, slots: tuple[SlotKey, ...]) -> None:
        """Free the slots; a rate never gets a start back."""
        self.used.subtract(slots)

    def free_ms(self, slot: SlotKey, queue: Queue) -> int:
        """The time until the rate allows another start; 0 is now."""
        rate = limit_of(slot, queue).rate
        if rate is None:
            return 0
        now_us = self._now_us()
        free_us = limits.clamp_free_us(rate, self._free_us.get(slot, 0), now_us)
        return limits.free_ms(rate, free_us, now_us)

    def declared(self, queue: Queue, queues: Collection[Queue]) -> None:
        """A raised rate shortens waits caused by the earlier, lower rate."""
        now_us = self._now_us()
        for name in {limit.name for limit in queue.limits if limit.rate is not None}:
            rates = [limit.rate for each in queues for limit in each.limits if limit.name == name]
            ahead_us = max(rate.burst * rate.apart_us for rate in rates if rate is not None)
            for slot, free_us in self._free_us.items():
                if slot.limit == name:
                    self._free_us[slot] = min(free_us, now_us + ahead_us)

    def is_full(self, slot: SlotKey, queue: Queue) -> bool:
        most = limit_of(slot, queue).concurrency
        return most is not None and self.used[slot] >= most

    def _has_room(self, slot: SlotKey, queue: Queue) -> bool:
        if self.is_full(slot, queue):
            return False
        rate = limit_of(slot, queue).rate
        if rate is None:
            return True
        now_us = self._now_us()
        free_us = limits.clamp_free_us(rate, self._free_us.get(slot, 0), now_us)
        return limits.starts_now(rate, free_us, now_us) > 0

    def _now_us(self) -> int:
        return self._clock.boot_ms() * 1_000


class TenantTurn:
    """The turn and the processing time of a tenant in one queue."""

    __slots__ = ("busy_at", "busy_ms", "turn")

    def __init__(self) -> None:
        self.turn: int = 0
        self.busy_ms: float = 0.0
        self.busy_at: int = 0

    def busy_us(self, now: int) -> int:
        """In whole microseconds, so that every engine computes the same."""
        return round(fairness.decayed(self.busy_ms, now - self.busy_at) * 1_000)


class TenantCounters:
    """Turns and processing times by queue and tenant."""

    def __init__(self) -> None:
        self._queues: dict[str, defaultdict[str, TenantTurn]] = {}
        self._vclocks: Counter[str] = Counter()

    def of(self, queue: str) -> defaultdict[str, TenantTurn]:
        return self._queues.setdefault(queue, defaultdict(TenantTurn))

    def forget(self, queue: str) -> None:
        self._queues.pop(queue, None)
        self._vclocks.pop(queue, None)

    def turn(self, queue: str, tenant: str) -> int:
        """The tenant's turn, with its credit limited as of now."""
        return fairness.turn_now(self.of(queue)[tenant].turn, self._vclocks[queue])

    def took(self, queue: Queue, tenant: str, count: int) -> None:
        turn = self.turn(queue.name, tenant)
        weight = queue.weights.get(tenant, 1)
        self.of(queue.name)[tenant].turn = fairness.turn_after(turn, count, weight)
        self._vclocks[queue.name] = max(turn, self._vclocks[queue.name])

    def ended(self, job: Job, now: int) -> None:
        """Add the processing time of an ended lease."""
        tenant = self.of(job.queue)[job.tenant or ""]
        before = fairness.decayed(tenant.busy_ms, now - tenant.busy_at)
        tenant.busy_ms = before + max(0, now - (job.leased_at or now))
        tenant.busy_at = now

    def busy_us(self, queue: str, now: int) -> dict[str, int]:
        return {name: tenant.busy_us(now) for name, tenant in self.of(queue).items()}


def limit_of(slot: SlotKey, queue: Queue) -> Limit:
    """The queue's limit that a slot belongs to."""
    return next(limit for limit in queue.limits if limit.name == slot.limit)


def is_at_work(job: Job) -> bool:
    """Whether the job's task is leased; a dead letter under lease is not counted for its tenant."""
    return job.state is State.LEASED and not job.is_dead_letter


def noisy(leased: Counter[str], busy_us: dict[str, int]) -> set[str]:
    """The tenants of one queue that use too much of it."""
    leased_all, busy_all = leased.total(), sum(busy_us.values())
    return {
        tenant
        for tenant in leased.keys() | busy_us.keys()
        if fairness.is_noisy(
            leased=leased[tenant],
            leased_all=leased_all,
            busy_ms=busy_us.get(tenant, 0),
            busy_all_ms=busy_all,
        )
    }
