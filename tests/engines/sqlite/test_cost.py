"""The cost of a call does not depend on the size of the table; counted in SQLite's VM steps."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Queue, State
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine, search
from holdfast.engines.sqlite.transaction import Transaction
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine
from tests.engines.sqlite.vm_steps import BATCH, FILL, Meter, metered

FEW, MANY = 10_000, 200_000


def fill(path: Path, count: int, now: int) -> None:
    """Insert `count` jobs each: waiting, finished, and delayed at a higher priority."""
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -200_000)
    connection.wal_autocheckpoint(0)
    queue = connection.execute("SELECT id FROM hf_queues").get
    day = 86_400_000
    shapes: list[tuple[State, int, int, int | None]] = [
        (State.WAITING, 0, now - 1, None),
        (State.DONE, 0, now - 2, now - 1),
        (State.WAITING, -5, now + day, None),
    ]
    with connection:
        for number, (state, rank, due_at, finished_at) in enumerate(shapes, start=1):
            values = {
                "count": count,
                "first": number * 10_000_000,
                "queue": queue,
                "state": tuple(State).index(state),
                "rank": rank,
                "due_at": due_at,
                "finished_at": finished_at,
            }
            connection.execute(FILL, values)
        connection.execute("UPDATE hf_meta SET number = 100000000")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


async def steps_per_call(engine: SQLiteEngine) -> dict[str, int]:
    """Steps of the second call of each verb, without work that is done only once."""
    request = LeaseRequest(queues=("default",), limit=BATCH, worker="w")
    steps = {}
    for _ in range(2):
        with metered(engine) as meter:
            leases = await engine.lease(request)
        assert len(leases) == BATCH
        steps["lease"] = meter.steps
        assert not meter.scans
        with metered(engine) as meter:
            done = [Settlement(lease=lease, verdict=Complete()) for lease in leases[:50]]
            assert await engine.settle(done) == [Outcome.SETTLED] * 50
        steps["settle"] = meter.steps
        assert not meter.scans
        with metered(engine) as meter:
            retried = [Settlement(lease=lease, verdict=Retry()) for lease in leases[50:]]
            assert await engine.settle(retried) == [Outcome.SETTLED] * 50
        steps["retry"] = meter.steps
        assert not meter.scans
    return steps


async def test_lease_and_settle_cost_the_same_among_many_jobs(
    tmp_path: Path, clock: ManualClock
) -> None:
    steps = {}
    for count in (FEW, MANY):
        engine = SQLiteEngine(tmp_path / f"{count}.db", durability="relaxed", clock=clock)
        await engine.open()
        fill(tmp_path / f"{count}.db", count, clock.wall_ms())
        steps[count] = await steps_per_call(engine)
        await engine.close()
    for call, few in steps[FEW].items():
        assert steps[MANY][call] <= few * 1.02, f"{call}: {steps}"


async def test_the_children_of_a_job_are_read_by_an_index(
    tmp_path: Path, clock: ManualClock
) -> None:
    steps = {}
    for count in (FEW, MANY):
        engine = SQLiteEngine(tmp_path / f"{count}.db", durability="relaxed", clock=clock)
        await engine.open()
        await engine.enqueue([NewJob(id="p", task="t"), NewJob(id="q", task="t")])
        few = [NewJob(id=f"few-{n}", task="t", after=("p",)) for n in range(20)]
        await engine.enqueue(few)
        fill(tmp_path / f"{count}.db", count, clock.wall_ms())
        many = [NewJob(id=f"many-{n}", task="t", after=("q",)) for n in range(1_000)]
        await engine.enqueue(many)

        def look(transaction: Transaction) -> dict[str, int]:
            found = {}
            for parent, limit in (("p", 50), ("q", 50), ("none", 50)):
                meter = Meter()
                transaction.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, meter)
                page = search.find(transaction, JobFilter(parent=parent), limit, None)
                transaction.connection.trace_v2(0, None)
                assert len(page.jobs) == {"p": 20, "q": 50, "none": 0}[parent]
                assert not meter.scans
                found[parent] = meter.steps
            return found

        steps[count] = await engine._read(look)
        await engine.close()
    for parent, few_steps in steps[FEW].items():
        assert steps[MANY][parent] <= few_steps * 1.02, f"{parent}: {steps}"


async def test_each_priority_with_only_delayed_jobs_costs_one_seek(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    request = LeaseRequest(queues=("default",), limit=1)
    spent = []
    for delayed in (0, 10, 20):
        jobs = [
            NewJob(id=f"{delayed}-{priority}-{n}", task="t", priority=priority, delay_ms=60_000)
            for priority in range(1, delayed + 1)
            for n in range(50)
        ]
        await engine.enqueue(jobs)
        await engine.enqueue([NewJob(id=f"due-{delayed}-{n}", task="t") for n in range(2)])
        await engine.lease(request)
        with metered(engine) as meter:
            assert len(await engine.lease(request)) == 1
        spent.append(meter.steps)
    # Ten more priorities cost the same as the ten before, however many jobs wait at each.
    assert spent[2] - spent[1] == spent[1] - spent[0]


async def test_expired_jobs_in_front_are_read_once(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    for first in range(0, 2_000, 500):
        stale = [
            NewJob(id=f"stale-{n}", task="t", priority=9, expires_ms=10)
            for n in range(first, first + 500)
        ]
        await engine.enqueue(stale)
    await engine.enqueue([NewJob(id=f"good-{n}", task="t") for n in range(3)])
    clock.advance(20)
    spent = []
    for _ in range(3):
        with metered(engine) as meter:
            (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
        assert lease.id.startswith("good")
        spent.append(meter.steps)
    assert spent[1] * 20 < spent[0]
    assert spent[2] <= spent[1] * 1.1
    expired = await engine.expired(1_000)
    assert len(expired.jobs) == 1_000
    assert expired.next_ms == 0


async def test_held_jobs_return_when_the_clock_is_set_back(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="bounded", task="t", expires_ms=1_000)])
    clock.jump(5_000)
    assert await engine.lease(LeaseRequest(queues=("default",))) == []
    clock.jump(-5_000)
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert lease.id == "bounded"


async def test_the_happy_path_writes_only_the_row_of_the_job(
    open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id=f"job-{n}", task="t", payload=b"{}") for n in range(10)])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=10, worker="w"))
    done = [Settlement(lease=lease, verdict=Complete(b"1")) for lease in leases]
    assert await engine.settle(done) == [Outcome.SETTLED] * 10
    tables = ("events", "notes", "payloads", "results", "keys", "records")
    counts = await engine._read(
        lambda transaction: {
            table: transaction.run(f"SELECT count(*) FROM hf_{table}").get
            for table in ("jobs", *tables)
        }
    )
    assert counts == {"jobs": 10} | dict.fromkeys(tables, 0)


@pytest.mark.parametrize("size", [1_000, 1_000_000])
async def test_a_large_payload_is_written_once(open_engine: OpenEngine, size: int) -> None:
    engine = await open_engine()
    payload = bytes(size)
    await engine.enqueue([NewJob(id="large", task="t", payload=payload)])
    before = engine._database.wal.pages
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert lease.job.payload == payload
    result = bytes(reversed(payload))
    assert await engine.settle([Settlement(lease=lease, verdict=Retry())]) == [Outcome.SETTLED]
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert engine._database.wal.pages - before < 40
    done = Settlement(lease=lease, verdict=Complete(result))
    assert await engine.settle([done]) == [Outcome.SETTLED]
    job = await engine.get("large")
    assert job is not None
    assert (job.payload, job.result) == (payload, result)


async def test_an_empty_lease_begins_no_transaction(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="paused", paused=True))
    jobs = [
        NewJob(id="later", task="t", delay_ms=1_000),
        NewJob(id="paused", task="t", queue="paused"),
        NewJob(id="other", task="unknown"),
    ]
    await engine.enqueue(jobs)
    begun: list[str] = []

    def trace(event: dict[str, Any]) -> None:
        if event["sql"].startswith("BEGIN"):
            begun.append(event["sql"])

    connection = engine._database._writer.connection
    assert connection is not None
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, trace)
    tasks = frozenset({"t"})
    for request in (
        LeaseRequest(queues=("default", "paused", "nowhere"), tasks=tasks),
        LeaseRequest(ids=("later", "paused", "none"), tasks=tasks),
    ):
        assert await engine.lease(request) == []
    assert begun == []
    assert len(await engine.lease(LeaseRequest(queues=("default",)))) == 1
    assert begun == ["BEGIN IMMEDIATE"]


async def test_find_of_dead_letters_skips_done_jobs(
    open_engine: OpenEngine, path: Path, clock: ManualClock
) -> None:
    engine = await open_engine()
    fill(path, FEW, clock.wall_ms())
    meter = Meter()
    await engine.get("nothing")
    reader = engine._database._reader.connection
    assert reader is not None
    reader.trace_v2(apsw.SQLITE_TRACE_PROFILE, meter)
    page = await engine.find(JobFilter(states=(State.DEAD,)), limit=10)
    assert page.jobs == ()
    assert meter.steps < 500
