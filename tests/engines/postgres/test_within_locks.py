"""A call in a caller's transaction notifies children in it, and never waits for their locks out of
order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.limits import Limit
from holdfast.core.model import Lease, LeaseRequest, NewJob, State
from holdfast.core.verdict import Bury, Complete, Outcome, Settlement, Verdict
from holdfast.engines.postgres import PostgresEngine
from holdfast.errors import EngineUnavailable
from tests.engines.postgres.until import deadlocks, until_blocked


@pytest.fixture
async def caller(pg_dsn: str, engine: PostgresEngine) -> AsyncIterator[Any]:
    """The connection of a caller who settles."""
    connection = await asyncpg.connect(pg_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def other(pg_dsn: str, engine: PostgresEngine) -> AsyncIterator[Any]:
    """The connection of another caller."""
    connection = await asyncpg.connect(pg_dsn)
    yield connection
    await connection.close()


async def declare_in_order(engine: PostgresEngine, *names: str) -> None:
    """Declare queues without lanes, and give them domains in this order."""
    for name in names:
        await engine.declare(a_queue(name))
        await engine.enqueue([a_job(f"first-{name}", queue=name, group="first")])


async def lease_of(engine: PostgresEngine, id_: str) -> Lease:
    (lease,) = await engine.lease(LeaseRequest(ids=(id_,)))
    return lease


async def settle(
    engine: PostgresEngine, connection: Any, lease: Lease, verdict: Verdict
) -> list[Outcome] | None:
    """The outcome, committed; None if the caller has to repeat the transaction."""
    within: Any = engine.within(connection)
    with contextlib.suppress(EngineUnavailable):
        async with connection.transaction():
            outcomes: list[Outcome] = await within.settle(
                [Settlement(lease=lease, verdict=verdict)]
            )
            return outcomes
    return None


def grouped(*queues: str) -> list[NewJob]:
    """A batch that locks the domains of these queues, in the order of their numbers."""
    return [a_job(f"grouped-{queue}", queue=queue, group="g") for queue in queues]


async def state_of(engine: PostgresEngine, id_: str) -> State | None:
    job = await engine.get(id_)
    return None if job is None else job.state


async def test_a_child_that_arrives_while_its_parent_is_settled(
    engine: PostgresEngine, caller: Any, other: Any, look: Any
) -> None:
    """The settling call looks for children before the child is committed. Meanwhile a third call
    comes to hold the domain of the child and waits for the one of the parent."""
    await declare_in_order(engine, "children", "parents")
    await engine.enqueue([a_job("p", queue="parents")])
    lease = await lease_of(engine, "p")
    async with other.transaction():
        within: Any = engine.within(other)
        await within.enqueue([a_job("c", queue="children", after=("p",))])
        settling = asyncio.create_task(settle(engine, caller, lease, Complete()))
        await until_blocked(look, 1)
        enqueuing = asyncio.create_task(engine.enqueue(grouped("children", "parents")))
        await until_blocked(look, 2)
    await enqueuing
    if await settling is None:
        assert await state_of(engine, "p") is State.LEASED
        assert await settle(engine, caller, lease, Complete()) == [Outcome.SETTLED]
    assert [job.id for job in await engine.lease(LeaseRequest(ids=("c",)))] == ["c"]
    await caller.close()
    await other.close()
    assert await deadlocks(look, engine) == 0


async def test_descendants_in_queues_with_lower_domains(
    engine: PostgresEngine, caller: Any, other: Any, look: Any
) -> None:
    """The death of a parent cancels its child, and that cancels the child's child."""
    await declare_in_order(engine, "lowest", "lower", "parents")
    await engine.enqueue([a_job("p", queue="parents")])
    await engine.enqueue([a_job("c", queue="lower", after=("p",))])
    await engine.enqueue([a_job("g", queue="lowest", after=("c",))])
    lease = await lease_of(engine, "p")
    async with other.transaction():
        await other.execute(
            "SELECT FROM holdfast.jobs"
            " WHERE seq = ANY (holdfast.seqs_of(1, '{p}')) FOR NO KEY UPDATE",
        )
        settling = asyncio.create_task(settle(engine, caller, lease, Bury()))
        await until_blocked(look, 1)
        enqueuing = asyncio.create_task(engine.enqueue(grouped("lowest", "lower", "parents")))
        await until_blocked(look, 2)
    assert await settling == [Outcome.SETTLED]
    await enqueuing
    assert await state_of(engine, "g") is State.CANCELLED
    await caller.close()
    await other.close()
    assert await deadlocks(look, engine) == 0


async def test_a_child_in_a_dropped_queue(
    engine: PostgresEngine, caller: Any, other: Any, look: Any
) -> None:
    """Its queue has no name any more, but still a domain, which it shares with another queue."""
    shared = (Limit(name="shared", concurrency=100),)
    for name in ("dropped", "sharing"):
        await engine.declare(a_queue(name, limits=shared))
    await declare_in_order(engine, "parents")
    await engine.enqueue([a_job("p", queue="parents")])
    await engine.enqueue([a_job("c", queue="dropped", after=("p",))])
    lease = await lease_of(engine, "p")
    # The process that dropped it died before it removed the jobs.
    await look.execute("UPDATE queues SET name = NULL, removed_at = 0 WHERE name = 'dropped'")
    async with other.transaction():
        await other.execute(
            "SELECT FROM holdfast.jobs"
            " WHERE seq = ANY (holdfast.seqs_of(1, '{p}')) FOR NO KEY UPDATE",
        )
        settling = asyncio.create_task(settle(engine, caller, lease, Complete()))
        await until_blocked(look, 1)
        enqueuing = asyncio.create_task(engine.enqueue(grouped("sharing", "parents")))
        await until_blocked(look, 2)
    assert await settling == [Outcome.SETTLED]
    await enqueuing
    await caller.close()
    await other.close()
    assert await deadlocks(look, engine) == 0


async def test_a_row_of_a_child_is_not_waited_for(
    engine: PostgresEngine, caller: Any, other: Any, look: Any
) -> None:
    """The rows of the parents are written by then, and the child may have arrived before them."""
    await engine.enqueue([a_job("p"), a_job("c", after=("p",))])
    lease = await lease_of(engine, "p")
    async with other.transaction():
        await other.execute(
            "SELECT FROM holdfast.jobs"
            " WHERE seq = ANY (holdfast.seqs_of(1, '{c}')) FOR NO KEY UPDATE",
        )
        assert await settle(engine, caller, lease, Complete()) is None
        assert await state_of(engine, "p") is State.LEASED
    assert await settle(engine, caller, lease, Complete()) == [Outcome.SETTLED]
    assert [job.id for job in await engine.lease(LeaseRequest(ids=("c",)))] == ["c"]
