"""Holdfast, on a file or PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles, until
from holdfast import Holdfast, InvalidJob
from holdfast.testing import inline

app = Holdfast(journal.store())


@app.task(name="step")
def step(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    return journal.step(label, seconds, fails)


@app.task(name="count")
def count() -> None:
    journal.count()


def enqueue(
    jobs: list[Job],
    *,
    attempts: int = 0,
    lease: str = "",
    retry: bool = False,
    pause: float = 0.0,
) -> list[str]:
    ids = []
    for job in jobs:
        time.sleep(pause)
        options: dict[str, Any] = {name: job[name] for name in ("group", "tenant") if name in job}
        if attempts:
            options["max_attempts"] = attempts
        if retry:
            options["backoff"] = "exponential(1s)"
        if lease:
            options["lease"] = lease
        label = job.get("label") or str(time.time())
        arguments = label, job.get("seconds", 0.0), job.get("fails", 0)
        ids.append(step.using(**options).enqueue(*arguments).id)
    return ids


def many(jobs: int) -> None:
    for start in range(0, jobs, 1_000):
        count.enqueue_many([()] * min(1_000, jobs - start))


def declare(*, fairness: str = "", limit: int = 0, rate: str = "") -> None:
    if fairness:
        app.run(app.declare("default", fairness=fairness))  # type: ignore[arg-type]
    if limit:
        app.run(app.limit("default", "limit", concurrency=limit))
    if rate:
        app.run(app.limit("default", "rate", rate=rate))


def result(id: str) -> str:
    return step.handle(id).result(timeout=5)


def failed(*, seconds: float = 20.0) -> dict[str, str] | None:
    found = until(lambda: json.loads(_cli("dlq", "list")), seconds)
    return {"id": found[0]["id"], "error": json.dumps(found[0]["error"])} if found else None


def put_back(id: str, *, label: str) -> bool:
    """Edit and put back with one command."""
    _cli("dlq", "retry", id, "--edit", json.dumps({"label": label, "fails": 0}))
    return True


def _cli(*words: str) -> str:
    program = str(Path(sys.executable).with_name("holdfast"))
    line = [program, *words, "--json", "--url", journal.store()]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def fan_in(jobs: list[Job], then: str) -> None:
    parents = [step.enqueue(job["label"], job.get("seconds", 0.0)) for job in jobs]
    step.using(after=parents).enqueue(then)


def wrong() -> bool:
    try:
        step.enqueue("label", "soon")  # type: ignore[arg-type]
    except InvalidJob:
        return True
    return False


def tested() -> bool:
    with inline(app):
        return step.enqueue("tested").result() == "tested, run 1"


ROLES = roles(enqueue, many, declare, result, failed, put_back, fan_in, wrong, tested)
