"""pgqueuer on asyncpg and uvloop, with all its tables logged.

Settings: `managers` in one process, each on its own connection, and the `batch` each takes.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Queries, QueueManager  # type: ignore[import-not-found]
from pgqueuer.domain.settings import Durability  # type: ignore[import-not-found]

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped


def prepare(arguments: Arguments) -> None:
    async def act() -> None:
        queries = await _queries(arguments)
        queries.qbe.settings.durability = Durability.durable
        await queries.install()

    uvloop.run(act())


def enqueue(arguments: Arguments) -> float:
    async def act() -> float:
        queries = await _queries(arguments)
        text: bytes | None = payload().encode()
        started = time.perf_counter()
        for size in program.batches(arguments.jobs):
            await queries.enqueue(["noop"] * size, [text] * size, [0] * size)
        return time.perf_counter() - started

    return uvloop.run(act())


def work(arguments: Arguments) -> None:
    tally = Tally()

    async def noop(job: Any) -> None:
        tally.ran()

    async def late(job: Any) -> None:
        tally.started(job.payload.decode())

    async def manage() -> None:
        manager = QueueManager(await _queries(arguments))
        manager.entrypoint("noop")(noop)
        manager.entrypoint("late")(late)
        await manager.run(
            batch_size=arguments.settings["batch"], dequeue_timeout=timedelta(seconds=30)
        )

    async def act() -> None:
        await asyncio.gather(*(manage() for _ in range(arguments.settings["managers"])))

    uvloop.run(act())


def trickle(arguments: Arguments) -> None:
    async def act() -> None:
        queries = await _queries(arguments)
        async for _ in program.asteadily(arguments):
            await queries.enqueue("late", stamped().encode())

    uvloop.run(act())


async def _queries(arguments: Arguments) -> Any:
    return Queries(AsyncpgDriver(await asyncpg.connect(arguments.place)))


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
