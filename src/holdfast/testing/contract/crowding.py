"""Many callers at once on jobs that bound each other: no limit is exceeded, no order broken.

Which caller wins is not the engine's business, so nothing here looks at the reference. What a
caller sees is what counts: it has a job from the answer of its lease to the call of its settle.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

from holdfast.core.model import Lease, Queue
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.base import Engine
from holdfast.testing.contract.concurrency import engines_of
from holdfast.testing.contract.making import a_job, a_limit, a_queue, from_default
from holdfast.testing.harness import Harness

LEASERS = 8
PATIENCE_S = 60


class Crowd:
    """Leasers that work a queue off together, watched by `look` at every start and end."""

    def __init__(self, engines: list[Engine], count: int, *, limit: int = 3) -> None:
        self.held: dict[str, Lease] = {}
        self.started: list[str] = []
        self.ended: set[str] = set()
        """Those that somebody has begun to complete."""
        self.done: set[str] = set()
        self._engines = engines
        self._count = count
        self._limit = limit

    async def run(self, look: Callable[[Crowd], None]) -> None:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for number in range(LEASERS):
                group.create_task(self._work(self._engines[number % 2], number, look))
        assert len(self.done) == self._count

    async def _work(self, engine: Engine, number: int, look: Callable[[Crowd], None]) -> None:
        turn = 0
        while len(self.done) < self._count:
            turn += 1
            request = from_default(self._limit, worker=f"w{number}", wait_ms=20)
            leases = await engine.lease(request)
            for lease in leases:
                assert lease.id not in self.held, f"{lease.id} is leased twice"
                self.held[lease.id] = lease
                self.started.append(lease.id)
            look(self)
            await asyncio.sleep(0)
            for lease in leases:
                del self.held[lease.id]
            # Some come back, so that slots are given back in more than one way.
            again = {lease.id for lease in leases if lease.job.attempt == 1 and turn % 5 == 0}
            self.ended |= {lease.id for lease in leases} - again
            outcomes = await engine.settle(
                [
                    Settlement(lease=lease, verdict=Retry() if lease.id in again else Complete())
                    for lease in leases
                ]
            )
            assert outcomes == [Outcome.SETTLED] * len(leases)
            self.done |= {lease.id for lease in leases} - again


async def crowd(
    harness: Harness, queue: Queue, count: int, **fields: Callable[[int], object]
) -> Crowd:
    """Jobs whose fields are made from their number."""
    engines = await engines_of(harness)
    await harness.engine.declare(queue)
    await harness.engine.enqueue(
        [
            a_job(f"j{n:03}", **{name: make(n) for name, make in fields.items()})
            for n in range(count)
        ]
    )
    return Crowd(engines, count)


class Crowding:
    async def test_law_16_many_leasers_keep_to_a_limit(self, harness: Harness) -> None:
        queue = a_queue(
            limits=(a_limit("all", concurrency=7), a_limit("each", concurrency=2, key="{tenant}"))
        )
        many = await crowd(harness, queue, 90, tenant=lambda n: f"t{n % 5}")

        def look(crowd: Crowd) -> None:
            assert len(crowd.held) <= 7
            tenants = Counter(lease.job.tenant for lease in crowd.held.values())
            assert max(tenants.values(), default=0) <= 2

        await many.run(look)
        flow = await harness.engine.flow("default", limit=10)
        assert flow.slots == ()
        assert await harness.engine.recount(1_000) == 0

    async def test_law_15_many_leasers_keep_the_order_of_groups(self, harness: Harness) -> None:
        many = await crowd(harness, a_queue(), 90, group=lambda n: f"g{n % 6}")

        def look(crowd: Crowd) -> None:
            groups = Counter(lease.job.group for lease in crowd.held.values())
            assert max(groups.values(), default=0) <= 1

        await many.run(look)
        self._check_order(many, 6)

    async def test_law_15_many_leasers_and_batches_of_groups(self, harness: Harness) -> None:
        many = await crowd(harness, a_queue(group_batch=3), 90, group=lambda n: f"g{n % 6}")

        def look(crowd: Crowd) -> None:
            workers = defaultdict(set)
            for lease in crowd.held.values():
                workers[lease.job.group].add(lease.job.worker)
            assert all(len(each) == 1 for each in workers.values())

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    async def test_law_17_many_leasers_and_a_family(self, harness: Harness) -> None:
        """Each job comes after the two before it, ten such families beside each other."""
        many = await crowd(
            harness,
            a_queue(),
            80,
            after=lambda n: tuple(f"j{parent:03}" for parent in (n - 10, n - 20) if parent >= 0),
        )

        def look(crowd: Crowd) -> None:
            for lease in crowd.held.values():
                assert crowd.ended.issuperset(lease.job.after)

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    async def test_many_leasers_starve_nobody(self, harness: Harness) -> None:
        queue = a_queue(
            fairness="shares", limits=(a_limit(concurrency=4, key="{tenant}"),), aging_ms=10
        )
        many = await crowd(
            harness, queue, 120, tenant=lambda n: f"t{n % 3}", priority=lambda n: n % 4
        )

        def look(crowd: Crowd) -> None:
            tenants = Counter(lease.job.tenant for lease in crowd.held.values())
            assert max(tenants.values(), default=0) <= 4

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    async def test_all_at_once_for_one_slot(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        await harness.engine.declare(a_queue(limits=(a_limit(concurrency=1),)))
        await harness.engine.enqueue([a_job(f"j{n}") for n in range(LEASERS)])
        calls = [engines[n % 2].lease(from_default(2, worker=f"w{n}")) for n in range(LEASERS)]
        batches = await asyncio.gather(*calls)
        # Whoever finds the slot busy comes back empty; nobody gets a second one.
        assert sum(len(batch) for batch in batches) == 1

    @staticmethod
    def _check_order(many: Crowd, groups: int) -> None:
        for group in range(groups):
            first = list(
                dict.fromkeys(id_ for id_ in many.started if int(id_[1:]) % groups == group)
            )
            assert first == sorted(first)
