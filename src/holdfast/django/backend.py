"""HoldfastBackend: Django's tasks become jobs, and jobs become Django's results.

A job enqueued inside a transaction is there if that commits: within it where Django and Holdfast
share a PostgreSQL database, else right after it.
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

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from holdfast.app import Holdfast
from holdfast.core import limits
from holdfast.core.model import Queue
from holdfast.django import results, running
from holdfast.django.api import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    task_enqueued,
)
from holdfast.engines.url import default_url
from holdfast.errors import ConfigError, HoldfastError, UnknownQueue, UsageError
from holdfast.options import JobOptions, new_job
from holdfast.tasks import Task as HoldfastTask

OF_JOBS = ("backoff", "expires", "lease", "max_attempts", "max_crashes", "timeout")
OPTIONS = ("url", "database", "modules", *OF_JOBS)
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|::1|/.*)?\Z")

_apps: dict[str | None, Holdfast] = {}
_guard = threading.RLock()


class HoldfastBackend(BaseTaskBackend):  # type: ignore[misc]
    """`OPTIONS`: `url` of the store, else HOLDFAST_URL; `database`, the alias whose transactions
    are waited for, or None; `modules` with tasks beside each app's `tasks`; and what every job
    gets: `max_attempts`, `max_crashes`, `backoff`, `timeout`, `lease`, `expires`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._of_jobs = {name: self.options[name] for name in OF_JOBS if name in self.options}
        try:
            self._check()
            self.app = _shared(self.options.get("url"))
        except HoldfastError as error:
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: {error}") from None

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        if not limits.TASK_NAME.match(task.module_path):
            raise InvalidTask(
                f"{task.module_path[:80]!r} is no name for a job's task: use 1 to 200 of "
                "A-Z a-z 0-9 _ . -"
            )
        if not limits.QUEUE_NAME.match(task.queue_name):
            raise InvalidTask(f"{task.queue_name[:80]!r} is no name for a queue")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.validate_task(task)
        result = results.new(self.alias, task, self.app.new_id(), args, kwargs)
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

    def task_for(self, task: Any) -> HoldfastTask[Any]:
        """The task of Holdfast that runs this one of Django; made when it is first needed."""
        with _guard:
            known = self.app.tasks.get(task.module_path)
            if known is None:
                options = {"name": task.module_path, "queue": task.queue_name}
                function = running.runner(type(self), task)
                known = self.app.task(**cast("Any", options))(function)
            return known

    def _check(self) -> None:
        unknown = sorted(set(self.options).difference(OPTIONS))
        if unknown:
            known = ", ".join(OPTIONS)
            raise UsageError(f"OPTIONS has {', '.join(unknown)}; there are {known}")
        if not isinstance(self.options.get("modules", []), list | tuple):
            raise UsageError("OPTIONS modules is a list of names")
        for name in self.queues:
            if not limits.QUEUE_NAME.match(str(name)):
                raise UsageError(
                    f"QUEUES has {name!r}: a queue's name is 1 to 80 of A-Z a-z 0-9 _ . -"
                )
        new_job("check", None, cast("JobOptions", {**self._of_jobs, "id": "check"}))
        _refuse_djangos_file(self.options.get("url"))

    def _put(self, result: Any, connection: Any = None) -> None:
        task = result.task
        at = results.now()
        of_this: JobOptions = {
            "id": result.id,
            "queue": task.queue_name,
            "priority": int(task.priority),
            "run_at": _aware(task.run_after),
            "headers": results.headers(self.alias, at),
        }
        using = self.task_for(task).using(**cast("JobOptions", {**self._of_jobs, **of_this}))
        if connection is not None:
            using = using.within(connection)
        try:
            using.enqueue(result.args, result.kwargs)
        except UnknownQueue:
            # Those that the settings name are declared when they are first used.
            if task.queue_name not in self.queues:
                raise
            self.app.run(self.app.engine.declare(Queue(name=task.queue_name), instead_of=None))
            using.enqueue(result.args, result.kwargs)
        object.__setattr__(result, "enqueued_at", at)
        # The job is there already: what a receiver does wrong must not look like a refusal.
        task_enqueued.send_robust(type(self), task_result=result)

    def _in_transaction(self) -> Any:
        alias = self.options.get("database", DEFAULT_DB_ALIAS)
        if alias is None:
            return None
        connection = connections[alias]
        return connection if connection.in_atomic_block else None

    async def _get(self, result_id: str) -> Any:
        return await self.app.get(result_id) if limits.JOB_ID.match(result_id) else None

    def _result(self, result_id: str, job: Any) -> Any:
        task = None if job is None else running.find(job.task, self.options.get("modules", ()))
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return results.read(self.alias, task, job)


def is_same_database(url: str | None, connection: Any) -> bool:
    """Whether a transaction of Django's is one of the store's own, by where both lead."""
    if connection.vendor != "postgresql" or not str(url).startswith(("postgresql:", "postgres:")):
        return False
    parts, theirs = urlsplit(str(url)), connection.settings_dict
    host, their_host = parts.hostname or "", str(theirs.get("HOST") or "")
    same_host = host == their_host or bool(_LOCAL.match(host) and _LOCAL.match(their_host))
    same_port = str(parts.port or 5432) == str(theirs.get("PORT") or 5432)
    return same_host and same_port and unquote(parts.path.lstrip("/")) == str(theirs["NAME"])


def _refuse_djangos_file(url: str | None) -> None:
    """Django's SQLite and Holdfast's are two libraries: on one file in one process, whoever
    closes it drops the other's locks, and commits are lost."""
    scheme, _, rest = (default_url() if url is None else str(url)).partition(":")
    path = unquote(rest.removeprefix("///").partition("?")[0])
    for alias, theirs in settings.DATABASES.items():
        is_file = scheme == "sqlite" and "sqlite3" in str(theirs.get("ENGINE", ""))
        if is_file and os.path.realpath(path) == os.path.realpath(str(theirs.get("NAME", ""))):
            raise ConfigError(f"{path} is the file of DATABASES[{alias!r}]: give Holdfast its own")


def _shared(url: str | None) -> Holdfast:
    """Django makes a backend for each thread; they share one store."""
    with _guard:
        if url not in _apps:
            _apps[url] = Holdfast(url)
        return _apps[url]


def _aware(instant: datetime | None) -> datetime | None:
    if instant is None or timezone.is_aware(instant):
        return instant
    aware: datetime = timezone.make_aware(instant)
    return aware
