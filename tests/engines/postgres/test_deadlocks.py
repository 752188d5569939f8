"""Calls that work on the same jobs in different orders never deadlock."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import a_job
from holdfast.core.limits import Limit
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Record,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.within import AsyncPostgresWithin
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UnknownQueue
from tests.engines.postgres.until import deadlocks, until_blocked

JOBS = 200
ROUNDS = 12
CALLERS = 8
QUEUES = ("default", "other", "third")
IDS = [f"j{number}" for number in range(60)]


@pytest.fixture
async def wide_engine(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(pg_dsn, connections=CALLERS)
    await engine.open()
    yield engine
    await engine.close()


async def test_bulk_calls_in_different_orders(wide_engine: PostgresEngine, look: Any) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ids = [f"j{number}" for number in range(JOBS)]
    await wide_engine.enqueue([a_job(id_, key=f"k{id_}") for id_ in ids])
    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            act = (_lease_and_settle, _amend, _enqueue_again, _settle_reversed)[number % 4]
            group.create_task(act(wide_engine, ids, random.Random(dice.random())))
    assert len([job for id_ in ids if (job := await wide_engine.get(id_))]) == JOBS
    assert await look.fetchval("SELECT count(*) FROM bodies") == JOBS
    assert await deadlocks(look, wide_engine) == 0


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
    """Lease by id and settle, in the opposite order."""
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
    """Enqueue under keys that are held, so that waiting jobs are replaced or merged."""
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
    assert await look.fetchval("SELECT count(*) FROM bodies") == len(ids)
    assert await deadlocks(look, wide_engine) == 0


@pytest.mark.parametrize("groups", [(None, None), ("x", "y")], ids=["plain", "grouped"])
async def test_a_completion_that_waits_blocks_no_enqueue_of_its_ids(
    wide_engine: PostgresEngine, pg_dsn: str, look: Any, groups: tuple[str | None, ...]
) -> None:
    """A completion waits for the row of one job while another call, which holds that row, inserts
    the id of a job that the completion was the first to reach."""
    jobs = [a_job(id_, group=group) for id_, group in zip("ab", groups, strict=True)]
    await wide_engine.enqueue(jobs)
    leases = await wide_engine.lease(LeaseRequest(queues=("default",), limit=2))
    other = await asyncpg.connect(pg_dsn)
    try:
        async with other.transaction():
            await other.execute(
                "SELECT FROM holdfast.jobs"
                " WHERE seq = ANY (holdfast.seqs_of(1, '{b}')) FOR NO KEY UPDATE",
            )
            settling = asyncio.create_task(
                wide_engine.settle([Settlement(lease=one, verdict=Complete()) for one in leases])
            )
            await until_blocked(look)
            with pytest.raises(asyncpg.UniqueViolationError):
                async with other.transaction():
                    await other.execute(
                        "INSERT INTO holdfast.bodies (seq, created_at, ns, id, task, payload)"
                        " SELECT -seq, created_at, ns, id, task, ''"
                        " FROM holdfast.bodies WHERE id = 'a'"
                    )
        assert await settling == [Outcome.SETTLED] * 2
    finally:
        await other.close()
    assert await deadlocks(look, wide_engine) == 0


async def test_a_batch_keeps_its_order_whatever_its_ids(wide_engine: PostgresEngine) -> None:
    """Ids are locked in their own order; jobs arrive in that of the batch."""
    ids = [f"j{number}" for number in (3, 1, 2, 5, 4)]
    await wide_engine.enqueue([a_job(id_) for id_ in ids])
    await wide_engine.enqueue([a_job(f"k{id_}", key=id_) for id_ in ids])
    leases = await wide_engine.lease(LeaseRequest(queues=("default",), limit=10))
    assert [lease.id for lease in leases] == [*ids, *(f"k{id_}" for id_ in ids)]


async def test_all_verbs_at_once(pg_dsn: str, look: Any) -> None:
    """Every verb on the same jobs and queues, from two engines, in opposite orders."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    engines = [PostgresEngine(pg_dsn, connections=CALLERS) for _ in range(2)]
    try:
        for engine in engines:
            await engine.open()
        await engines[0].declare(Queue(name="dead"))
        for name in QUEUES:
            await engines[0].declare(Queue(name=name, dead_queue="dead"))
        async with asyncio.TaskGroup() as group:
            for number, act in enumerate(ACTS * 2):
                engine = engines[number % 2]
                group.create_task(_repeat(act, engine, pg_dsn, random.Random(dice.random())))
    finally:
        counted = await deadlocks(look, *engines)
    assert counted == 0


Act = Callable[[PostgresEngine, str, random.Random], Awaitable[object]]


async def _repeat(act: Act, engine: PostgresEngine, dsn: str, dice: random.Random) -> None:
    for _ in range(ROUNDS):
        # The call was repeated too often, or the queue was just dropped: both may happen here.
        with contextlib.suppress(EngineUnavailable, OutcomeUnknown, UnknownQueue):
            await act(engine, dsn, dice)


