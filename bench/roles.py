"""The roles of child processes of a benchmark: `python -m bench.roles ROLE ARGUMENTS`."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from bench.stores import Store, opened
from bench.subject import PAYLOAD, TASK, HoldfastSubject
from holdfast.core.model import JobFilter, LeaseRequest, NewJob


async def memory(store: Store, *, queue: str, seconds: float) -> None:
    """Work on a long queue, read it as an operator would, and print the peak memory."""
    async with opened(store) as engine:
        subject = HoldfastSubject(engine, queue=queue)
        end = time.monotonic() + seconds
        jobs = 0
        while time.monotonic() < end:
            leases = await subject.lease(100)
            await subject.settle(leases)
            jobs += len(leases)
        await engine.queues()
        await engine.find(JobFilter(queue=queue), limit=100)
        await engine.overdue(100)
        await engine.expired(100)
        _print({"rss_mb": _rss_peak_mb(), "jobs": jobs})


async def idle(store: Store, *, seconds: float) -> None:
    """Wait for a job that never comes, and print the share of a core that this used."""
    async with opened(store) as engine:
        request = LeaseRequest(queues=("default",), worker="idle", wait_ms=3_600_000)
        waiting = asyncio.create_task(engine.lease(request))
        await asyncio.sleep(0.5)
        cpu, started = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - started)
        _print({"share": share})
        waiting.cancel()


async def writer(store: Store, *, name: str, seconds: float) -> None:
    """After a start signal, commit one job after the other; print start and end of each in µs."""
    async with opened(store) as engine:
        _print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        calls: list[tuple[int, int]] = []
        started = time.monotonic_ns() // 1000
        end = started + round(seconds * 1e6)
        while started < end:
            id = f"{name}-{len(calls)}"  # noqa: A001 - a job's id
            await engine.enqueue([NewJob(id=id, task=TASK, payload=PAYLOAD)])
            done = time.monotonic_ns() // 1000
            calls.append((started, done))
            started = done
        _print(calls)
        # Closing also takes the lock and is not measured, so wait until all writers are done.
        await asyncio.to_thread(sys.stdin.readline)


async def waker(store: Store, *, times: int) -> None:
    """Lease one job after the other, and print when each arrived, by the monotonic clock."""
    async with opened(store) as engine:
        request = LeaseRequest(queues=("default",), worker="waker", wait_ms=60_000)
        subject = HoldfastSubject(engine)
        _print("ready")
        for _ in range(times):
            leases = await engine.lease(request)
            at = time.monotonic_ns()
            await subject.settle(leases)
            _print(at)


def _rss_peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "peak memory is unknown: /proc/self/status has no VmHWM"
    return int(found[1]) / 1024


def _print(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "memory": memory,
        "idle": idle,
        "writer": writer,
        "waker": waker,
    }
    arguments = msgspec.json.decode(sys.argv[2])
    store = msgspec.convert(arguments.pop("store"), Store)
    asyncio.run(roles[sys.argv[1]](store, **arguments))
