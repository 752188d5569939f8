"""A job's whole story: what its own columns say, and the rows that trouble and people added."""

from __future__ import annotations

from holdfast.core.model import Event, EventKind, Job, State


def timeline(job: Job) -> tuple[Event, ...]:
    """Every event of a job read by `get`, oldest first."""
    told = [Event(at=job.created_at, kind=EventKind.ENQUEUED), *job.events]
    if job.leased_at is not None:
        told.append(
            Event(
                at=job.leased_at,
                kind=EventKind.LEASED,
                attempt=job.attempt,
                by=job.worker or "",
            )
        )
    if job.state is State.DONE and job.finished_at is not None:
        told.append(
            Event(
                at=job.finished_at,
                kind=EventKind.COMPLETED,
                attempt=job.attempt,
                by=job.worker or "",
            )
        )
    # Stable: events of the same millisecond stay in the order in which they were written.
    return tuple(sorted(told, key=lambda event: event.at))
