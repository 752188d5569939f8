"""HoldfastBackend: enqueues Django's tasks as jobs and reads jobs as Django's results.

A job enqueued in a transaction exists only if that commits: if Django and Holdfast share a
PostgreSQL database it is part of the transaction, otherwise it is enqueued right after the commit.
Workers load `application`, which sets up Django and registers every task of the project.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import django
from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from holdfast.app.application import Holdfast
from holdfast.app.task import AnyTask
from holdfast.core import bounds
from holdfast.core.model import Queue
from holdfast.django import runner
from holdfast.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from holdfast.engines.registry import default_url
from holdfast.errors import ConfigError, HoldfastError, UnknownQueue, UsageError
from holdfast.notation.job import JobOptions
from holdfast.notation.options import new_job

ALIAS_VARIABLE = "HOLDFAST_DJANGO_BACKEND"
"""The environment variable that selects one of several task backends."""
OF_JOBS = ("backoff", "expires", "lease", "max_attempts", "max_crashes", "timeout")
OPTIONS = ("url", "database", "modules", *OF_JOBS)
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|::1|/.*)?\Z")

_apps: dict[str | None, Holdfast] = {}
_guard = threading.RLock()


class HoldfastBackend(BaseTaskBackend):
    """The task backend. `OPTIONS`: `url` of the store, by default HOLDFAST_URL; `database`, the
    alias whose transactions enqueues take part in, or None; `modules` with tasks besides each app's
    `tasks`; and options of every job: `max_attempts`, `max_crashes`, `backoff`, `timeout`, `lease`,
    `expires`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._of_jobs = {name: self.options[name] for name in OF_JOBS if name in self.options}
        try:
            self._check()
            self.app: Holdfast = _shared(self.options.get("url"))
        except HoldfastError as error:
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: {error}") from None

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        if not bounds.TASK_NAME.match(task.module_path):
            raise InvalidTask(
                f"{task.module_path[:80]!r} is not a valid task name: use 1 to 200 characters of "
                "A-Z a-z 0-9 _ . -"
            )
        if not bounds.QUEUE_NAME.match(task.queue_name):
            raise InvalidTask(f"{task.queue_name[:80]!r} is not a valid queue name")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.validate_task(task)
        result = runner.new_result(self.alias, task, self.app.new_id(), args, kwargs)
        connection = self._in_transaction()
        if connection is None:
            self._put(result)
        elif is_same_database(self.app.url, connection):
            self._put(result, connection)
        else:
            transaction.on_commit(partial(self._put, result), using=connection.alias)
        return result

    def get_result(self, result_id: str) -> Any:
        return self._result(result_id, self.app.run(self._get(result_id)))

    async def aget_result(self, result_id: str) -> Any:
        return self._result(result_id, await self.app.arun(self._get(result_id)))

    def task_for(self, task: Any) -> AnyTask:
        """The Holdfast task that runs this Django task; created on first use."""
        with _guard:
            known = self.app.tasks.get(task.module_path)
            if known is None:
                options = {"name": task.module_path, "queue": task.queue_name}
                function = runner.handler_for(type(self), task)
                known = self.app.task(**cast("Any", options))(function)
            return known

    def _check(self) -> None:
        unknown = sorted(set(self.options).difference(OPTIONS))
        if unknown:
            known = ", ".join(OPTIONS)
            raise UsageError(f"unknown OPTIONS {', '.join(unknown)}; the options are {known}")
        if not isinstance(self.options.get("modules", []), list | tuple):
            raise UsageError("OPTIONS modules must be a list of module names")
        for name in self.queues:
            if not bounds.QUEUE_NAME.match(str(name)):
                raise UsageError(
                    f"QUEUES has {name!r}: a queue name is 1 to 80 characters of A-Z a-z 0-9 _ . -"
                )
        new_job("check", None, cast("JobOptions", {**self._of_jobs, "id": "check"}))
        _refuse_djangos_file(self.options.get("url"))

    def _put(self, result: Any, connection: Any = None) -> None:
        task = result.task
        at = runner.now()
        of_this: JobOptions = {
            "id": result.id,
            "queue": task.queue_name,
            "priority": int(task.priority),
            "run_at": _aware(task.run_after),
            "headers": runner.enqueue_headers(self.alias, at),
        }
        using = self.task_for(task).using(**cast("JobOptions", {**self._of_jobs, **of_this}))
        if connection is not None:
            using = using.within(connection)
        try:
            using.enqueue(result.args, result.kwargs)
        except UnknownQueue:
            # Queues named in the settings are declared on first use.
            if task.queue_name not in self.queues:
                raise
            self.app.run(self.app.engine.declare(Queue(name=task.queue_name), instead_of=None))
            using.enqueue(result.args, result.kwargs)
        object.__setattr__(result, "enqueued_at", at)
        # The job is stored: an error in a receiver must not look like a refusal.
        task_enqueued.send_robust(type(self), task_result=result)

    def _in_transaction(self) -> Any:
        alias = self.options.get("database", DEFAULT_DB_ALIAS)
        if alias is None:
            return None
        connection = connections[alias]
        return connection if connection.in_atomic_block else None

    async def _get(self, result_id: str) -> Any:
        return await self.app.get(result_id) if bounds.JOB_ID.match(result_id) else None

    def _result(self, result_id: str, job: Any) -> Any:
        task = None if job is None else runner.find_task(job.task, self.options.get("modules", ()))
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return runner.read_result(self.alias, task, job)


