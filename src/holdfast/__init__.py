"""Holdfast: a durable work queue that holds every job fast until it is done."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.blocking import BlockingHoldfast
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
    from holdfast.handles import JobHandle
    from holdfast.outcomes import Bury, Cancelled, Release, Retry
    from holdfast.tasks import Task
    from holdfast.upkeep import Schedule
    from holdfast.worker.context import Context

__version__ = "0.1.0"

# Where each public name lives; it is imported when first asked for.
_HOMES = {
    "Backoff": "core.backoff",
    "BlockingHoldfast": "blocking",
    "Breaker": "core.breaker",
    "Bury": "outcomes",
    "Cancelled": "outcomes",
    "Context": "worker.context",
    "Holdfast": "app",
    "HoldfastError": "errors",
    "Job": "core.model",
    "JobCancelled": "errors",
    "JobFailed": "errors",
    "JobFilter": "core.model",
    "JobHandle": "handles",
    "Lease": "core.model",
    "LeaseLost": "errors",
    "NewJob": "core.model",
    "Note": "core.model",
    "Queue": "core.model",
    "Receipt": "core.model",
    "RedrivePlan": "upkeep",
    "Release": "outcomes",
    "Reroute": "core.model",
    "Retry": "outcomes",
    "Schedule": "upkeep",
    "State": "core.model",
    "Task": "tasks",
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
