"""Calls of several transactions that fail after the first: the error never says that nothing was
changed."""

import asyncio
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Cancel, Complete, Outcome, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from tests.engines.postgres.proxy import Proxy
from tests.engines.postgres.until import until_blocked

REPLIES_MAX = 24
"""More statements than any of these calls runs."""

LIMITED = a_queue("limited", limits=(Limit(name="l", concurrency=9),))


async def test_an_amendment_whose_second_round_fails(
    far_engine: PostgresEngine, proxy: Proxy, look: Any
) -> None:
    """Another call changes one of the jobs first, so a second round looks for a replacement."""
    doubts = []
    for number in range(1, REPLIES_MAX):
        slow, fast = f"a{number}", f"b{number}"
        await look.execute("TRUNCATE jobs, bodies, done")
        await far_engine.enqueue([a_job(slow), a_job(fast)])
        async with look.transaction():
            await look.execute(
                "UPDATE jobs SET state = 4 WHERE seq = ANY (seqs_of(1, ARRAY[$1]))",
                fast,
            )
            wanted = JobFilter(ids=(slow, fast))
            amending = asyncio.create_task(far_engine.amend(wanted, Cancel(), limit=2))
            await until_blocked(look)
            proxy.lose_reply(number)
        try:
            assert await amending == 1
        except EngineUnavailable:
            assert await state_of(look, slow) == 0
        except OutcomeUnknown as error:
            doubts.append(str(error))
            assert await state_of(look, slow) != 0
        proxy.heal()
    assert len(doubts) > 1
    assert all("repeat it with the same ids" in text for text in doubts)
    assert not [text for text in doubts if "nothing was changed" in text]


async def state_of(look: Any, id_: str) -> Any:
    return await look.fetchval("SELECT state FROM all_jobs WHERE id = $1", id_)


@pytest.mark.parametrize("code", ["40001", "53200"])
async def test_a_settle_whose_second_statement_is_refused(
    engine: PostgresEngine, look: Any, code: str
) -> None:
    """Plain jobs are completed first, in a statement of their own."""
    await engine.declare(LIMITED)
    await engine.enqueue([a_job("plain"), a_job("limited", queue="limited")])
    leases = await engine.lease(LeaseRequest(queues=("default", "limited"), limit=2))
    settlements = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    await look.execute(
        f"""
        CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'trouble' USING ERRCODE = '{code}';
        END $$;
        CREATE TRIGGER trouble BEFORE DELETE ON jobs FOR EACH ROW
        WHEN (OLD.lane IS NOT NULL) EXECUTE FUNCTION trouble();
        """
    )
    with pytest.raises(OutcomeUnknown, match="a part of the call has taken effect"):
        await engine.settle(settlements)
    assert [await found(engine, id_) for id_ in ("plain", "limited")] == [State.DONE, State.LEASED]
    with pytest.raises(EngineUnavailable, match="nothing was changed"):
        await engine.settle(settlements[1:])
    await look.execute("DROP TRIGGER trouble ON jobs")
    assert await engine.settle(settlements) == [Outcome.SETTLED] * 2


async def found(engine: PostgresEngine, id_: str) -> State | None:
    job = await engine.get(id_)
    return None if job is None else job.state


async def test_a_queue_that_is_declared_before_its_jobs_are_sorted(
    far_engine: PostgresEngine, proxy: Proxy, look: Any
) -> None:
    """The queue is declared, and the next lease goes on with the sorting."""
    declared = 0
    for number in range(1, REPLIES_MAX):
        queue = a_queue(f"q{number}")
        await far_engine.declare(queue)
        await far_engine.enqueue([a_job(f"j{number}", queue=queue.name)])
        proxy.lose_reply(number)
        try:
            assert await far_engine.declare(a_queue(queue.name, fairness="shares"))
            declared += 1
        except EngineUnavailable:
            assert not await is_laned(look, queue.name)
        except OutcomeUnknown:
            pass
        proxy.heal()
        if await is_laned(look, queue.name):
            (lease,) = await far_engine.lease(LeaseRequest(queues=(queue.name,)))
            assert lease.id == f"j{number}"
    assert declared > 1


async def is_laned(look: Any, name: str) -> bool:
    return bool(await look.fetchval("SELECT laned FROM queues WHERE name = $1", name))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_queue_that_is_dropped_before_its_jobs_are_gone(
    far_engine: PostgresEngine, proxy: Proxy, look: Any, number: int
) -> None:
    """The queue is gone for every reader, and the pruner removes the rest of its jobs."""
    for name in ("warm", "q"):
        await far_engine.declare(a_queue(name))
        await far_engine.enqueue([a_job(f"of-{name}", queue=name)])
    await far_engine.drop("warm")
    proxy.lose_reply(number)
    try:
        await far_engine.drop("q")
    except OutcomeUnknown:
        assert number == 1
    proxy.heal()
    assert await far_engine.get("of-q") is None
    await far_engine.finished(10)
    assert await look.fetchval("SELECT count(*) FROM bodies") == 0
