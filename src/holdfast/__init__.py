"""Holdfast: a durable work queue that holds every job fast until it is done."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.blocking import BlockingHoldfast
    from holdfast.core.backoff import Backoff
    from holdfast.core.model import Job, JobFilter, Lease, NewJob, Note, Queue, Receipt, State
    from holdfast.errors import HoldfastError, LeaseLost
    from holdfast.upkeep import Schedule

__version__ = "0.1.0"

# Where each public name lives; it is imported when first asked for.
_HOMES = {
    "Backoff": "core.backoff",
    "BlockingHoldfast": "blocking",
    "Holdfast": "app",
    "HoldfastError": "errors",
    "Job": "core.model",
    "JobFilter": "core.model",
    "Lease": "core.model",
    "LeaseLost": "errors",
    "NewJob": "core.model",
    "Note": "core.model",
    "Queue": "core.model",
    "Receipt": "core.model",
    "Schedule": "upkeep",
    "State": "core.model",
}

__all__ = [
    "Backoff",
    "BlockingHoldfast",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobFilter",
    "Lease",
    "LeaseLost",
    "NewJob",
    "Note",
    "Queue",
    "Receipt",
    "Schedule",
    "State",
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
