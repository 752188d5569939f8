"""What a child process of a benchmark does: `python -m bench.roles ROLE ARGUMENTS`."""

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
    """Work on a long queue, look at it as an operator would, say the most memory ever used."""
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
        _say({"rss_mb": _rss_peak_mb(), "jobs": jobs})


async def idle(store: Store, *, seconds: float) -> None:
    """Wait for a job that never comes, say what share of a core that took."""
    async with opened(store) as engine:
        request = LeaseRequest(queues=("default",), worker="idle", wait_ms=3_600_000)
        waiting = asyncio.create_task(engine.lease(request))
        await asyncio.sleep(0.5)
        cpu, started = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - started)
        _say({"share": share})
        waiting.cancel()


async def writer(store: Store, *, name: str, seconds: float) -> None:
    """Commit one job after the other once told to, say when each call began and ended, in µs."""
    async with opened(store) as engine:
        _say("ready")
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
        _say(calls)
        # Closing takes its turn at the lock as well, and is not what is measured.
        await asyncio.to_thread(sys.stdin.readline)


async def waker(store: Store, *, times: int) -> None:
    """Lease one job after the other, say when each was in hand, by a clock all processes share."""
    async with opened(store) as engine:
        request = LeaseRequest(queues=("default",), worker="waker", wait_ms=60_000)
        subject = HoldfastSubject(engine)
        _say("ready")
        for _ in range(times):
            leases = await engine.lease(request)
            at = time.monotonic_ns()
            await subject.settle(leases)
            _say(at)


def _rss_peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "this system does not say how much memory a process used"
    return int(found[1]) / 1024


def _say(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "memory": memory,
        "idle": idle,
        "writer": writer,
        "waker": waker,
    }
    arguments = msgspec.json.decode(sys.argv[2])
    place = msgspec.convert(arguments.pop("store"), Store)
    asyncio.run(roles[sys.argv[1]](place, **arguments))
