"""procrastinate on psycopg. Settings: `concurrency`, in one process, and `delete` for done jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from bench.peers import program
from bench.peers.program import Arguments
from bench.peers.tally import Tally, payload, stamped


def prepare(arguments: Arguments) -> None:
    async def act() -> None:
        async with _app(arguments).open_async() as app:
            await app.schema_manager.apply_schema_async()

    asyncio.run(act())


def enqueue(arguments: Arguments) -> float:
    async def act() -> float:
        async with _app(arguments).open_async() as app:
            text = payload()
            started = time.perf_counter()
            for size in program.batches(arguments.jobs):
                await app.tasks["noop"].batch_defer_async(*[{"text": text}] * size)
            return time.perf_counter() - started

    return asyncio.run(act())


def work(arguments: Arguments) -> None:
    logging.disable(logging.INFO)
    settings = arguments.settings

    async def act() -> None:
        async with _app(arguments, tally=Tally()).open_async() as app:
            await app.run_worker_async(
                concurrency=settings["concurrency"], delete_jobs=settings["delete"]
            )

    asyncio.run(act())


def trickle(arguments: Arguments) -> None:
    async def act() -> None:
        async with _app(arguments).open_async() as app:
            async for _ in program.asteadily(arguments):
                await app.tasks["late"].defer_async(text=stamped())

    asyncio.run(act())


def _app(arguments: Arguments, *, tally: Tally | None = None) -> Any:
    connections = arguments.settings["concurrency"] + 4
    app = App(connector=PsycopgConnector(conninfo=arguments.place, max_size=connections))

    async def noop(text: str) -> None:
        assert tally is not None
        tally.ran()

    async def late(text: str) -> None:
        assert tally is not None
        tally.started(text)

    app.task(name="noop")(noop)
    app.task(name="late")(late)
    return app


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=enqueue, work=work, trickle=trickle)
