"""huey on SQLite. It deletes a job when it takes it: a running job is lost in a crash.

Tasks return None, which huey does not store. Settings: `fsync`, `worker_type`, `workers`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from huey import SqliteHuey  # type: ignore[import-not-found]

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped

POLL_S = 0.001


def prepare(arguments: Arguments) -> None:
    _Queue(arguments)


def enqueue(arguments: Arguments) -> float:
    """Enqueue with one call per job, because huey has no bulk call."""
    queue = _Queue(arguments)
    text = payload()
    started = time.perf_counter()
    for _ in range(arguments.jobs):
        queue.noop(text)
    return time.perf_counter() - started


def work(arguments: Arguments) -> None:
    logging.disable(logging.INFO)
    settings = arguments.settings
    queue = _Queue(arguments, tally=Tally())
    queue.huey.create_consumer(
        workers=settings["workers"],
        worker_type=settings["worker_type"],
        periodic=False,
        initial_delay=POLL_S,
        max_delay=POLL_S,
        check_worker_health=False,
    ).run()


def trickle(arguments: Arguments) -> None:
    queue = _Queue(arguments)
    for _ in program.steadily(arguments):
        queue.late(stamped())


class _Queue:
    def __init__(self, arguments: Arguments, *, tally: Tally | None = None) -> None:
        self.huey = SqliteHuey(filename=arguments.place, fsync=arguments.settings["fsync"])
        self._tally = tally
        self._one_at_a_time = threading.Lock()
        self.noop: Any = self.huey.task(name="noop")(self._ran)
        self.late: Any = self.huey.task(name="late")(self._started)

    def _ran(self, text: str) -> None:
        assert self._tally is not None
        with self._one_at_a_time:
            self._tally.ran()

    def _started(self, text: str) -> None:
        assert self._tally is not None
        self._tally.started(text)


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
