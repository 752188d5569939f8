"""`holdfast scaling`: how many workers would keep the waiting short."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.checkup import examine
from holdfast.cli.output import COMMON, Common, print_json, print_table, show_age
from holdfast.cli.running import running
from holdfast.core import limits
from holdfast.core.scaling import Goal
from holdfast.core.workers import addressee
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.scaling import Scaling, scaling_of
from holdfast.views.scaling import scaling_view
from holdfast.views.values import plain


async def scaling(
    *,
    queue: Annotated[str | None, Parameter(help="Of this queue alone.")] = None,
    target_wait: Annotated[str, Parameter(help="Jobs should start within this time.")] = "30s",
    slots: Annotated[
        int | None, Parameter(help="Jobs that one worker runs at once; as those that are there.")
    ] = None,
    workers_min: Annotated[int, Parameter(name="--min", help="Never fewer workers.")] = 0,
    workers_max: Annotated[int, Parameter(name="--max", help="Never more workers.")] = 1_000,
    common: Common = COMMON,
) -> None:
    """Say how many workers would keep the waiting short.

    It is reckoned from how fast jobs come, how long they run, how many wait and for how long; of
    each queue by itself.
    """
    goal = Goal(
        wait_ms=to_ms("target-wait", target_wait, UsageError),
        workers_min=workers_min,
        workers_max=workers_max,
    )
    if not 1 <= goal.wait_ms <= limits.DELAY_MS_MAX:
        raise UsageError(f"target-wait {target_wait[:40]!r} is no time to wait: give 30s")
    if not 0 <= workers_min <= workers_max <= limits.SLOTS_MAX:
        raise UsageError(f"--min {workers_min} and --max {workers_max} are no range of workers")
    if slots is not None and not 1 <= slots <= limits.SLOTS_MAX:
        raise UsageError(f"slots {slots} is not 1 or more")
    async with running(common) as app:
        now = (await examine(app.home.store)).now
        found = await scaling_of(app.engine, queue, goal, now=now, worker_slots=slots)
    if common.json:
        print_json([plain(scaling_view(each)) for each in found])
        return
    rows = [
        (
            each.queue,
            each.load.waiting,
            show_age(each.advice.wait_ms) if each.advice.wait_ms is not None else "?",
            each.load.workers,
            each.advice.workers,
            each.advice.slots,
            each.advice.reason,
        )
        for each in found
        if queue is not None or _worth_showing(each)
    ]
    print_table(("queue", "waiting", "wait", "workers", "wanted", "slots", "because"), rows)


def _worth_showing(scaling: Scaling) -> bool:
    """A queue of a worker's own says nothing while it is empty."""
    return addressee(scaling.queue) is None or scaling.load.waiting > 0
