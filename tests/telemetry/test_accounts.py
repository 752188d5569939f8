"""Counts reach the store exactly once, also with crashes and outages; accounts are cleaned up."""

import asyncio
import contextlib
import itertools
import random

import msgspec
import pytest

from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.telemetry import accounts
from holdfast.telemetry.accounts import (
    ACCOUNT_KIND,
    ENDED_KEY,
    SILENT_MS,
    Account,
    FleetReader,
    Flusher,
)
from holdfast.telemetry.bookkeeper import AccountCloser
from holdfast.telemetry.event_log import EVENTS_KIND as EVENTS
from holdfast.telemetry.event_log import FeedEvent, FeedEventKind, decode_events
from holdfast.telemetry.meter import OTHER, QUEUES_MAX, Meter, QueueTotals
from holdfast.testing.clock import ManualClock
from tests.killed import Killed
from tests.telemetry.faulty_saves import FaultyEngine, count_of, fleet_of

MINUTE = 60_000


class Process:
    """A process that counts."""

    def __init__(self, engine: Engine, clock: ManualClock, role: str = "worker") -> None:
        self.meter = Meter(clock.wall_ms)
        self.flusher = Flusher(engine, self.meter, role, clock.wall_ms)

    def count(self, count: int = 1, queue: str = "default", counter: str = "enqueued") -> None:
        self.meter.totals.queues.setdefault(queue, QueueTotals()).add(counter, count)
        self.meter.changes += 1

    async def flush(self, *, last: bool = False) -> None:
        await self.flusher.flush(last=last)


async def keys(engine: Engine) -> list[str]:
    return [record.key for record in await engine.load(ACCOUNT_KIND, limit=1_000)]


async def test_processes_are_summed(engine: Engine, clock: ManualClock) -> None:
    one, two = Process(engine, clock), Process(engine, clock)
    one.count(3)
    two.count(4)
    two.count(1, "mail")
    await one.flush()
    await two.flush()
    one.count(2)
    assert await count_of(engine, "enqueued") == 7
    await one.flush()
    assert await count_of(engine, "enqueued") == 9
    assert await count_of(engine, "enqueued", "mail") == 1
    assert (await fleet_of(engine)).processes == 2


