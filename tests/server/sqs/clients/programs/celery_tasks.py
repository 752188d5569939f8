"""A Celery worker with tasks that succeed, retry and wait for their time. It sends them to itself
when it is ready, and prints a line for each result. The variable ENDPOINT is `host:port`."""

import datetime as dt
import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready

app = Celery("tasks", broker=f"sqs://{os.environ['ENDPOINT']}")
app.conf.broker_transport_options = {
    "region": "us-east-1",
    "is_secure": False,
    "visibility_timeout": 60,
    "wait_time_seconds": 2,
    "polling_interval": 0.1,
}
app.conf.worker_redirect_stdouts = False
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 4


@app.task
def add(x: int, y: int) -> None:
    tell("sum", x + y)


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> None:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    tell("retries", self.request.retries)


@app.task
def late(due: str) -> None:
    tell("early" if dt.datetime.now(dt.UTC) < dt.datetime.fromisoformat(due) else "on time", "eta")


@worker_ready.connect
def send(**_: object) -> None:
    due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    late.apply_async([due.isoformat()], eta=due)
    flaky.delay()
    add.delay(2, 40)


def tell(*words: object) -> None:
    print("told:", *words, flush=True)