def is_same_database(url: str | None, connection: Any) -> bool:
    """Whether Django's connection and the store's URL lead to the same database."""
    if connection.vendor != "postgresql" or not str(url).startswith(("postgresql:", "postgres:")):
        return False
    parts, theirs = urlsplit(str(url)), connection.settings_dict
    host, their_host = parts.hostname or "", str(theirs.get("HOST") or "")
    same_host = host == their_host or bool(_LOCAL.match(host) and _LOCAL.match(their_host))
    same_port = str(parts.port or 5432) == str(theirs.get("PORT") or 5432)
    return same_host and same_port and unquote(parts.path.lstrip("/")) == str(theirs["NAME"])


def _refuse_djangos_file(url: str | None) -> None:
    """Django and Holdfast use two SQLite libraries. If both open one file in one process, closing
    it in one drops the locks of the other, and commits are lost."""
    scheme, _, rest = (default_url() if url is None else str(url)).partition(":")
    path = unquote(rest.removeprefix("///").partition("?")[0])
    for alias, theirs in settings.DATABASES.items():
        is_file = scheme == "sqlite" and "sqlite3" in str(theirs.get("ENGINE", ""))
        if is_file and os.path.realpath(path) == os.path.realpath(str(theirs.get("NAME", ""))):
            raise ConfigError(
                f"{path} is the file of DATABASES[{alias!r}]: use another for Holdfast"
            )


def _shared(url: str | None) -> Holdfast:
    """The application for a URL: Django creates a backend per thread, and they share it."""
    with _guard:
        if url not in _apps:
            _apps[url] = Holdfast(url)
        return _apps[url]


def _aware(instant: datetime | None) -> datetime | None:
    if instant is None or timezone.is_aware(instant):
        return instant
    aware: datetime = timezone.make_aware(instant)
    return aware


def application() -> Holdfast:
    """An application whose handlers are exactly the project's tasks."""
    if not apps.ready:
        django.setup()
    backend = chosen_backend(os.environ.get(ALIAS_VARIABLE))
    runner.discover(backend.options.get("modules", ()))
    for path, task in runner.known_tasks().items():
        if bounds.TASK_NAME.match(path) and bounds.QUEUE_NAME.match(task.queue_name):
            backend.task_for(task)
    return backend.app


def chosen_backend(alias: str | None) -> HoldfastBackend:
    """The Holdfast backend with this alias, or the only one there is."""
    ours = [
        name
        for name, given in task_backends.settings.items()
        if issubclass(import_string(given["BACKEND"]), HoldfastBackend)
    ]
    if alias in ours or (alias is None and len(ours) == 1):
        found: HoldfastBackend = task_backends[alias or ours[0]]
        return found
    if alias is None and "default" in ours:
        default: HoldfastBackend = task_backends["default"]
        return default
    aliases = ", ".join(ours) or "none"
    raise InvalidTaskBackend(
        f"TASKS[{alias!r}] is not a holdfast.django.HoldfastBackend; those in TASKS are: {aliases}"
        if alias
        else f"TASKS must have one holdfast.django.HoldfastBackend; it has: {aliases}"
    )
