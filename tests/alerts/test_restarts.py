"""Alerts when a server starts anew, and when whoever is told does not listen."""

from holdfast.core.model import JobFilter, NewJob
from holdfast.core.verdict import BuryWaiting, Delete
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.telemetry.flushing import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.testing.clock import ManualClock
from tests.alerts.watching import Guard, fill, standing


async def test_a_server_that_starts_anew_does_not_take_a_storm_for_over(
    engine: Engine, clock: ManualClock
) -> None:
    """It has not seen the minute in which the jobs died, and knows that."""
    meter = Meter(clock.wall_ms)
    observed, flusher = Observed(engine, meter.hear), Flusher(engine, meter, "t", clock.wall_ms)
    await observed.enqueue([NewJob(id="first", task="t")])
    await flusher.flush()
    guard = Guard(engine, clock)
    await guard.look()
    await observed.enqueue([NewJob(id=str(n), task="t") for n in range(20)])
    await observed.amend(JobFilter(queue="default"), BuryWaiting(), limit=100)
    await flusher.flush()
    await guard.look()
    assert guard.told == [("alert.raised", "dead_letters", "default")]
    restarted = Guard(engine, clock)
    for _ in range(11):
        await restarted.look()
        clock.advance(5_000)
    assert (await standing(engine))["dead_letters/default"] == "raised"
    assert restarted.told == []
    for _ in range(3):
        clock.advance(5_000)
        await restarted.look()
    assert (await standing(engine))["dead_letters/default"] == "ended"
    assert restarted.told == [("alert.ended", "dead_letters", "default")]


async def test_the_end_of_what_nobody_took_does_not_come_without_its_beginning(
    engine: Engine, clock: ManualClock
) -> None:
    guard = Guard(engine, clock)
    guard.faults = [OSError("no answer")]
    await fill(engine, 101)
    await guard.look()
    assert guard.told == []
    clock.advance(5_000)
    await engine.amend(JobFilter(queue="default"), Delete(), limit=1_000)
    guard.faults = [OSError("no answer")]
    await guard.look()
    assert guard.told == []
    clock.advance(30_000)
    other = Guard(engine, clock)
    await other.look()
    assert [(each.event, each.about) for each in other.notices] == [
        ("alert.raised", "default"),
        ("alert.ended", "default"),
    ]
    raised, ended = other.notices
    assert raised.text == "101 jobs are ready in queue default"
    assert (raised.ended_at, ended.raised_at) == (None, raised.raised_at)
    assert raised.id.endswith("/raised")
    clock.advance(60_000)
    await other.look()
    assert len(other.notices) == 2
