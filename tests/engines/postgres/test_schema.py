"""The schema is created once, also by many processes at once and after a crash."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    from_default,
    jobs,
    lease_ids,
    settle,
)
from holdfast.core import bounds
from holdfast.core.limits import Limit
from holdfast.core.model import (
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Record,
    Renewal,
)
from holdfast.core.verdict import Cancel, Complete, Delete, Outcome, Release, Settlement
from holdfast.engines.postgres import PostgresEngine, schema
from holdfast.errors import ConfigError, EngineUnavailable, SchemaMismatch
from tests.engines.moved_jobs import enqueue_moved_jobs, expect_dead_letters


@pytest.fixture
def pg_dsn(empty_pg_dsn: str) -> str:
    """A database without the schema."""
    return empty_pg_dsn


async def opened(dsn: str, **options: Any) -> PostgresEngine:
    engine = PostgresEngine(dsn, **options)
    await engine.open()
    return engine


def test_the_migrations_are_numbered_without_a_gap() -> None:
    texts = schema.migrations()
    assert len(texts) >= 3
    assert all("CREATE" in text or "ALTER" in text for text in texts)


async def test_many_open_an_empty_database_at_once(pg_dsn: str) -> None:
    engines = await asyncio.gather(*(opened(pg_dsn, connections=1) for _ in range(8)))
    await engines[0].enqueue(jobs("a"))
    assert await lease_ids(engines[-1]) == ["a"]
    for engine in engines:
        await engine.close()


async def test_killed_migration_leaves_nothing(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = schema.migrations()
    for number in range(len(whole) + 1):
        cut = [*whole[:number], "SELECT pg_terminate_backend(pg_backend_pid())"]
        monkeypatch.setattr(schema, "migrations", lambda cut=cut: cut)
        with pytest.raises(EngineUnavailable):
            await opened(pg_dsn)
        connection = await asyncpg.connect(pg_dsn)
        assert not await connection.fetchval("SELECT to_regnamespace('holdfast') IS NOT NULL")
        await connection.close()
    monkeypatch.setattr(schema, "migrations", lambda: whole)
    await (await opened(pg_dsn)).close()


async def test_older_version_refuses_a_newer_schema(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema.migrations()
    old = await opened(pg_dsn)
    await old.enqueue(jobs("a"))
    with monkeypatch.context() as newer:
        newer.setattr(schema, "migrations", lambda: [*known, "CREATE TABLE novelty ()"])
        new = await opened(pg_dsn)
        assert await lease_ids(new) == ["a"], "an upgrade keeps the jobs"
        await new.close()
    newest = len(known)
    told = f"version {newest + 1}, this Holdfast knows up to {newest}: upgrade"
    with pytest.raises(SchemaMismatch, match=told):
        await opened(pg_dsn)
    await old.close()


async def test_connected_process_of_an_older_version_writes_nothing(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await opened(pg_dsn, connections=1)
    await old.declare(Queue(name="limited", limits=(Limit(name="few", concurrency=1),)))
    await old.enqueue([NewJob(id=id_, task="work") for id_ in "abc"])
    await old.enqueue([NewJob(id="d", task="work", queue="limited")])
    (held,) = await old.lease(from_default(1))
    record = Record(kind="setting", key="k", value=b"v")
    child = NewJob(id="child", task="work", after=("b",))
    prepared: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: old.enqueue(jobs("e")),
        "lease": lambda: old.lease(from_default(1)),
        "renew": lambda: old.renew([Renewal(lease=held)]),
        "save": lambda: old.save([record]),
    }
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        **prepared,
        "enqueue a child": lambda: old.enqueue([child]),
        "wait for a lease": lambda: old.lease(LeaseRequest(queues=("default",), wait_ms=60_000)),
        "lease with a limit": lambda: old.lease(LeaseRequest(queues=("limited",))),
        "lease by id": lambda: old.lease(LeaseRequest(ids=("b",))),
        "complete": lambda: old.settle([Settlement(lease=held, verdict=Complete())]),
        "release": lambda: old.settle([Settlement(lease=held, verdict=Release())]),
        "declare": lambda: old.declare(Queue(name="new")),
        "redeclare": lambda: old.declare(Queue(name="limited")),
        "drop": lambda: old.drop("limited"),
        "cancel": lambda: old.amend(JobFilter(ids=("b",)), Cancel(), limit=1),
        "delete": lambda: old.amend(JobFilter(ids=("b",)), Delete(), limit=1),
        "recount": lambda: old.recount(100),
        "prune": lambda: old.finished(100),
    }
    for call in prepared.values():
        await call()
    before = await look.fetch("SELECT * FROM all_jobs ORDER BY seq")
    with monkeypatch.context() as newer:
        known = schema.migrations()
        newer.setattr(schema, "migrations", lambda: [*known, "CREATE TABLE novelty ()"])
        await (await opened(pg_dsn)).close()
    answers = {name: await refusal(call) for name, call in calls.items()}
    assert {name for name, text in answers.items() if "upgrade this process" not in text} == set()
    within: Any = old.within(look)
    await look.execute("BEGIN")
    with pytest.raises(SchemaMismatch, match="upgrade this process"):
        await within.enqueue(jobs("f"))
    await look.execute("ROLLBACK")
    assert await look.fetch("SELECT * FROM all_jobs ORDER BY seq") == before
    await old.close()


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    try:
        await call()
    except SchemaMismatch as error:
        return str(error)
    return ""


async def test_names_that_older_versions_use_are_gone(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of versions up to 17 do not name their version in their statements."""
    names = """
        SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace
        AND proname IN ('lease', 'lease_ids', 'lease_flow', 'lease_ids_flow', 'put_plain', 'put',
                        'add_plain_jobs', 'add_jobs', 'complete', 'complete_flow',
                        'complete_light', 'rewrite', 'renew', 'save', 'erase', 'purge', 'wake',
                        'join_flow', 'declare_flow', 'free_keys', 'prune_flow', 'linger')
    """
    with monkeypatch.context() as older:
        whole = schema.migrations()
        older.setattr(schema, "migrations", lambda: whole[:17])
        await (await opened(pg_dsn)).close()
    assert len(await look.fetch(names)) == 22
    engine = await opened(pg_dsn)
    assert await look.fetch(names) == []
    await engine.enqueue(jobs("a"))
    assert await lease_ids(engine) == ["a"]
    await engine.close()


