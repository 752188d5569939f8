"""Threads, cancelled calls, drops, long tables, backups and alarms of this engine."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core import bounds
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import Cancel, Complete, Delete, Outcome, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine, connection, database, queues
from holdfast.engines.sqlite.transaction import Transaction
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine, until_awaited
from tests.engines.sqlite.test_database import locked

REQUEST = LeaseRequest(queues=("default",), limit=10)


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SQLiteEngine:
    return await open_engine()


async def test_leases_of_a_cancelled_caller_are_returned(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.enqueue([NewJob(id="a", task="t")])
    begun, resume = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    transact = engine._database._transact

    def slowly(work: Callable[[Transaction], Any]) -> Any:
        answer = transact(work)
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(resume.wait(), loop).result()
        return answer

    monkeypatch.setattr(engine._database, "_transact", slowly)
    caller = asyncio.create_task(engine.lease(REQUEST))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    monkeypatch.undo()
    resume.set()
    await engine.get("a")
    (lease,) = await engine.lease(REQUEST) or await engine.lease(
        LeaseRequest(queues=("default",), wait_ms=60_000)
    )
    assert (lease.id, lease.job.attempt, lease.job.releases) == ("a", 1, 0)


async def test_a_call_cancelled_before_it_starts_does_nothing(engine: SQLiteEngine) -> None:
    resume = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(_: Transaction) -> None:
        asyncio.run_coroutine_threadsafe(resume.wait(), loop).result()

    first = asyncio.create_task(engine._write(wait))
    second = asyncio.create_task(engine.enqueue([NewJob(id="a", task="t")]))
    await asyncio.sleep(0)
    second.cancel()
    resume.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    await engine.enqueue([NewJob(id="b", task="t")])
    assert await engine.get("a") is None


async def test_close_wakes_a_waiting_lease(engine: SQLiteEngine) -> None:
    waiting = asyncio.create_task(
        engine.lease(LeaseRequest(queues=("default",), wait_ms=3_600_000))
    )
    await until_awaited(engine)
    await engine.close()
    assert await waiting == []
    with pytest.raises(EngineClosed, match="open"):
        await engine.lease(REQUEST)


async def test_close_and_open_again(engine: SQLiteEngine) -> None:
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.close()
    await engine.close()
    await engine.open()
    await engine.open()
    assert [lease.id for lease in await engine.lease(REQUEST)] == ["a"]


async def test_an_interrupted_drop_is_finished_at_the_next_open(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "DROP_BATCH", 3)
    await engine.declare(Queue(name="gone"))
    jobs = [
        NewJob(id=f"job-{n}", task="t", queue="gone", key=f"k{n}", payload=bytes(n * 700))
        for n in range(10)
    ]
    await engine.enqueue(jobs)
    leases = await engine.lease(LeaseRequest(queues=("gone",), limit=4))
    await engine.settle([Settlement(lease=leases[0], verdict=Complete(bytes(5_000)))])
    await engine._write(lambda transaction: queues.begin_drop(transaction, "gone"))
    assert await engine.get("job-5") is None
    assert (await engine.find(JobFilter(), limit=10)).jobs == ()
    outcomes = await engine.settle([Settlement(lease=leases[1], verdict=Complete(bytes(5_000)))])
    assert [str(outcome) for outcome in outcomes] == ["lost"]
    await engine.close()
    await engine.open()
    tables = ("jobs", "keys", "payloads", "results")
    left = await engine._read(
        lambda transaction: [
            transaction.run(f"SELECT count(*) FROM hf_{table}").get for table in tables
        ]
    )
    assert left == [0, 0, 0, 0]


async def test_a_queue_being_dropped_is_gone_for_every_call(engine: SQLiteEngine) -> None:
    await engine.declare(Queue(name="gone"))
    await engine.enqueue([NewJob(id=f"job-{n}", task="t", queue="gone") for n in range(3)])
    leases = await engine.lease(LeaseRequest(queues=("gone",), limit=2))
    assert await engine.get("job-0") is not None
    await engine._write(lambda transaction: queues.begin_drop(transaction, "gone"))
    # A queue of the same name is a new one and takes over no jobs.
    await engine.declare(Queue(name="gone"))
    assert await engine.get("job-0") is None
    assert await engine.tally(JobFilter(), "queue", limit=5) == []
    settlements = [
        Settlement(lease=leases[0], verdict=Complete()),
        Settlement(lease=leases[1], verdict=Retry()),
    ]
    assert await engine.settle(settlements[:1]) == [Outcome.LOST]
    assert await engine.settle(settlements) == [Outcome.LOST] * 2
    assert await engine.renew([Renewal(lease=lease) for lease in leases]) == [None, None]
    assert await engine.lease(LeaseRequest(queues=("gone",))) == []
    # The rows left do not refuse a new job with the same id, and it survives the drop.
    (receipt,) = await engine.enqueue([NewJob(id="job-2", task="t", queue="gone")])
    assert receipt.status is Status.NEW
    assert await engine.finished(10) == []
    assert not await engine._read(queues.is_dropping)
    assert [job.id for job in (await engine.find(JobFilter(), limit=10)).jobs] == ["job-2"]


async def test_a_deleted_job_leaves_no_rows(engine: SQLiteEngine) -> None:
    await engine.enqueue([NewJob(id="a", task="t", payload=bytes(5_000))])
    (lease,) = await engine.lease(REQUEST)
    await engine.settle([Settlement(lease=lease, verdict=Complete(bytes(5_000)))])
    assert await engine.amend(JobFilter(), Delete(), limit=10) == 1
    tables = ("jobs", "payloads", "results", "notes", "events")
    left = await engine._read(
        lambda transaction: [
            transaction.run(f"SELECT count(*) FROM hf_{table}").get for table in tables
        ]
    )
    assert left == [0] * 5


async def test_a_long_table_is_read_in_pages(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.enqueue([NewJob(id=f"job-{n:03d}", task=f"t{n % 40}") for n in range(200)])
    monkeypatch.setattr(bounds, "SCAN_MAX", 30)
    found: list[str] = []
    pages, after = 0, None
    while True:
        page = await engine.find(JobFilter(task="t7"), limit=10, after=after)
        found += [job.id for job in page.jobs]
        pages, after = pages + 1, page.after
        if after is None:
            break
    assert found == [f"job-{n:03d}" for n in (167, 127, 87, 47, 7)]
    assert pages == 7
    # An amendment has no cursor, so it continues by itself.
    assert await engine.amend(JobFilter(task="t7"), Cancel(), limit=3) == 3
    cancelled = await engine.find(JobFilter(states=(State.CANCELLED,)), limit=10)
    assert [job.id for job in cancelled.jobs] == ["job-087", "job-047", "job-007"]


async def test_counts_beyond_the_exact_range_are_marked_as_estimates(
    engine: SQLiteEngine,
) -> None:
    await engine.enqueue([NewJob(id=f"now-{n}", task="t", priority=n % 3) for n in range(8)])
    await engine.enqueue([NewJob(id=f"later-{n}", task="t", delay_ms=9) for n in range(5)])
    (view,) = await engine.count_far(["default"], most=5)
    assert (view.ready, view.delayed, view.estimated) == (5, 5, frozenset({"ready"}))


async def test_a_backup_is_one_snapshot_and_overwrites_nothing(
    engine: SQLiteEngine, tmp_path: Path, clock: ManualClock
) -> None:
    for n in range(50):
        await engine.enqueue([NewJob(id=f"before-{n}", task="t", payload=bytes(5_000))])
    copying = asyncio.create_task(engine.backup(tmp_path / "copy.db"))
    number = 0
    while not copying.done():
        jobs = [NewJob(id=f"{side}-{number}", task="t") for side in ("left", "right")]
        await engine.enqueue(jobs)
        number += 1
    await copying
    copy = SQLiteEngine(tmp_path / "copy.db", clock=clock)
    await copy.open()
    assert await copy.get("before-49") is not None
    for n in range(number):
        pair = [await copy.get(f"{side}-{n}") is not None for side in ("left", "right")]
        assert len(set(pair)) == 1
    await copy.close()
    with pytest.raises(ConfigError, match="does not overwrite files"):
        await engine.backup(tmp_path / "copy.db")


async def test_a_reader_that_blocks_checkpoints_is_reported(
    engine: SQLiteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await engine.trouble() != [], "there is no ballast before the first job"
    await engine.enqueue([NewJob(id="a", task="t")])
    assert await engine.trouble() == []
    monkeypatch.setattr(connection, "WAL_PAGES", 4)
    monkeypatch.setattr(connection, "WAL_ALARM_PAGES", 20)
    await engine.close()
    await engine.open()
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT * FROM hf_jobs")
    for n in range(12):
        await engine.enqueue([NewJob(id=f"job-{n}", task="t", payload=bytes(9_000))])
    (text,) = await engine.trouble()
    assert "reader" in text
    reader.close()
    for n in range(12, 16):
        await engine.enqueue([NewJob(id=f"job-{n}", task="t", payload=bytes(9_000))])
    assert await engine.trouble() == []


async def test_namespaces_share_only_the_file(open_engine: OpenEngine) -> None:
    one, other = await open_engine(), await open_engine(namespace="other")
    for engine in (one, other):
        await engine.enqueue([NewJob(id="same", task="t", key="same")])
    await one.declare(Queue(name="mine"))
    assert [view.queue.name for view in await other.queues()] == ["default"]
    (lease,) = await one.lease(REQUEST)
    outcomes = await other.settle([Settlement(lease=lease, verdict=Complete())])
    assert [str(outcome) for outcome in outcomes] == ["lost"]
    job = await other.get("same")
    assert job is not None
    assert job.state is State.WAITING


async def test_a_call_past_the_loop_wakes_a_waiting_lease(engine: SQLiteEngine) -> None:
    waiting = asyncio.create_task(
        engine.lease(LeaseRequest(queues=("default",), wait_ms=3_600_000))
    )
    await until_awaited(engine)
    jobs = [NewJob(id="a", task="t")]
    [receipt] = await asyncio.to_thread(engine.enqueue_directly, jobs)
    assert receipt.status is Status.NEW
    async with asyncio.timeout(60):
        assert [lease.id for lease in await waiting] == ["a"]
    [receipt] = await asyncio.to_thread(engine.enqueue_directly, jobs)
    assert receipt.status is Status.DUPLICATE


async def test_listeners_hear_of_a_call_past_the_loop_on_the_loop(engine: SQLiteEngine) -> None:
    heard: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
    engine.on_change(lambda: heard.set_result(threading.current_thread()))
    await asyncio.to_thread(engine.enqueue_directly, [NewJob(id="a", task="t")])
    assert await heard is threading.current_thread()


async def test_a_call_past_the_loop_is_refused_after_close(engine: SQLiteEngine) -> None:
    writer = engine._writer
    await engine.close()
    with pytest.raises(EngineClosed, match="not open"):
        engine.enqueue_directly([NewJob(id="a", task="t")])
    with pytest.raises(EngineClosed, match="open it again"):
        writer.call_blocking(lambda guard: guard.take())
    await engine.open()
    assert await engine.get("a") is None


async def test_a_call_past_the_loop_that_waits_for_another_process_is_withdrawn(
    engine: SQLiteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(path), monkeypatch.context() as patch:
        patch.setattr(database, "START_TIMEOUT_S", 0.01)
        with pytest.raises(EngineUnavailable, match="nothing was changed"):
            await asyncio.to_thread(engine.enqueue_directly, [NewJob(id="a", task="t")])
    await asyncio.to_thread(engine.enqueue_directly, [NewJob(id="b", task="t")])
    assert await engine.get("a") is None
    assert await engine.get("b") is not None
