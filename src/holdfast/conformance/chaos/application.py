"""The application under test: jobs of every kind that record when they run.

None of them stops by itself when its lease is lost, so the worker has to stop it.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.app.application import Holdfast
from holdfast.conformance.chaos.run_log import BEAT_S, RunLog
from holdfast.worker.child.context import Context

app: Holdfast = Holdfast("memory:")
_CHUNK = range(200_000)
"""Summing this range holds the interpreter for some milliseconds."""


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


def _burn(run: RunLog, seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    beat_at = 0.0
    while (now := time.monotonic()) < ends_at:
        sum(_CHUNK)
        if now >= beat_at:
            run.beat()
            beat_at = now + BEAT_S
    run.end()


def _run(kind: str, ctx: Context) -> RunLog:
    return RunLog(kind, ctx.id, ctx.token, ctx.attempt)
