"""Transactional enqueue and settle on every kind of connection that a caller may use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from holdfast.conformance.contract.cases import a_job, a_queue, jobs, lease_ids, lease_one
from holdfast.core.model import LeaseRequest, Note, Receipt, State, Status
from holdfast.core.verdict import Complete, Forward, Outcome, Retry, Settlement, Verdict
from holdfast.engines.postgres import PostgresEngine
from holdfast.errors import EngineUnavailable, UsageError
from tests import services
from tests.engines.postgres.until import until_blocked

End = Callable[[bool], Awaitable[None]]
"""Commits what was done on the connection, or rolls it back."""


@contextlib.asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()

    async def end(commit: bool) -> None:
        await (transaction.commit() if commit else transaction.rollback())

    yield connection, end
    await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()

        async def end(commit: bool) -> None:
            await (transaction.commit() if commit else transaction.rollback())

        yield connection, end


@contextlib.asynccontextmanager
async def psycopg_blocking(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    with psycopg.connect(dsn) as connection:

        async def end(commit: bool) -> None:
            connection.commit() if commit else connection.rollback()

        yield connection, end


@contextlib.asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:

        async def end(commit: bool) -> None:
            await (connection.commit() if commit else connection.rollback())

        yield connection, end


def _url(dsn: str, library: str) -> str:
    return urlsplit(dsn)._replace(scheme=f"postgresql+{library}").geturl()


@contextlib.asynccontextmanager
async def sqlalchemy_connection(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    maker = sqlalchemy.create_engine(_url(dsn, "psycopg"))
    with maker.connect() as connection:

        async def end(commit: bool) -> None:
            connection.commit() if commit else connection.rollback()

        yield connection, end
    maker.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_session(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    maker = sqlalchemy.create_engine(_url(dsn, "psycopg"))
    with sqlalchemy.orm.Session(maker) as session:

        async def end(commit: bool) -> None:
            session.commit() if commit else session.rollback()

        yield session, end
    maker.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_async_connection(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    maker = sqlalchemy.ext.asyncio.create_async_engine(_url(dsn, "asyncpg"))
    async with maker.connect() as connection:

        async def end(commit: bool) -> None:
            await (connection.commit() if commit else connection.rollback())

        yield connection, end
    await maker.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_async_session(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    maker = sqlalchemy.ext.asyncio.create_async_engine(_url(dsn, "psycopg"))
    async with sqlalchemy.ext.asyncio.AsyncSession(maker) as session:

        async def end(commit: bool) -> None:
            await (session.commit() if commit else session.rollback())

        yield session, end
    await maker.dispose()


@contextlib.asynccontextmanager
async def django_connection(dsn: str) -> AsyncIterator[tuple[Any, End]]:
    import django
    from django.conf import settings
    from django.db.backends.postgresql.base import DatabaseWrapper

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = urlsplit(dsn)
    connection = DatabaseWrapper(
        {
            "NAME": parts.path[1:],
            "HOST": parts.hostname,
            "PORT": parts.port,
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "OPTIONS": {},
            "TIME_ZONE": None,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "AUTOCOMMIT": False,
        }
    )

    async def end(commit: bool) -> None:
        connection.commit() if commit else connection.rollback()

    # Django refuses blocking connections in an event loop; nothing else runs in this one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield connection, end
        connection.close()


CALLERS = [
    asyncpg_connection,
    asyncpg_pool,
    psycopg_blocking,
    psycopg_async,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
    django_connection,
]
every_caller = pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)


async def answered(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer


@every_caller
async def test_rollback_leaves_nothing(engine: PostgresEngine, pg_dsn: str, caller: Any) -> None:
    await engine.enqueue(jobs("a"))
    lease = await lease_one(engine)
    async with caller(pg_dsn) as (connection, end):
        within = engine.within(connection)
        receipts = await answered(within.enqueue([a_job("b"), a_job("c", key="k")]))
        assert [receipt.status for receipt in receipts] == [Status.NEW] * 2
        settlement = Settlement(lease=lease, verdict=Complete(b"done"))
        assert await answered(within.settle([settlement])) == [Outcome.SETTLED]
        await end(False)
    assert await engine.get("b") is None
    job = await engine.get("a")
    assert job is not None
    assert job.state is State.LEASED
    assert (await engine.enqueue([a_job("d", key="k")]))[0].status is Status.NEW


@every_caller
async def test_commit_takes_effect(engine: PostgresEngine, pg_dsn: str, caller: Any) -> None:
    await engine.enqueue(jobs("abc"))
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=3))
    hostile = "'; DROP TABLE holdfast.jobs; --%s %(v1)s $1 \\ \u202e"
    async with caller(pg_dsn) as (connection, end):
        within = engine.within(connection)
        given = [
            a_job("p", payload=b"\x00\xff%s$1", priority=7, labels={"l": hostile}),
            a_job("q", key=hostile, tenant=hostile, headers={"h": hostile}),
            a_job("r", queue="nowhere"),
            a_job("q"),
        ]
        receipts: list[Receipt] = await answered(within.enqueue(given))
        statuses = [receipt.status for receipt in receipts]
        assert statuses == [Status.NEW, Status.NEW, Status.REFUSED, Status.DUPLICATE]
        verdicts: list[Verdict] = [
            Complete(b"\x00", then=(a_job("then"),)),
            Retry(0),
            Forward("nowhere"),
        ]
        outcomes = await answered(
            within.settle(
                [
                    Settlement(lease=lease, verdict=verdict, note=Note(output=b"\xfe"))
                    for lease, verdict in zip(leases, verdicts, strict=True)
                ]
            )
        )
        assert outcomes == [Outcome.SETTLED, Outcome.SETTLED, Outcome.REFUSED]
        assert await engine.get("p") is None, "visible before the commit"
        await end(True)
    job = await engine.get("p")
    assert job is not None
    assert (job.payload, job.priority, job.labels) == (b"\x00\xff%s$1", 7, {"l": hostile})
    done = await engine.get("a")
    assert done is not None
    assert (done.state, done.result, done.output) == (State.DONE, b"\x00", b"\xfe")
    assert set(await lease_ids(engine)) == {"b", "p", "q", "then"}


@every_caller
async def test_a_plain_batch_is_the_same(engine: PostgresEngine, pg_dsn: str, caller: Any) -> None:
    async with caller(pg_dsn) as (connection, end):
        within = engine.within(connection)
        assert len(await answered(within.enqueue(jobs("abcdef")))) == 6
        await end(True)
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=6))
    async with caller(pg_dsn) as (connection, end):
        settlements = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        outcomes = await answered(engine.within(connection).settle(settlements))
        assert outcomes == [Outcome.SETTLED] * 6
        await end(True)
    assert (await engine.queues())[0].done == 6


async def test_waiting_lease_is_notified_at_commit(engine: PostgresEngine, pg_dsn: str) -> None:
    waiting = asyncio.create_task(engine.lease(LeaseRequest(queues=("default",), wait_ms=60_000)))
    async with psycopg_async(pg_dsn) as (connection, end):
        within: Any = engine.within(connection)
        await within.enqueue(jobs("a"))
        await end(True)
    assert [lease.id for lease in await waiting] == ["a"]


async def test_no_transaction_is_refused(engine: PostgresEngine, pg_dsn: str) -> None:
    connection = await asyncpg.connect(pg_dsn)
    within: Any = engine.within(connection)
    with pytest.raises(UsageError, match="no transaction is open"):
        await within.enqueue(jobs("a"))
    await connection.close()
    with psycopg.connect(pg_dsn, autocommit=True) as blocking:
        within = engine.within(blocking)
        with pytest.raises(UsageError, match="no transaction is open"):
            within.enqueue(jobs("a"))
    assert await engine.get("a") is None


async def test_call_after_the_end_of_the_transaction_is_refused(
    engine: PostgresEngine, pg_dsn: str
) -> None:
    """A call outside of a transaction could be half done after a crash, so it is refused."""
    connection = await asyncpg.connect(pg_dsn)
    within: Any = engine.within(connection)
    async with connection.transaction():
        await within.enqueue(jobs("a"))
        await within.enqueue(jobs("b"))
    with pytest.raises(UsageError, match="no transaction is open"):
        await within.enqueue([a_job("c", key="k")])
    async with connection.transaction():
        await within.enqueue(jobs("d"))
    await connection.close()
    assert await lease_ids(engine) == ["a", "b", "d"]


async def test_lost_race_aborts_the_transaction(
    engine: PostgresEngine, pg_dsn: str, look: Any
) -> None:
    """Another call adds the id after the check: nothing of the batch may be committed."""
    connection = await asyncpg.connect(pg_dsn)
    within: Any = engine.within(connection)
    await connection.execute("BEGIN")
    async with look.transaction():
        other: Any = engine.within(look)
        await other.enqueue([a_job("b")])
        enqueuing = asyncio.create_task(within.enqueue([a_job("a", key="k"), a_job("b")]))
        await until_blocked(look)
    with pytest.raises(EngineUnavailable, match="repeat the transaction"):
        await enqueuing
    await connection.execute("COMMIT")
    await connection.close()
    assert await engine.get("a") is None
    assert await look.fetchval("SELECT count(*) FROM keys") == 0
    assert await lease_ids(engine) == ["b"]


async def test_another_database_is_refused(engine: PostgresEngine, pg_server_dsn: str) -> None:
    with services.fresh_database(pg_server_dsn) as elsewhere:
        with psycopg.connect(elsewhere) as connection:
            within: Any = engine.within(connection)
            with pytest.raises(UsageError, match="without the schema holdfast"):
                within.enqueue(jobs("a"))
        other = PostgresEngine(elsewhere)
        await other.open()
        with psycopg.connect(elsewhere) as connection:
            within = engine.within(connection)
            with pytest.raises(UsageError, match="a different Holdfast"):
                within.enqueue(jobs("a"))
        await other.close()


@pytest.mark.parametrize("thing", [None, "postgresql://", object(), psycopg])
async def test_other_objects_are_refused(engine: PostgresEngine, thing: object) -> None:
    with pytest.raises(UsageError, match="psycopg, asyncpg, SQLAlchemy or Django"):
        engine.within(thing)


async def test_other_databases_are_refused(engine: PostgresEngine) -> None:
    maker = sqlalchemy.create_engine("sqlite://")
    with maker.connect() as connection:
        within: Any = engine.within(connection)
        with pytest.raises(UsageError, match="sqlite, not to PostgreSQL"):
            within.enqueue(jobs("a"))
    maker.dispose()


async def test_the_queue_of_a_bounded_depth_is_counted(engine: PostgresEngine, pg_dsn: str) -> None:
    await engine.declare(a_queue(max_depth=2))
    async with psycopg_async(pg_dsn) as (connection, end):
        within: Any = engine.within(connection)
        receipts = await within.enqueue(jobs("abc"))
        await end(True)
    assert [receipt.code for receipt in receipts] == ["", "", "queue_full"]
