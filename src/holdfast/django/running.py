"""Runs one task of Django's as a job, with its context, its signals and fresh connections.

What a job names is never imported: only tasks that the project's own modules define are known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from holdfast.django import results
from holdfast.django.api import (
    Task,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from holdfast.outcomes import Bury, Cancelled, Release
from holdfast.worker.context import Context


def discover(modules: Iterable[str]) -> None:
    """Import where tasks are: `tasks` of every installed app, and the modules that are named."""
    autodiscover_modules("tasks")
    for name in modules:
        import_module(name)


def known_tasks() -> dict[str, Any]:
    """Every task that a module of this process has, by its path."""
    return {
        value.module_path: value
        for module in list(sys.modules.values())
        for value in list(getattr(module, "__dict__", {}).values())
        if _is_task(value)
    }


def find(path: str, modules: Iterable[str]) -> Any:
    """The task of that path; None if there is none in the project."""
    module, _, name = path.rpartition(".")
    value = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if value is not None and _is_task(value) and value.module_path == path:
        return value
    if apps.ready:
        discover(modules)
    return known_tasks().get(path)


def runner(origin: type, task: Any) -> Callable[..., Any]:
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
    """By its type: to ask a lazy object what it stands for would make it find out."""
    return issubclass(type(value), Task)


def _begin(
    task: Any, args: list[Any], kwargs: dict[str, Any], ctx: Context
) -> tuple[Any, list[Any]]:
    """The result as it begins, and what the function gets by position."""
    alias = ctx.headers.get(results.ALIAS, task.backend)
    enqueued_at = None
    with suppress(ValueError):
        enqueued_at = datetime.fromisoformat(ctx.headers.get(results.ENQUEUED_AT, ""))
    at = results.now()
    worker = os.environ.get("HOLDFAST_WORKER_ID", "")
    result = results.new(
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
    object.__setattr__(result, "finished_at", results.now())
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)


def _failed(result: Any, error: BaseException, ctx: Context) -> bool:
    """Whether that was its end: if another attempt follows, it has not finished."""
    path = results.class_path(type(error))
    told = TaskError(exception_class_path=path, traceback="".join(format_exception(error)))
    result.errors.append(told)
    over = isinstance(error, Bury | Cancelled) or (ctx.last and not isinstance(error, Release))
    object.__setattr__(result, "finished_at", results.now() if over else None)
    status = TaskResultStatus.FAILED if over else TaskResultStatus.READY
    object.__setattr__(result, "status", status)
    return over
