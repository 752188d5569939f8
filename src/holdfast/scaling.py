"""Reads what `core.scaling` must know of a queue from the store: a few bounded looks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.flow import Limit
from holdfast.core.model import Job, JobFilter, Queue, QueueView, State
from holdfast.core.scaling import SLOTS_DEFAULT, Advice, Goal, Load, advise
from holdfast.core.workers import UNHEALTHY_AGE_MS
from holdfast.engines.base import Engine
from holdfast.errors import UnknownQueue
from holdfast.worker.registry import Workers, WorkerView

WINDOW_MS = 10 * limits.MINUTE_MS
"""What is older says little about the load now."""

_SAMPLE = 100


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one queue, and what it was made from."""

    queue: str
    load: Load
    goal: Goal
    advice: Advice


async def scaling_of(
    engine: Engine, queue: str | None, goal: Goal, *, now: int, worker_slots: int | None = None
) -> list[Scaling]:
    """Of one queue or of all, by name. `now` is the engine's clock; without `worker_slots` a
    worker has as many as those that are there have on average."""
    views = [view for view in await engine.queues() if queue in (None, view.queue.name)]
    if queue is not None and not views:
        raise UnknownQueue(f"queue {queue} does not exist: declare it first")
    workers = [
        view
        for view in await Workers(engine).all()
        if view.age_ms <= UNHEALTHY_AGE_MS and not view.record.stopping and not view.record.cordoned
    ]
    goal = replace(goal, worker_slots=worker_slots or _worker_slots(workers))
    found = []
    for view in views:
        load = await load_of(engine, view, workers, now)
        found.append(
            Scaling(queue=view.queue.name, load=load, goal=goal, advice=advise(load, goal))
        )
    return found


async def load_of(engine: Engine, view: QueueView, workers: Sequence[WorkerView], now: int) -> Load:
    """A worker that serves several queues counts for each by its weight."""
    queue = view.queue
    newest = await _some(engine, JobFilter(queue=queue.name), 2)
    ended = await _some(engine, JobFilter(queue=queue.name, states=(State.DONE,)), 1)
    ended += await _some(engine, JobFilter(queue=queue.name, states=(State.DEAD,)), 1)
    recent = [job for job in ended if (job.finished_at or 0) > now - WINDOW_MS] or ended
    runs = [
        job.finished_at - job.leased_at
        for job in recent
        if job.finished_at is not None and job.leased_at is not None and job.attempt
    ]
    attempts = sum(max(1, job.attempt) for job in recent)
    serving = [each for each in workers if queue.name in each.record.queues]
    return Load(
        waiting=view.ready,
        leased=view.leased,
        oldest_age_ms=view.oldest_age_ms,
        arrivals=_arrivals(newest, now),
        run_ms=max(0, sum(runs)) / len(runs) if runs else None,
        attempts=attempts / len(recent) if recent else 1.0,
        ended=len(recent),
        failed=sum(job.state is State.DEAD for job in recent),
        slots=round(sum(_part(each, queue.name) for each in serving)),
        workers=len(serving),
        paused=queue.paused,
        slots_bound=_slots_bound(queue),
        rate_bound=_rate_bound(queue),
    )


async def _some(engine: Engine, wanted: JobFilter, pages: int) -> list[Job]:
    """The newest, from few pages: with their payloads they may be large."""
    found: list[Job] = []
    after: int | None = None
    for _ in range(pages):
        page = await engine.find(wanted, limit=_SAMPLE, after=after)
        found += (replace(job, payload=b"") for job in page.jobs)
        after = page.after
        if after is None:
            break
    return found


def _arrivals(newest: Sequence[Job], now: int) -> float:
    """Jobs a second: of a full sample over the time it spans, else over the whole window."""
    recent = [job.created_at for job in newest if now - WINDOW_MS < job.created_at <= now]
    if not recent:
        return 0.0
    is_cut = len(recent) == len(newest) and len(newest) >= _SAMPLE
    span_ms = now - min(recent) if is_cut else WINDOW_MS
    return len(recent) * 1000 / max(span_ms, 1000)


def _part(view: WorkerView, queue: str) -> float:
    queues = view.record.queues
    return view.record.capacity * queues[queue] / max(1, sum(queues.values()))


def _worker_slots(workers: Sequence[WorkerView]) -> int:
    capacities = [view.record.capacity for view in workers if view.record.capacity]
    return round(sum(capacities) / len(capacities)) if capacities else SLOTS_DEFAULT


def _slots_bound(queue: Queue) -> int | None:
    bounds = [each.concurrency for each in queue.limits if _is_wide(each) and each.concurrency]
    return min(bounds, default=None)


def _rate_bound(queue: Queue) -> float | None:
    """Starts a second."""
    bounds = [
        each.rate.count * 1000 / each.rate.per_ms
        for each in queue.limits
        if _is_wide(each) and each.rate is not None
    ]
    return min(bounds, default=None)


def _is_wide(limit: Limit) -> bool:
    """Does every job of the queue count for it, under one key?"""
    return limit.task is None and not limit.key
