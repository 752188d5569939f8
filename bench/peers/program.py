"""How a contestant's program is spoken to: `python -m bench.peers.NAME ROLE ARGUMENTS`.

Needs only the standard library. Each role is a function that the module of the peer gives.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

BATCH = 1_000


@dataclass(frozen=True)
class Arguments:
    """`place` is a file or the URL of a database. The settings are the peer's own."""

    place: str
    jobs: int = 0
    rate: float = 100.0
    settings: dict[str, Any] = field(default_factory=dict)


Role = Callable[[Arguments], float | None]


def main(*, prepare: Role, enqueue: Role, work: Role, trickle: Role) -> None:
    """`prepare` makes an empty store. `enqueue` fills it and gives the seconds that took, without
    those for connecting. `work` works until it is ended. `trickle` enqueues at a steady rate."""
    roles = {"prepare": prepare, "enqueue": enqueue, "work": work, "trickle": trickle}
    threading.Thread(target=_end_with_the_benchmark, daemon=True).start()
    print(json.dumps(roles[sys.argv[1]](given())), flush=True)


def given() -> Arguments:
    return Arguments(**json.loads(sys.argv[2]))


def _end_with_the_benchmark() -> None:
    """Its end of the pipe closes also when it is killed, and nobody else would end a worker."""
    os.read(0, 1)
    os._exit(1)


def batches(jobs: int) -> Iterator[int]:
    """The sizes of the calls in which so many jobs are enqueued."""
    while jobs > 0:
        yield min(jobs, BATCH)
        jobs -= BATCH


def steadily(arguments: Arguments) -> Iterator[None]:
    for pause in _pauses(arguments):
        time.sleep(pause)
        yield


async def asteadily(arguments: Arguments) -> AsyncIterator[None]:
    for pause in _pauses(arguments):
        await asyncio.sleep(pause)
        yield


def _pauses(arguments: Arguments) -> Iterator[float]:
    """A job a turn, at a random place in it: nobody's polling can fall into step with that."""
    start, turn = time.monotonic(), 1 / arguments.rate
    for number in range(arguments.jobs):
        yield max(start + (number + random.random()) * turn - time.monotonic(), 0)
