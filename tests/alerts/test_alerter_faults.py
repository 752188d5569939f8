"""Kills, lost answers, webhooks, disks and clocks that fail: an alert is told, and told once."""

import asyncio
import logging
import random
from collections.abc import Sequence

import pytest

from holdfast.alerts import KIND, alerts_of
from holdfast.core.model import Queue, Record
from holdfast.engines.base import Engine, Examination, Saved
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.testing.clock import ManualClock
from tests.alerts.watching import DEPTH, ENDED, RAISED, Guard, empty, events, fill, set_, standing
from tests.engines.partitioned.fragile import Trio
from tests.killed import Killed
from tests.telemetry.doubles import FaultyEngine


async def test_a_kill_between_the_write_and_the_telling(clock: ManualClock) -> None:
    """Whoever looks next tells it, a little later, and nobody tells it again."""
    engine = FaultyEngine(clock)
    await engine.open()
    await fill(engine, 101)
    engine.after = [Killed()]
    with pytest.raises(Killed):
        await Guard(engine, clock).look()
    assert await standing(engine) == {DEPTH: "raised"}
    guard = Guard(engine, clock)
    await guard.look()
    assert guard.told == [], "the other one may be at it"
    clock.advance(30_000)
    await guard.look()
    assert guard.told == [(RAISED, "depth", "default")]
    clock.advance(30_000)
    await guard.look()
    assert len([each for each in guard.told if each[1] == "depth"]) == 1


async def test_killed_anywhere_it_is_told(clock: ManualClock) -> None:
    """At every write there is, before it and after it; twice at most, under one id."""
    for at in range(4):
        for when in ("before", "after"):
            engine = FaultyEngine(clock)
            await engine.open()
            await set_(engine, no_worker="off", age="off")
            await fill(engine, 101)
            setattr(engine, when, [None] * at + [Killed()])
            told = []
            for _ in range(3):
                guard = Guard(engine, clock)
                try:
                    await guard.alerter.once()
                    await asyncio.gather(*guard.alerter._tellings)
                except Killed:
                    pass
                told += guard.notices
                clock.advance(60_000)
            assert {each.id for each in told} == {told[0].id}, (at, when)
            assert 1 <= len(told) <= 2, (at, when)
            assert len(await events(engine)) == 1, (at, when)


