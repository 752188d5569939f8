"""Enqueue and settle in a program's own transaction on its own apsw connection."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.model import LeaseRequest, NewJob, State, Status
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineUnavailable, StorageFull, UsageError
from tests.engines.sqlite.conftest import OpenEngine, until_awaited


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SQLiteEngine:
    return await open_engine()


@pytest.fixture
def own(engine: SQLiteEngine, path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE orders(id TEXT PRIMARY KEY)")
    yield connection
    connection.close()


async def test_commit_and_rollback_decide_about_both(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    for id_, ending, expected in (("a", "COMMIT", 1), ("b", "ROLLBACK", 0)):
        own.execute("BEGIN IMMEDIATE")
        own.execute("INSERT INTO orders VALUES (?)", (id_,))
        (receipt,) = engine.within(own).enqueue([NewJob(id=id_, task="t", key=id_)])
        assert receipt.status is Status.NEW
        assert await engine.get(id_) is None
        own.execute(ending)
        assert (await engine.get(id_) is not None) == bool(expected)
        found = own.execute("SELECT count(*) FROM orders WHERE id = ?", (id_,)).get
        assert found == expected


async def test_complete_together_with_the_programs_own_change(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    await engine.enqueue([NewJob(id="a", task="t")])
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    done = [Settlement(lease=lease, verdict=Complete(then=(NewJob(id="next", task="t"),)))]
    own.execute("BEGIN IMMEDIATE")
    assert engine.within(own).settle(done) == [Outcome.SETTLED]
    own.execute("ROLLBACK")
    job = await engine.get("a")
    assert job is not None
    assert job.state is State.LEASED
    own.execute("BEGIN IMMEDIATE")
    assert engine.within(own).settle(done) == [Outcome.SETTLED]
    own.execute("COMMIT")
    assert await engine.settle(done) == [Outcome.SETTLED]
    assert await engine.get("next") is not None


async def test_numbers_are_not_used_twice(engine: SQLiteEngine, own: apsw.Connection) -> None:
    own.execute("BEGIN IMMEDIATE")
    within = engine.within(own)
    within.enqueue([NewJob(id="a", task="t")])
    within.enqueue([NewJob(id="b", task="t")])
    own.execute("COMMIT")
    await engine.enqueue([NewJob(id="c", task="t")])
    seqs = [job.seq for id_ in "abc" if (job := await engine.get(id_)) is not None]
    assert len(seqs) == 3
    assert seqs == sorted(set(seqs))


async def test_a_waiting_lease_is_woken_by_the_programs_commit(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    waiting = asyncio.create_task(engine.lease(LeaseRequest(queues=("default",), wait_ms=600_000)))
    await until_awaited(engine)
    own.execute("BEGIN IMMEDIATE")
    engine.within(own).enqueue([NewJob(id="a", task="t")])
    own.execute("COMMIT")
    assert [lease.id for lease in await waiting] == ["a"]


async def test_a_call_that_fails_half_way_changes_nothing(
    engine: SQLiteEngine, own: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(transaction: object, seq: int, payload: bytes) -> None:
        raise apsw.IOError("no more")

    own.execute("BEGIN IMMEDIATE")
    within = engine.within(own)
    within.enqueue([NewJob(id="before", task="t")])
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.engines.sqlite.rows.write_large_payload", fail)
        with pytest.raises(EngineUnavailable):
            within.enqueue([NewJob(id="large", task="t", payload=bytes(10_000))])
    own.execute("COMMIT")
    assert await engine.get("before") is not None
    assert await engine.get("large") is None


async def test_a_call_outside_a_transaction_is_refused(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    with pytest.raises(UsageError, match="BEGIN IMMEDIATE"):
        engine.within(own).enqueue([NewJob(id="a", task="t")])


async def test_another_file_is_refused(engine: SQLiteEngine, tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other.db"))
    for connection in (other, apsw.Connection(":memory:")):
        with pytest.raises(UsageError, match=r"jobs\.db"):
            engine.within(connection)
        connection.close()


async def test_another_library_is_refused_with_the_reason(engine: SQLiteEngine) -> None:
    foreign = sqlite3.connect(":memory:")
    for connection in (foreign, object()):
        with pytest.raises(UsageError, match="lose commits"):
            engine.within(connection)  # type: ignore[arg-type]
    foreign.close()


async def test_writers_report_a_transaction_that_is_left_open(
    engine: SQLiteEngine, own: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = engine._database._writer.connection
    assert writer is not None
    writer.set_busy_timeout(1)
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineUnavailable, match="write lock"):
        await engine.enqueue([NewJob(id="a", task="t")])
    own.execute("ROLLBACK")
    (receipt,) = await engine.enqueue([NewJob(id="a", task="t")])
    assert receipt.status is Status.NEW


async def test_a_programs_own_row_format_is_kept(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    def shape(cursor: apsw.Cursor, row: tuple[Any, ...]) -> Any:
        return dict(zip((name for name, *_ in cursor.description), row, strict=True))

    own.row_trace = shape
    own.execute("BEGIN IMMEDIATE")
    (receipt,) = engine.within(own).enqueue([NewJob(id="a", task="t")])
    assert receipt.status is Status.NEW
    own.execute("COMMIT")
    assert own.row_trace is shape


async def test_a_full_disk_that_rolled_back_everything_is_reported(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    own.pragma("cache_size", 10)
    own.pragma("max_page_count", own.pragma("page_count") + 50)
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO orders VALUES ('a')")
    with pytest.raises(StorageFull):
        engine.within(own).enqueue(
            [NewJob(id=f"job-{n}", task="t", payload=bytes(50_000)) for n in range(50)]
        )
    assert not own.in_transaction
    assert await engine.get("job-0") is None


async def test_a_connection_closed_before_the_call_is_refused(
    engine: SQLiteEngine, own: apsw.Connection
) -> None:
    within = engine.within(own)
    own.close()
    with pytest.raises(UsageError, match="closed"):
        within.enqueue([NewJob(id="a", task="t")])
