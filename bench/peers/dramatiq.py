"""dramatiq on RabbitMQ: durable queues, confirmed publishes, acknowledged after the job has run.

Settings: `threads` of a worker process and `prefetch`, the messages it takes ahead.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cache
from typing import Any

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.rabbitmq import RabbitmqBroker  # type: ignore[import-not-found]

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped

_tally = cache(Tally)


def prepare(arguments: Arguments) -> None:
    _Queue(arguments).broker.declare_queue("default", ensure=True)


def enqueue(arguments: Arguments) -> float:
    """Enqueue with one call per job, because dramatiq has no bulk call for RabbitMQ."""
    queue = _Queue(arguments)
    text = payload()
    return program.timed_calls(lambda: queue.noop.send(text), arguments.jobs)


def work(arguments: Arguments) -> None:
    logging.disable(logging.INFO)
    os.environ["dramatiq_queue_prefetch"] = str(arguments.settings["prefetch"])  # noqa: SIM112 - its name
    from dramatiq.worker import Worker  # type: ignore[import-not-found]

    Worker(_Queue(arguments).broker, worker_threads=arguments.settings["threads"]).start()
    threading.Event().wait()


def trickle(arguments: Arguments) -> None:
    queue = _Queue(arguments)
    for _ in program.steadily(arguments):
        queue.late.send(stamped())


class _Queue:
    def __init__(self, arguments: Arguments) -> None:
        self.broker = RabbitmqBroker(url=arguments.place, confirm_delivery=True)
        self._one_at_a_time = threading.Lock()
        actor: Any = dramatiq.actor
        self.noop = actor(self._ran, actor_name="noop", broker=self.broker)
        self.late = actor(self._started, actor_name="late", broker=self.broker)

    def _ran(self, text: str) -> None:
        with self._one_at_a_time:
            _tally().ran()

    def _started(self, text: str) -> None:
        _tally().started(text)


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
