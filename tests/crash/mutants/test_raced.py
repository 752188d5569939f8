"""Mutants that only concurrent calls reveal: a key and a schedule's tick used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec.structs import replace

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import HistoryLine, Journal, Recorded, dump
from holdfast.conformance.simulate import MakeEngine
from holdfast.core.model import JobFilter, NewJob, Receipt, Record, Status
from holdfast.engines.base import Engine
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import scheduler
from holdfast.upkeep.scheduler import Scheduler

PRODUCERS = 8


class KeyCheckedOutside:
    """Looks whether the key is free, and enqueues in another transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        receipts = []
        for job in jobs:
            labels = {"key": job.key or ""}
            page = await self.engine.find(JobFilter(labels=labels), limit=1)
            if page.jobs:
                receipts.append(Receipt(id=page.jobs[0].id, status=Status.DUPLICATE))
            else:
                receipts += await self.engine.enqueue([replace(job, key=None, labels=labels)])
        return receipts


async def test_a_key_checked_outside_the_transaction_is_caught(
    fresh: Callable[[], MakeEngine],
) -> None:
    sound = await enqueue_together(fresh(), lambda engine: engine)
    assert sound.clean, sound.violations
    spoilt = await enqueue_together(fresh(), lambda engine: cast(Engine, KeyCheckedOutside(engine)))
    assert "I13" in spoilt.rules, spoilt


async def enqueue_together(make: MakeEngine, spoil: Callable[[Engine], Engine]) -> Findings:
    """Several producers, the same keys, at the same moment; round by round."""
    lines: list[HistoryLine] = []
    engine = make(ManualClock())
    await engine.open()
    journals = [Journal(f"p{n}", lines.append) for n in range(PRODUCERS)]
    producers = [Recorded(spoil(engine), journal) for journal in journals]
    for number in range(10):
        await asyncio.gather(
            *(
                producer.enqueue(
                    [
                        NewJob(
                            id=f"{number}-{n}",
                            task="t",
                            payload=f"{number} {n}".encode(),
                            key=f"key-{number}",
                        )
                    ]
                )
                for n, producer in enumerate(producers)
            )
        )
    return await finish(engine, journals[0], lines)


class LoadedTogether:
    """Holds each scheduler back until all have read what is due, as happens by chance."""

    def __init__(self, engine: Engine, barrier: asyncio.Barrier) -> None:
        self.engine = engine
        self.barrier = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        records = await self.engine.load(kind, after=after, limit=limit)
        await self.barrier.wait()
        return records


async def test_a_tick_that_is_not_unique_is_caught(
    fresh: Callable[[], MakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = await tick_together(fresh())
    assert sound.clean, sound.violations
    proper = scheduler._tick_job

    def own_tick(schedule: Schedule, tick: int, **_: bool) -> NewJob:
        return replace(proper(schedule, tick), id=uuid4().hex, key=None)

    monkeypatch.setattr(scheduler, "_tick_job", own_tick)
    spoilt = await tick_together(fresh())
    assert "I9" in spoilt.rules, spoilt


async def tick_together(make: MakeEngine) -> Findings:
    """Two schedulers that wake for the same ticks."""
    lines: list[HistoryLine] = []
    clock = ManualClock()
    engine = make(clock)
    await engine.open()
    job = NewJob(id="template", task="t")
    await Schedules(engine, clock.wall_ms).add(Schedule(name="often", job=job, every_ms=1_000))
    barrier = asyncio.Barrier(2)
    journals = [Journal(f"s{n}", lines.append) for n in range(2)]
    schedulers = []
    for journal in journals:
        together = cast(Engine, LoadedTogether(engine, barrier))
        schedulers.append(Scheduler(Recorded(together, journal), clock.wall_ms))
    for _ in range(3):
        clock.advance(1_000)
        await asyncio.gather(*(each.once() for each in schedulers))
    findings = await finish(engine, journals[0], lines)
    assert findings.jobs >= 3
    return findings


async def finish(engine: Engine, journal: Journal, lines: list[HistoryLine]) -> Findings:
    await dump(engine, journal)
    await engine.close()
    return check(lines)
