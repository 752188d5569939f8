"""Read the load of queues in a few bounded calls; `core.scaling` turns it into advice."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core import bounds
from holdfast.core.checks import unknown_queue
from holdfast.core.limits import Limit
from holdfast.core.model import Job, JobFilter, Queue, QueueView, State
from holdfast.core.scaling import SLOTS_DEFAULT, Activity, Advice, Goal, Load, advise
from holdfast.core.workers import UNHEALTHY_AGE_MS
from holdfast.engines.base import Engine
from holdfast.ops.workers import Workers, WorkerView

WINDOW_MS = 10 * bounds.MINUTE_MS
"""Older jobs say little about the current load."""

_SAMPLE = 100

ReadActivity = Callable[[Collection[str]], Awaitable[Mapping[str, Activity]]]
"""Reads the recent activity of queues from counters, by name."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one queue, and the facts behind it."""

    queue: str
    load: Load
    goal: Goal
    advice: Advice


async def read_scaling(
    engine: Engine,
    queue: str | None,
    goal: Goal,
    *,
    now: int,
    worker_slots: int | None = None,
    activity: ReadActivity | None = None,
    views: Sequence[QueueView] | None = None,
) -> list[Scaling]:
    """The advice for one queue or for all, by name. `now` is the engine's clock. Without
    `worker_slots`, a new worker is assumed to have the average capacity of the current ones.
    Without `activity` the newest jobs are searched, if the engine can. `views` are the queues, if
    the caller has read them.
    """
    if views is None:
        views = await engine.queues(names=None if queue is None else [queue])
    if queue is not None and not views:
        raise unknown_queue(queue)
    known: Mapping[str, Activity] | None = None
    if activity is not None:
        known = await activity([view.queue.name for view in views])
    elif not engine.traits.inspect:
        known = {}
    registered = await Workers(engine).all() if engine.traits.records else []
    workers = [
        view
        for view in registered
        if view.age_ms <= UNHEALTHY_AGE_MS and not view.record.stopping and not view.record.cordoned
    ]
    goal = replace(goal, worker_slots=worker_slots or _worker_slots(workers))
    found = []
    for view in views:
        recent = None if known is None else known.get(view.queue.name, Activity())
        load = await read_load(engine, view, workers, now, recent)
        found.append(
            Scaling(queue=view.queue.name, load=load, goal=goal, advice=advise(load, goal))
        )
    return found


async def read_load(
    engine: Engine,
    view: QueueView,
    workers: Sequence[WorkerView],
    now: int,
    activity: Activity | None = None,
) -> Load:
    """The load of one queue. A worker that serves several queues counts by its weights. Without
    `activity` the newest jobs are searched."""
    queue = view.queue
    if activity is None:
        activity = await _find_activity(engine, queue, now)
    serving = [each for each in workers if queue.name in each.record.queues]
    return Load(
        waiting=view.ready,
        leased=view.leased,
        oldest_age_ms=view.oldest_age_ms,
        slots=round(sum(_share(each, queue.name) for each in serving)),
        workers=len(serving),
        paused=queue.paused,
        slots_bound=_slots_bound(queue),
        rate_bound=_rate_bound(queue),
        **asdict(activity),
    )


async def _find_activity(engine: Engine, queue: Queue, now: int) -> Activity:
    newest = await _newest(engine, JobFilter(queue=queue.name), 2)
    ended = await _newest(engine, JobFilter(queue=queue.name, states=(State.DONE,)), 1)
    ended += await _newest(engine, JobFilter(queue=queue.name, states=(State.DEAD,)), 1)
    recent = [job for job in ended if (job.finished_at or 0) > now - WINDOW_MS] or ended
    runs = [
        job.finished_at - job.leased_at
        for job in recent
        if job.finished_at is not None and job.leased_at is not None and job.attempt
    ]
    attempts = sum(max(1, job.attempt) for job in recent)
    return Activity(
        arrivals=_arrivals(newest, now),
        run_ms=max(0, sum(runs)) / len(runs) if runs else None,
        attempts=attempts / len(recent) if recent else 1.0,
        ended=len(recent),
        failed=sum(job.state is State.DEAD for job in recent),
    )


async def _newest(engine: Engine, wanted: JobFilter, pages: int) -> list[Job]:
    """The newest jobs, from a few pages, since their payloads may be large; none if the store
    cannot be searched."""
    found: list[Job] = []
    if not engine.traits.inspect:
        return found
    after: int | None = None
    for _ in range(pages):
        page = await engine.find(wanted, limit=_SAMPLE, after=after)
        found += (replace(job, payload=b"") for job in page.jobs)
        after = page.after
        if after is None:
            break
    return found


def _arrivals(newest: Sequence[Job], now: int) -> float:
    """Jobs per second: over the time that a full sample spans, or else over the window."""
    recent = [job.created_at for job in newest if now - WINDOW_MS < job.created_at <= now]
    if not recent:
        return 0.0
    is_cut = len(recent) == len(newest) and len(newest) >= _SAMPLE
    span_ms = now - min(recent) if is_cut else WINDOW_MS
    return len(recent) * 1000 / max(span_ms, 1000)


def _share(view: WorkerView, queue: str) -> float:
    queues = view.record.queues
    return view.record.capacity * queues[queue] / max(1, sum(queues.values()))


def _worker_slots(workers: Sequence[WorkerView]) -> int:
    capacities = [view.record.capacity for view in workers if view.record.capacity]
    return round(sum(capacities) / len(capacities)) if capacities else SLOTS_DEFAULT


def _slots_bound(queue: Queue) -> int | None:
    bounds = [each.concurrency for each in queue.limits if _is_wide(each) and each.concurrency]
    return min(bounds, default=None)


def _rate_bound(queue: Queue) -> float | None:
    """The tightest rate limit of the queue, in leases per second."""
    bounds = [
        each.rate.count * 1000 / each.rate.per_ms
        for each in queue.limits
        if _is_wide(each) and each.rate is not None
    ]
    return min(bounds, default=None)


def _is_wide(limit: Limit) -> bool:
    """True if every job of the queue counts for the limit, under one key."""
    return limit.task is None and not limit.key


class ScalingView(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one queue, and the facts behind it. `wait_ms` estimates how long a job that
    is enqueued now would wait; None if it cannot be estimated."""

    queue: str
    workers: int
    slots: int
    wait_ms: int | None
    reason: str
    load: Load
    goal: Goal


class ScalingsView(msgspec.Struct, frozen=True, kw_only=True):
    """`workers` and `slots` are for all these queues together, in a fixed place for autoscalers to
    read."""

    workers: int
    slots: int
    queues: tuple[ScalingView, ...]


def scaling_view(scaling: Scaling) -> ScalingView:
    """The advice for one queue as people read it."""
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
    """The advice for several queues. Workers share their slots, so they are rounded up once."""
    slots = sum(each.advice.slots for each in found)
    workers = 0
    for goal in (each.goal for each in found[:1]):
        wanted = math.ceil(slots / max(1, goal.worker_slots))
        workers = min(max(wanted, goal.workers_min), goal.workers_max)
    return ScalingsView(
        workers=workers, slots=slots, queues=tuple(scaling_view(each) for each in found)
    )
