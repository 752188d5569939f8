"""Completing a lease does not wait for the flow lock, and the slots it frees are counted once."""

import asyncio
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.limits import Limit
from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.postgres import PostgresEngine

# Far more than a completion takes; one that waited for the lock would never end.
STUCK_S = 20
HOLD = "SELECT lock_flow(ARRAY(SELECT number FROM queues WHERE name = 'work'))"
SHARE = "SELECT share_flow((SELECT max(number) FROM namespaces), ARRAY['work'])"
PER_TENANT = Limit(name="per-tenant", key="{tenant}", concurrency=1)


async def lease(engine: PostgresEngine, limit: int = 100) -> list[Lease]:
    return await engine.lease(LeaseRequest(queues=("work",), limit=limit, worker="w"))


async def complete(engine: PostgresEngine, leases: list[Lease]) -> None:
    ends = [Settlement(lease=one, verdict=Complete()) for one in leases]
    async with asyncio.timeout(STUCK_S):
        assert set(await engine.settle(ends)) == {Outcome.SETTLED}


@pytest.mark.parametrize("fairness", ["off", "shares", "noisy"])
async def test_complete_in_a_lane(engine: PostgresEngine, look: Any, fairness: Any) -> None:
    await engine.declare(a_queue("work", limits=(PER_TENANT,), fairness=fairness))
    jobs = [a_job(f"{tenant}{n}", queue="work", tenant=tenant) for n in "12" for tenant in "ab"]
    await engine.enqueue(jobs)
    first = await lease(engine)
    assert [one.id for one in first] == ["a1", "b1"]
    assert await lease(engine) == [], "both tenants are at their limit"
    async with look.transaction():
        await look.execute(HOLD)
        await complete(engine, first[:1])
        slots = (await engine.flow("work", limit=9)).slots
        assert [(slot.key, slot.used, slot.holders) for slot in slots] == [
            ("a", 0, ()), ("b", 1, ("b1",)),
        ]  # fmt: skip
    assert await engine.recount(100) == 0
    assert [one.id for one in await lease(engine)] == ["a2"]
    await complete(engine, first)
    assert [one.id for one in await lease(engine)] == ["b2"]
    assert await look.fetchval("SELECT sum(used) FROM slots") == 2
    assert await engine.recount(100) == 0


async def test_complete_in_a_group(engine: PostgresEngine, look: Any) -> None:
    await engine.declare(a_queue("work"))
    await engine.enqueue([a_job(f"{g}{n}", queue="work", group=g) for n in "12" for g in "ab"])
    first = await lease(engine)
    assert [one.id for one in first] == ["a1", "b1"]
    async with look.transaction():
        # Another call is just completing another lease of the queue.
        assert len(await look.fetchval(SHARE)) == 1
        await complete(engine, first[:1])
        assert [one.id for one in await lease(engine)] == ["a2"]
    await complete(engine, first)
    assert [one.id for one in await lease(engine)] == ["b2"]
    assert await engine.recount(100) == 0


async def test_children_of_a_parent_in_a_lane_are_released(engine: PostgresEngine) -> None:
    await engine.declare(a_queue("work", limits=(PER_TENANT,)))
    parent = a_job("parent", queue="work", tenant="t")
    await engine.enqueue([parent, a_job("child", queue="work", tenant="t", after=("parent",))])
    await complete(engine, await lease(engine))
    assert [one.id for one in await lease(engine)] == ["child"]


async def test_stale_heads_are_rewritten(engine: PostgresEngine, look: Any) -> None:
    """Heads of lanes whose jobs are gone do no harm, and are rewritten when a lane is skipped."""
    await engine.declare(a_queue("work", limits=(PER_TENANT,)))
    tenants = [f"t{n}" for n in range(150)]
    await engine.enqueue([a_job(f"{tenant}-1", queue="work", tenant=tenant) for tenant in tenants])
    first = await lease(engine, 150)
    assert len(first) == await look.fetchval("SELECT count(*) FROM heads") == 150
    assert await engine.recount(1_000) == 0
    assert await look.fetchval("SELECT count(*) FROM heads") == 0
    # Now a lane has to be skipped, and heads of jobs that are gone come before it.
    await complete(engine, first)
    await engine.enqueue([a_job(f"{tenant}-2", queue="work", tenant=tenant) for tenant in tenants])
    assert len(await lease(engine, 149)) == 149
    await engine.enqueue([a_job("t0-3", queue="work", tenant="t0")])
    await engine.enqueue([a_job("new", queue="work", tenant="new")])
    assert [one.id for one in await lease(engine)] == ["t149-2", "new"]
    assert await lease(engine) == []
    assert await engine.recount(1_000) == 0
