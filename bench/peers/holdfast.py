"""Holdfast in the same roles as its peers, with its task API and its worker command.

Settings: `words`, the arguments of `holdfast worker`; `processes`, None for the default;
`retention`, of finished jobs; `call`, "enqueue" for the blocking call of a task.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import payload, stamped
from holdfast import Holdfast
from holdfast.worker import processes

COMMAND = str(Path(sys.executable).with_name("holdfast"))


def prepare(arguments: Arguments) -> None:
    async def act() -> None:
        async with Holdfast(arguments.place) as app:
            if "retention" in arguments.settings:
                await app.declare("default", retention=arguments.settings["retention"])

    asyncio.run(act())


def enqueue(arguments: Arguments) -> float:
    os.environ["HOLDFAST_URL"] = arguments.place
    from bench.peers.tasks import app, noop

    async def act() -> float:
        async with app:
            text = payload()
            started = time.perf_counter()
            for size in program.batches(arguments.jobs):
                await noop.aenqueue_many([(text,)] * size)
            return time.perf_counter() - started

    return asyncio.run(act())


def work(arguments: Arguments) -> None:
    """Replace this process by the worker, which also ends if the benchmark is killed."""
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    count = arguments.settings["processes"]
    options = [] if count is None else ["--processes", str(count)]
    words = arguments.settings["words"]
    os.execv(COMMAND, [COMMAND, "worker", *words, "--url", arguments.place, *options])


def trickle(arguments: Arguments) -> None:
    os.environ["HOLDFAST_URL"] = arguments.place
    from bench.peers.tasks import app, late

    if arguments.settings.get("call") == "enqueue":
        late.enqueue(stamped())
        for _ in program.steadily(arguments):
            late.enqueue(stamped())
        return

    async def act() -> None:
        async with app:
            async for _ in program.asteadily(arguments):
                await late.aenqueue(stamped())

    asyncio.run(act())


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
