"""Failures between engine and server: killed backends, a killed server, lost replies,
silence, a server that became read-only. No acknowledged job is lost, and no process has to restart.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import a_job, jobs, lease_one
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.core.model import LeaseRequest, State, Status
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine, pool
from holdfast.errors import (
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
)
from tests.engines.postgres.proxy import Proxy

PATIENT = LeaseRequest(queues=("default",), wait_ms=60_000)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(fsync=True) as server:
        yield server


async def end_backends(look: Any) -> None:
    await look.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def persist(call: Any) -> Any:
    """Repeat a call until it succeeds, as the errors say."""
    while True:
        try:
            return await call()
        except (EngineUnavailable, OutcomeUnknown):
            await asyncio.sleep(0.01)


async def until_refused(call: Any) -> EngineUnavailable:
    while True:
        try:
            await call()
        except EngineUnavailable as error:
            return error


async def until_troubled(call: Any) -> None:
    with contextlib.suppress(EngineUnavailable, OutcomeUnknown):
        while True:
            await call()


async def test_killed_backends_are_replaced(engine: PostgresEngine, look: Any) -> None:
    await asyncio.gather(*(engine.queues() for _ in range(8)))
    for number in range(5):
        await end_backends(look)
        receipts = await persist(lambda n=number: engine.enqueue([a_job(f"j{n}")]))
        assert receipts[0].status in (Status.NEW, Status.DUPLICATE)
    leases = await persist(lambda: engine.lease(LeaseRequest(queues=("default",), limit=10)))
    assert len(leases) == 5


async def test_work_continues_while_backends_are_killed(engine: PostgresEngine, look: Any) -> None:
    wanted = [f"j{number}" for number in range(120)]
    waiting = asyncio.create_task(_work(engine, set(wanted)))
    for id_ in wanted:
        if hash(id_) % 7 == 0:
            await end_backends(look)
        await persist(lambda id_=id_: engine.enqueue([a_job(id_)]))
    await waiting
    states = [job.state for id_ in wanted if (job := await engine.get(id_))]
    assert states == [State.DONE] * len(wanted)


async def _work(engine: PostgresEngine, wanted: set[str]) -> None:
    request = LeaseRequest(queues=("default",), limit=10, wait_ms=200, lease_ms=1_000)
    while wanted:
        leases = await persist(lambda: engine.lease(request))
        # Leases whose answer was lost become overdue, and are released as by the reaper.
        lapsed = await persist(lambda: engine.overdue(100))
        back = [Settlement(lease=lease, verdict=Retry()) for lease in lapsed.leases]
        await persist(lambda back=back: engine.settle(back))
        done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        outcomes = await persist(lambda done=done: engine.settle(done))
        assert set(outcomes) <= {Outcome.SETTLED}
        wanted -= {lease.id for lease in leases}


async def test_a_killed_server(own_server: PrivatePostgres) -> None:
    engine = PostgresEngine(own_server.dsn)
    await engine.open()
    await engine.enqueue(jobs("a"))
    lease = await lease_one(engine)
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await asyncio.sleep(0)
    own_server.kill()
    # Its backends answer a moment longer, until they notice.
    await until_troubled(lambda: engine.enqueue(jobs("b")))
    error = await until_refused(lambda: engine.get("a"))
    assert "nothing was changed" in str(error)
    await asyncio.to_thread(own_server.restart)
    await persist(lambda: engine.enqueue(jobs("c")))
    first = await waiting
    assert [lease.id for lease in first] in (["b"], ["c"])
    settlements = [Settlement(lease=lease, verdict=Complete(b"1"))]
    assert await persist(lambda: engine.settle(settlements)) == [Outcome.SETTLED]
    await engine.close()


async def test_a_server_that_became_read_only(own_server: PrivatePostgres) -> None:
    admin = await asyncpg.connect(own_server.dsn)
    engine = PostgresEngine(own_server.dsn, namespace="failover")
    await engine.open()
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await engine.enqueue([])
    await admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    await admin.execute("SELECT pg_reload_conf()")
    await until_refused(lambda: engine.enqueue(jobs("a")))
    await admin.execute("SET default_transaction_read_only = off")
    await admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
    await admin.execute("SELECT pg_reload_conf()")
    await persist(lambda: engine.enqueue(jobs("b")))
    assert [lease.id for lease in await waiting] in (["a"], ["b"])
    await engine.close()
    await admin.close()


@pytest.mark.parametrize("number", range(1, 14))
async def test_a_lost_reply_to_a_careful_enqueue(
    far_engine: PostgresEngine, proxy: Proxy, look: Any, number: int
) -> None:
    """Wherever the connection ends, the error is right about the outcome, and repeating is safe."""
    await far_engine.enqueue([a_job("warm", key="warm")])
    proxy.lose_reply(number)
    try:
        (receipt,) = await far_engine.enqueue([a_job("a", key="k")])
        assert receipt.status is Status.NEW
    except EngineUnavailable:
        assert await look.fetchval("SELECT count(*) FROM all_jobs WHERE id = 'a'") == 0
    except OutcomeUnknown:
        pass
    proxy.heal()
    (receipt,) = await persist(lambda: far_engine.enqueue([a_job("a", key="k")]))
    assert await look.fetchval("SELECT count(*) FROM all_jobs WHERE id = 'a'") == 1
    (receipt,) = await far_engine.enqueue([a_job("b", key="k")])
    assert (receipt.status, receipt.id) == (Status.DUPLICATE, "a")


async def test_lost_reply_to_a_commit_is_an_unknown_outcome(
    far_engine: PostgresEngine, proxy: Proxy, look: Any
) -> None:
    """Only the outcome of the commit is unknown: a statement before it was rolled back."""
    doubts = 0
    for number in range(1, 14):
        await persist(lambda n=number: far_engine.enqueue([a_job(f"w{n}", key=f"w{n}")]))
        proxy.lose_reply(number)
        id_ = f"a{number}"
        try:
            await far_engine.enqueue([a_job(id_, key=id_)])
        except OutcomeUnknown:
            doubts += 1
            assert await look.fetchval("SELECT count(*) FROM all_jobs WHERE id = $1", id_) == 1
        except EngineUnavailable:
            assert await look.fetchval("SELECT count(*) FROM all_jobs WHERE id = $1", id_) == 0
        proxy.heal()
    assert doubts == 1


async def test_a_lost_reply_to_one_statement(far_engine: PostgresEngine, proxy: Proxy) -> None:
    await far_engine.enqueue(jobs("ab"))
    first = await lease_one(far_engine)
    await far_engine.settle([Settlement(lease=first, verdict=Complete())])
    proxy.lose_reply(1)
    with pytest.raises(OutcomeUnknown, match="repeat it with the same ids"):
        await far_engine.enqueue(jobs("c"))
    proxy.heal()
    assert (await persist(lambda: far_engine.enqueue(jobs("c"))))[0].status is Status.DUPLICATE
    second = await lease_one(far_engine)
    settlements = [Settlement(lease=second, verdict=Complete())]
    await far_engine.settle([Settlement(lease=first, verdict=Complete())])
    proxy.lose_reply(1)
    with pytest.raises(OutcomeUnknown):
        await far_engine.settle(settlements)
    proxy.heal()
    assert await persist(lambda: far_engine.settle(settlements)) == [Outcome.SETTLED]


async def test_a_lost_reply_to_a_read_is_repeated(far_engine: PostgresEngine, proxy: Proxy) -> None:
    await far_engine.enqueue(jobs("a"))
    await far_engine.get("a")
    proxy.lose_reply(1)
    job = await far_engine.get("a")
    assert job is not None


async def test_a_vanished_server_is_noticed(
    far_engine: PostgresEngine, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COMMAND_S_MAX", "CONNECT_S_MAX"):
        monkeypatch.setattr(pool, name, 0.3)
    proxy.cut()
    await persist(lambda: far_engine.enqueue(jobs("a")))
    proxy.fall_silent()
    with pytest.raises(OutcomeUnknown):
        await far_engine.enqueue(jobs("b"))
    with pytest.raises(EngineUnavailable):
        await far_engine.get("a")
    proxy.heal()
    proxy.cut()
    assert (await persist(lambda: far_engine.get("a"))).id == "a"


async def test_error_of_an_unreachable_server_shows_no_password() -> None:
    engine = PostgresEngine("postgresql://me:hunter2@127.0.0.1:9/d?password=hunter3")
    with pytest.raises(EngineUnavailable, match=r"postgresql://me@127.0.0.1:9/d") as caught:
        await engine.open()
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"),
    [("53100", StorageFull), ("53200", EngineUnavailable), ("42P01", SchemaMismatch),
     ("XX000", EngineError)],
)  # fmt: skip
async def test_errors_of_the_server(
    engine: PostgresEngine, look: Any, code: str, error: type[EngineError]
) -> None:
    await _raise_on_insert(look, code, times=1)
    with pytest.raises(error, match=code) as caught:
        await engine.enqueue(jobs("a"))
    assert type(caught.value) is error
    assert (await engine.enqueue(jobs("a")))[0].status is Status.NEW


@pytest.mark.parametrize("code", ["40P01", "40001"])
async def test_serialization_failures_are_retried(
    engine: PostgresEngine, look: Any, code: str
) -> None:
    await _raise_on_insert(look, code, times=3)
    assert (await engine.enqueue(jobs("a")))[0].status is Status.NEW
    assert (await engine.enqueue([a_job("b", key="k")]))[0].status is Status.NEW
    await _raise_on_insert(look, code, times=100)
    with pytest.raises(EngineUnavailable, match="nothing was changed"):
        await engine.enqueue(jobs("c"))
    assert await engine.get("c") is None


async def _raise_on_insert(look: Any, code: str, *, times: int) -> None:
    await look.execute(
        f"""
        DROP TRIGGER IF EXISTS trouble ON jobs;
        CREATE SEQUENCE IF NOT EXISTS troubles;
        SELECT setval('troubles', 1, false);
        CREATE OR REPLACE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('holdfast.troubles') <= {times} THEN
                RAISE EXCEPTION 'trouble' USING ERRCODE = '{code}';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER trouble BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION trouble();
        """
    )


async def test_dropped_schema_is_not_recreated(engine: PostgresEngine, look: Any) -> None:
    await look.execute("DROP SCHEMA holdfast CASCADE")
    with pytest.raises(SchemaMismatch):
        await engine.enqueue(jobs("a"))


async def test_wait_that_ends_in_an_outage_raises(far_engine: PostgresEngine, proxy: Proxy) -> None:
    await proxy.stop()
    with pytest.raises(EngineUnavailable):
        await far_engine.lease(LeaseRequest(queues=("default",), wait_ms=50))
    await proxy.start()
