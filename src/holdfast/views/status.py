"""Everything at a glance: queues, workers, breakers, redrives, alerts; what could be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.checkup import Finding
from holdfast.core.model import Job, QueueView
from holdfast.standing import Standing
from holdfast.views.alerts import AlertView, alert_views
from holdfast.views.breakers import BreakerView, breaker_view
from holdfast.views.queues import QueueCounts, counts_view
from holdfast.views.redrives import RedriveDetails, redrive_view
from holdfast.views.values import COMMAND, command_of, value_of
from holdfast.views.workers import WorkerDetails, worker_view
from holdfast.worker.registry import WorkerView


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """Redrives are those that have not ended, and alerts those that are raised."""

    queues: tuple[QueueCounts, ...]
    workers: tuple[WorkerDetails, ...]
    breakers: tuple[BreakerView, ...]
    redrives: tuple[RedriveDetails, ...]
    alerts: tuple[AlertView, ...]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """`does` is the task, or what a command job runs."""

    id: str
    queue: str
    task: str
    does: str
    worker: str | None
    attempt: int
    progress: float | None


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs are the first of those that run."""

    queues: tuple[QueueCounts, ...]
    workers: tuple[WorkerDetails, ...]
    jobs: tuple[RunningJob, ...]


class CheckupView(msgspec.Struct, frozen=True, kw_only=True):
    """Not `ok` when something failed; a warning alone is no failure."""

    ok: bool
    findings: tuple[Finding, ...]


def status_view(standing: Standing) -> StatusView:
    return StatusView(
        queues=tuple(counts_view(view) for view in standing.queues),
        workers=tuple(worker_view(each) for each in standing.workers),
        breakers=tuple(breaker_view(key, each) for key, each in standing.breakers.items()),
        redrives=tuple(redrive_view(view) for view in standing.redrives),
        alerts=alert_views(standing.alerts),
    )


def top_view(
    queues: Sequence[QueueView], workers: Sequence[WorkerView], jobs: Sequence[Job]
) -> TopView:
    return TopView(
        queues=tuple(counts_view(view) for view in queues),
        workers=tuple(worker_view(each) for each in workers),
        jobs=tuple(_running(job) for job in jobs),
    )


def checkup_view(findings: Sequence[Finding]) -> CheckupView:
    failed = any(finding.level == "fail" for finding in findings)
    return CheckupView(ok=not failed, findings=tuple(findings))


def _running(job: Job) -> RunningJob:
    is_command = job.task == COMMAND
    return RunningJob(
        id=job.id,
        queue=job.queue,
        task=job.task,
        does=command_of(value_of(job.payload, job.content_type)) if is_command else job.task,
        worker=job.worker,
        attempt=job.attempt,
        progress=job.progress,
    )
