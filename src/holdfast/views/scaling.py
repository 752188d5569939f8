"""How many workers would keep the waiting short."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from holdfast.core.scaling import Goal, Load
from holdfast.scaling import Scaling


class ScalingView(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one queue, and what it was made from. `wait_ms` is about how long a job that
    comes now would wait; None if nobody knows."""

    queue: str
    workers: int
    slots: int
    wait_ms: int | None
    reason: str
    load: Load
    goal: Goal


class ScalingsView(msgspec.Struct, frozen=True, kw_only=True):
    """`workers` and `slots` are for all these queues together: a number in a fixed place, which is
    what autoscalers read."""

    workers: int
    slots: int
    queues: tuple[ScalingView, ...]


def scaling_view(scaling: Scaling) -> ScalingView:
    return ScalingView(
        queue=scaling.queue,
        workers=scaling.advice.workers,
        slots=scaling.advice.slots,
        wait_ms=scaling.advice.wait_ms,
        reason=scaling.advice.reason,
        load=scaling.load,
        goal=scaling.goal,
    )


def scalings_view(found: Sequence[Scaling]) -> ScalingsView:
    """Workers that serve several queues share their slots: they are rounded up once."""
    slots = sum(each.advice.slots for each in found)
    workers = 0
    for goal in (each.goal for each in found[:1]):
        wanted = math.ceil(slots / max(1, goal.worker_slots))
        workers = min(max(wanted, goal.workers_min), goal.workers_max)
    return ScalingsView(
        workers=workers, slots=slots, queues=tuple(scaling_view(each) for each in found)
    )
