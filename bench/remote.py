"""Clients of an engine by its URL, each a process: `python -m bench.remote ROLE URL ARGUMENT`.

They print their results as lines of JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec
import uuid_utils

from bench.subject import HoldfastSubject
from holdfast.core.model import LeaseRequest
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine

BATCH = 100
PACE_BATCH = 10


async def cycle(engine: Engine, seconds: float) -> None:
    """For each input line, enqueue, lease and settle in hundreds; print the number of jobs done."""
    subject = HoldfastSubject(engine, queue="cycle")
    _print("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        end = time.monotonic() + seconds
        done = 0
        while time.monotonic() < end:
            jobs = [msgspec.structs.replace(job, id=_new_id()) for job in subject.make(BATCH)]
            await subject.enqueue(jobs)
            leases = await subject.lease(BATCH)
            await subject.settle(leases)
            done += len(leases)
        _print(done)


async def pace(engine: Engine, rate: float) -> None:
    """Enqueue, lease and settle this many jobs per second in all, until the process is ended."""
    subject = HoldfastSubject(engine, queue="cycle")
    _print("ready")
    begun, batches = time.monotonic(), 0
    while True:
        jobs = [msgspec.structs.replace(job, id=_new_id()) for job in subject.make(PACE_BATCH)]
        await subject.enqueue(jobs)
        await subject.settle(await subject.lease(PACE_BATCH))
        batches += 1
        await asyncio.sleep(max(0.0, begun + batches * PACE_BATCH / rate - time.monotonic()))


async def waker(engine: Engine, times: float) -> None:
    """Wait for one job after the other, and print when each arrived, by the monotonic clock."""
    subject = HoldfastSubject(engine, queue="wake")
    request = LeaseRequest(queues=("wake",), worker="waker", wait_ms=60_000)
    _print("ready")
    for _ in range(int(times)):
        leases = await engine.lease(request)
        at = time.monotonic_ns()
        await subject.settle(leases)
        _print(at)


def _new_id() -> str:
    """Return an id that no other process creates."""
    return str(uuid_utils.uuid7())


def _print(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def main(role: str, url: str, argument: str) -> None:
    engine = open_engine(url)
    await engine.open()
    try:
        await {"cycle": cycle, "pace": pace, "waker": waker}[role](engine, float(argument))
    finally:
        await engine.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(*sys.argv[1:]))
