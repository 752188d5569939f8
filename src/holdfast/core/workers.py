"""A worker's own record, the orders to it, its health, and the records of its tasks.

Pure: ages and counts go in, a judgement comes out. Which worker runs a job is read from the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import islice
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.bounds import Count, Instant, Share, Span
from holdfast.core.model import NO_OVERRIDES, Overrides

KIND = "worker"
ORDER_KIND = "order"
DECLARED_KIND = "task"
UNATTENDED_KIND = "unattended"

HEARTBEAT_MS = 10 * bounds.SECOND_MS
QUEUE_PREFIX = "worker."
DISTRIBUTOR = "(distributor)"
"""The worker name of distributors, which lease jobs only to forward them. No worker can have it."""
FORCED_MAX = 100
"""Jobs in an order whose attempts must end at once."""
ADDRESSED_EXPIRES_MS = 5 * bounds.MINUTE_MS
TASKS_SHOWN = 500
"""The maximum number of task names in a worker's record: the first in alphabetical order."""

DEGRADED_FAILURES, UNHEALTHY_FAILURES = 3, 10
DEGRADED_RATE, UNHEALTHY_RATE = 0.3, 0.7
DEGRADED_AGE_MS, UNHEALTHY_AGE_MS = 3 * HEARTBEAT_MS, 6 * HEARTBEAT_MS
WATCH_MS = 10 * bounds.SECOND_MS
"""How often the queues of workers at the broker are looked at."""
UNATTENDED_MS = 30 * bounds.SECOND_MS
"""A worker that does not receive from its queue at the broker for this long is unhealthy."""
UNATTENDED_MAX = 1_000
_LOOK_AGE_MS_MAX = 3 * WATCH_MS
"""An older look counts for nothing."""


