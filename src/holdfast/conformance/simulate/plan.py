"""The plan of a seed: its players, its faults and the features it uses.

Each seed enables a random subset, so that rare combinations are as likely as common ones.
"""

from __future__ import annotations

import random

import msgspec
from msgspec.structs import replace

from holdfast.core.backoff import Backoff
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue

FAULTS = (
    "crash",  # a player dies with everything it holds, and another takes its place
    "freeze",  # a player stops beyond the end of its leases, then continues as if nothing happened
    "lost_reply",  # the call is executed, but its answer is lost
    "lost_call",  # the call is lost, but the caller cannot know that
    "refusal",  # the engine reports that it is unavailable; nothing happened
    "delay",  # a call or its answer is delayed for long
    "duplicate",  # a call is executed twice, the second time much later
    "jump",  # the wall clock is set forward or back
    "restart",  # the engine is closed and opened again
    "reboot",  # the same, and the machine's boot clock starts again
)
FEATURES = (
    "delays",
    "expiry",
    "priorities",
    "keys",
    "replace",
    "follow_ups",
    "schedules",
    "operator",
    "dead_queue",
    "pauses",
    "renewals",
    "forwards",
    "depth",
    "groups",
    "batches",
    "families",
    "limits",
    "rates",
    "shares",
    "aging",
)
LEASE_MS = 2_000
SWEEP_MS = 500


class SimulationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a simulation, and the faults and features that its seed chose."""

    seed: int
    steps: int
    producers: int
    workers: int
    reapers: int
    faults: frozenset[str]
    features: frozenset[str]
    drain_ms_max: int = 15 * 60_000

    @property
    def queues(self) -> tuple[Queue, ...]:
        quick = Backoff(kind="constant", first_ms=300, cap_ms=2_000, jitter=0.5)
        grave = "grave" if "dead_queue" in self.features else None
        depth = 12 if "depth" in self.features else None
        plain = Queue(name="plain", lease_ms=LEASE_MS, backoff=quick, max_depth=depth)
        kept = Queue(name="kept", lease_ms=LEASE_MS, backoff=quick, order="keep", max_attempts=3)
        moved = Queue(
            name="moved", lease_ms=LEASE_MS, backoff=quick, dead_queue=grave, max_attempts=2
        )
        buried = Queue(name="grave", lease_ms=LEASE_MS, max_attempts=2, backoff=quick)
        return buried, *(self._flowing(queue) for queue in (plain, kept, moved))

    def _flowing(self, queue: Queue) -> Queue:
        """Give each queue some flow control, differing between queues."""
        limits: tuple[Limit, ...] = ()
        if "limits" in self.features and queue.name != "kept":
            limits += (Limit(name="slots", concurrency=2), *_PER_TENANT)
        if "rates" in self.features and queue.name == "kept":
            limits += (Limit(name="pace", rate=Rate(count=4, per_ms=1_000, burst=2)),)
        return replace(
            queue,
            limits=limits,
            fairness="shares" if "shares" in self.features and queue.name == "plain" else "off",
            aging_ms=500 if "aging" in self.features and queue.name == "moved" else None,
            group_batch=3 if "batches" in self.features and queue.name != "plain" else 1,
        )


_PER_TENANT = (Limit(name="tenants", key="{tenant}", task="work", concurrency=1),)


def draw(seed: int, *, steps: int = 400, without: frozenset[str] = frozenset()) -> SimulationPlan:
    """The plan of a seed; `without` removes faults that an engine does not have to survive."""
    dice = random.Random(seed)
    faults = {name for name in FAULTS if dice.random() < 0.4}
    features = {name for name in FEATURES if dice.random() < 0.5}
    return SimulationPlan(
        seed=seed,
        steps=steps,
        producers=dice.randint(1, 3),
        workers=dice.randint(1, 5),
        reapers=dice.randint(1, 3),
        faults=frozenset(faults - without),
        features=frozenset(features),
    )
