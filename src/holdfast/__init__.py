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
        WaitingKind,
    )
    from holdfast.engines.sqs.delivery import SqsDelivery
    from holdfast.errors import (
        CircularJobs,
        ConfigError,
        EngineClosed,
        EngineError,
        EngineUnavailable,
        Exists,
        Forbidden,
        HoldfastError,
        InvalidJob,
        InvalidQueue,
        JobCancelled,
        JobFailed,
        JobGone,
        LeaseLost,
        NoResult,
        NotAccepting,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        PayloadTooLarge,
        QueueFull,
        QuotaExceeded,
        ReadOnly,
        ResultMismatch,
        ResultTimeout,
        SchemaMismatch,
        StorageFull,
        Unauthenticated,
        UnknownKind,
        UnknownParent,
        UnknownQueue,
        Unsupported,
        UsageError,
        WrongState,
    )
    from holdfast.ops.dead_letters import DeadLetter
    from holdfast.ops.ticks import Schedule
    from holdfast.worker.child.context import Context
    from holdfast.worker.child.hooks import AttemptEnd
    from holdfast.worker.child.logs import AttemptFilter
    from holdfast.worker.outcomes import Bury, Cancelled, Release, Retry

__version__ = "0.1.0"

# The module of each public name; it is imported on first use.
_HOMES = {
    "AttemptEnd": "worker.child.hooks",
    "AttemptFilter": "worker.child.logs",
    "Backoff": "core.backoff",
    "BlockingHoldfast": "app.blocking_app",
    "Breaker": "core.breaker",
    "Bury": "worker.outcomes",
    "Cancelled": "worker.outcomes",
    "CircularJobs": "errors",
    "ConfigError": "errors",
    "Context": "worker.child.context",
    "DeadLetter": "ops.dead_letters",
    "EngineClosed": "errors",
    "EngineError": "errors",
    "EngineUnavailable": "errors",
    "Exists": "errors",
    "Forbidden": "errors",
    "Holdfast": "app.application",
    "HoldfastError": "errors",
    "InvalidJob": "errors",
    "InvalidQueue": "errors",
    "Job": "core.model",
    "JobCancelled": "errors",
    "JobFailed": "errors",
    "JobFilter": "core.model",
    "JobGone": "errors",
    "JobHandle": "app.task",
    "Lease": "core.model",
    "LeaseLost": "errors",
    "NewJob": "core.model",
    "NoResult": "errors",
    "NotAccepting": "errors",
    "NotFound": "errors",
    "Note": "core.model",
    "OutcomeUnknown": "errors",
    "Overloaded": "errors",
    "PayloadTooLarge": "errors",
    "Queue": "core.model",
    "QueueFull": "errors",
    "QuotaExceeded": "errors",
    "ReadOnly": "errors",
    "Receipt": "core.model",
    "RedrivePlan": "ops.redrives",
    "Release": "worker.outcomes",
    "Reroute": "core.model",
    "ResultMismatch": "errors",
    "ResultTimeout": "errors",
    "Retry": "worker.outcomes",
    "Schedule": "ops.schedules",
    "SchemaMismatch": "errors",
    "SqsDelivery": "engines.sqs.delivery",
    "State": "core.model",
    "StorageFull": "errors",
    "Task": "app.task",
    "Unauthenticated": "errors",
    "UnknownKind": "errors",
    "UnknownParent": "errors",
    "UnknownQueue": "errors",
    "Unsupported": "errors",
    "UsageError": "errors",
    "WaitingKind": "core.model",
    "WrongState": "errors",
}

__all__ = [
    "AttemptEnd",
    "AttemptFilter",
    "Backoff",
    "BlockingHoldfast",
    "Breaker",
    "Bury",
    "Cancelled",
    "CircularJobs",
    "ConfigError",
    "Context",
    "DeadLetter",
    "EngineClosed",
    "EngineError",
    "EngineUnavailable",
    "Exists",
    "Forbidden",
    "Holdfast",
    "HoldfastError",
    "InvalidJob",
    "InvalidQueue",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobFilter",
    "JobGone",
    "JobHandle",
    "Lease",
    "LeaseLost",
    "NewJob",
    "NoResult",
    "NotAccepting",
    "NotFound",
    "Note",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadTooLarge",
    "Queue",
    "QueueFull",
    "QuotaExceeded",
    "ReadOnly",
    "Receipt",
    "RedrivePlan",
    "Release",
    "Reroute",
    "ResultMismatch",
    "ResultTimeout",
    "Retry",
    "Schedule",
    "SchemaMismatch",
    "SqsDelivery",
    "State",
    "StorageFull",
    "Task",
    "Unauthenticated",
    "UnknownKind",
    "UnknownParent",
    "UnknownQueue",
    "Unsupported",
    "UsageError",
    "WaitingKind",
    "WrongState",
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
