"""Celery on RabbitMQ, the broker that its documentation recommends first. Where an experiment needs
results or chords, it stores them in files."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, chord
from celery.result import AsyncResult

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles, until

app = Celery("compare", broker=os.environ.get(journal.STORE, "memory://"))
if results := os.environ.get("COMPARE_RESULTS"):
    app.conf.result_backend = results
app.conf.broker_connection_retry_on_startup = True


@app.task(name="step")  # type: ignore[untyped-decorator]
def step(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@app.task(name="retried", autoretry_for=(Exception,), retry_backoff=1)  # type: ignore[untyped-decorator]
def retried(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@app.task(name="after")  # type: ignore[untyped-decorator]
def after(results: list[str], label: str) -> str:
    return journal.step(label)


@app.task(name="count")  # type: ignore[untyped-decorator]
def count() -> None:
    journal.count()


def enqueue(jobs: list[Job], *, retry: bool = False, pause: float = 0.0) -> list[str]:
    task = retried if retry else step
    ids = []
    for job in jobs:
        time.sleep(pause)
        label = job.get("label") or str(time.time())
        ids.append(task.delay(label, job.get("seconds", 0.0), job.get("fails", 0)).id)
    return ids


def many(jobs: int) -> None:
    for _ in range(jobs):
        count.delay()


def failed(id: str, *, seconds: float = 20.0) -> dict[str, str] | None:
    """The result has the error; there is no list of failed jobs and no call that puts one back."""
    result: Any = AsyncResult(id, app=app)
    return {"id": id, "error": str(result.result)} if until(result.failed, seconds) else None


def fan_in(jobs: list[Job], then: str) -> None:
    chord([step.s(job["label"], job.get("seconds", 0.0)) for job in jobs])(after.s(then))


def wrong() -> bool:
    try:
        step.delay("label", "soon")
    except (TypeError, ValueError):
        return True
    return False


def tested() -> bool:
    app.conf.task_always_eager = True
    return bool(step.delay("tested").get() == "tested, run 1")


ROLES = roles(enqueue, many, failed, fan_in, wrong, tested)
