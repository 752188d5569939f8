"""The alerter on real stores: one of many servers notifies, once."""

import asyncio
import json
import logging

import pytest

from holdfast.alerts.alerter import ALERTS_MAX
from holdfast.core.model import Failure, LeaseRequest, Queue, Record
from holdfast.core.verdict import Bury, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.events import Listeners
from holdfast.ops.unreadable import remove_unreadable
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.testing.clock import ManualClock
from tests.alerts.alert_steps import (
    DEPTH,
    ENDED,
    RAISED,
    AlertServer,
    alert_states,
    cancel_waiting,
    enqueue_jobs,
    events,
    heartbeat,
    set_thresholds,
)
from tests.telemetry.faulty_saves import FaultyEngine


async def test_raised_notified_and_ended(engine: Engine, clock: ManualClock) -> None:
    server = AlertServer(engine, clock)
    await server.look()
    assert await alert_states(engine) == {}
    await enqueue_jobs(engine, 101)
    await server.look()
    assert await alert_states(engine) == {DEPTH: "raised"}
    assert server.delivered == [(RAISED, "depth", "default")]
    [event] = await events(engine)
    assert (event.kind, event.queue, event.name) == (RAISED, "default", "depth")
    assert (event.reason, event.text) == ("critical", "101 jobs are ready in queue default")
    clock.advance(5_000)
    await server.look()
    assert len(server.delivered) == 1, "one notice only"
    await cancel_waiting(engine)
    await server.look()
    assert await alert_states(engine) == {DEPTH: "ended"}
    assert server.delivered[1:] == [(ENDED, "depth", "default")]
    assert [each.kind for each in await events(engine)] == [RAISED, ENDED]
    assert server.notices[1].ended_at is not None
    assert server.notices[0].id != server.notices[1].id


async def test_a_restart_neither_repeats_nor_forgets(engine: Engine, clock: ManualClock) -> None:
    await enqueue_jobs(engine, 101)
    await AlertServer(engine, clock).look()
    for _ in range(3):
        clock.advance(60_000)
        server = AlertServer(engine, clock)
        await server.look()
        assert not [each for each in server.delivered if each[1] == "depth"]
    await cancel_waiting(engine)
    server = AlertServer(engine, clock)
    await server.look()
    assert (ENDED, "depth", "default") in server.delivered


async def test_of_many_servers_one_notifies(engine: Engine, clock: ManualClock) -> None:
    guards = [AlertServer(engine, clock) for _ in range(5)]
    await enqueue_jobs(engine, 101)
    for _ in range(3):
        await asyncio.gather(*(server.look() for server in guards))
        clock.advance(5_000)
    await cancel_waiting(engine)
    await asyncio.gather(*(server.look() for server in guards))
    assert sorted(each for server in guards for each in server.delivered) == [
        (ENDED, "depth", "default"),
        (RAISED, "depth", "default"),
    ]
    assert [each.kind for each in await events(engine)] == [RAISED, ENDED]


async def test_thresholds_are_settings_and_apply_at_once(
    engine: Engine, clock: ManualClock
) -> None:
    server = AlertServer(engine, clock)
    await engine.declare(Queue(name="mail"))
    await enqueue_jobs(engine, 8)
    await enqueue_jobs(engine, 8, "mail")
    await set_thresholds(engine, depth="5,mail:9", no_worker="off")
    await server.look()
    assert await alert_states(engine) == {DEPTH: "raised"}
    await set_thresholds(engine, depth="off,mail:7")
    await server.look()
    assert await alert_states(engine) == {DEPTH: "ended", "depth/mail": "raised"}
    await set_thresholds(engine, depth=None)
    await server.look()
    assert set((await alert_states(engine)).values()) == {"ended"}


async def test_the_cool_down_is_a_setting(engine: Engine, clock: ManualClock) -> None:
    server = AlertServer(engine, clock)
    await set_thresholds(engine, cool_down="0s", age="off", no_worker="off")
    for turn in range(3):
        await enqueue_jobs(engine, 101, first=1_000 * turn)
        clock.advance(1_000)
        await server.look()
        await cancel_waiting(engine)
        clock.advance(1_000)
        await server.look()
    assert [each[0] for each in server.delivered] == [RAISED, ENDED] * 3


