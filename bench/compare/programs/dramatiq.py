"""Dramatiq on RabbitMQ, the broker that its documentation recommends."""

from __future__ import annotations

import os
import time

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.rabbitmq import RabbitmqBroker  # type: ignore[import-not-found]
from dramatiq.brokers.stub import StubBroker  # type: ignore[import-not-found]

from bench.compare.programs import journal
from bench.compare.programs.program import Job, roles

broker = RabbitmqBroker(url=os.environ[journal.STORE]) if journal.store() else StubBroker()
dramatiq.set_broker(broker)


@dramatiq.actor  # type: ignore[untyped-decorator]
def step(label: str, seconds: float = 0.0, fails: int = 0) -> None:
    journal.step(label, seconds, fails)


@dramatiq.actor  # type: ignore[untyped-decorator]
def count() -> None:
    journal.count()


def enqueue(jobs: list[Job], *, attempts: int = 0, retry: bool = False, pause: float = 0.0) -> None:
    options = {"max_retries": attempts - 1} if attempts else {}
    if retry:
        options["min_backoff"] = 1_000
    for job in jobs:
        time.sleep(pause)
        label = job.get("label") or str(time.time())
        arguments = (label, job.get("seconds", 0.0), job.get("fails", 0))
        step.send_with_options(args=arguments, **options)


def many(jobs: int) -> None:
    for _ in range(jobs):
        count.send()


def wrong() -> bool:
    try:
        step.send("label", "soon")
    except (TypeError, ValueError):
        return True
    return False


def tested() -> bool:
    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    step.send("tested")
    broker.join(step.queue_name)
    worker.join()
    worker.stop()
    return [line.what for line in journal.read()] == ["start", "end"]


ROLES = roles(enqueue, many, wrong, tested)
