"""Migrations: all or nothing, side by side with a program's own tables."""

import asyncio
from pathlib import Path

import apsw
import pytest

from holdfast.core import limits
from holdfast.core.model import LeaseRequest, NewJob, Record
from holdfast.core.verdict import Outcome, Release, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.sqlite import SQLiteEngine, schema
from holdfast.errors import EngineUnavailable, SchemaMismatch
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine


async def test_a_newer_schema_is_refused_and_left_alone(
    open_engine: OpenEngine, path: Path
) -> None:
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
    assert await engine._read(lambda unit: schema.stored_schema(unit.connection)) == len(
        schema.MIGRATIONS
    )


async def test_a_store_of_the_first_schema_is_brought_up_with_all_that_is_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        engine = SQLiteEngine(path)
        await engine.open()
        await engine.enqueue([NewJob(id=id_, task="t", payload=b"p" * 2_000) for id_ in "ab"])
        [lease] = await engine.lease(LeaseRequest(queues=("default",)))
        await engine.settle([Settlement(lease=lease, verdict=Release("not now"))])
        before = [await engine.get(id_) for id_ in "ab"]
        await engine.close()
        connection = apsw.Connection(str(path))
        connection.execute(
            "INSERT INTO hf_records(ns, kind, key, version, value)"
            " VALUES (1, 'setting', 'k', 3, x'76')"
        )
        connection.close()
    engine = SQLiteEngine(path)
    await engine.open()
    assert [await engine.get(id_) for id_ in "ab"] == before
    [record] = await engine.load("setting", limit=9)
    assert record == Record(kind="setting", key="k", value=b"v", version=3, age_ms=record.age_ms)
    assert 0 <= record.age_ms < limits.HOUR_MS, "it counts from the upgrade"
    assert await engine.save([record]) == [Saved.SAVED]
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    assert [lease.id for lease in leases] == ["b", "a"]
    alone = [Settlement(lease=lease, verdict=Release(alone=True)) for lease in leases]
    assert await engine.settle(alone) == [Outcome.SETTLED] * 2
    jobs = [await engine.get(id_) for id_ in "ab"]
    assert [(job.alone, job.releases, job.payload) for job in jobs if job] == [
        (True, 2, b"p" * 2_000),
        (True, 1, b"p" * 2_000),
    ]
    await engine.close()


async def test_many_that_open_a_new_file_at_once(path: Path, clock: ManualClock) -> None:
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
