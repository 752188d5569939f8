"""Migrations are atomic and leave a program's own tables alone."""

import asyncio
import time
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Queue, Record
from holdfast.core.verdict import Complete, Delete, Outcome, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.sqlite import SQLiteEngine, schema
from holdfast.engines.sqlite.schema import encode_queue
from holdfast.errors import EngineUnavailable, SchemaMismatch
from holdfast.testing.clock import ManualClock
from tests.engines.moved_jobs import enqueue_moved_jobs, expect_dead_letters
from tests.engines.sqlite.conftest import OpenEngine


async def test_a_newer_schema_is_refused_and_unchanged(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.close()
    newer = len(schema.MIGRATIONS) + 1
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE hf_meta SET schema = ?", (newer,))
    connection.close()
    with pytest.raises(SchemaMismatch, match=f"schema {newer}"):
        await engine.open()


async def test_a_migration_that_fails_leaves_the_old_schema(
    open_engine: OpenEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    await engine.close()
    bad = "CREATE TABLE hf_new(a); CREATE TABLE hf_new(a);"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, bad))
        with pytest.raises(EngineUnavailable):
            await engine.open()
    await engine.open()
    assert await engine.get("one") is not None
    connection = apsw.Connection(str(path))
    assert not connection.table_exists("main", "hf_new")
    connection.close()


async def test_a_migration_keeps_the_jobs(
    open_engine: OpenEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    await engine.close()
    monkeypatch.setattr(
        schema, "MIGRATIONS", (*schema.MIGRATIONS, "ALTER TABLE hf_jobs ADD COLUMN more INTEGER")
    )
    await engine.open()
    assert await engine.get("one") is not None
    assert await engine._read(
        lambda transaction: schema.stored_schema(transaction.connection)
    ) == len(schema.MIGRATIONS)


OLD_JOB = """
INSERT INTO hf_jobs(seq, ns, queue, state, holds, rank, due_at, place, expires_at, parts,
  created_at, token, deadline, id, task, grp, payload)
VALUES (?, 1, 1, ?, ?, 0, 5, ?, ?, ?, 5, ?, ?, ?, 't', ?, ?)
"""


def make_first_schema(path: Path) -> None:
    """Create a store of schema 1: groups without order, one job held as expired, one with a large
    payload."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    with connection:
        connection.execute(schema.MIGRATIONS[0])
        settings = encode_queue(Queue(name="default"))
        connection.execute("UPDATE hf_meta SET schema = 1, number = 100")
        connection.execute("INSERT INTO hf_namespaces VALUES (1, 'default')")
        connection.execute("INSERT INTO hf_queues VALUES (1, 1, 'default', ?)", (settings,))
        for seq, id_, state, holds, group in (
            (2, "large", 0, 0, None),
            (3, "stale", 0, 1, None),
            (4, "leased", 1, 0, "g"),
            (5, "next", 0, 0, "g"),
            (6, "first", 0, 0, "h"),
            (7, "second", 0, 0, "h"),
        ):
            token, deadline = (7, 2**40) if state else (None, None)
            expires_at = 6 if holds else None
            large = id_ == "large"
            row = (seq, state, holds, seq, expires_at, int(large), token, deadline, id_, group)
            connection.execute(OLD_JOB, (*row, None if large else b"p"))
        connection.execute("INSERT INTO hf_payloads VALUES (2, ?)", (b"p" * 2_000,))
        connection.execute(
            "INSERT INTO hf_records(ns, kind, key, version, value)"
            " VALUES (1, 'setting', 'k', 3, x'76')"
        )
    connection.close()


async def test_a_store_of_the_first_schema_is_migrated_with_its_jobs(
    path: Path, open_engine: OpenEngine
) -> None:
    make_first_schema(path)
    engine = await open_engine()
    [record] = await engine.load("setting", limit=9)
    assert record == Record(kind="setting", key="k", value=b"v", version=3, age_ms=record.age_ms)
    assert await engine.save([record]) == [Saved.SAVED]
    [view] = await engine.queues()
    assert (view.ready, view.blocked, view.leased) == (2, 2, 1)
    assert [job.id for job in (await engine.expired(9)).jobs] == ["stale"]
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    assert [(lease.id, len(lease.job.payload)) for lease in leases] == [
        ("large", 2_000),
        ("first", 1),
    ]
    assert await engine.recount(100) == 0
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(done) == [Outcome.SETTLED] * 2
    [second] = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    assert second.id == "second", "one of the other group is still leased"


async def test_jobs_that_wait_in_a_dead_queue_become_dead_letters(
    path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = int(time.time())
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        engine = await open_engine()
        await enqueue_moved_jobs(engine)
        await engine.close()
    connection = apsw.Connection(str(path))
    # As earlier versions moved them long ago, and one that was leased in the dead queue.
    connection.execute(
        "UPDATE hf_jobs SET reason = 'attempts', due_at = 1,"
        ' extra = CAST(\'{"origin":"default"}\' AS BLOB)'
        " WHERE id IN ('moved', 'alone', 'leased')"
    )
    connection.execute(
        "UPDATE hf_jobs SET state = 1, token = 7, deadline = 1 << 50 WHERE id = 'leased'"
    )
    connection.close()
    engine = await open_engine()
    moved = await engine.get("moved")
    assert moved is not None
    assert moved.finished_at is not None
    assert moved.finished_at >= began_s * 1000, "its retention begins"
    await expect_dead_letters(engine)


async def test_the_children_of_existing_jobs_are_found(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="p", task="t"), NewJob(id="q", task="t")])
    await engine.enqueue([NewJob(id="c", task="t", after=("q", "p")), NewJob(id="d", task="t")])
    await engine.close()
    connection = apsw.Connection(str(path))
    connection.execute(
        "DROP TABLE hf_children; DROP TRIGGER hf_after_added;"
        " DROP TRIGGER hf_after_removed; UPDATE hf_meta SET schema = 4"
    )
    connection.close()
    await engine.open()
    for parent in ("p", "q"):
        page = await engine.find(JobFilter(parent=parent), limit=10)
        assert [job.id for job in page.jobs] == ["c"]
    assert await engine.amend(JobFilter(ids=("c",)), Delete(), limit=1) == 1
    count = "SELECT count(*) FROM hf_children"
    assert await engine._read(lambda transaction: transaction.run(count).get) == 0


async def test_many_engines_open_a_new_file_at_once(path: Path, clock: ManualClock) -> None:
    engines = [SQLiteEngine(path, clock=clock, namespace=f"n{n % 3}") for n in range(9)]
    await asyncio.gather(*(engine.open() for engine in engines))
    for number, engine in enumerate(engines):
        await engine.enqueue([NewJob(id=f"job-{number}", task="t")])
    assert [
        sum([await engine.get(f"job-{n}") is not None for n in range(9)]) for engine in engines
    ] == [3] * 9
    await asyncio.gather(*(engine.close() for engine in engines))


async def test_a_program_keeps_its_own_tables_in_the_file(
    open_engine: OpenEngine, path: Path
) -> None:
    own = apsw.Connection(str(path))
    own.execute("CREATE TABLE jobs(a); CREATE TABLE meta(b); CREATE INDEX ready ON jobs(a)")
    own.execute("INSERT INTO jobs VALUES ('mine'); PRAGMA user_version = 77")
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    assert own.execute("SELECT a FROM jobs").get == "mine"
    assert own.pragma("user_version") == 77
    own.close()
