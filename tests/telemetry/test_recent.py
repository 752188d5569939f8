"""The last minutes of queues: what is not known is None, and each snapshot is read once."""

import random

import msgspec
import pytest

from holdfast.core.model import Queue, QueueView, Record
from holdfast.engines.memory import MemoryEngine
from holdfast.telemetry.accounts import FleetTotals
from holdfast.telemetry.meter import OTHER, QueueTotals, Totals, histogram
from holdfast.telemetry.recent import MINUTES, QueueRecent, RecentHistory, RecentReader, recent
from holdfast.telemetry.snapshots import KINDS, SNAPSHOTS, snapshot_key, take_snapshot

MINUTE = 60_000
NOW = 1_000_000 * MINUTE + 20_000


def fleet(waits: int = 0, epoch: str = "e", other: int = 0, **counts: int) -> FleetTotals:
    totals = QueueTotals(counts)
    for _ in range(waits):
        totals.waits.add(100)
    queues = {"mail": totals} if counts else {}
    if other:
        queues[OTHER] = QueueTotals({"enqueued": other})
    return FleetTotals(epoch=epoch, totals=Totals(queues=queues))


class Store(MemoryEngine):
    """Snapshots by minutes ago, and how often they were read."""

    loads = 0

    async def put(self, ago: int, found: FleetTotals, *, ready: int = 0) -> None:
        at = NOW - ago * MINUTE - 20_000
        view = QueueView(queue=Queue(name="mail"), ready=ready)
        snapshot = take_snapshot(found, [view], at)
        await self.save([SNAPSHOTS["minute"].record(snapshot_key("minute", at), snapshot)])

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self.loads += 1
        return await super().load(kind, after=after, limit=limit)

    async def history(self) -> RecentHistory:
        return await RecentReader().history(self, NOW)


@pytest.fixture
async def store() -> Store:
    store = Store()
    await store.open()
    return store


async def mail(store: Store, present: FleetTotals, jobs: int = 0) -> QueueRecent:
    return recent(["mail"], await store.history(), present, {"mail": jobs}, NOW)["mail"]


async def test_rates_and_waits_are_those_of_the_last_minutes(store: Store) -> None:
    await store.put(6, fleet(enqueued=100, leased=100, completed=100))
    await store.put(5, fleet(enqueued=100, leased=100, completed=100))
    await store.put(1, fleet(waits=5, enqueued=200, leased=105, completed=100))
    await store.put(0, fleet(waits=5, enqueued=900, leased=105, completed=100))
    now = fleet(waits=15, enqueued=1000, leased=300, completed=180, dead=0)
    found = await mail(store, now, jobs=700)
    assert found.rate_in == 800 / 80
    assert found.rate_out == 80 / 80
    assert found.leased == 195
    assert found.wait_p50_ms == pytest.approx(75.0)
    assert found.dead == 0


async def test_jobs_of_programs_that_count_nothing_are_known_by_growth(store: Store) -> None:
    await store.put(1, fleet(enqueued=1), ready=10)
    found = await mail(store, fleet(enqueued=1, completed=5), jobs=45)
    assert found.rate_in == 40 / 80


async def test_a_queue_that_is_newer_than_the_snapshot_has_grown_from_nothing(
    store: Store,
) -> None:
    await store.put(1, fleet(enqueued=1))
    found = recent(["new"], await store.history(), fleet(enqueued=1), {"new": 40}, NOW)["new"]
    assert found.rate_in == 40 / 80


async def test_no_rate_is_0_if_the_growth_is_unknown(store: Store) -> None:
    await store.put(1, fleet(enqueued=1), ready=10)
    history = await store.history()
    # The number of its jobs is not exact.
    silent = recent(["mail"], history, fleet(enqueued=1, completed=5), {}, NOW)["mail"]
    assert (silent.rate_in, silent.rate_out) == (None, 5 / 80)
    counted = recent(["mail"], history, fleet(enqueued=81), {}, NOW)["mail"]
    assert counted.rate_in == 1.0


