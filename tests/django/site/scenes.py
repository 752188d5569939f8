"""The steps of the tests in the project, each in its own process: `python scenes.py NAME`."""

import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()

from django.conf import settings  # noqa: E402 (Django is set up first)
from django.db import transaction  # noqa: E402 (Django is set up first)
from msgspec.structs import replace  # noqa: E402

from holdfast.core.model import (  # noqa: E402
    Event,
    EventKind,
    Failure,
    FailureKind,
    Job,
    JobFilter,
    State,
)
from holdfast.django import compat, runner  # noqa: E402
from holdfast.django.backend import HoldfastBackend  # noqa: E402
from holdfast.testing import inline  # noqa: E402

tasks: Any = import_module("shop.tasks")
backend: HoldfastBackend = compat.task_backends["default"]
app = backend.app
TIMEOUT_S = 60
FOREIGN = ("os.system", "shop.tasks.plain", "settings.FOLDER", "nowhere.at_all")
"""Names of importable objects, and of nothing, that are not tasks; a job may contain them."""


def worked() -> Any:
    """With a worker there: enqueue one of each sort, and see how each ended."""
    extra: Any = import_module("extra")
    sent = {
        "add": tasks.add.enqueue(2, other=3),
        "slow": asyncio.run(tasks.slow.aenqueue(0.01)),
        "shaky": tasks.shaky.enqueue(2),
        "failing": tasks.shaky.enqueue(9),
        "ask": tasks.ask.enqueue(41),
        "unspeakable": tasks.unspeakable.enqueue(),
        "elsewhere": extra.elsewhere.enqueue(),
    }
    for result in sent.values():
        assert (result.status, result.attempts) == ("READY", 0)
        assert result.enqueued_at is not None
        deadline = time.monotonic() + TIMEOUT_S
        while not result.is_finished:
            assert time.monotonic() < deadline, f"{result} did not finish"
            time.sleep(0.02)
            result.refresh()
    return {name: told(result) for name, result in sent.items()}


def told(result: Any) -> Any:
    times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
    return {
        "status": result.status,
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "attempts": result.attempts,
        "workers": sorted(set(result.worker_ids)),
        "errors": [each.exception_class.__name__ for each in result.errors],
        "traces": [each.traceback for each in result.errors],
        "queue": result.task.queue_name,
        "priority": result.task.priority,
        "in_order": all(times) and times == sorted(times),
    }


def enqueued() -> Any:
    """Without a worker: what is stored, and what can be read back."""
    heard: list[str] = []

    def hear(task_result: Any, **_: Any) -> None:
        heard.append(task_result.id)

    compat.task_enqueued.connect(hear)
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.add.using(priority=-100, queue_name="mail", run_after=later).enqueue(1, other=2)
    job = app.run(app.get(result.id))
    assert job is not None
    again = tasks.add.get_result(result.id)
    assert again.task.run_after is not None
    return {
        "job": [job.task, job.queue, job.priority, json.loads(job.payload)],
        "attempts": job.overrides.max_attempts,
        "delay_s": (job.due_at - job.created_at) / 1000,
        "same": [again.id == result.id, again.args, again.kwargs, again.status, again.backend],
        "run_after_s": abs((again.task.run_after - later).total_seconds()),
        "async": asyncio.run(tasks.add.aget_result(result.id)).id == result.id,
        "heard": heard == [result.id],
    }


