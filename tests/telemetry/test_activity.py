"""Activity of queues by the counters of all processes, for scaling advice without a search."""

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from holdfast.core.model import Queue, QueueView
from holdfast.core.scaling import Activity, Goal
from holdfast.engines.base import Traits
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.scaling import read_scaling
from holdfast.telemetry.accounts import FleetTotals
from holdfast.telemetry.activity import ActivityReader, activity_of
from holdfast.telemetry.meter import QueueTotals, Totals, histogram
from holdfast.telemetry.snapshots import SNAPSHOTS, Snapshot, snapshot_key, take_snapshot
from holdfast.testing.clock import ManualClock

MINUTE = 60_000


def fleet(runs: int = 0, run_ms: int = 0, **counts: int) -> FleetTotals:
    totals = QueueTotals(counts, histogram("time"), histogram("time"))
    for _ in range(runs):
        totals.runs.add(run_ms)
    return FleetTotals(epoch="e", totals=Totals(queues={"mail": totals}))


def at(minute: int, found: FleetTotals, *, ready: int) -> Snapshot:
    return take_snapshot(found, [QueueView(queue=Queue(name="mail"), ready=ready)], minute * MINUTE)


def test_times_and_rates_are_those_of_the_window() -> None:
    before = fleet(runs=10, run_ms=60_000, enqueued=100, leased=10, completed=10)
    now = fleet(runs=10, run_ms=60_000, enqueued=700, leased=310, completed=110, dead=20)
    for _ in range(30):
        now.totals.queues["mail"].runs.add(2_000)
    stored = [at(0, before, ready=90), at(5, now, ready=570)]
    found = activity_of(["mail", "idle"], stored, now, 10 * MINUTE)
    assert found == {
        "mail": Activity(arrivals=1.0, run_ms=2_000, attempts=2.5, ended=120, failed=20),
        "idle": Activity(),
    }


def test_jobs_of_programs_that_count_nothing() -> None:
    """As many arrived as left the queue and as it grew."""
    now = fleet(runs=60, run_ms=100, leased=60, completed=60)
    stored = [at(0, fleet(), ready=10), at(10, now, ready=550)]
    [found] = activity_of(["mail"], stored, now, 10 * MINUTE).values()
    assert found.arrivals == pytest.approx(1.0)


def test_a_queue_that_shrinks() -> None:
    now = fleet(runs=60, run_ms=100, leased=60, completed=60)
    stored = [at(0, fleet(), ready=550), at(10, now, ready=10)]
    [found] = activity_of(["mail"], stored, now, 10 * MINUTE).values()
    assert found.arrivals == 0


def test_before_the_first_snapshot_only_the_run_time_is_known() -> None:
    [found] = activity_of(["mail"], [], fleet(runs=4, run_ms=500, completed=4), 0).values()
    assert (found.run_ms, found.arrivals, found.ended) == (500, 0, 0)


class BlindEngine(MemoryEngine):
    """Like SQS: it cannot search, and knows from elsewhere how many jobs arrive."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, inspect=False)

    async def arrivals(self, names: Collection[str]) -> dict[str, float]:
        return {"default": 3.0} if "default" in names else {}


async def test_the_store_knows_the_arrivals_better(clock: ManualClock) -> None:
    engine = BlindEngine(clock=clock)
    await engine.open()
    reader = ActivityReader(engine, engine)
    assert await reader.read(["default", "x"], now=0) == {
        "default": Activity(arrivals=3.0),
        "x": Activity(),
    }


async def test_advice_for_a_store_that_cannot_search(clock: ManualClock) -> None:
    engine = BlindEngine(clock=clock)
    await engine.open()
    now = clock.wall_ms()
    [found] = await read_scaling(engine, "default", Goal(), now=now)
    assert found.load.run_ms is None

    async def activity(names: Collection[str]) -> dict[str, Activity]:
        return {name: Activity(arrivals=10.0, run_ms=1_000, ended=50) for name in names}

    [found] = await read_scaling(engine, "default", Goal(), now=now, activity=activity)
    assert (found.load.arrivals, found.advice.slots) == (10.0, 11)


async def test_stored_minutes_are_read(clock: ManualClock) -> None:
    engine, now = MemoryEngine(clock=clock), clock.wall_ms()
    await engine.open()
    old = fleet(runs=1, run_ms=10, enqueued=1)
    for minutes, found in ((2, old), (1, fleet(runs=3, run_ms=10, enqueued=7))):
        then = now - minutes * MINUTE
        snapshot = take_snapshot(found, [QueueView(queue=Queue(name="mail"))], then)
        key = snapshot_key("minute", then)
        await engine.save([SNAPSHOTS["minute"].record(key, snapshot)])
    [found_activity] = (await ActivityReader(engine, engine).read(["mail"], now=now)).values()
    assert found_activity.arrivals == pytest.approx(6 / 120)
    assert found_activity.run_ms == 10
