"""The alerter with kills, lost answers, failing webhooks, full disks and wrong clocks."""

import asyncio
import logging
import random
from collections.abc import Sequence

import pytest

from holdfast.core.model import Queue, Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.extras import Examination
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.ops.alerts import ALERT_KIND, read_alerts
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
    set_thresholds,
)
from tests.engines.partitioned.fragile import Trio
from tests.killed import Killed
from tests.telemetry.faulty_saves import FaultyEngine


async def test_a_kill_between_the_write_and_the_notice(clock: ManualClock) -> None:
    """The next server to look notifies, a little later, and none repeats it."""
    engine = FaultyEngine(clock)
    await engine.open()
    await enqueue_jobs(engine, 101)
    engine.after = [Killed()]
    with pytest.raises(Killed):
        await AlertServer(engine, clock).look()
    assert await alert_states(engine) == {DEPTH: "raised"}
    server = AlertServer(engine, clock)
    await server.look()
    assert server.delivered == [], "another server may be delivering it"
    clock.advance(30_000)
    await server.look()
    assert server.delivered == [(RAISED, "depth", "default")]
    clock.advance(30_000)
    await server.look()
    assert len([each for each in server.delivered if each[1] == "depth"]) == 1


async def test_killed_at_any_write_the_alert_is_notified(clock: ManualClock) -> None:
    """Before and after every write; at most two notices, with one id."""
    for at in range(4):
        for when in ("before", "after"):
            engine = FaultyEngine(clock)
            await engine.open()
            await set_thresholds(engine, no_worker="off", age="off")
            await enqueue_jobs(engine, 101)
            setattr(engine, when, [None] * at + [Killed()])
            notices = []
            for _ in range(3):
                server = AlertServer(engine, clock)
                try:
                    await server.alerter.once()
                    await asyncio.gather(*server.alerter._notifications)
                except Killed:
                    pass
                notices += server.notices
                clock.advance(60_000)
            assert {each.id for each in notices} == {notices[0].id}, (at, when)
            assert 1 <= len(notices) <= 2, (at, when)
            assert len(await events(engine)) == 1, (at, when)


