"""huey on SQLite."""

from __future__ import annotations

import os
import time

from huey import SqliteHuey  # type: ignore[import-not-found]
from huey import group as huey_group

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles, until

huey = SqliteHuey(filename=os.environ.get(journal.STORE, ":memory:"))


@huey.task(name="step")  # type: ignore[untyped-decorator]
def step(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@huey.task(name="retried", retries=3, retry_delay=1, retry_backoff=2)  # type: ignore[untyped-decorator]
def retried(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@huey.task(name="after")  # type: ignore[untyped-decorator]
def after(label: str, results: list[str]) -> str:
    return journal.step(label)


@huey.task(name="count")  # type: ignore[untyped-decorator]
def count() -> None:
    journal.count()


def enqueue(jobs: list[Job], *, retry: bool = False, pause: float = 0.0) -> list[str]:
    task = retried if retry else step
    ids = []
    for job in jobs:
        time.sleep(pause)
        label = job.get("label") or str(time.time())
        ids.append(task(label, job.get("seconds", 0.0), job.get("fails", 0)).id)
    return ids


def many(jobs: int) -> None:
    for _ in range(jobs):
        count()


def failed(id: str, *, seconds: float = 20.0) -> dict[str, str] | None:
    """The result has the error; there is no list of failed jobs and no call that puts one back."""

    def look() -> str:
        try:
            huey.result(id, preserve=True)
        except Exception as error:  # noqa: BLE001 - its own class, with the error of the job
            return str(error)
        return ""

    error = until(look, seconds)
    return {"id": id, "error": error} if error else None


def fan_in(jobs: list[Job], then: str) -> None:
    parents = [step.s(job["label"], job.get("seconds", 0.0)) for job in jobs]
    huey.enqueue(huey_group(parents).then(after, then))


def wrong() -> bool:
    try:
        step("label", "soon")
    except (TypeError, ValueError):
        return True
    return False


def tested() -> bool:
    huey.immediate = True
    return bool(step("tested")() == "tested, run 1")


ROLES = roles(enqueue, many, failed, fan_in, wrong, tested)
