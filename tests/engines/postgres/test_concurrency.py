"""Many processes on one store: workers, producers, a reaper, crashed workers and an operator, on
queues with limits, groups, dependencies and fairness, while a watcher checks invariants."""

import asyncio
import os
import random
from collections import defaultdict
from typing import Any

import asyncpg
import pytest

from holdfast.core import retry_policy
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Edit, Expedite, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine
from tests.engines.postgres.until import deadlocks

LEASERS = 8
PRODUCERS = 3
BATCHES = 20
QUEUES = (
    Queue(
        name="limited",
        lease_ms=60_000,
        max_attempts=0,
        limits=(
            Limit(name="shared", concurrency=12),
            Limit(name="tenant", key="{tenant}", concurrency=3),
        ),
    ),
    Queue(
        name="fair",
        lease_ms=60_000,
        max_attempts=0,
        fairness="shares",
        weights={"t0": 3},
        limits=(Limit(name="shared", concurrency=10),),
    ),
    Queue(name="plain", lease_ms=60_000, max_attempts=0),
)

# In one snapshot: slots over their limit, slots that differ from their leases, groups with two
# leased jobs, leased children with an open edge, and wrong counts of holds.
WATCH = """
SELECT
    (SELECT count(*) FROM slots s JOIN bounds b ON b.name = s.name WHERE s.used > b.concurrency
        AND b.concurrency = (SELECT max(x.concurrency) FROM bounds x WHERE x.name = s.name)),
    (SELECT count(*) FROM slots s LEFT JOIN freed_slots f ON f.slot = s.number
        WHERE s.used - coalesce(f.count_, 0) <> (
        SELECT count(*) FROM jobs j JOIN lanes l ON l.number = j.lane
        WHERE j.state = 1 AND s.number = ANY (l.slots))),
    (SELECT count(*) FROM (
        SELECT FROM jobs WHERE grp IS NOT NULL AND state = 1 GROUP BY queue, grp
        HAVING count(*) > 1) g),
    (SELECT count(*) FROM jobs j JOIN edges e ON e.child = j.seq WHERE j.state = 1),
    (SELECT count(*) FROM jobs j WHERE j.state = 0 AND j.holds % 1000000 <> ((j.flow >> 4) & 1)
        + (SELECT count(*) FROM edges e WHERE e.child = j.seq))
"""


