"""RQ on Redis."""

from __future__ import annotations

import os
import time

from redis import Redis  # type: ignore[import-not-found]
from rq import Queue, Retry  # type: ignore[import-not-found]
from rq.job import Job as Stored  # type: ignore[import-not-found]
from rq.registry import FailedJobRegistry  # type: ignore[import-not-found]

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles, until


def queue() -> Queue:
    return Queue(connection=Redis.from_url(os.environ[journal.STORE]))


def enqueue(jobs: list[Job], *, retry: bool = False, pause: float = 0.0) -> None:
    with_redis = queue()
    for job in jobs:
        time.sleep(pause)
        label = job.get("label") or str(time.time())
        arguments = (label, job.get("seconds", 0.0), job.get("fails", 0))
        rule = Retry(max=3, interval=[1, 2, 4]) if retry else None
        with_redis.enqueue(journal.step, *arguments, retry=rule)


def many(jobs: int) -> None:
    with_redis = queue()
    for start in range(0, jobs, 1_000):
        size = min(1_000, jobs - start)
        with_redis.enqueue_many([Queue.prepare_data(journal.count) for _ in range(size)])


def failed(*, seconds: float = 20.0) -> dict[str, str] | None:
    registry = FailedJobRegistry(queue=queue())
    found = until(registry.get_job_ids, seconds)
    if not found:
        return None
    job = Stored.fetch(found[0], connection=registry.connection)
    result = job.latest_result()
    return {"id": job.id, "error": (result and result.exc_string) or ""}


def put_back(id: str, *, label: str) -> bool:
    """The arguments of a stored job can be replaced before it is put back, once they are read."""
    job = Stored.fetch(id, connection=queue().connection)
    if job.func_name and job.args:
        job.args = (label,)
    job.save()
    FailedJobRegistry(queue=queue()).requeue(id)
    return True


def fan_in(jobs: list[Job], then: str) -> None:
    with_redis = queue()
    parents = [
        with_redis.enqueue(journal.step, job["label"], job.get("seconds", 0.0)) for job in jobs
    ]
    with_redis.enqueue(journal.step, then, depends_on=parents)


def wrong() -> bool:
    try:
        queue().enqueue(journal.step, "label", "soon")
    except (TypeError, ValueError):
        return True
    return False


def tested() -> bool:
    """`is_async=False` runs the job at once, but still needs Redis."""
    job = Queue(is_async=False, connection=Redis(port=1)).enqueue(journal.step, "tested")
    return bool(job.return_value() == "tested, run 1")


ROLES = roles(enqueue, many, failed, put_back, fan_in, wrong, tested)
