"""litequeue: one SQLite table with the calls put, pop and done; it has no worker.

The worker here is the loop of its README. Its default is WAL with synchronous = NORMAL.
"""

from __future__ import annotations

import time

from litequeue import LiteQueue  # type: ignore[import-not-found]

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped

POLL_S = 0.001


def prepare(arguments: Arguments) -> None:
    LiteQueue(arguments.place)


def enqueue(arguments: Arguments) -> float:
    """Enqueue with one transaction per batch; without it, every put is a transaction."""
    queue = LiteQueue(arguments.place)
    text = payload()
    started = time.perf_counter()
    for size in program.batches(arguments.jobs):
        with queue.transaction():
            for _ in range(size):
                queue.put(text)
    return time.perf_counter() - started


def work(arguments: Arguments) -> None:
    queue, tally = LiteQueue(arguments.place), Tally()
    while True:
        job = queue.pop()
        if job is None:
            time.sleep(POLL_S)
            continue
        if job.data[0] == "x":
            tally.ran()
        else:
            tally.started(job.data)
        queue.done(job.message_id)


def trickle(arguments: Arguments) -> None:
    queue = LiteQueue(arguments.place)
    for _ in program.steadily(arguments):
        queue.put(stamped())


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
