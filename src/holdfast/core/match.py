"""Does a job match a filter? The meaning of `JobFilter`, which SQL engines mirror."""

from __future__ import annotations

from holdfast.core.lifecycle import is_expired
from holdfast.core.model import Job, JobFilter, State

_EXACT = (
    "queue", "task", "tenant", "group", "key", "worker", "reason", "fingerprint", "version",
)  # fmt: skip


def matches(wanted: JobFilter, job: Job, now: int) -> bool:
    for name in _EXACT:
        value = getattr(wanted, name)
        if value is not None and getattr(job, name) != value:
            return False
    if wanted.ids is not None and job.id not in wanted.ids:
        return False
    if wanted.states is not None and job.state not in wanted.states:
        return False
    if wanted.labels and not wanted.labels.items() <= job.labels.items():
        return False
    if wanted.search and not _found(wanted.search, job):
        return False
    return _in_time(wanted, job, now)


def _in_time(wanted: JobFilter, job: Job, now: int) -> bool:
    if wanted.created_from is not None and job.created_at < wanted.created_from:
        return False
    if wanted.created_before is not None and job.created_at >= wanted.created_before:
        return False
    if wanted.finished_before_ms is not None and (
        job.finished_at is None or job.finished_at > now - wanted.finished_before_ms
    ):
        return False
    if wanted.expired is not None:
        expired = job.state is State.WAITING and is_expired(job, now)
        return expired is wanted.expired
    return True


def _found(text: str, job: Job) -> bool:
    return any(text in field for field in (job.id, job.task, job.key or "", job.tenant or ""))
