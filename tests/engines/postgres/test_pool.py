"""Connections that end while idle, calls that are cancelled, and a busy pool."""

import asyncio
import contextlib
import struct
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, jobs, lease_one
from holdfast.core.model import State, Status
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine, pool
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable
from tests.engines.postgres.proxy import Proxy
from tests.engines.postgres.until import until, until_blocked


@pytest.fixture
async def narrow_engine(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    yield engine
    await engine.close()


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


# The second notice shows the test that the first has been read.
FAREWELL = _message(
    b"E", b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
) + _message(b"S", b"farewell\0said\0")


@pytest.mark.parametrize("key", [None, "k"])
async def test_connection_that_the_server_is_ending_is_not_used(
    proxy: Proxy, key: str | None
) -> None:
    """The server's notice arrives before the connection is seen to close."""
    engine = PostgresEngine(proxy.dsn, connections=3)
    await engine.open()
    await asyncio.gather(*(engine.queues() for _ in range(9)))
    idle = list(engine._opened()[0]._idle)
    proxy.say(FAREWELL)

    async def heard() -> bool:
        return all(hasattr(connection.get_settings(), "farewell") for connection in idle)

    await until(heard)
    assert not any(connection.is_closed() for connection in idle)
    (receipt,) = await engine.enqueue([a_job("a", key=key)])
    assert receipt.status is Status.NEW
    assert all(connection.is_closed() for connection in idle)
    await engine.close()


async def test_cancelled_call_leaves_the_pool_usable(
    narrow_engine: PostgresEngine, look: Any
) -> None:
    await narrow_engine.enqueue(jobs("a"))
    lease = await lease_one(narrow_engine)
    settlements = [Settlement(lease=lease, verdict=Complete())]
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{a}')) FOR UPDATE")
        settling = asyncio.create_task(narrow_engine.settle(settlements))
        await until_blocked(look)
        settling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await settling
        job = await narrow_engine.get("a")
        assert job is not None
        assert job.state is State.LEASED
    assert await narrow_engine.settle(settlements) == [Outcome.SETTLED]


async def test_wait_for_a_busy_pool_is_bounded(
    narrow_engine: PostgresEngine, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await narrow_engine.enqueue(jobs("a"))
    lease = await lease_one(narrow_engine)
    monkeypatch.setattr(pool, "SLOT_S_MAX", 0.05)
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{a}')) FOR UPDATE")
        settling = asyncio.create_task(
            narrow_engine.settle([Settlement(lease=lease, verdict=Retry())])
        )
        await until_blocked(look)
        with pytest.raises(EngineUnavailable, match=r"all 1 connections .* nothing was changed"):
            await narrow_engine.get("a")
    assert await settling == [Outcome.SETTLED]


async def test_retry_after_close_raises(engine: PostgresEngine) -> None:
    """Between two attempts a call holds no connection, and must not wait for one forever."""
    late, _ = engine._opened()
    await engine.close()
    with pytest.raises(EngineClosed):
        async with asyncio.timeout(5), late.lend():
            pytest.fail("lent by a closed pool")


@pytest.mark.parametrize(
    "rest",
    ["u:hunter2#x@127.0.0.1:9/d", "u:hunter2/x@127.0.0.1:9/d", "u:hunter2@127.0.0.1:99999/d",
     "[::1/d", "u:hunter2@127.0.0.1:9/d?sslmode=bogus"],
)  # fmt: skip
async def test_unreadable_address_is_not_shown(rest: str) -> None:
    with pytest.raises(ConfigError, match="address of PostgreSQL") as caught:
        await PostgresEngine(f"postgresql://{rest}").open()
    assert "hunter" not in "".join(
        traceback.format_exception(caught.value.__cause__ or caught.value)
    )


async def test_opening_twice_at_once_opens_one_pool(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(pool.PostgresPool):
        def __init__(self, *args: Any, **more: Any) -> None:
            made.append(self)
            super().__init__(*args, **more)

    monkeypatch.setattr("holdfast.engines.postgres.engine.PostgresPool", Counted)
    engine = PostgresEngine(pg_dsn)
    await asyncio.gather(engine.open(), engine.open())
    assert len(made) == 1
    await engine.close()
