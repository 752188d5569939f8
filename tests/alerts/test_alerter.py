"""Looks at a real store: what is raised and ended is told once by one of many servers."""

import asyncio
import json
import logging

import pytest

from holdfast.alerts.alerter import ALERTS_MAX
from holdfast.core.model import Failure, LeaseRequest, Queue
from holdfast.core.verdict import Bury, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.events import Listeners
from holdfast.telemetry.flushing import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.testing.clock import ManualClock
from tests.alerts.watching import (
    DEPTH,
    ENDED,
    RAISED,
    Guard,
    come,
    empty,
    events,
    fill,
    set_,
    standing,
)
from tests.telemetry.doubles import FaultyEngine


async def test_raised_told_and_ended(engine: Engine, clock: ManualClock) -> None:
    guard = Guard(engine, clock)
    await guard.look()
    assert await standing(engine) == {}
    await fill(engine, 101)
    await guard.look()
    assert await standing(engine) == {DEPTH: "raised"}
    assert guard.told == [(RAISED, "depth", "default")]
    [event] = await events(engine)
    assert (event.kind, event.queue, event.name) == (RAISED, "default", "depth")
    assert (event.reason, event.text) == ("critical", "101 jobs are ready in queue default")
    clock.advance(5_000)
    await guard.look()
    assert len(guard.told) == 1, "it is told once"
    await empty(engine)
    await guard.look()
    assert await standing(engine) == {DEPTH: "ended"}
    assert guard.told[1:] == [(ENDED, "depth", "default")]
    assert [each.kind for each in await events(engine)] == [RAISED, ENDED]
    assert guard.notices[1].ended_at is not None
    assert guard.notices[0].id != guard.notices[1].id


async def test_a_restart_neither_repeats_nor_forgets(engine: Engine, clock: ManualClock) -> None:
    await fill(engine, 101)
    await Guard(engine, clock).look()
    for _ in range(3):
        clock.advance(60_000)
        guard = Guard(engine, clock)
        await guard.look()
        assert not [each for each in guard.told if each[1] == "depth"]
    await empty(engine)
    guard = Guard(engine, clock)
    await guard.look()
    assert (ENDED, "depth", "default") in guard.told


async def test_of_many_servers_one_tells(engine: Engine, clock: ManualClock) -> None:
    guards = [Guard(engine, clock) for _ in range(5)]
    await fill(engine, 101)
    for _ in range(3):
        await asyncio.gather(*(guard.look() for guard in guards))
        clock.advance(5_000)
    await empty(engine)
    await asyncio.gather(*(guard.look() for guard in guards))
    assert sorted(each for guard in guards for each in guard.told) == [
        (ENDED, "depth", "default"),
        (RAISED, "depth", "default"),
    ]
    assert [each.kind for each in await events(engine)] == [RAISED, ENDED]


async def test_levels_are_settings_and_hold_at_once(engine: Engine, clock: ManualClock) -> None:
    guard = Guard(engine, clock)
    await engine.declare(Queue(name="mail"))
    await fill(engine, 8)
    await fill(engine, 8, "mail")
    await set_(engine, depth="5,mail:9", no_worker="off")
    await guard.look()
    assert await standing(engine) == {DEPTH: "raised"}
    await set_(engine, depth="off,mail:7")
    await guard.look()
    assert await standing(engine) == {DEPTH: "ended", "depth/mail": "raised"}
    await set_(engine, depth=None)
    await guard.look()
    assert set((await standing(engine)).values()) == {"ended"}


async def test_the_cool_down_is_a_setting(engine: Engine, clock: ManualClock) -> None:
    guard = Guard(engine, clock)
    await set_(engine, cool_down="0s", age="off", no_worker="off")
    for turn in range(3):
        await fill(engine, 101, first=1_000 * turn)
        clock.advance(1_000)
        await guard.look()
        await empty(engine)
        clock.advance(1_000)
        await guard.look()
    assert [each[0] for each in guard.told] == [RAISED, ENDED] * 3


async def test_dead_letters_of_workers_that_are_attached_directly(
    engine: Engine, clock: ManualClock
) -> None:
    """They count for themselves, and this process never sees a job of theirs."""
    meter = Meter(clock.wall_ms)
    attached = Observed(engine, Listeners(meter.hear))
    flusher = Flusher(engine, meter, "worker", clock.wall_ms)
    guard = Guard(engine, clock)
    await guard.look()

    async def die(count: int, first: int) -> None:
        await fill(attached, count, first=first)
        leases = await attached.lease(LeaseRequest(queues=("default",), limit=count, worker="w"))
        bury = Bury(failure=Failure())
        await attached.settle([Settlement(lease=each, verdict=bury) for each in leases])
        await flusher.flush()

    await die(10, 0)
    clock.advance(30_000)
    await guard.look()
    assert await standing(engine) == {}
    await die(1, 100)
    await guard.look()
    assert guard.told == [(RAISED, "dead_letters", "default")]
    assert guard.notices[0].severity == "warn"
    clock.advance(61_000)
    await guard.look()
    assert await standing(engine) == {"dead_letters/default": "ended"}


async def test_no_worker_for_a_queue_with_work(engine: Engine, clock: ManualClock) -> None:
    guard = Guard(engine, clock)
    await come(engine, "one", "other")
    await fill(engine, 1)
    await guard.look()
    assert await standing(engine) == {}
    clock.advance(30_001)
    await come(engine, "one", "other")
    await guard.look()
    assert await standing(engine) == {"no_worker/default": "raised"}
    await come(engine, "two", "default")
    await guard.look()
    assert await standing(engine) == {"no_worker/default": "ended"}


async def test_a_line_of_json_in_the_log(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.alerts")
    engine = FaultyEngine(clock)
    await engine.open()
    await fill(engine, 101)
    await set_(engine, no_worker="off", age="off")
    guard = Guard(engine, clock)
    guard.faults = [ConnectionError("nobody there")]
    await guard.look()
    clock.advance(30_000)
    await guard.look()
    await empty(engine)
    await guard.look()
    lines = [each for each in caplog.records if each.getMessage().startswith("{")]
    assert [each.levelno for each in lines] == [logging.ERROR, logging.INFO]
    first = json.loads(lines[0].getMessage())
    assert first == {
        "event": "alert.raised",
        "id": f"depth/default/{clock.wall_ms() - 30_000}/raised",
        "namespace": "default",
        "rule": "depth",
        "severity": "critical",
        "about": "default",
        "queue": "default",
        "value": 101,
        "threshold": 100,
        "unit": "jobs",
        "text": "101 jobs are ready in queue default",
        "raised_at": "2027-01-15T08:00:00Z",
    }


async def test_there_are_never_too_many(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await set_(engine, depth="0", no_worker="off")
    for number in range(ALERTS_MAX + 10):
        await engine.declare(Queue(name=f"q{number}"))
        await fill(engine, 1, f"q{number}")
    guard = Guard(engine, clock)
    await guard.look()
    await guard.look()
    assert len(await standing(engine)) == ALERTS_MAX