async def test_a_write_whose_outcome_is_not_known(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await fill(engine, 101)
    guard = Guard(engine, clock)
    engine.after = [OutcomeUnknown("who knows")]
    await guard.look()
    assert guard.told == []
    clock.advance(30_000)
    await guard.look()
    assert [each for each in guard.told if each[1] == "depth"] == [(RAISED, "depth", "default")]


async def test_a_webhook_that_fails_is_tried_again_by_anyone(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.alerts")
    await fill(engine, 101)
    await set_(engine, no_worker="off", age="off")
    one, two = Guard(engine, clock), Guard(engine, clock)
    one.faults = [ConnectionError("nobody there")] * 2
    await one.look()
    await two.look()
    assert (one.told, two.told) == ([], [])
    assert "nobody there" in caplog.text
    clock.advance(30_000)
    await one.look()
    clock.advance(30_000)
    await two.look()
    assert (one.told, two.told) == ([], []), "the second wait is longer"
    clock.advance(30_000)
    await two.look()
    assert (one.told, two.told) == ([], [(RAISED, "depth", "default")])
    clock.advance(3_600_000)
    await one.look()
    assert one.told == []
    assert [each.kind for each in await events(engine)] == [RAISED]


async def test_a_webhook_that_never_takes_it_is_given_up(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(engine, 101)
    await set_(engine, no_worker="off", age="off")
    guard = Guard(engine, clock)
    guard.faults = [ConnectionError("nobody there")] * 1_000
    for _ in range(20):
        await guard.look()
        clock.advance(3_600_000)
    assert len(guard.faults) == 1_000 - 10
    assert "no more tries" in caplog.text
    assert await standing(engine) == {DEPTH: "raised"}


@pytest.mark.parametrize("jump_ms", [-(10**9), 10**9])
async def test_the_clock_is_set(clock: ManualClock, jump_ms: int) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await set_(engine, no_worker="off", age="off")
    guard = Guard(engine, clock)
    await fill(engine, 101)
    await guard.look()
    clock.jump(jump_ms)
    # Those that were ready may be so no longer.
    await fill(engine, 101, first=1_000)
    await guard.look()
    assert guard.told == [(RAISED, "depth", "default")]
    await empty(engine)
    await guard.look()
    assert guard.told[1:] == [(ENDED, "depth", "default")]


async def test_a_partition_that_is_shut_out() -> None:
    """Whatever part of the store is away, its alert is told; and none of the others again."""
    for place in range(3):
        trio = Trio()
        await trio.engine.open()
        await set_(trio.engine, no_worker="off", age="off")
        for name in ("default", "a", "b", "c"):
            await trio.engine.declare(Queue(name=name))
            await fill(trio.engine, 900, name)
        guard = Guard(trio.engine, trio.clock)
        await guard.look()
        deep = {(RAISED, "depth", name) for name in ("default", "a", "b", "c")}
        assert set(guard.told) == deep
        guard.notices.clear()
        trio.fragile[place].fault = EngineUnavailable("it is gone")
        await trio.engine.queues()
        for _ in range(3):
            await guard.look()
            trio.clock.advance(40_000)
        assert guard.told == [(RAISED, "partition_out", f"p{place + 1}")]
        shown = {alert.key for alert, _ in await alerts_of(trio.engine)}
        shown |= {alert.key for alert in guard.alerter.unsaved}
        assert f"partition_out/p{place + 1}" in shown
        trio.fragile[place].fault = None
        await trio.back()
        await guard.look()
        assert guard.told[1:] == [(ENDED, "partition_out", f"p{place + 1}")]
        assert guard.alerter.unsaved == ()
        assert set((await standing(trio.engine)).values()) == {"raised", "ended"}
        await trio.engine.close()


async def test_a_disk_that_takes_nothing_more(clock: ManualClock) -> None:
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
    guard = Guard(engine, clock)
    engine.full = True
    for _ in range(3):
        await guard.look()
        clock.advance(5_000)
    assert guard.told == [(RAISED, "disk_floor", "disk")]
    assert [alert.rule for alert in guard.alerter.unsaved] == ["disk_floor"]
    engine.full = False
    await guard.look()
    assert guard.told[1:] == [(ENDED, "disk_floor", "disk")]
    assert await standing(engine) == {"disk_floor/disk": "ended"}


async def test_what_a_later_version_wrote_is_left_alone(engine: Engine, clock: ManualClock) -> None:
    await engine.save([Record(kind=KIND, key=DEPTH, value=b'{"rule": {"new": "shape"}}')])
    await fill(engine, 101)
    guard = Guard(engine, clock)
    await guard.look()
    assert guard.told == []
    [record] = await engine.load(KIND, limit=10)
    assert record.version == 1


async def test_a_setting_that_cannot_be_read_is_told_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await engine.save([Record(kind="setting", key="alert-depth", value=b"many")])
    await fill(engine, 101)
    guard = Guard(engine, clock)
    await guard.look()
    await guard.look()
    assert guard.told == [(RAISED, "depth", "default")]
    assert caplog.text.count("the default holds instead") == 1


async def test_any_course_of_things_with_many_servers(clock: ManualClock) -> None:
    """Servers come, go and look at any time; each alert is told in turn: raised, ended, raised."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    engine = FaultyEngine(clock)
    await engine.open()
    await set_(engine, no_worker="off", age="off")
    guards = [Guard(engine, clock) for _ in range(3)]
    told: list[tuple[str, str, str]] = []
    for turn in range(120):
        match dice.randrange(4):
            case 0:
                await fill(engine, 150, first=1_000 * turn)
            case 1:
                await empty(engine)
            case 2:
                guards[dice.randrange(3)] = Guard(engine, clock)
            case _:
                clock.advance(dice.choice((1_000, 60_000, 400_000)))
        some = dice.sample(guards, dice.randrange(1, 4))
        await asyncio.gather(*(guard.look() for guard in some))
        told += [each for guard in some for each in guard.told]
        for guard in some:
            guard.notices.clear()
    kinds = [each[0] for each in told]
    assert kinds == [(RAISED, ENDED)[at % 2] for at in range(len(kinds))], seed
    assert len(kinds) > 4, seed
