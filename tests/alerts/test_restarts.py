"""Alerts after a server restart, and with a receiver that does not answer."""

from holdfast.core.model import JobFilter, NewJob
from holdfast.core.verdict import BuryWaiting, Delete
from holdfast.engines.base import Engine
from holdfast.engines.observed import Observed
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.testing.clock import ManualClock
from tests.alerts.alert_steps import AlertServer, alert_states, enqueue_jobs


async def test_a_restarted_server_does_not_end_an_alert_early(
    engine: Engine, clock: ManualClock
) -> None:
    """The new server has not observed the minute in which the jobs died, and knows it."""
    meter = Meter(clock.wall_ms)
    observed, flusher = Observed(engine, meter.record), Flusher(engine, meter, "t", clock.wall_ms)
    await observed.enqueue([NewJob(id="first", task="t")])
    await flusher.flush()
    server = AlertServer(engine, clock)
    await server.look()
    await observed.enqueue([NewJob(id=str(n), task="t") for n in range(20)])
    await observed.amend(JobFilter(queue="default"), BuryWaiting(), limit=100)
    await flusher.flush()
    await server.look()
    assert server.delivered == [("alert.raised", "dead_letters", "default")]
    restarted = AlertServer(engine, clock)
    for _ in range(11):
        await restarted.look()
        clock.advance(5_000)
    assert (await alert_states(engine))["dead_letters/default"] == "raised"
    assert restarted.delivered == []
    for _ in range(3):
        clock.advance(5_000)
        await restarted.look()
    assert (await alert_states(engine))["dead_letters/default"] == "ended"
    assert restarted.delivered == [("alert.ended", "dead_letters", "default")]


async def test_an_undelivered_raise_is_sent_before_its_end(
    engine: Engine, clock: ManualClock
) -> None:
    server = AlertServer(engine, clock)
    server.faults = [OSError("no answer")]
    await enqueue_jobs(engine, 101)
    await server.look()
    assert server.delivered == []
    clock.advance(5_000)
    await engine.amend(JobFilter(queue="default"), Delete(), limit=1_000)
    server.faults = [OSError("no answer")]
    await server.look()
    assert server.delivered == []
    clock.advance(30_000)
    other = AlertServer(engine, clock)
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
