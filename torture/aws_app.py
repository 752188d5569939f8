"""The application of the torture test `aws`: tasks that write down when they run, and how they end.

Each line is one appending write, so that a kill loses nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from holdfast import Bury, Context, Holdfast, NewJob
from holdfast.conformance.chaos.run_log import BEAT_S, ancestry, path
from holdfast.engines.sqs.delivery import ID_HEADER
from torture.service_history import THEN

app = Holdfast("memory:")


class _Run:
    def __init__(self, name: str, ctx: Context) -> None:
        self._file = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = {"name": name, "message": ctx.headers[ID_HEADER], "attempt": ctx.attempt}
        self.write("begin", pids=ancestry())

    def write(self, what: str, **more: Any) -> None:
        line = {"what": what, **self._who, **more, "at_ns": time.monotonic_ns()}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


@app.task(name="sync")
def sync(name: str, kind: str, seconds: float, *, ctx: Context) -> None:
    """Runs in a thread."""
    run = _Run(name, ctx)
    try:
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, BEAT_S))
            run.write("beat")
        _end(run, name, kind, ctx)
    finally:
        run.close()


@app.task(name="async")
async def asynchronous(name: str, kind: str, seconds: float, *, ctx: Context) -> None:
    """Runs on the event loop."""
    run = _Run(name, ctx)
    try:
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT_S))
            run.write("beat")
        _end(run, name, kind, ctx)
    finally:
        run.close()


def _end(run: _Run, name: str, kind: str, ctx: Context) -> None:
    """The line comes first: a run that is killed after it may still have the effect."""
    if kind == "fail":
        run.write("raise")
        raise ValueError("as it was asked to")
    if kind == "bury":
        run.write("bury")
        raise Bury("as it was asked to")
    if kind == "then":
        ctx.then(follow_up(name, ctx.queue))
    run.write("end")


def follow_up(name: str, queue: str) -> NewJob:
    payload = {"name": f"{name}{THEN}", "kind": "work", "seconds": 0.0}
    return app.job("async", payload, queue=queue)
