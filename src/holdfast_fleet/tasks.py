"""The Holdfast application of the fleet: `termination`, `housekeeping`, and their schedules.

`holdfast fleet run` consumes both queues directly on SQS: a message of a queue without the tag
`holdfast.task` has the task `message`, and its queue tells what it is. On any other engine inlets
give each message its task. A message that is not valid becomes a dead letter `rejected`.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast import Bury, Context, Holdfast, HoldfastError, NewJob, Retry, Schedule
from holdfast_fleet import metrics
from holdfast_fleet.aws import AwsFleet, HeldLock
from holdfast_fleet.housekeeping import LIMIT_S, Run, TaskReport
from holdfast_fleet.metrics import Metric, PrometheusFile
from holdfast_fleet.model import (
    TASK_TYPES,
    InvalidMessage,
    TaskType,
    parse_housekeeping,
    parse_termination,
)
from holdfast_fleet.settings import FleetSettings

ATTEMPTS_MAX: Final = 3
TERMINATIONS_MAX: Final = 5
"""Terminations that one process handles at the same time."""
SLOTS: Final = TERMINATIONS_MAX + len(TASK_TYPES)
"""Jobs that one process holds at a time. Terminations beyond five wait in the other places."""
LOCK_S: Final = 2 * LIMIT_S
"""As long again as a run may take, because the clocks of two machines differ."""
CRONS: Final[Mapping[TaskType, str]] = {
    "orphaned_instances": "*/15 * * * *",
    "stale_ssm": "0 * * * *",
    "old_jobs": "0 2 * * *",
    "pool_audit": "0 9 * * *",
}
TERMINATION_QUEUE: Final = "runs-fleet-termination"
HOUSEKEEPING_QUEUE: Final = "runs-fleet-housekeeping"

_log = logging.getLogger("holdfast.fleet")

app = Holdfast()


class HousekeepingFailed(HoldfastError):
    """Part of the work of a task could not be done: the text names the first error."""

    code = "housekeeping_failed"


class LockHeld(HoldfastError):
    """Another run of the same task is under way: wait for its end. `job` is the one that runs it,
    and `left_s` the time until its lock ends."""

    code = "lock_held"

    def __init__(self, task: TaskType, held: HeldLock) -> None:
        self.job = held.job
        self.left_s = max(held.expires_at - int(time.time()), 0)
        super().__init__(
            f"{task} is under way elsewhere; its lock ends in {self.left_s} s at the latest"
        )


class Fleet:
    """The settings and clients of this process."""

    def __init__(self, settings: FleetSettings, aws: AwsFleet | None = None) -> None:
        self.settings = settings
        self.aws = aws or AwsFleet(settings)
        path = settings.metrics_file
        self._prometheus = None if path is None else PrometheusFile(path)
        self._terminations = threading.BoundedSemaphore(TERMINATIONS_MAX)

    def publish(self, found: Sequence[Metric]) -> None:
        """Publish metrics to CloudWatch, and to the file for Prometheus if there is one."""
        self.aws.put_metrics(found)
        if self._prometheus is not None:
            self._prometheus.add(found)

    def terminate(self, fields: Mapping[str, Any], *, attempt: int) -> None:
        """Update the record, delete the parameter, publish metrics. Killed between two of these, or
        called twice, the next call does what is missing."""
        message = parse_termination(fields)
        with self._terminations:
            is_new = self.aws.complete_job(message)
            self.aws.delete_parameter(message.parameter)
            if is_new or attempt > 1:
                # An earlier attempt may have been killed before this: then the metric repeats,
                # rather than being lost. A second message about the same job has attempt 1.
                self.publish(metrics.of_termination(message))

    def keep_house(
        self, task: TaskType, *, job: str, hours: float = 24.0, dry_run: bool = False
    ) -> TaskReport:
        """Run a task under its lock. Raises LockHeld."""
        run = Run(task, self.settings, self.aws, self.publish, dry_run=dry_run, hours=hours)
        if dry_run:
            return run.run()
        owner = uuid.uuid4().hex
        expires_at = int(time.time()) + LOCK_S
        held = self.aws.take_lock(task, owner=owner, job=job, expires_at=expires_at)
        if held is not None:
            raise LockHeld(task, held)
        try:
            return run.run()
        finally:
            self._release(task, owner)

    def _release(self, task: TaskType, owner: str) -> None:
        try:
            self.aws.release_lock(task, owner=owner)
        except HoldfastError as error:
            _log.warning("the lock of %s stays until it ends: %s", task, error)


def fleet() -> Fleet:
    """The fleet of this process, from its environment. Handlers in several threads share it."""
    with _creating:
        return _fleet()


_creating = threading.Lock()


@functools.cache
def _fleet() -> Fleet:
    return Fleet(FleetSettings.from_environment())


@contextmanager
def _three_attempts(ctx: Context) -> Iterator[None]:
    """Bury a job whose third attempt fails, also where the queue would allow more."""
    try:
        yield
    except (InvalidMessage, Retry, Bury):
        raise
    except Exception as error:
        if ctx.attempt >= ATTEMPTS_MAX and not ctx.last:
            raise Bury(f"attempt {ctx.attempt} of {ATTEMPTS_MAX} failed: {error}") from error
        raise


def handle_termination(ctx: Context, fields: Mapping[str, Any]) -> None:
    """One message of the termination queue."""
    with _three_attempts(ctx):
        fleet().terminate(fields, attempt=ctx.attempt)


def handle_housekeeping(ctx: Context, fields: Mapping[str, Any]) -> dict[str, Any]:
    """One message of the housekeeping queue."""
    message = parse_housekeeping(fields)
    return _keep_house(ctx, message.task_type, message.hours)


def _keep_house(ctx: Context, task: TaskType, hours: float) -> dict[str, Any]:
    with _three_attempts(ctx):
        try:
            report = fleet().keep_house(task, job=ctx.id, hours=hours)
        except LockHeld as error:
            return _skip(ctx, task, error)
        _log_report(report)
        if report.failed:
            subject, why = next(iter(report.failed.items()))
            raise HousekeepingFailed(f"{len(report.failed)} failed, first {subject}: {why}")
        summary = {"task": task, "done": report.done, "truncated": report.truncated}
        return {**summary, "kept": len(report.kept)}


def _skip(ctx: Context, task: TaskType, error: LockHeld) -> dict[str, Any]:
    """The run that holds the lock does this work too. If it is an earlier attempt of this job, it
    may have been killed: then wait until its lock ends."""
    if error.job == ctx.id:
        raise Retry(str(error), after=f"{error.left_s + 1}s")
    _log.info("%s; this message is done with it", error)
    return {"task": task, "skipped": True}


def _log_report(report: TaskReport) -> None:
    _log.info(
        "%s: %d done, %d kept, %d failed%s",
        report.task,
        report.done,
        len(report.kept),
        len(report.failed),
        ", truncated" if report.truncated else "",
    )
    if report.truncated:
        _log.warning("%s ran out of its %d s and is truncated", report.task, LIMIT_S)
    if report.markdown:
        print(report.markdown)  # noqa: T201 (the job's output)


@app.task(
    name="termination",
    queue=TERMINATION_QUEUE,
    max_attempts=ATTEMPTS_MAX,
    give_up_on=(InvalidMessage,),
)
def termination(ctx: Context, **fields: Any) -> None:
    """A runner ended."""
    handle_termination(ctx, fields)


@app.task(
    name="housekeeping",
    queue=HOUSEKEEPING_QUEUE,
    max_attempts=ATTEMPTS_MAX,
    give_up_on=(InvalidMessage,),
)
def housekeeping(ctx: Context, **fields: Any) -> dict[str, Any]:
    """An order of a scheduled rule."""
    return handle_housekeeping(ctx, fields)


@app.task(name="scheduled", queue=HOUSEKEEPING_QUEUE, max_attempts=ATTEMPTS_MAX)
def scheduled(ctx: Context, task_type: TaskType) -> dict[str, Any]:
    """A tick of one of our own schedules."""
    return _keep_house(ctx, task_type, 24.0)


@app.task(name="message", give_up_on=(InvalidMessage,))
def message(ctx: Context, **fields: Any) -> dict[str, Any] | None:
    """A message of a queue on SQS without the tag `holdfast.task`: its queue tells what it is."""
    settings = fleet().settings
    handlers: dict[str, Callable[[Context, Mapping[str, Any]], dict[str, Any] | None]] = {
        settings.termination_queue: handle_termination,
        settings.housekeeping_queue: handle_housekeeping,
    }
    if ctx.queue not in handlers:
        raise InvalidMessage(
            f"queue {ctx.queue} is neither that of RUNS_FLEET_TERMINATION_QUEUE_URL nor that of"
            " RUNS_FLEET_HOUSEKEEPING_QUEUE_URL: give its messages a task"
        )
    return handlers[ctx.queue](ctx, fields)


def schedules(queue: str) -> list[Schedule]:
    """The schedules of the four tasks, which enqueue into this queue: every 15 minutes, hourly, at
    02:00 and at 09:00 UTC. A missed tick is made up for once."""
    return [
        Schedule(
            name=f"fleet-{task.replace('_', '-')}",
            cron=cron,
            job=NewJob(
                id="tick",
                task="scheduled",
                queue=queue,
                payload=msgspec.json.encode({"task_type": task}),
            ),
        )
        for task, cron in CRONS.items()
    ]
