"""The notice of an end says that the alert is over, not what was wrong."""

from holdfast.core.model import JobFilter
from holdfast.core.verdict import Delete
from holdfast.engines.base import Engine
from holdfast.testing.clock import ManualClock
from tests.alerts.alert_steps import AlertServer, enqueue_jobs, events


async def test_an_alert_that_has_ended_says_so(engine: Engine, clock: ManualClock) -> None:
    server = AlertServer(engine, clock)
    await enqueue_jobs(engine, 101)
    await server.look()
    [raised] = [each for each in server.notices if each.rule == "depth"]
    assert raised.text == "101 jobs are ready in queue default"
    clock.advance(90_000)
    await engine.amend(JobFilter(queue="default"), Delete(), limit=1_000)
    await server.look()
    [_, ended] = [each for each in server.notices if each.rule == "depth"]
    assert ended.event == "alert.ended"
    assert ended.text == "depth of queue default has ended, 1m after it was raised"
    found = {each.kind: each.text for each in await events(engine) if each.name == "depth"}
    assert found == {"alert.raised": raised.text, "alert.ended": ended.text}
