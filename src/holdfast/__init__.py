"""Holdfast: a durable work queue that keeps every job until it is done."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast
    from holdfast.app.blocking_app import BlockingHoldfast
    from holdfast.app.task import JobHandle, Task
    from holdfast.core.backoff import Backoff
    from holdfast.core.breaker import Breaker
    from holdfast.core.model import (
        Job,
        JobFilter,
        Lease,
        NewJob,
        Note,
        Queue,
        Receipt,
        Reroute,
        State,
    )
    from holdfast.errors import HoldfastError, JobCancelled, JobFailed, LeaseLost
    from holdfast.ops.ticks import Schedule
    from holdfast.worker.child.context import Context
    from holdfast.worker.outcomes import Bury, Cancelled, Release, Retry

__version__ = "0.1.0"

# The module of each public name; it is imported on first use.
_HOMES = {
    "Backoff": "core.backoff",
    "BlockingHoldfast": "app.blocking_app",
    "Breaker": "core.breaker",
    "Bury": "worker.outcomes",
    "Cancelled": "worker.outcomes",
    "Context": "worker.child.context",
    "Holdfast": "app.application",
    "HoldfastError": "errors",
    "Job": "core.model",
    "JobCancelled": "errors",
    "JobFailed": "errors",
    "JobFilter": "core.model",
    "JobHandle": "app.task",
    "Lease": "core.model",
    "LeaseLost": "errors",
    "NewJob": "core.model",
    "Note": "core.model",
    "Queue": "core.model",
    "Receipt": "core.model",
    "RedrivePlan": "ops.redrives",
    "Release": "worker.outcomes",
    "Reroute": "core.model",
    "Retry": "worker.outcomes",
    "Schedule": "ops.schedules",
    "State": "core.model",
    "Task": "app.task",
}

__all__ = [
    "Backoff",
    "BlockingHoldfast",
    "Breaker",
    "Bury",
    "Cancelled",
    "Context",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "Lease",
    "LeaseLost",
    "NewJob",
    "Note",
    "Queue",
    "Receipt",
    "RedrivePlan",
    "Release",
    "Reroute",
    "Retry",
    "Schedule",
    "State",
    "Task",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
