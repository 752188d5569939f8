"""Runs Django's tasks as jobs, and converts jobs to Django's results.

A task runs with its context, its signals and fresh database connections. The name in a job is never
imported: only tasks defined in the project's own modules run. A job may have been enqueued by any
producer, so its payload and headers are not trusted to be well-formed.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from importlib import import_module
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from holdfast import errors
from holdfast.core.model import Event, FailureKind, Job, State
from holdfast.django.compat import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from holdfast.worker import outcomes
from holdfast.worker.child.context import Context
from holdfast.worker.outcomes import Bury, Cancelled, Release

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


def discover(modules: Iterable[str]) -> None:
    """Import the module `tasks` of every installed app, and the given modules."""
    autodiscover_modules("tasks")
    for name in modules:
        import_module(name)


def known_tasks() -> dict[str, Any]:
    """Every task defined in an imported module, by its path."""
    return {
        value.module_path: value
        for module in list(sys.modules.values())
        for value in list(getattr(module, "__dict__", {}).values())
        if _is_task(value)
    }


def find_task(path: str, modules: Iterable[str]) -> Any:
    """The task with this path; None if the project has none."""
    module, _, name = path.rpartition(".")
    value = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if value is not None and _is_task(value) and value.module_path == path:
        return value
    if apps.ready:
        discover(modules)
    return known_tasks().get(path)


def handler_for(origin: type, task: Any) -> Callable[..., Any]:
    """The function that a worker calls for this task."""

    def run(args: list[Any], kwargs: dict[str, Any], *, ctx: Context) -> Any:
        close_old_connections()
        try:
            result, given = _begin(task, args, kwargs, ctx)
            task_started.send_robust(origin, task_result=result)
            try:
                value = normalize_json(task.func(*given, **result.kwargs))
            except BaseException as error:
                if _failed(result, error, ctx):
                    task_finished.send_robust(origin, task_result=result)
                raise
            _succeeded(result, value)
            task_finished.send_robust(origin, task_result=result)
            return value
        finally:
            close_old_connections()

    async def arun(args: list[Any], kwargs: dict[str, Any], *, ctx: Context) -> Any:
        close = sync_to_async(close_old_connections)
        await close()
        try:
            result, given = _begin(task, args, kwargs, ctx)
            await task_started.asend_robust(origin, task_result=result)
            try:
                value = normalize_json(await task.func(*given, **result.kwargs))
            except BaseException as error:
                if _failed(result, error, ctx):
                    await task_finished.asend_robust(origin, task_result=result)
                raise
            _succeeded(result, value)
            await task_finished.asend_robust(origin, task_result=result)
            return value
        finally:
            await close()

    return arun if iscoroutinefunction(task.func) else run


def _is_task(value: Any) -> bool:
    """By its type: isinstance() would evaluate lazy objects."""
    return issubclass(type(value), Task)


def _begin(
    task: Any, args: list[Any], kwargs: dict[str, Any], ctx: Context
) -> tuple[Any, list[Any]]:
    """The result of a starting attempt, and the positional arguments of the function."""
    alias = ctx.headers.get(ALIAS, task.backend)
    enqueued_at = None
    with suppress(ValueError):
        enqueued_at = datetime.fromisoformat(ctx.headers.get(ENQUEUED_AT, ""))
    at = now()
    worker = os.environ.get("HOLDFAST_WORKER_ID", "")
    result = new_result(
        alias,
        task,
        ctx.id,
        args,
        kwargs,
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at,
        started_at=at,
        last_attempted_at=at,
        worker_ids=[*[""] * (ctx.attempt - 1), worker],
    )
    given = [TaskContext(task_result=result)] if task.takes_context else []
    return result, [*given, *result.args]


def _succeeded(result: Any, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "finished_at", now())
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)


def _failed(result: Any, error: BaseException, ctx: Context) -> bool:
    """Record the error; True if the job has finished, False if another attempt follows."""
    path = class_path(type(error))
    trace = "".join(format_exception(error))
    result.errors.append(TaskError(exception_class_path=path, traceback=trace))
    over = isinstance(error, Bury | Cancelled) or (ctx.last and not isinstance(error, Release))
    object.__setattr__(result, "finished_at", now() if over else None)
    status = TaskResultStatus.FAILED if over else TaskResultStatus.READY
    object.__setattr__(result, "status", status)
    return over


class Arguments(msgspec.Struct, frozen=True):
    """The payload of a job that runs a Django task."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


def now() -> datetime:
    """The current time as Django's settings define it."""
    at: datetime = timezone.now()
    return at


def enqueue_headers(alias: str, at: datetime) -> dict[str, str]:
    """Headers that tell the worker the backend's alias and the time of the enqueue."""
    aware = at if timezone.is_aware(at) else timezone.make_aware(at)
    return {ALIAS: alias, ENQUEUED_AT: aware.isoformat()}


def new_result(
    alias: str, task: Any, id: str, args: Sequence[Any], kwargs: Mapping[str, Any], **facts: Any
) -> Any:
    """The result of a job that is about to be enqueued; TypeError if the arguments are not JSON."""
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


def read_result(alias: str, task: Any, job: Job) -> Any:
    """The result that describes the current state of a job."""
    try:
        given = msgspec.json.decode(job.payload, type=Arguments)
    except (msgspec.DecodeError, RecursionError):
        given = Arguments()
    failures = [event for event in job.failures if event.attempt]
    # The start of an earlier attempt is not stored; the time of its failure is.
    first_at = failures[0].at if failures else job.leased_at
    last_at = job.leased_at or (failures[-1].at if failures else None)
    later = job.due_at > job.created_at and not job.attempt
    result = new_result(
        alias,
        _task_with(
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
    """The dotted path of an exception class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _task_with(task: Any, **fields: Any) -> Any:
    """Like the task's `using`, but without its checks: an operator may have moved the job to a
    queue that the settings do not name."""
    changed = copy(task)
    for name, value in fields.items():
        object.__setattr__(changed, name, value)
    return changed


def _error(event: Event) -> Any:
    failure = event.failure
    assert failure is not None
    path = _BY_KIND.get(failure.kind, failure.type)
    if "." not in path:
        # Builtin exceptions and those of Holdfast are stored without their module.
        homes = [home for home in (builtins, errors, outcomes) if hasattr(home, path)]
        path = f"{homes[0].__name__}.{path}" if homes else "builtins.Exception"
    return TaskError(exception_class_path=path, traceback=failure.trace or failure.message)


def _workers(job: Job) -> list[str]:
    """One worker id per attempt: Django counts attempts by them."""
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
