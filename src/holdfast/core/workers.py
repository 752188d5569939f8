"""What is known of a worker beside its jobs: the record it keeps, and how well it is.

Pure: ages and counts come in, a judgement goes out. Who runs what is read from the jobs, never
from here.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core import limits

KIND = "worker"
ORDER_KIND = "order"

HEARTBEAT_MS = 10 * limits.SECOND_MS
QUEUE_PREFIX = "worker."
DISTRIBUTOR = "(distributor)"
"""Leases jobs only to hand them on, and never runs one. No worker can have this name."""
ADDRESSED_EXPIRES_MS = 5 * limits.MINUTE_MS
TASKS_SHOWN = 500
"""A worker's record names so many of its tasks at most: the first by name."""

DEGRADED_FAILURES, UNHEALTHY_FAILURES = 3, 10
DEGRADED_RATE, UNHEALTHY_RATE = 0.3, 0.7
DEGRADED_AGE_MS, UNHEALTHY_AGE_MS = 3 * HEARTBEAT_MS, 6 * HEARTBEAT_MS


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker writes of itself every ten seconds, under its stable name."""

    name: str
    id: str
    host: str
    pid: int
    started_at: int
    start_ticks: int = 0
    """When its process was started, by its kernel: with the pid it is the name of that process."""
    version: str = ""
    queues: dict[str, int] = {}
    tasks: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    capacity: int = 0
    running: int = 0
    prefetched: int = 0
    done: int = 0
    failed: int = 0
    consecutive_failures: int = 0
    failure_rate: float = 0.0
    blocked: str = ""
    """Why it makes no progress although it has room and work waits; "" when it does."""
    cordoned: bool = False
    stopping: bool = False


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked of a worker from elsewhere. `cordoned` holds for its name, over restarts;
    `ending` only for the start with that id. `renew` grows when it shall renew at once, so that
    a cancel is heard of soon."""

    cordoned: bool = False
    ending: str = ""
    ending_id: str = ""
    renew: int = 0
    by: str = ""


def worker_queue(name: str) -> str:
    """The queue of the jobs that are addressed to one worker."""
    return QUEUE_PREFIX + name


def addressee(queue: str) -> str | None:
    """The worker whose own queue this is."""
    return queue.removeprefix(QUEUE_PREFIX) if queue.startswith(QUEUE_PREFIX) else None


def knows(record: WorkerRecord, task: str) -> bool:
    """A record that is full names only the first of its tasks."""
    cut = len(record.tasks) >= TASKS_SHOWN
    return task in record.tasks or (cut and task > record.tasks[-1])


def health(record: WorkerRecord, age_ms: int) -> tuple[Health, str]:
    """How well a worker is, and why; `age_ms` is the age of its record by the engine's clock."""
    if age_ms > UNHEALTHY_AGE_MS:
        return Health.UNHEALTHY, f"no heartbeat for {age_ms // 1000} s"
    if record.blocked:
        return Health.UNHEALTHY, record.blocked
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


def room(free: int, state: Health) -> int:
    """How much of its free room a worker may fill."""
    match state:
        case Health.HEALTHY:
            return free
        case Health.DEGRADED:
            return (free + 1) // 2
        case Health.UNHEALTHY:
            return 0