async def test_before_the_first_snapshot_nothing_is_known(store: Store) -> None:
    unknown = QueueRecent(ended=(None,) * MINUTES)
    assert await mail(store, FleetTotals()) == unknown
    assert await mail(store, fleet(enqueued=5)) == unknown


async def test_each_minute_has_its_number_and_a_missing_one_none(store: Store) -> None:
    left = 0
    for ago in range(16, -1, -1):
        left += ago
        if ago != 7:
            await store.put(ago, fleet(completed=left))
    found = await mail(store, fleet(completed=left))
    assert found.ended == (*range(14, 7, -1), None, None, *range(5, -1, -1))


async def test_the_snapshot_of_this_minute_may_be_late(store: Store) -> None:
    for ago in range(16, 0, -1):
        await store.put(ago, fleet(completed=100 - ago))
    assert (await mail(store, fleet(completed=100))).ended == (1,) * 15
    # Three minutes late, the last ones are unknown.
    other = Store()
    await other.open()
    for ago in range(16, 2, -1):
        await other.put(ago, fleet(completed=100 - ago))
    assert (await mail(other, fleet(completed=100))).ended[-4:] == (1, None, None, None)


async def test_counts_that_restart_or_drop_are_unknown(store: Store) -> None:
    await store.put(3, fleet(completed=10))
    await store.put(2, fleet(completed=5))
    await store.put(1, fleet(epoch="f", completed=100))
    await store.put(0, fleet(epoch="f", completed=101))
    found = await mail(store, fleet(epoch="f", completed=101))
    assert found.ended[-3:] == (None, None, 1)


@pytest.mark.parametrize(("grown", "rate"), [(0, 0.0), (5, None)])
async def test_a_queue_without_a_label_is_unknown_while_such_queues_count(
    store: Store, grown: int, rate: float | None
) -> None:
    await store.put(1, fleet(other=7))
    found = await mail(store, fleet(other=7 + grown))
    assert found.rate_out == rate
    # A queue that has just got a label may have counted without one before.
    assert (await mail(store, fleet(other=7, completed=90))).rate_out is None


async def test_a_spike_of_deaths_is_compared_with_the_minutes_before(store: Store) -> None:
    for ago in range(16, -1, -1):
        await store.put(ago, fleet(dead=100 - ago))
    found = await mail(store, fleet(dead=160))
    assert found.dead == 65
    assert found.dead_before == pytest.approx(5, abs=0.5)


async def test_a_snapshot_is_read_once(store: Store) -> None:
    for ago in range(16, 0, -1):
        await store.put(ago, fleet(completed=1))
    reader = RecentReader()
    first = await reader.history(store, NOW)
    assert await reader.history(store, NOW) is first
    assert store.loads == 2
    await store.put(0, fleet(completed=1))
    second = await reader.history(store, NOW)
    assert len(second.moments) == 17
    before = store.loads
    for _ in range(5):
        assert await reader.history(store, NOW + 30_000) is second
    assert store.loads == before
    # The oldest leaves with the next minute.
    assert len((await reader.history(store, NOW + MINUTE)).moments) == 16


async def test_what_cannot_be_read_is_unknown(store: Store) -> None:
    key = snapshot_key("minute", NOW)
    await store.save([Record(kind=KINDS["minute"], key=key, value=b"\x78\x9cgarbage")])
    broken = Record(
        kind=KINDS["minute"],
        key=snapshot_key("minute", NOW - MINUTE),
        value=msgspec.json.encode({"at": NOW - MINUTE, "totals": {"mail": {"counts": "many"}}}),
    )
    await store.save([broken])
    found = await mail(store, fleet(completed=1))
    assert found.ended == (None,) * MINUTES


def test_any_counts_give_bounded_numbers() -> None:
    draw = random.Random(7)
    for _ in range(200):
        totals = QueueTotals({"completed": draw.randrange(-5, 5)}, histogram("time"))
        totals.waits.counts = [draw.randrange(-2, 3) for _ in totals.waits.counts]
        present = FleetTotals(totals=Totals(queues={"mail": totals}))
        found = recent(["mail", "none"], RecentHistory({}), present, {}, NOW)
        assert found["none"].rate_in is None
