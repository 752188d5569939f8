"""The application whose workers are struck: jobs of every kind that say when they run.

None of them stops when it is told that its lease is lost, so that a worker has to see to it.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.app import Holdfast
from holdfast.chaos.runs import BEAT_S, Run
from holdfast.worker.context import Context

app = Holdfast("memory:")
_CHUNK = range(200_000)
"""Adding them up holds the interpreter for some milliseconds."""


@app.task(name="sync")
def sync(seconds: float, *, ctx: Context) -> None:
    run = _run("sync", ctx)
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, BEAT_S))
        run.beat()
    run.end()


@app.task(name="async")
async def asynchronous(seconds: float, *, ctx: Context) -> None:
    run = _run("async", ctx)
    try:
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT_S))
            run.beat()
    except asyncio.CancelledError:
        run.leave()
        raise
    run.end()


@app.task(name="cpu")
def cpu(seconds: float, *, ctx: Context) -> None:
    _burn(_run("cpu", ctx), seconds)


@app.task(name="isolated", isolated=True)
def isolated(seconds: float, *, ctx: Context) -> None:
    _burn(_run("isolated", ctx), seconds)


def _burn(run: Run, seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    beat_at = 0.0
    while (now := time.monotonic()) < ends_at:
        sum(_CHUNK)
        if now >= beat_at:
            run.beat()
            beat_at = now + BEAT_S
    run.end()


def _run(kind: str, ctx: Context) -> Run:
    return Run(kind, ctx.id, ctx.token, ctx.attempt)
