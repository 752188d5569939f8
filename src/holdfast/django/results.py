"""Jobs as Django's results: what state, which errors, how many attempts, when.

Pure but for the clock: it reads a job and builds a value. What a job says of itself is not
trusted to be well-formed: somebody else may have enqueued it.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from holdfast import errors, outcomes
from holdfast.core.model import Event, FailureKind, Job, State
from holdfast.django.api import TaskError, TaskResult, TaskResultStatus

_STATES = {
    State.WAITING: "READY",
    State.LEASED: "RUNNING",
    State.DONE: "SUCCESSFUL",
    State.DEAD: "FAILED",
    State.CANCELLED: "FAILED",
}
_BY_KIND = {
    FailureKind.TIMEOUT: "builtins.TimeoutError",
    FailureKind.CRASH: "builtins.ChildProcessError",
    FailureKind.OVERDUE: "holdfast.errors.LeaseLost",
}
ALIAS, ENQUEUED_AT = "django-backend", "django-enqueued-at"


class Arguments(msgspec.Struct, frozen=True):
    """The payload of a job that is a task of Django's."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


def now() -> datetime:
    at: datetime = timezone.now()
    return at


def headers(alias: str, at: datetime) -> dict[str, str]:
    """What a worker must know of the enqueue, beside the arguments."""
    aware = at if timezone.is_aware(at) else timezone.make_aware(at)
    return {ALIAS: alias, ENQUEUED_AT: aware.isoformat()}


def new(
    alias: str, task: Any, id: str, args: Sequence[Any], kwargs: Mapping[str, Any], **facts: Any
) -> Any:
    """Of a job on its way; TypeError if the arguments are no JSON."""
    given: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
        **facts,
    }
    return TaskResult(
        task=task, id=id, args=list(args), kwargs=dict(kwargs), backend=alias, **given
    )


def read(alias: str, task: Any, job: Job) -> Any:
    """The job as it stands."""
    try:
        given = msgspec.json.decode(job.payload, type=Arguments)
    except (msgspec.DecodeError, RecursionError):
        given = Arguments()
    failures = [event for event in job.failures if event.attempt]
    # When an earlier attempt began is not kept; when it failed is.
    first_at = failures[0].at if failures else job.leased_at
    last_at = job.leased_at or (failures[-1].at if failures else None)
    later = job.due_at > job.created_at and not job.attempt
    result = new(
        alias,
        _as_it_is(
            task,
            priority=job.priority,
            queue_name=job.queue,
            backend=alias,
            run_after=_instant(job.due_at) if later else None,
        ),
        job.id,
        given.args,
        given.kwargs,
        status=TaskResultStatus[_STATES[job.state]],
        enqueued_at=_instant(job.created_at),
        started_at=_instant(first_at),
        finished_at=_instant(job.finished_at),
        last_attempted_at=_instant(last_at),
        errors=[_error(event) for event in failures],
        worker_ids=_workers(job),
    )
    if job.state is State.DONE and job.result is not None:
        with suppress(msgspec.DecodeError, RecursionError):
            object.__setattr__(result, "_return_value", msgspec.json.decode(job.result))
    return result


def class_path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_it_is(task: Any, **facts: Any) -> Any:
    """Unlike `using`, without the checks of an enqueue: a person may have moved the job to a queue
    that the settings do not name."""
    told = copy(task)
    for name, value in facts.items():
        object.__setattr__(told, name, value)
    return told


def _error(event: Event) -> Any:
    failure = event.failure
    assert failure is not None
    path = _BY_KIND.get(failure.kind, failure.type)
    if "." not in path:
        # Those of Python and of Holdfast are stored by their names alone.
        homes = [home for home in (builtins, errors, outcomes) if hasattr(home, path)]
        path = f"{homes[0].__name__}.{path}" if homes else "builtins.Exception"
    return TaskError(exception_class_path=path, traceback=failure.trace or failure.message)


def _workers(job: Job) -> list[str]:
    """One for each attempt, because Django counts attempts by them."""
    known = {event.attempt: event.by for event in job.failures}
    if job.worker:
        known[job.attempt] = job.worker
    return [known.get(number, "") for number in range(1, job.attempt + 1)]


def _instant(at: int | None) -> datetime | None:
    if at is None:
        return None
    aware = datetime.fromtimestamp(at / 1000, UTC)
    if settings.USE_TZ:
        return aware
    naive: datetime = timezone.make_naive(aware)
    return naive
