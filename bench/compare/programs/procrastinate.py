"""Procrastinate on PostgreSQL."""

from __future__ import annotations

import os
import time
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy  # type: ignore[import-not-found]
from procrastinate.testing import InMemoryConnector  # type: ignore[import-not-found]

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles, until

app = App(connector=PsycopgConnector(conninfo=os.environ.get(journal.STORE, "")))


@app.task(name="step")  # type: ignore[untyped-decorator]
def step(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@app.task(name="retried", retry=RetryStrategy(max_attempts=3, exponential_wait=2))  # type: ignore[untyped-decorator]
def retried(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@app.task(name="count")  # type: ignore[untyped-decorator]
def count() -> None:
    journal.count()


def enqueue(jobs: list[Job], *, retry: bool = False, pause: float = 0.0) -> None:
    task = retried if retry else step
    with app.open():
        for job in jobs:
            time.sleep(pause)
            label = job.get("label") or str(time.time())
            task.configure(lock=job.get("group")).defer(
                label=label, seconds=job.get("seconds", 0.0), fails=job.get("fails", 0)
            )


def many(jobs: int) -> None:
    with app.open():
        for start in range(0, jobs, 1_000):
            count.batch_defer(*[{}] * min(1_000, jobs - start))


def failed(*, seconds: float = 20.0) -> dict[str, str] | None:
    """It keeps the status, not the error, which is only in the worker's log."""

    def look() -> Any:
        return [job.id for job in app.job_manager.list_jobs(status="failed")]

    with app.open():
        found = until(look, seconds)
    return {"id": str(found[0]), "error": ""} if found else None


def put_back(id: str, *, label: str) -> bool:
    from procrastinate import utils

    with app.open():
        app.job_manager.retry_job_by_id(int(id), retry_at=utils.utcnow())
    return False


def wrong() -> bool:
    with app.open():
        try:
            step.defer(label="label", seconds="soon")
        except (TypeError, ValueError):
            return True
    return False


def tested() -> bool:
    with app.replace_connector(InMemoryConnector()) as in_memory:
        step.defer(label="tested")
        in_memory.run_worker(wait=False)
    return [line.what for line in journal.read()] == ["start", "end"]


ROLES = roles(enqueue, many, failed, put_back, wrong, tested)