class Crowd:
    """The shared state of all processes, and the loops that they run."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn = dsn
        self.dice = random.Random(seed)
        self.ids: list[str] = []
        self.after: dict[str, tuple[str, ...]] = {}
        self.finished: list[str] = []
        self.started: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.crashed: list[int] = []
        """Tokens of leases whose worker is gone."""
        self.producing = PRODUCERS
        self.checks = 0

    async def produce(self, number: int) -> None:
        engine = PostgresEngine(self.dsn, connections=1)
        await engine.open()
        for batch in range(BATCHES):
            jobs = [self.make(f"p{number}-{batch}-{n}") for n in range(self.dice.randint(1, 12))]
            receipts = await engine.enqueue(jobs)
            assert {receipt.status for receipt in receipts} == {"new"}
            self.ids += [job.id for job in jobs]
            self.after |= {job.id: job.after for job in jobs}
        await engine.close()
        self.producing -= 1

    def make(self, id_: str) -> NewJob:
        dice = self.dice
        known = self.ids[-200:]
        after = tuple(dice.sample(known, min(len(known), dice.choice((0, 0, 0, 1, 2)))))
        return NewJob(
            id=id_,
            task=dice.choice("ab"),
            queue=dice.choice(QUEUES).name,
            priority=dice.choice((0, 0, 5)),
            delay_ms=dice.choice((0, 0, 0, 20)),
            tenant=f"t{dice.randrange(5)}",
            # A group has jobs of one producer only, whose order of arrival is known.
            group=dice.choice((None, None, f"{id_.split('-', maxsplit=1)[0]}-{dice.randrange(3)}")),
            after=after,
            after_on="either",
        )

    async def lease(self) -> None:
        engine = PostgresEngine(self.dsn, connections=2)
        await engine.open()
        names = [queue.name for queue in QUEUES]
        while not self.is_over:
            self.dice.shuffle(names)
            request = LeaseRequest(
                queues=tuple(names), limit=self.dice.randint(1, 15), worker="w", wait_ms=50
            )
            leases = await engine.lease(request)
            kept = [lease for lease in leases if self.dice.random() > 0.1]
            self.crashed += [lease.token for lease in leases if lease not in kept]
            await self.work(engine, kept)
        await engine.close()

    async def work(self, engine: PostgresEngine, leases: list[Lease]) -> None:
        """Settle leases of a worker that lives."""
        for lease in leases:
            ended = set(self.finished)
            assert set(lease.job.after) <= ended, f"{lease.id} is early"
        await asyncio.sleep(self.dice.random() * 0.01)
        done = [lease for lease in leases if self.dice.random() > 0.15]
        # Before the settle: a child may be leased before its answer arrives.
        self.finished += [lease.id for lease in done]
        for lease in done:
            if lease.job.group is not None:
                self.started[lease.job.queue, lease.job.group].append(lease.id)
        ends = [Settlement(lease=lease, verdict=Complete()) for lease in done]
        ends += [Settlement(lease=lease, verdict=Retry(5)) for lease in leases if lease not in done]
        outcomes = await engine.settle(ends)
        assert set(outcomes) <= {Outcome.SETTLED}

    async def reap(self) -> None:
        """Reap; the leases of crashed workers are made overdue by hand, and no others: a live
        worker may be slow."""
        engine = PostgresEngine(self.dsn, connections=1)
        await engine.open()
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": "holdfast"})
        queues = {queue.name: queue for queue in QUEUES}
        while not self.is_over:
            crashed, self.crashed = self.crashed, []
            await connection.execute(
                "UPDATE jobs SET deadline_at = 1 WHERE state = 1 AND token = ANY ($1::bigint[])",
                crashed,
            )
            for lease in (await engine.overdue(100)).leases:
                verdict = retry_policy.after_overdue(queues[lease.job.queue], lease.job)
                await engine.settle([Settlement(lease=lease, verdict=verdict)])
            await engine.recount(100)
            await asyncio.sleep(0.05)
        await connection.close()
        await engine.close()

    async def operate(self) -> None:
        engine = PostgresEngine(self.dsn, connections=1)
        await engine.open()
        while not self.is_over:
            if self.ids:
                wanted = JobFilter(ids=tuple(self.dice.sample(self.ids, min(len(self.ids), 5))))
                act = self.dice.choice((Expedite(), Edit(priority=3), Edit(labels={"a": "b"})))
                await engine.amend(wanted, act, limit=5)
            await asyncio.sleep(0.02)
        await engine.close()

    async def watch(self) -> None:
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": "holdfast"})
        while not self.is_over:
            async with connection.transaction(isolation="repeatable_read"):
                violations = tuple(await connection.fetchrow(WATCH))
            assert violations == (0, 0, 0, 0, 0)
            self.checks += 1
            await asyncio.sleep(0.01)
        await connection.close()

    @property
    def is_over(self) -> bool:
        return not self.producing and len(set(self.finished)) >= len(self.ids)


@pytest.mark.timeout(300)
async def test_many_processes_on_one_store(pg_dsn: str, look: Any) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(2**32))
    print(f"again: HOLDFAST_SEED={seed} ./hf test tests/engines/postgres/test_concurrency.py")
    engine = PostgresEngine(pg_dsn)
    await engine.open()
    for queue in QUEUES:
        await engine.declare(queue)
    crowd = Crowd(pg_dsn, seed)
    async with asyncio.timeout(240):
        async with asyncio.TaskGroup() as tasks:
            for number in range(PRODUCERS):
                tasks.create_task(crowd.produce(number))
            for _ in range(LEASERS):
                tasks.create_task(crowd.lease())
            for watcher in (crowd.reap, crowd.operate, crowd.watch):
                tasks.create_task(watcher())
    await _check(engine, look, crowd)


async def _check(engine: PostgresEngine, look: Any, crowd: Crowd) -> None:
    states = await look.fetch("SELECT state, count(*) FROM all_jobs GROUP BY state")
    assert [tuple(row) for row in states] == [(2, len(crowd.ids))]
    orders = await look.fetch("""
        SELECT q.name, j.grp, array_agg(j.id ORDER BY j.seq) FROM all_jobs j
        JOIN queues q ON q.number = j.queue WHERE j.grp IS NOT NULL GROUP BY 1, 2
    """)
    for queue, group, ids in orders:
        assert crowd.started[queue, group] == ids
    assert await engine.recount(1_000) == 0
    assert await look.fetchval("SELECT count(*) FROM slots WHERE used <> 0") == 0
    assert await look.fetchval("SELECT count(*) FROM heads") == 0
    assert await look.fetchval("SELECT count(*) FROM endings") == 0
    assert crowd.checks > 10
    assert await deadlocks(look, engine) == 0