async def test_an_idle_process_writes_only_that_it_is_alive(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    process = Process(engine, clock)
    await process.flush()
    assert engine.writes == 0
    process.count()
    await process.flush()
    await process.flush()
    clock.advance(30_000)
    await process.flush()
    assert engine.writes == 1
    clock.advance(30_000)
    await process.flush()
    assert engine.writes == 2
    await process.flush(last=True)
    assert engine.writes == 3


@pytest.mark.parametrize("done", [False, True])
async def test_a_write_of_unknown_outcome_counts_once(done: bool, clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    process = Process(engine, clock)
    process.count(5)
    (engine.after if done else engine.before).append(OutcomeUnknown("cut off"))
    with pytest.raises(OutcomeUnknown):
        await process.flush()
    process.count(2)
    await process.flush()
    assert await count_of(engine, "enqueued") == 7
    process.count(1)
    await process.flush()
    assert await count_of(engine, "enqueued") == 8


async def test_a_process_taken_for_ended_goes_on_in_a_new_account(
    engine: Engine, clock: ManualClock
) -> None:
    """Whether the account is closed or removed, stored counts are not written again."""
    for turns in range(4):
        before = await count_of(engine, "enqueued")
        process = Process(engine, clock)
        process.count(5)
        await process.flush()
        clock.advance(SILENT_MS + 1)
        for _ in range(turns):
            await AccountCloser(engine, clock.wall_ms).once()
            clock.advance(20_000)
        process.count(2)
        await process.flush()
        await process.flush()
        assert await count_of(engine, "enqueued") == before + 7
        process.count(1)
        await process.flush()
        assert await count_of(engine, "enqueued") == before + 8


async def test_an_unknown_write_and_a_closed_account_never_count_twice(clock: ManualClock) -> None:
    """If the account is removed, the last write of unknown outcome counts as stored; only the
    counts of those seconds may be lost."""
    for done, removed in itertools.product((False, True), (False, True)):
        engine = FaultyEngine(clock)
        await engine.open()
        process = Process(engine, clock)
        process.count(5)
        await process.flush()
        process.count(3)
        (engine.after if done else engine.before).append(OutcomeUnknown("cut off"))
        with pytest.raises(OutcomeUnknown):
            await process.flush()
        clock.advance(SILENT_MS + 1)
        for _ in range(4 if removed else 1):
            await AccountCloser(engine, clock.wall_ms).once()
            clock.advance(20_000)
        process.count(10)
        await process.flush()
        await process.flush()
        lost = 3 if removed and not done else 0
        assert await count_of(engine, "enqueued") == 18 - lost, (done, removed)


async def test_ended_accounts_become_one(engine: Engine, clock: ManualClock) -> None:
    closer = AccountCloser(engine, clock.wall_ms)
    for number in range(5):
        process = Process(engine, clock)
        process.count(number, "mail")
        await process.flush(last=True)
    killed = Process(engine, clock)
    killed.count(100)
    await killed.flush()
    await closer.once()
    assert len(await keys(engine)) == 7
    assert await count_of(engine, "enqueued", "mail") == 10
    clock.advance(SILENT_MS + 1)
    for _ in range(3):
        await closer.once()
        clock.advance(20_000)
    assert await keys(engine) == [ENDED_KEY]
    assert await count_of(engine, "enqueued", "mail") == 10
    assert await count_of(engine, "enqueued") == 100
    # Their keys are forgotten once no reader can still use them.
    clock.advance(20 * MINUTE)
    last = Process(engine, clock)
    last.count()
    await last.flush(last=True)
    await closer.once()
    [ended, _] = await engine.load(ACCOUNT_KIND, limit=10)
    known = accounts.ENDED_ACCOUNTS.decode(ended)
    assert known is not None
    assert list(known.added) == [last.flusher.key]


async def test_killed_at_any_write_and_beside_others_nothing_is_lost_or_counted_twice(
    clock: ManualClock,
) -> None:
    """Every step is killed before or after each of its writes, two bookkeepers run concurrently,
    and the sum is right at any time."""
    seed = random.randrange(10**6)
    print(f"seed {seed}: put it into random.Random below")
    dice = random.Random(seed)
    for _ in range(60):
        engine = FaultyEngine(clock)
        await engine.open()
        counted = 0
        processes: list[Process] = []
        for _ in range(25):
            match dice.randrange(6):
                case 0:
                    processes.append(Process(engine, clock))
                case 1 | 2 if processes:
                    process, count = dice.choice(processes), dice.randrange(1, 10)
                    process.count(count)
                    await process.flush()
                    await process.flush()
                    counted += count
                case 3 if processes:
                    process = processes.pop(dice.randrange(len(processes)))
                    if dice.random() < 0.5:
                        await process.flush(last=True)
                case 4:
                    clock.advance(dice.choice([1_000, 20_000, SILENT_MS + 1]))
                case _:
                    await cut_short(engine, clock, dice)
            assert await count_of(engine, "enqueued") == counted, seed
        for _ in range(10):
            clock.advance(SILENT_MS + 1)
            await AccountCloser(engine, clock.wall_ms).once()
        assert await count_of(engine, "enqueued") == counted, seed
        assert len(await keys(engine)) == 1


async def cut_short(engine: FaultyEngine, clock: ManualClock, dice: random.Random) -> None:
    """Two bookkeepers at the same time, each of which may be killed at a write."""
    where = engine.after if dice.random() < 0.5 else engine.before
    where += [Killed() if dice.random() < 0.4 else None for _ in range(4)]
    steps = [asyncio.create_task(AccountCloser(engine, clock.wall_ms).once()) for _ in range(2)]
    for step in steps:
        with contextlib.suppress(Killed):
            await step
    engine.before.clear()
    engine.after.clear()


async def test_queues_keep_their_labels_and_the_rest_share_one(
    engine: Engine, clock: ManualClock
) -> None:
    closer = AccountCloser(engine, clock.wall_ms)
    one, two = Process(engine, clock), Process(engine, clock)
    one.count(1, "zebra")
    await one.flush()
    await closer.once()
    for number in range(QUEUES_MAX):
        two.count(1, f"q{number:03}")
    await two.flush()
    fleet = await fleet_of(engine)
    assert len(fleet.totals.queues) == QUEUES_MAX + 1
    assert fleet.totals.queues["zebra"].counts == {"enqueued": 1}
    assert fleet.totals.queues[OTHER].counts == {"enqueued": 1}
    await closer.once()
    assert (await fleet_of(engine)).totals.queues.keys() == fleet.totals.queues.keys()
    await two.flush(last=True)
    await closer.once()
    assert (await fleet_of(engine)).totals.queues.keys() == fleet.totals.queues.keys()


async def test_counts_do_not_drop_while_a_part_of_the_store_is_unreachable(
    clock: ManualClock,
) -> None:
    """Counters never drop, and do not jump when the part is back."""

    class Partly(MemoryEngine):
        away: frozenset[str] = frozenset()

        async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
            found = await super().load(kind, after=after, limit=limit)
            return [record for record in found if record.key not in self.away]

    engine = Partly(clock=clock)
    await engine.open()
    processes = [Process(engine, clock) for _ in range(3)]
    gone = Process(engine, clock)
    for process in (*processes, gone):
        process.count(10)
        await process.flush(last=process is gone)
    await AccountCloser(engine, clock.wall_ms).once()
    looker = FleetReader(engine, age_s_max=0)

    async def total() -> int:
        return (await looker.fleet()).totals.queues["default"].counts["enqueued"]

    assert await total() == 40
    for away in ({processes[0].flusher.key}, {ENDED_KEY}, set(await keys(engine))):
        engine.away = frozenset(away)
        assert await total() == 40
        engine.away = frozenset()
        assert await total() == 40
    # An account that was added meanwhile does not count twice.
    await processes[0].flush(last=True)
    for _ in range(3):
        await AccountCloser(engine, clock.wall_ms).once()
        clock.advance(20_000)
        assert await total() == 40
    assert processes[0].flusher.key not in await keys(engine)


async def test_many_silent_accounts_are_closed_sooner(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    value = msgspec.json.encode(Account(role="worker"))
    await engine.save([Record(kind=ACCOUNT_KIND, key=f"a-{n:04}", value=value) for n in range(600)])
    clock.advance(31_000)
    closer = AccountCloser(engine, clock.wall_ms)
    for _ in range(30):
        await closer.once()
        clock.advance(16_000)
    assert len(await keys(engine)) <= 1 + accounts.CROWD


async def test_records_of_a_later_version_are_left_alone(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await engine.save([Record(kind=ACCOUNT_KIND, key=ENDED_KEY, value=b'{"totals": 3}')])
    await engine.save([Record(kind=ACCOUNT_KIND, key="later", value=b"\xff")])
    await AccountCloser(engine, clock.wall_ms).once()
    assert await keys(engine) == [ENDED_KEY, "later"]
    assert (await fleet_of(engine)).processes == 1


async def test_events_are_written_once_and_in_order(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    process = Process(engine, clock)
    process.meter.events.add(FeedEvent(kind=FeedEventKind.JOB_DIED, id="a"))
    engine.after.append(OutcomeUnknown("cut off"))
    with pytest.raises(OutcomeUnknown):
        await process.flush()
    clock.advance(2_000)
    process.meter.events.add(FeedEvent(kind=FeedEventKind.JOB_DIED, id="b"))
    engine.before.append(EngineUnavailable("away"))
    with pytest.raises(EngineUnavailable):
        await process.flush()
    clock.advance(2_000)
    await process.flush()
    await process.flush()
    found = await engine.load(EVENTS, limit=10)
    assert [[event.id for event in decode_events(record)] for record in found] == [["a"], ["b"]]
    assert [record.key[:13] for record in found] == sorted(record.key[:13] for record in found)


async def test_events_of_a_long_outage_are_bounded(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    process = Process(engine, clock)
    for number in range(100):
        process.meter.events.add(FeedEvent(kind=FeedEventKind.JOB_DIED, id=f"{number}"))
        engine.before.append(EngineUnavailable("away"))
        with pytest.raises(EngineUnavailable):
            await process.flush()
    await process.flush()
    assert len(await engine.load(EVENTS, limit=100)) == 20