async def test_store_of_schema_3_is_migrated_with_its_jobs(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = "SELECT save(1, '{setting}', $1::text[], $2::bigint[], '{v}')"
    with monkeypatch.context() as older:
        whole = schema.migrations()
        older.setattr(schema, "migrations", lambda: whole[:3])
        await (await opened(pg_dsn)).close()
        # As version 3 wrote them: a leased job, a waiting job and a group.
        await look.execute("""
            SELECT put_plain(1, NULL, '{default}', 1, '{}', '{a,b,g1,g2}', '{t,t,t,t}',
                             '{p,p,p,p}', '{}', '{}', '{}', '{}', '{NULL,NULL,g,g}', '{}', '{}')
        """)
        [held] = await look.fetch("SELECT * FROM lease(1, NULL, '{default}', 1, 'w', NULL, NULL)")
        assert await look.fetchval(save, ["k"], [0]) == [True]
    engine = await opened(pg_dsn)
    [record] = await engine.load("setting", limit=9)
    assert record == Record(kind="setting", key="k", value=b"v", version=1, age_ms=record.age_ms)
    assert 0 <= record.age_ms < bounds.HOUR_MS, "its age counts from the migration"
    # An engine of version 3 that is still connected saves nothing any more.
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await look.fetchval(save, ["k"], [1])
    job = await engine.get("a")
    assert job is not None
    assert (job.payload, job.attempt, job.token) == (b"p", 1, held["token"])
    leased = Lease(job=job, token=held["token"], lease_ms=1)
    assert await settle(engine, leased, Release(alone=True)) is Outcome.SETTLED
    leases = await engine.lease(from_default(9))
    assert [lease.id for lease in leases] == ["b", "g1", "a"], "one of a group at a time"
    for lease in leases:
        assert await settle(engine, lease, Complete()) is Outcome.SETTLED
    assert [lease.id for lease in await engine.lease(from_default(9))] == ["g2"]
    assert await engine.recount(100) == 0
    await engine.close()


@asynccontextmanager
async def stand_ins(look: Any) -> AsyncIterator[None]:
    """Let the engine read an older schema: its one table stands for the views of this version."""
    for view in ("all_jobs", "bodies"):
        await look.execute(f"CREATE VIEW {view} AS SELECT * FROM jobs")
    yield
    await look.execute("DROP VIEW all_jobs, bodies")


async def test_jobs_that_wait_in_a_dead_queue_become_dead_letters(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        whole = schema.migrations()
        older.setattr(schema, "migrations", lambda: whole[:18])
        engine = await opened(pg_dsn)
        async with stand_ins(look):
            await enqueue_moved_jobs(engine)
        await engine.close()
        # As earlier versions moved them long ago, and one that was leased in the dead queue.
        await look.execute("""
            UPDATE jobs SET reason = 'attempts', due_at = 1, origin = 'default'
            WHERE id IN ('moved', 'alone', 'leased')
        """)
        await look.execute("""
            UPDATE jobs SET state = 1, token = 7, deadline_at = 1::bigint << 50 WHERE id = 'leased'
        """)
    engine = await opened(pg_dsn)
    assert await engine.finished(9) == [], "their retention begins"
    await expect_dead_letters(engine)
    await engine.close()


async def test_the_children_of_existing_jobs_are_found(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        whole = schema.migrations()
        older.setattr(schema, "migrations", lambda: whole[:20])
        engine = await opened(pg_dsn)
        async with stand_ins(look):
            await engine.enqueue([a_job("p"), a_job("q"), a_job("r", labels={"after": "[p]"})])
            await engine.enqueue([a_job("c", after=("q", "p"))])
        await engine.close()
    engine = await opened(pg_dsn)
    for parent in ("p", "q"):
        page = await engine.find(JobFilter(parent=parent), limit=10)
        assert [job.id for job in page.jobs] == ["c"]
    await engine.enqueue([a_job("d", after=("p",))])
    assert await look.fetchval("SELECT count(*) FROM children") == 3
    assert await engine.amend(JobFilter(ids=("c", "d")), Delete(), limit=2) == 2
    assert await look.fetchval("SELECT count(*) FROM children") == 0
    await engine.close()


async def test_schemas_and_namespaces_are_separate(pg_dsn: str) -> None:
    places = [{}, {"namespace": "other"}, {"schema": "user"}, {"schema": "x" * 63}]
    engines = [await opened(pg_dsn, **place) for place in places]
    for position, engine in enumerate(engines):
        await engine.enqueue(jobs("abcd"[position]))
    for position, engine in enumerate(engines):
        assert await lease_ids(engine) == ["abcd"[position]]
        assert len(await engine.queues()) == 1
        await engine.close()


async def test_existing_schema_needs_no_right_to_create_one(pg_dsn: str) -> None:
    await (await opened(pg_dsn)).close()
    admin = await asyncpg.connect(pg_dsn)
    await admin.execute(
        """
        CREATE ROLE holdfast_plain LOGIN;
        GRANT USAGE ON SCHEMA holdfast TO holdfast_plain;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO holdfast_plain;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO holdfast_plain;
        """
    )
    try:
        engine = await opened(pg_dsn.replace("postgres@", "holdfast_plain@"))
        await engine.enqueue(jobs("a"))
        assert await lease_ids(engine) == ["a"]
        await engine.close()
    finally:
        await admin.execute("DROP OWNED BY holdfast_plain; DROP ROLE holdfast_plain")
        await admin.close()


@pytest.mark.parametrize(
    "options",
    [{"schema": 'a"b'}, {"schema": "A"}, {"schema": "x" * 64}, {"namespace": "a b"},
     {"namespace": ""}, {"connections": 0}],
)  # fmt: skip
def test_names_out_of_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PostgresEngine("postgresql://h/d", **options)


async def test_another_encoding_is_refused(pg_server_dsn: str) -> None:
    admin = await asyncpg.connect(pg_server_dsn)
    await admin.execute(
        "CREATE DATABASE holdfast_latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'"
    )
    try:
        with pytest.raises(ConfigError, match="LATIN1"):
            await opened(pg_server_dsn.rpartition("/")[0] + "/holdfast_latin")
    finally:
        await admin.execute("DROP DATABASE holdfast_latin WITH (FORCE)")
        await admin.close()