async def test_dead_letters_of_workers_that_are_attached_directly(
    engine: Engine, clock: ManualClock
) -> None:
    """Those workers count for themselves, and this process never sees their jobs."""
    meter = Meter(clock.wall_ms)
    attached = Observed(engine, Listeners(meter.record))
    flusher = Flusher(engine, meter, "worker", clock.wall_ms)
    server = AlertServer(engine, clock)
    await server.look()

    async def die(count: int, first: int) -> None:
        await enqueue_jobs(attached, count, first=first)
        leases = await attached.lease(LeaseRequest(queues=("default",), limit=count, worker="w"))
        bury = Bury(failure=Failure())
        await attached.settle([Settlement(lease=each, verdict=bury) for each in leases])
        await flusher.flush()

    await die(10, 0)
    clock.advance(30_000)
    await server.look()
    assert await alert_states(engine) == {}
    await die(1, 100)
    await server.look()
    assert server.delivered == [(RAISED, "dead_letters", "default")]
    assert server.notices[0].severity == "warn"
    clock.advance(61_000)
    await server.look()
    assert await alert_states(engine) == {"dead_letters/default": "ended"}


async def test_no_worker_for_a_queue_with_work(engine: Engine, clock: ManualClock) -> None:
    server = AlertServer(engine, clock)
    await heartbeat(engine, "one", "other")
    await enqueue_jobs(engine, 1)
    await server.look()
    assert await alert_states(engine) == {}
    clock.advance(30_001)
    await heartbeat(engine, "one", "other")
    await server.look()
    assert await alert_states(engine) == {"no_worker/default": "raised"}
    await heartbeat(engine, "two", "default")
    await server.look()
    assert await alert_states(engine) == {"no_worker/default": "ended"}


async def test_a_dead_queue_needs_no_worker(engine: Engine, clock: ManualClock) -> None:
    await set_thresholds(engine, dead="off")
    await engine.declare(Queue(name="grave"))
    await engine.declare(Queue(name="default", dead_queue="grave"))
    await heartbeat(engine, "one", "default")
    await enqueue_jobs(engine, 1)
    [lease] = await engine.lease(LeaseRequest(queues=("default",)))
    await engine.settle([Settlement(lease=lease, verdict=Bury())])
    clock.advance(30_001)
    await heartbeat(engine, "one", "default")
    await AlertServer(engine, clock).look()
    assert await alert_states(engine) == {}


async def test_a_line_of_json_in_the_log(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.alerts")
    engine = FaultyEngine(clock)
    await engine.open()
    await enqueue_jobs(engine, 101)
    await set_thresholds(engine, no_worker="off", age="off")
    server = AlertServer(engine, clock)
    server.faults = [ConnectionError("nobody there")]
    await server.look()
    clock.advance(30_000)
    await server.look()
    await cancel_waiting(engine)
    await server.look()
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


async def test_raised_alerts_are_bounded(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await set_thresholds(engine, depth="0", no_worker="off")
    for number in range(ALERTS_MAX + 10):
        await engine.declare(Queue(name=f"q{number}"))
        await enqueue_jobs(engine, 1, f"q{number}")
    server = AlertServer(engine, clock)
    await server.look()
    await server.look()
    assert len(await alert_states(engine)) == ALERTS_MAX


async def test_a_record_that_cannot_be_read_is_an_alert_until_it_is_removed(
    engine: Engine, clock: ManualClock
) -> None:
    server = AlertServer(engine, clock)
    await server.look()
    await engine.save([Record(kind="schedule", key="bad", value=b"{")])
    clock.advance(59_000)
    await server.look()
    assert server.delivered == [], "records are read once a minute"
    clock.advance(1_000)
    await server.look()
    assert server.delivered == [(RAISED, "unreadable_records", "records")]
    await remove_unreadable(engine, "schedule", "bad")
    clock.advance(1_000)
    await server.look()
    assert server.delivered[1:] == [(ENDED, "unreadable_records", "records")]
