"""Bulk operations that cross each other take their locks in one order: nothing ever deadlocks."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.model import Job, JobFilter, LeaseRequest, Note, Renewal, State, Status
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Cancel,
    Complete,
    Edit,
    Expedite,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.postgres import PostgresEngine
from holdfast.testing.contract.making import a_job

JOBS = 200
ROUNDS = 12
CALLERS = 8


@pytest.fixture
async def wide_engine(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(pg_dsn, connections=CALLERS)
    await engine.open()
    yield engine
    await engine.close()


async def test_crossing_bulk_operations(wide_engine: PostgresEngine, look: Any) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ids = [f"j{number}" for number in range(JOBS)]
    await wide_engine.enqueue([a_job(id_, key=f"k{id_}") for id_ in ids])
    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            act = (_lease_and_settle, _amend, _enqueue_again, _settle_reversed)[number % 4]
            group.create_task(act(wide_engine, ids, random.Random(dice.random())))
    deadlocks = await look.fetchval(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert deadlocks == 0
    assert len([job for id_ in ids if (job := await wide_engine.get(id_))]) == JOBS
    assert await look.fetchval("SELECT count(*) FROM jobs") == JOBS


async def _lease_and_settle(engine: PostgresEngine, ids: list[str], dice: random.Random) -> None:
    verdicts: list[Verdict] = [Complete(b"1"), Retry(), Release(), Bury()]
    for _ in range(ROUNDS):
        leases = await engine.lease(LeaseRequest(queues=("default",), limit=60))
        dice.shuffle(leases)
        note = Note(checkpoint=b"c") if dice.random() < 0.5 else None
        renewed = await engine.renew([Renewal(lease=lease, note=note) for lease in leases])
        settlements = [
            Settlement(lease=lease, verdict=dice.choice(verdicts)) for lease in renewed if lease
        ]
        dice.shuffle(settlements)
        await engine.settle(settlements)


async def _settle_reversed(engine: PostgresEngine, ids: list[str], dice: random.Random) -> None:
    """As a reaper that is too late, in an order of its own."""
    for _ in range(ROUNDS):
        page = await engine.find(JobFilter(states=(State.LEASED,)), limit=100)
        leases = await engine.lease(LeaseRequest(ids=tuple(reversed(ids)), limit=50))
        settlements = [Settlement(lease=lease, verdict=Retry()) for lease in reversed(leases)]
        assert set(await engine.settle(settlements)) <= {Outcome.SETTLED, Outcome.LOST}
        assert len(page.jobs) <= 100


async def _amend(engine: PostgresEngine, ids: list[str], dice: random.Random) -> None:
    acts: list[Amendment] = [
        Cancel(),
        Redrive(),
        Edit(payload=b"{}"),
        Retime(delay_ms=0),
        Expedite(),
    ]
    for _ in range(ROUNDS):
        act = dice.choice(acts)
        states = (State.DEAD, State.CANCELLED, State.DONE) if isinstance(act, Redrive) else None
        some = tuple(dice.sample(ids, 120))
        await engine.amend(JobFilter(ids=some, states=states), act, limit=100)


async def _enqueue_again(engine: PostgresEngine, ids: list[str], dice: random.Random) -> None:
    """Under the keys that are held, so that waiting jobs are replaced."""
    for _ in range(ROUNDS):
        some = dice.sample(ids, 40)
        policy = dice.choice(["keep", "replace", "merge"])
        receipts = await engine.enqueue(
            [a_job(f"new-{id_}", key=f"k{id_}", key_policy=policy) for id_ in some]
        )
        assert {receipt.status for receipt in receipts} == {Status.DUPLICATE}


async def test_the_same_ids_from_all_sides(wide_engine: PostgresEngine, look: Any) -> None:
    ids = [f"j{number}" for number in range(50)]

    async def enqueue(number: int) -> list[Status]:
        mine = ids if number % 2 else ids[::-1]
        key = {"key": f"k{number}"} if number % 3 == 0 else {}
        batch = [a_job(mine[0], **key), *map(a_job, mine[1:])]
        return [receipt.status for receipt in await wide_engine.enqueue(batch)]

    answers = await asyncio.gather(*(enqueue(number) for number in range(CALLERS)))
    assert sum(statuses.count(Status.NEW) for statuses in answers) == len(ids)
    assert await look.fetchval("SELECT count(*) FROM jobs") == len(ids)


async def test_nobody_leases_what_another_holds(wide_engine: PostgresEngine) -> None:
    await wide_engine.enqueue([a_job(f"j{number}") for number in range(JOBS)])

    async def drain() -> list[Job]:
        mine: list[Job] = []
        while leases := await wide_engine.lease(LeaseRequest(queues=("default",), limit=7)):
            mine += [lease.job for lease in leases]
        return mine

    taken = [
        job for jobs in await asyncio.gather(*(drain() for _ in range(CALLERS))) for job in jobs
    ]
    assert len({job.id for job in taken}) == JOBS == len(taken)
    assert len({job.token for job in taken}) == JOBS, "each lease has a token of its own"
