"""Compares the rates of enqueue, lease, settle and the full cycle of two subjects, in turns.

Turns are short and many, so that a slow second of a shared machine affects both equally.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.subject import Subject

PHASES = ("enqueue", "lease", "settle")
EMPTY_LEASES_MAX = 10_000
TURNS_MIN = 3
COMPARE_S_MAX = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of jobs, jobs per call, and concurrent callers."""

    jobs: int
    batch: int
    callers: int = 1


async def compare(
    raw: Subject, ours: Subject, shape: Shape, *, repeats: int, log: Callable[[str], None]
) -> dict[str, tuple[float, float]]:
    """Median rates in jobs/s by phase and for the `cycle`: ours and the raw one.

    On a machine that is too busy for all turns, a few turns are enough.
    """
    rates: dict[str, dict[str, list[float]]] = {"raw": {}, "ours": {}}
    end = time.monotonic() + COMPARE_S_MAX
    for turn in range(-1, repeats):
        if turn >= TURNS_MIN and time.monotonic() > end:
            log(f"{turn} turns took over {COMPARE_S_MAX} s; skipping the rest")
            break
        # The first turn warms caches and plans and is not counted; the order alternates.
        order = [("raw", raw), ("ours", ours)]
        for name, subject in order if turn % 2 else reversed(order):
            log(f"turn {max(turn, 0) + 1} of {repeats}")
            measured = await measure(subject, shape)
            if turn >= 0:
                for phase, rate in measured.items():
                    rates[name].setdefault(phase, []).append(rate)
    return {
        phase: (statistics.median(rates["ours"][phase]), statistics.median(rates["raw"][phase]))
        for phase in rates["raw"]
    }


async def measure(subject: Subject, shape: Shape) -> dict[str, float]:
    jobs = subject.make(shape.jobs)
    chunks = [jobs[i : i + shape.batch] for i in range(0, len(jobs), shape.batch)]
    leased: list[Sequence[Any]] = []

    async def lease(chunk: Sequence[Any]) -> None:
        missing = len(chunk)
        for _ in range(EMPTY_LEASES_MAX):
            leases = await subject.lease(missing)
            if leases:
                leased.append(leases)
                missing -= len(leases)
            if missing == 0:
                return
        raise AssertionError(f"{missing} jobs cannot be leased")

    seconds = [
        await _time(subject.enqueue, chunks, shape.callers),
        await _time(lease, chunks, shape.callers),
        await _time(subject.settle, leased, shape.callers),
    ]
    rates = {phase: shape.jobs / took for phase, took in zip(PHASES, seconds, strict=True)}
    return {**rates, "cycle": shape.jobs / sum(seconds)}


async def _time(
    call: Callable[[Sequence[Any]], Awaitable[None]],
    chunks: Sequence[Sequence[Any]],
    callers: int,
) -> float:
    left = iter(chunks)

    async def work() -> None:
        for chunk in left:
            await call(chunk)

    gc.collect()
    started = time.perf_counter()
    if callers == 1:
        await work()
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(work())
    return time.perf_counter() - started