def _some(dice: random.Random) -> list[str]:
    """About half of the ids, ascending or descending."""
    return sorted(dice.sample(IDS, len(IDS) // 2), reverse=dice.random() < 0.5)


def _new_jobs(dice: random.Random) -> list[NewJob]:
    """Jobs of every kind: plain, with keys, in groups, with parents, of several queues."""
    ids = _some(dice)
    match dice.randrange(4):
        case 0:
            return [a_job(id_, queue=dice.choice(QUEUES)) for id_ in ids]
        case 1:
            policy = dice.choice(["keep", "replace", "merge"])
            return [a_job(id_, key=id_[-1], key_policy=policy) for id_ in ids]
        case 2:
            return [a_job(id_, queue=dice.choice(QUEUES), group=id_[-1]) for id_ in ids]
        case _:
            return [a_job(id_, after=dice.sample(IDS, 2), queue=dice.choice(QUEUES)) for id_ in ids]


async def _enqueue(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    await engine.enqueue(_new_jobs(dice))


async def _lease(engine: PostgresEngine, dice: random.Random) -> list[Lease]:
    queues, ids = tuple(dice.sample(QUEUES, len(QUEUES))), tuple(_some(dice))
    by_id = dice.random() < 0.3
    request = LeaseRequest(ids=ids, limit=25) if by_id else LeaseRequest(queues=queues, limit=25)
    return await engine.lease(request)


def _settlements(leases: Sequence[Lease], dice: random.Random) -> list[Settlement]:
    verdicts: list[Verdict] = [Complete(b"1")] * 3
    if dice.random() < 0.6:
        then = tuple(_new_jobs(dice)[:3])
        verdicts += [Complete(then=then), Retry(), Release(), Bury(), Forward(dice.choice(QUEUES))]
    settlements = [Settlement(lease=lease, verdict=dice.choice(verdicts)) for lease in leases]
    dice.shuffle(settlements)
    return settlements


async def _work(engine: PostgresEngine, dsn: str, dice: random.Random) -> None:
    leases = await _lease(engine, dice)
    note = Note(checkpoint=b"c") if dice.random() < 0.5 else None
    renewals = [Renewal(lease=lease, note=note) for lease in leases]
    renewed, _ = await asyncio.gather(
        engine.renew(dice.sample(renewals, len(renewals))),
        engine.settle(_settlements(leases[: len(leases) // 2], dice)),
    )
    await engine.settle(_settlements([lease for lease in renewed if lease], dice))


async def _operate(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    acts: list[Amendment] = [
        Cancel(),
        Redrive(),
        Edit(payload=b"{}"),
        Retime(delay_ms=0),
        Expedite(),
        Delete(),
        Move(queue=dice.choice(QUEUES)),
    ]
    await engine.amend(JobFilter(ids=tuple(_some(dice))), dice.choice(acts), limit=50)


async def _configure(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    limits = (Limit(name=dice.choice("xy"), key="{tenant}", concurrency=dice.choice((1, 50))),)
    queue = Queue(name=dice.choice(QUEUES), limits=limits if dice.random() < 0.5 else ())
    await engine.declare(replace(queue, max_depth=dice.choice((None, 1000))))
    if dice.random() < 0.3:
        await engine.drop(queue.name)
        await engine.declare(queue)


async def _keep_up(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    overdue = await engine.overdue(50)
    await engine.settle([Settlement(lease=lease, verdict=Retry()) for lease in overdue.leases])
    await engine.expired(50)
    await engine.finished(50)
    await engine.recount(50)


async def _save(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    await engine.save([Record(kind="test", key=id_, value=b"1", version=0) for id_ in _some(dice)])


async def _move(engine: PostgresEngine, _: str, dice: random.Random) -> None:
    mover = engine.mover()
    wholes = list((await mover.jobs(after=0, limit=50, bytes_max=10**6)).wholes)
    dice.shuffle(wholes)
    added = [replace(whole.job, id=f"moved-{whole.job.id}", key=None) for whole in wholes]
    await mover.adopt([replace(whole, job=job) for whole, job in zip(wholes, added, strict=True)])


async def _within(engine: PostgresEngine, dsn: str, dice: random.Random) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        leases = await _lease(engine, dice)
        async with connection.transaction():
            within = engine.within(connection)
            assert isinstance(within, AsyncPostgresWithin)
            if dice.random() < 0.5:
                await within.enqueue(_new_jobs(dice))
            else:
                await within.settle(_settlements(leases, dice))
    finally:
        await connection.close()


ACTS: list[Act] = [
    _enqueue, _enqueue, _work, _work, _operate, _configure, _keep_up, _save, _move, _within,
]  # fmt: skip


async def test_no_job_is_leased_twice(wide_engine: PostgresEngine) -> None:
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
    assert len({job.token for job in taken}) == JOBS, "each lease has its own token"
