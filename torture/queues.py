"""The queues of the storm, each with the settings that it changes between while the storm lasts.

The first of each is what it begins with. Policy is the same in all: players decide by the first.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.backoff import Backoff
from holdfast.core.flow import Limit, Rate
from holdfast.core.model import Queue

LEASE_MS = 600
DEPTH_MAX = 60
"""What limits let through is less than what producers make: the rest is refused at the door."""
TENANTS = ("ada", "bob", "cyd", "dan")
PLAIN = ("plain", "kept", "moved")


def _queue(name: str, **settings: Any) -> Queue:
    quick = Backoff(kind="constant", first_ms=50, cap_ms=200, jitter=0.5)
    return Queue(name=name, lease_ms=LEASE_MS, backoff=quick, **settings)


def _deep(name: str, **settings: Any) -> Queue:
    return _queue(name, max_depth=DEPTH_MAX, **settings)


def _limited(slots: int, each: int) -> Queue:
    tenants = Limit(name="tenants", key="{tenant}", concurrency=each)
    return _deep("limited", limits=(Limit(name="slots", concurrency=slots), tenants))


def _paced(rate: Rate) -> Queue:
    tenants = Limit(name="tenant-pace", key="{tenant}", rate=Rate(count=8, per_ms=500))
    return _deep("paced", limits=(Limit(name="pace", rate=rate), tenants))


def _fair(weights: dict[str, int]) -> Queue:
    tenants = Limit(name="share", key="{tenant}", concurrency=3)
    return _deep("fair", fairness="shares", weights=weights, limits=(tenants,))


def _batched(slots: int) -> Queue:
    """Shares its slots with the queue `limited`."""
    return _deep("batched", group_batch=3, limits=(Limit(name="slots", concurrency=slots),))


SETTINGS: dict[str, tuple[Queue, ...]] = {
    variants[0].name: variants
    for variants in (
        (_queue("grave", max_attempts=3),),
        (_queue("plain", max_attempts=5),),
        (_queue("kept", order="keep"),),
        (_queue("moved", dead_queue="grave", max_attempts=2),),
        (_limited(3, 1), _limited(6, 2), _limited(2, 1)),
        (_paced(Rate(count=20, per_ms=500, burst=5)), _paced(Rate(count=40, per_ms=500, burst=2))),
        (_fair({"ada": 5}), _fair({"bob": 3, "cyd": 2})),
        (_deep("noisy", fairness="noisy"),),
        (_deep("grouped"),),
        (_batched(4), _batched(6)),
        (_queue("aged", aging_ms=150),),
        (
            # Every change of these puts what waits into other lanes.
            _deep("shifting", limits=(Limit(name="shift", key="{tenant}", concurrency=2),)),
            _deep("shifting", fairness="shares"),
            _deep(
                "shifting",
                fairness="noisy",
                limits=(Limit(name="shift", key="{task}", concurrency=4),),
            ),
            _deep("shifting"),
        ),
    )
}
QUEUES = {name: variants[0] for name, variants in SETTINGS.items()}
FLOWING = tuple(name for name in QUEUES if name not in (*PLAIN, "grave"))
GROUPED = ("grouped", "batched", "limited", "shifting")
CHANGING = tuple(name for name, variants in SETTINGS.items() if len(variants) > 1)
