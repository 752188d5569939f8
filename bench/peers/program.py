"""The command line of a contestant's program: `python -m bench.peers.NAME ROLE ARGUMENTS`.

Uses only the standard library. The module of the peer provides a function for each role.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

BATCH = 1_000
CALLERS = 8


@dataclass(frozen=True)
class Arguments:
    """`place` is a file or the URL of a database; `settings` are specific to the peer."""

    place: str
    jobs: int = 0
    rate: float = 100.0
    settings: dict[str, Any] = field(default_factory=dict)


Role = Callable[[Arguments], float | None]


def main(*, prepare: Role, enqueue: Role, work: Role, trickle: Role) -> None:
    """Run the role given on the command line.

    `prepare` creates an empty store. `enqueue` fills it and returns the seconds it took, without
    connecting. `work` runs jobs until it is ended. `trickle` enqueues at a steady rate, one job a
    call; printed are the seconds of CPU time that this process used for it.
    """
    roles = {"prepare": prepare, "enqueue": enqueue, "work": work, "trickle": trickle}
    threading.Thread(target=_end_with_the_benchmark, daemon=True).start()
    printed = roles[sys.argv[1]](given())
    print(json.dumps(_cpu_s() if sys.argv[1] == "trickle" else printed), flush=True)


def given() -> Arguments:
    """Parse the arguments of the command line."""
    return Arguments(**json.loads(sys.argv[2]))


def _end_with_the_benchmark() -> None:
    """Exit when the benchmark closes the pipe, which also happens if it is killed. Children that a
    worker forked are in its process group and exit too."""
    os.read(0, 1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def batches(jobs: int) -> Iterator[int]:
    """Split a number of jobs into batch sizes."""
    while jobs > 0:
        yield min(jobs, BATCH)
        jobs -= BATCH


def timed_calls(call: Callable[[], object], jobs: int) -> float:
    """Make one call per job, from several threads; return the seconds it took."""
    ready = threading.Barrier(CALLERS + 1)

    def act(count: int) -> None:
        ready.wait()
        for _ in range(count):
            call()

    counts = [jobs // CALLERS + (number < jobs % CALLERS) for number in range(CALLERS)]
    threads = [threading.Thread(target=act, args=(count,)) for count in counts]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def steadily(arguments: Arguments) -> Iterator[None]:
    """Yield once per job at the rate of the arguments."""
    for pause in _pauses(arguments):
        time.sleep(pause)
        yield


async def asteadily(arguments: Arguments) -> AsyncIterator[None]:
    """Like `steadily`, without blocking the loop."""
    for pause in _pauses(arguments):
        await asyncio.sleep(pause)
        yield


_TRICKLE_BEGAN: list[float] = []


def _cpu_s() -> float:
    return time.process_time() - _TRICKLE_BEGAN[0]


def _pauses(arguments: Arguments) -> Iterator[float]:
    """Pauses for one job per interval, at a random point in it, so that polls cannot align."""
    _TRICKLE_BEGAN.append(time.process_time())
    start, turn = time.monotonic(), 1 / arguments.rate
    for number in range(arguments.jobs):
        yield max(start + (number + random.random()) * turn - time.monotonic(), 0)