def refused() -> Any:
    """The name of each refusal."""

    def fault(act: Any) -> str:
        try:
            act()
        except Exception as error:  # noqa: BLE001 (its name is what is looked at)
            return type(error).__name__
        return ""

    own_file = f"sqlite:///{settings.DATABASES['default']['NAME']}"
    one = tasks.add.enqueue(1)
    for foreign in FOREIGN:
        app.run(app.enqueue(foreign, {"args": ["true"], "kwargs": {}}, id=foreign))
    return {
        "queue": fault(lambda: tasks.add.using(queue_name="elsewhere")),
        "priority": fault(lambda: tasks.add.using(priority=101)),
        "naive": fault(lambda: tasks.add.using(run_after=datetime(2030, 1, 1))),  # noqa: DTZ001
        "no_json": fault(lambda: tasks.add.enqueue(object())),
        "unknown": fault(lambda: backend.get_result("no such job")),
        "mismatch": fault(lambda: tasks.slow.get_result(one.id)),
        "foreign": [fault(partial(backend.get_result, each)) for each in FOREIGN],
        "own_file": fault(lambda: HoldfastBackend("x", {"OPTIONS": {"url": own_file}})),
        "timeout": fault(lambda: HoldfastBackend("x", {"OPTIONS": {"timeout": "soon"}})),
        "option": fault(lambda: HoldfastBackend("x", {"OPTIONS": {"urll": "memory:"}})),
        "url": fault(lambda: HoldfastBackend("x", {"OPTIONS": {"url": "nosuch://"}})),
        "names": fault(lambda: HoldfastBackend("x", {"QUEUES": ["a b"]})),
        "imported": [name for name in ("nowhere",) if name in sys.modules],
    }


def transactional() -> Any:
    """A job is there if its transaction commits, and not before."""
    with transaction.atomic():
        kept = tasks.add.enqueue(1)
        before = app.run(app.get(kept.id)) is None
        status = str(kept.status)
    with transaction.atomic():
        undone = tasks.add.enqueue(2)
        transaction.set_rollback(True)
    jobs = app.run(app.find(JobFilter()))
    return {
        "before": before,
        "status": status,
        "there": [job.id for job in jobs.jobs] == [kept.id],
        "undone": app.run(app.get(undone.id)) is None,
        "enqueued_at": kept.enqueued_at is not None,
        "at_once": at_once(),
    }


def at_once() -> bool:
    """With `database` None the transaction does not matter."""
    compat.task_backends.settings["default"]["OPTIONS"]["database"] = None
    with transaction.atomic():
        return app.run(app.get(tasks.add.enqueue(1).id)) is not None


def read() -> Any:
    """Jobs of every fate as results, also what nobody's producer would have stored."""
    kinds = {
        "crashed": Failure(kind=FailureKind.CRASH, message="killed by SIGSEGV"),
        "timed_out": Failure(kind=FailureKind.TIMEOUT),
        "overdue": Failure(kind=FailureKind.OVERDUE),
        "builtin": Failure(type="KeyError"),
        "own": Failure(type="Bury"),
        "dotted": Failure(type="decimal.InvalidOperation", trace="a trace"),
        "odd": Failure(type="<script>"),
    }
    job = Job(id="j", task="shop.tasks.add", queue="mail", payload=b"{", priority=3, attempt=2)
    job = replace(job, created_at=1_000, due_at=1_000)

    def errors(failure: Failure) -> Any:
        event = Event(at=5_000, kind=EventKind.RETRIED, attempt=1, by="w1", failure=failure)
        [error] = runner.read_result("default", tasks.add, replace(job, events=(event,))).errors
        return [error.exception_class.__name__, error.traceback]

    ended = runner.read_result("default", tasks.add, job)
    moved = runner.read_result(
        "default",
        tasks.add,
        replace(job, queue="grave", payload=b"[" * 10**6, state=State.DONE, result=b"\xff"),
    )
    return {
        "errors": {name: errors(failure) for name, failure in kinds.items()},
        "states": [
            str(runner.read_result("default", tasks.add, replace(job, state=state)).status)
            for state in State
        ],
        "garbage": [ended.args, ended.kwargs, ended.attempts],
        "moved": [moved.task.queue_name, moved.task.priority, moved.return_value],
        "task": [tasks.add.queue_name, tasks.add.priority],
    }


def inlined() -> Any:
    """The test modes of Holdfast are for Django's tasks too."""
    with inline(app):
        good, bad = tasks.add.enqueue(1, other=1), tasks.shaky.enqueue(9)
        late = tasks.slow.enqueue(0)
        for result in (good, bad, late):
            result.refresh()
        return [good.return_value, str(bad.status), late.return_value]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
