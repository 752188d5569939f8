"""One snapshot of a store: queues, workers, breakers, redrives and alerts; and its views."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from holdfast.core import bounds
from holdfast.core.model import COMMAND_TASK, Job, JobFilter, QueueView
from holdfast.engines.base import Engine
from holdfast.engines.extras import DeadLetterQueues, extra
from holdfast.errors import ConfigError, Unsupported
from holdfast.notation.filters import StateWord, chosen_states
from holdfast.ops.alerts import AlertView, StoredAlert, alert_views, read_alerts
from holdfast.ops.breakers import BreakerView, StoredBreaker, breaker_view, read_breakers
from holdfast.ops.gates import Gates, GateView
from holdfast.ops.queues import QueueCounts, count_all, queue_counts
from holdfast.ops.redrives import RedriveDetails, Redrives, RedriveView, redrive_details
from holdfast.ops.views import command_of, value_of
from holdfast.ops.workers import WorkerDetails, Workers, WorkerView, worker_details
from holdfast.process import wall_ms


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Queues, workers, breakers and gates by name; redrives that have not ended, oldest first;
    raised alerts, critical ones first. `failed` counts the jobs of each queue that wait after a
    failed attempt, a lower bound with `failed_more`; None if the store cannot be searched. Without
    records, all but queues and redrives are missing."""

    queues: list[QueueView]
    failed: dict[str, int] | None = {}
    failed_more: bool = False
    workers: list[WorkerView]
    breakers: dict[str, StoredBreaker]
    redrives: list[RedriveView]
    gates: list[GateView]
    alerts: list[StoredAlert]


async def read_status(engine: Engine) -> StoreStatus:
    """Read the snapshot, in a few bounded calls."""
    queues = await engine.queues()
    has_records = engine.traits.records
    alerts = await read_alerts(engine) if has_records else []
    return StoreStatus(
        queues=queues,
        failed=await _count_failed(engine, queues),
        failed_more=not engine.traits.inspect
        or any(view.estimated for view in queues)
        or sum(map(count_all, queues)) > bounds.SCAN_MAX,
        workers=await Workers(engine).all() if has_records else [],
        breakers=await read_breakers(engine) if has_records else {},
        redrives=await _running_redrives(engine),
        gates=await Gates(engine).views() if has_records else [],
        alerts=[each for each in alerts if each[0].is_raised],
    )


async def _running_redrives(engine: Engine) -> list[RedriveView]:
    """The redrives that have not ended. The right to list moves is needed for dead letters only, so
    the lack of it hides nothing else."""
    has_queues = extra(engine, DeadLetterQueues) is not None
    if not has_queues and not engine.traits.records:
        return []
    try:
        return await Redrives(engine, wall_ms).going_on()
    except (ConfigError, Unsupported):
        if has_queues:
            return []
        raise


async def _count_failed(engine: Engine, queues: Sequence[QueueView]) -> dict[str, int] | None:
    """The number of jobs that wait after a failed attempt, by queue."""
    if not engine.traits.inspect:
        return None
    if not any(view.ready or view.delayed or view.blocked for view in queues):
        return {}
    states, waiting = chosen_states([StateWord.FAILED])
    wanted = JobFilter(states=states, waiting=waiting)
    tallies = await engine.tally(wanted, "queue", limit=bounds.PAGE_MAX)
    return {tally.value: tally.count for tally in tallies if tally.value is not None}


class QueueStatus(QueueCounts, frozen=True, kw_only=True):
    """The counts of a queue. `failed` jobs wait after a failed attempt: they are among the ready,
    delayed and blocked ones. 0 and `estimated` if the store cannot be searched."""

    failed: int


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """Redrives are those that have not ended, and alerts those that are raised."""

    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerDetails, ...]
    breakers: tuple[BreakerView, ...]
    redrives: tuple[RedriveDetails, ...]
    gates: tuple[GateView, ...]
    alerts: tuple[AlertView, ...]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """`does` is the task, or the command line of a command job."""

    id: str
    queue: str
    task: str
    does: str
    worker: str | None
    attempt: int
    progress: float | None


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs` are the first of the running ones."""

    queues: tuple[QueueCounts, ...]
    workers: tuple[WorkerDetails, ...]
    jobs: tuple[RunningJob, ...]


def status_view(status: StoreStatus) -> StatusView:
    """The snapshot as people read it."""
    return StatusView(
        queues=tuple(_queue_status(view, status) for view in status.queues),
        workers=tuple(worker_details(view) for view in status.workers),
        breakers=tuple(breaker_view(key, known) for key, known in status.breakers.items()),
        redrives=tuple(redrive_details(view) for view in status.redrives),
        gates=tuple(status.gates),
        alerts=alert_views(status.alerts),
    )


def _queue_status(view: QueueView, status: StoreStatus) -> QueueStatus:
    counts = asdict(queue_counts(view))
    more = ("failed",) if status.failed_more else ()
    counts["estimated"] = (*counts["estimated"], *more)
    return QueueStatus(**counts, failed=(status.failed or {}).get(view.queue.name, 0))


def top_view(
    queues: Sequence[QueueView], workers: Sequence[WorkerView], jobs: Sequence[Job]
) -> TopView:
    """Queues, workers and running jobs, for a display that is redrawn."""
    return TopView(
        queues=tuple(queue_counts(view) for view in queues),
        workers=tuple(worker_details(view) for view in workers),
        jobs=tuple(_running_job(job) for job in jobs),
    )


def _running_job(job: Job) -> RunningJob:
    is_command = job.task == COMMAND_TASK
    return RunningJob(
        id=job.id,
        queue=job.queue,
        task=job.task,
        does=command_of(value_of(job.payload, job.content_type)) if is_command else job.task,
        worker=job.worker,
        attempt=job.attempt,
        progress=job.progress,
    )