class Health(StrEnum):
    """The health of a worker; only a healthy one fills all its slots."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's own record, saved every ten seconds under its stable name."""

    name: str
    id: str
    host: str
    pid: Count
    started_at: Instant
    start_ticks: Count = 0
    """The kernel's start time of the process; together with the pid it identifies the process."""
    version: str = ""
    queues: dict[str, Count] = {}
    tasks: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    capacity: Count = 0
    running: Count = 0
    prefetched: Count = 0
    done: Count = 0
    failed: Count = 0
    consecutive_failures: Count = 0
    failure_rate: Share = 0.0
    blocked: str = ""
    """Why it makes no progress although it has free slots and jobs wait; "" if it makes
    progress.
    """
    cordoned: bool = False
    stopping: bool = False


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Orders to a worker from outside. `cordoned` applies to its name, across restarts; `ending`
    applies only to the process with that id. "drain" waits for running jobs without limit, "stop"
    for `grace_ms`, or else for the worker's own grace period. `renew` is increased to make the
    worker renew at once, so that it learns of a cancel request soon. `forced` has the cancelled
    jobs whose attempts it must end at once, each with the value of `renew` at that request; the
    newest are kept."""

    cordoned: bool = False
    ending: str = ""
    ending_id: str = ""
    grace_ms: Span | None = None
    renew: Count = 0
    forced: Annotated[dict[str, Count], msgspec.Meta(max_length=FORCED_MAX)] = {}
    by: str = ""

    def nudged(self, forced: str | None = None) -> WorkerOrder:
        """The order that also asks for a renewal, and to end the attempt of the job `forced`."""
        number = self.renew % bounds.COUNT_MAX + 1
        if forced is None:
            return replace(self, renew=number)
        all_forced = sorted({**self.forced, forced: number}.items(), key=lambda item: item[1])
        return replace(self, renew=number, forced=dict(all_forced[-FORCED_MAX:]))

    def forced_since(self, before: WorkerOrder) -> frozenset[str]:
        """The jobs to end that the earlier order did not ask for."""
        new = range(before.renew + 1, self.renew + 1)
        return frozenset(key for key, number in self.forced.items() if number in new)


class UnattendedQueues(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last look at the queues of workers at the broker: the workers that did not receive from
    theirs, and for how long that was so when the record was saved."""

    workers: Annotated[dict[str, Span], msgspec.Meta(max_length=UNATTENDED_MAX)] = {}


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options for jobs that a task declares in code, published by its workers under the task's
    name. None and missing overrides were not declared."""

    queue: str | None = None
    priority: int | None = None
    expires_ms: int | None = None
    overrides: Overrides = NO_OVERRIDES


def worker_queue(name: str) -> str:
    """The queue for jobs addressed to one worker."""
    return QUEUE_PREFIX + name


def addressee(queue: str) -> str | None:
    """The worker whose own queue this is; None for any other queue."""
    return queue.removeprefix(QUEUE_PREFIX) if queue.startswith(QUEUE_PREFIX) else None


def knows_task(record: WorkerRecord, task: str) -> bool:
    """Whether the worker has this task. A record lists only the first TASKS_SHOWN of them; a later
    name is assumed to be known."""
    cut = len(record.tasks) >= TASKS_SHOWN
    return task in record.tasks or (cut and task > record.tasks[-1])


def is_recent_look(age_ms: int) -> bool:
    """Whether a process has just looked at the queues; `age_ms` is the age of its record."""
    return age_ms < WATCH_MS // 2


def after_look(
    known: UnattendedQueues | None, age_ms: int, missing: Iterable[str]
) -> UnattendedQueues:
    """The record after a look that found no receiver for the queues of the workers `missing`;
    `known` is that of the look before, `age_ms` ago."""
    before = unattended_workers(known, age_ms)
    most = bounds.DELAY_MS_MAX
    return UnattendedQueues(
        workers={
            name: min(before[name] + age_ms, most) if name in before else 0
            for name in islice(missing, UNATTENDED_MAX)
        }
    )


def unattended_workers(known: UnattendedQueues | None, age_ms: int) -> dict[str, int]:
    """For how long workers have not received from their queues at the broker. Empty if the last
    look was too long ago: nobody looks, or the broker cannot be reached."""
    return {} if known is None or age_ms > _LOOK_AGE_MS_MAX else known.workers


def health(record: WorkerRecord, age_ms: int, unattended_ms: int = 0) -> tuple[Health, str]:
    """A worker's health and the reason; `age_ms` is the age of its record by the engine's clock,
    `unattended_ms` for how long it has not received from its queue at the broker."""
    if age_ms > UNHEALTHY_AGE_MS:
        return Health.UNHEALTHY, f"no heartbeat for {age_ms // 1000} s"
    if record.blocked:
        return Health.UNHEALTHY, record.blocked
    if unattended_ms >= UNATTENDED_MS:
        seconds = unattended_ms // 1000
        return Health.UNHEALTHY, f"it has not received from its queue at the broker for {seconds} s"
    if record.consecutive_failures >= UNHEALTHY_FAILURES:
        return Health.UNHEALTHY, f"{record.consecutive_failures} failures in a row"
    if record.failure_rate >= UNHEALTHY_RATE:
        return Health.UNHEALTHY, f"{record.failure_rate:.0%} of its attempts fail"
    if age_ms > DEGRADED_AGE_MS:
        return Health.DEGRADED, f"no heartbeat for {age_ms // 1000} s"
    if record.consecutive_failures >= DEGRADED_FAILURES:
        return Health.DEGRADED, f"{record.consecutive_failures} failures in a row"
    if record.failure_rate >= DEGRADED_RATE:
        return Health.DEGRADED, f"{record.failure_rate:.0%} of its attempts fail"
    return Health.HEALTHY, ""


def usable_slots(free: int, state: Health) -> int:
    """How many of its free slots a worker may fill, given its health."""
    match state:
        case Health.HEALTHY:
            return free
        case Health.DEGRADED:
            return (free + 1) // 2
        case Health.UNHEALTHY:
            return 0