async def test_a_write_with_unknown_outcome(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await enqueue_jobs(engine, 101)
    server = AlertServer(engine, clock)
    engine.after = [OutcomeUnknown("who knows")]
    await server.look()
    assert server.delivered == []
    clock.advance(30_000)
    await server.look()
    assert [each for each in server.delivered if each[1] == "depth"] == [
        (RAISED, "depth", "default")
    ]


async def test_a_failed_webhook_is_retried_by_any_server(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.alerts")
    await enqueue_jobs(engine, 101)
    await set_thresholds(engine, no_worker="off", age="off")
    one, two = AlertServer(engine, clock), AlertServer(engine, clock)
    one.faults = [ConnectionError("nobody there")] * 2
    await one.look()
    await two.look()
    assert (one.delivered, two.delivered) == ([], [])
    assert "nobody there" in caplog.text
    clock.advance(30_000)
    await one.look()
    clock.advance(30_000)
    await two.look()
    assert (one.delivered, two.delivered) == ([], []), "the second wait is longer"
    clock.advance(30_000)
    await two.look()
    assert (one.delivered, two.delivered) == ([], [(RAISED, "depth", "default")])
    clock.advance(3_600_000)
    await one.look()
    assert one.delivered == []
    assert [each.kind for each in await events(engine)] == [RAISED]


async def test_a_webhook_that_always_fails_is_given_up(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueue_jobs(engine, 101)
    await set_thresholds(engine, no_worker="off", age="off")
    server = AlertServer(engine, clock)
    server.faults = [ConnectionError("nobody there")] * 1_000
    for _ in range(20):
        await server.look()
        clock.advance(3_600_000)
    assert len(server.faults) == 1_000 - 10
    assert "no more tries" in caplog.text
    assert await alert_states(engine) == {DEPTH: "raised"}


@pytest.mark.parametrize("jump_ms", [-(10**9), 10**9])
async def test_the_clock_is_set(clock: ManualClock, jump_ms: int) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await set_thresholds(engine, no_worker="off", age="off")
    server = AlertServer(engine, clock)
    await enqueue_jobs(engine, 101)
    await server.look()
    clock.jump(jump_ms)
    # Alerts on ready jobs may have ended.
    await enqueue_jobs(engine, 101, first=1_000)
    await server.look()
    assert server.delivered == [(RAISED, "depth", "default")]
    await cancel_waiting(engine)
    await server.look()
    assert server.delivered[1:] == [(ENDED, "depth", "default")]


async def test_a_partition_that_is_shut_out() -> None:
    """Whichever part of the store is away, its alert is notified and no other is repeated."""
    for place in range(3):
        trio = Trio()
        await trio.engine.open()
        await set_thresholds(trio.engine, no_worker="off", age="off")
        for name in ("default", "a", "b", "c"):
            await trio.engine.declare(Queue(name=name))
            await enqueue_jobs(trio.engine, 900, name)
        server = AlertServer(trio.engine, trio.clock)
        await server.look()
        deep = {(RAISED, "depth", name) for name in ("default", "a", "b", "c")}
        assert set(server.delivered) == deep
        server.notices.clear()
        trio.fragile[place].fault = EngineUnavailable("it is gone")
        await trio.engine.queues()
        for _ in range(3):
            await server.look()
            trio.clock.advance(40_000)
        assert server.delivered == [(RAISED, "partition_out", f"p{place + 1}")]
        shown = {alert.key for alert, _ in await read_alerts(trio.engine)}
        shown |= {alert.key for alert in server.alerter.unsaved}
        assert f"partition_out/p{place + 1}" in shown
        trio.fragile[place].fault = None
        await trio.back()
        await server.look()
        assert server.delivered[1:] == [(ENDED, "partition_out", f"p{place + 1}")]
        assert server.alerter.unsaved == ()
        assert set((await alert_states(trio.engine)).values()) == {"raised", "ended"}
        await trio.engine.close()


async def test_a_full_disk(clock: ManualClock) -> None:
    class Full(FaultyEngine):
        full = False

        async def save(self, records: Sequence[Record]) -> list[Saved]:
            if self.full:
                raise StorageFull("there is no room")
            return await super().save(records)

        async def examine(self, *, deep: bool = False) -> Examination:
            return Examination(now=clock.wall_ms(), free_bytes=5 if self.full else 10**12)

    engine = Full(clock)
    await engine.open()
    server = AlertServer(engine, clock)
    engine.full = True
    for _ in range(3):
        await server.look()
        clock.advance(5_000)
    assert server.delivered == [(RAISED, "disk_floor", "disk")]
    assert [alert.rule for alert in server.alerter.unsaved] == ["disk_floor"]
    engine.full = False
    await server.look()
    assert server.delivered[1:] == [(ENDED, "disk_floor", "disk")]
    assert await alert_states(engine) == {"disk_floor/disk": "ended"}


async def test_records_of_a_later_version_are_left_alone(
    engine: Engine, clock: ManualClock
) -> None:
    await engine.save([Record(kind=ALERT_KIND, key=DEPTH, value=b'{"rule": {"new": "shape"}}')])
    await enqueue_jobs(engine, 101)
    server = AlertServer(engine, clock)
    await server.look()
    assert server.delivered == [(RAISED, "unreadable_records", "records")]
    record = (await engine.load(ALERT_KIND, limit=10))[0]
    assert (record.key, record.version) == (DEPTH, 1)


async def test_an_unreadable_setting_is_logged_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    monkeypatch.setenv("HOLDFAST_ALERT_DEPTH", "many")
    await enqueue_jobs(engine, 101)
    server = AlertServer(engine, clock)
    await server.look()
    await server.look()
    assert server.delivered == [(RAISED, "depth", "default")]
    assert caplog.text.count("the default is used instead") == 1


async def test_random_histories_with_many_servers(clock: ManualClock) -> None:
    """Servers start, stop and look at any time; notices alternate: raised, ended, raised."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    engine = FaultyEngine(clock)
    await engine.open()
    await set_thresholds(engine, no_worker="off", age="off")
    guards = [AlertServer(engine, clock) for _ in range(3)]
    notices: list[tuple[str, str, str]] = []
    for turn in range(120):
        match dice.randrange(4):
            case 0:
                await enqueue_jobs(engine, 150, first=1_000 * turn)
            case 1:
                await cancel_waiting(engine)
            case 2:
                guards[dice.randrange(3)] = AlertServer(engine, clock)
            case _:
                clock.advance(dice.choice((1_000, 60_000, 400_000)))
        some = dice.sample(guards, dice.randrange(1, 4))
        await asyncio.gather(*(server.look() for server in some))
        notices += [each for server in some for each in server.delivered]
        for server in some:
            server.notices.clear()
    kinds = [each[0] for each in notices]
    assert kinds == [(RAISED, ENDED)[at % 2] for at in range(len(kinds))], seed
    assert len(kinds) > 4, seed
