"""A processor for structlog that adds the running job to every event."""

from __future__ import annotations

from structlog.typing import EventDict, WrappedLogger

from holdfast.worker.child.logs import current_job


def add_job(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add `job_id`, `attempt`, `task` and `queue` of the running job. A field that the event has
    already stays; outside of jobs nothing is added."""
    for name, value in current_job().items():
        event.setdefault(name, value)
    return event
