"""A job that becomes a parent while another call works on its group, lane or slots is found and
counted once."""

import asyncio
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.limits import Limit
from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Complete, Outcome, Release, Settlement, Verdict
from holdfast.engines.postgres import PostgresEngine
from tests.engines.postgres.until import until_blocked

# As the SQL function `link` writes it.
MAKE_PARENT = "UPDATE jobs SET flow = flow | 8 WHERE seq = ANY (seqs_of(1, ARRAY[$1]))"
ALL = Limit(name="all", key="{queue}", concurrency=9)


async def lease(engine: PostgresEngine) -> list[Lease]:
    return await engine.lease(LeaseRequest(queues=("work",), limit=9, worker="w"))


@pytest.mark.parametrize("verdict", [Complete(), Complete(then=(a_job("more", queue="work"),))])
@pytest.mark.parametrize("limits", [(), (ALL,)])
async def test_next_of_a_group_becomes_a_parent_while_the_first_ends(
    engine: PostgresEngine, look: Any, limits: tuple[Limit, ...], verdict: Verdict
) -> None:
    await engine.declare(a_queue("work", limits=limits))
    await engine.enqueue([a_job(id_, queue="work", group="g") for id_ in ("a", "b", "c")])
    (first,) = await lease(engine)
    async with look.transaction():
        await look.execute(MAKE_PARENT, "b")
        settling = asyncio.create_task(engine.settle([Settlement(lease=first, verdict=verdict)]))
        await until_blocked(look)
    assert await settling == [Outcome.SETTLED]
    assert [one.id for one in await lease(engine) if one.id != "more"] == ["b"]
    assert await engine.recount(100) == 0


async def test_first_of_a_group_becomes_a_parent_while_it_is_released(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.declare(a_queue("work"))
    await engine.enqueue([a_job(id_, queue="work", group="g") for id_ in ("a", "b")])
    (first,) = await lease(engine)
    async with look.transaction():
        await look.execute(MAKE_PARENT, "a")
        release = Settlement(lease=first, verdict=Release())
        settling = asyncio.create_task(engine.settle([release]))
        await until_blocked(look)
    assert await settling == [Outcome.SETTLED]
    assert [one.id for one in await lease(engine)] == ["a"]
    assert await engine.recount(100) == 0


async def test_child_becomes_a_parent_while_its_own_parent_ends(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.declare(a_queue("work"))
    await engine.enqueue([a_job("a", queue="work"), a_job("b", queue="work", after=("a",))])
    (first,) = await lease(engine)
    async with look.transaction():
        await look.execute(MAKE_PARENT, "b")
        settling = asyncio.create_task(engine.settle([Settlement(lease=first, verdict=Complete())]))
        await until_blocked(look)
    assert await settling == [Outcome.SETTLED]
    assert [one.id for one in await lease(engine)] == ["b"]


SHAPES = {
    "in order": a_queue("work", limits=(ALL,)),
    "in turns": a_queue("work", limits=(ALL,), fairness="shares"),
    "by age": a_queue("work", limits=(ALL,), aging_ms=60_000),
    "groups in batches": a_queue("work", limits=(ALL,), group_batch=2),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_job_becomes_a_parent_while_it_is_leased(
    engine: PostgresEngine, look: Any, shape: str
) -> None:
    await engine.declare(SHAPES[shape])
    await engine.enqueue([a_job(id_, queue="work") for id_ in ("a", "b", "c")])
    async with look.transaction():
        await look.execute(MAKE_PARENT, "b")
        leasing = asyncio.create_task(lease(engine))
        await until_blocked(look)
    assert sorted(one.id for one in await leasing) == ["a", "b", "c"]
    assert await look.fetchval("SELECT sum(used) FROM slots") == 3
    assert await engine.recount(100) == 0
