"""Celery on RabbitMQ or SQS: durable queues, confirmed publishes, acknowledged after the job has
run.

Results are off. Settings: `pool`, its `concurrency`, and `prefetch`, the messages that each of them
takes ahead (0: no limit).
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from celery import Celery

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped

_tally = cache(Tally)


def prepare(arguments: Arguments) -> None:
    with _app(arguments).connection_for_write() as connection:
        channel = connection.channel()
        channel.queue_declare(queue="celery", durable=True, auto_delete=False)


def enqueue(arguments: Arguments) -> float:
    """Enqueue with one call per job, because Celery has no bulk call."""
    app = _app(arguments)
    text = payload()
    return program.timed_calls(lambda: app.tasks["noop"].delay(text), arguments.jobs)


def work(arguments: Arguments) -> None:
    logging.disable(logging.INFO)
    settings = arguments.settings
    options = [f"--pool={settings['pool']}", f"--concurrency={settings['concurrency']}"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    _app(arguments).worker_main(["worker", "--loglevel=ERROR", *options])


def trickle(arguments: Arguments) -> None:
    app = _app(arguments)
    for _ in program.steadily(arguments):
        app.tasks["late"].delay(stamped())


def _app(arguments: Arguments) -> Any:
    app = Celery("bench", broker=arguments.place)
    options: dict[str, Any] = {"confirm_publish": True}
    if arguments.place.startswith("sqs:"):
        # No pause between polls: the fastest that its documentation describes.
        options = {"region": "us-east-1", "is_secure": False, "polling_interval": 0}
    app.conf.update(
        broker_transport_options=options,
        task_acks_late=True,
        task_default_delivery_mode="persistent",
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=arguments.settings["prefetch"],
    )
    app.task(name="noop")(_noop)
    app.task(name="late")(_late)
    app.finalize()
    return app


def _noop(text: str) -> None:
    _tally().ran()


def _late(text: str) -> None:
    _tally().started(text)


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
