"""Many callers at once: each race has one winner, totals are right and no limit is exceeded.

Which caller wins is undefined, so the reference is not compared. A caller holds a job from the
answer of its lease to the call of its settle.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    from_default,
    jobs,
    leased,
    needs,
    settle,
)
from holdfast.conformance.harness import Harness
from holdfast.core.model import JobFilter, Lease, Queue, Record, Renewal, State, Status
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Cancel,
    Complete,
    Delete,
    Outcome,
    Redrive,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine, Saved

T = TypeVar("T")
CALLERS = 20


async def at_once(calls: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*calls))


async def engines_of(harness: Harness) -> list[Engine]:
    """Two engines on the store if it is shared, else the same one twice."""
    return [harness.engine, await harness.another() or harness.engine]


class ConcurrencyContract:
    """Races between callers."""

    @needs("fencing")
    async def test_law_03_each_job_is_leased_by_one_of_many(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        ids = [f"j{n}" for n in range(200)]
        await harness.engine.enqueue([a_job(id_) for id_ in ids])
        calls = [engines[n % 2].lease(from_default(13, worker=f"w{n}")) for n in range(CALLERS)]
        batches = await at_once(calls)
        taken = Counter(lease.id for batch in batches for lease in batch)
        # A caller may find the rows it wanted taken, and come back short; nobody gets one twice.
        while rest := await harness.engine.lease(from_default(100)):
            taken.update(lease.id for lease in rest)
        assert taken == Counter(ids)

    @needs("keys")
    async def test_an_id_is_new_to_one_of_many(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        calls = [engines[n % 2].enqueue(jobs("ab")) for n in range(CALLERS)]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        assert Counter((receipt.id, receipt.status) for receipt in receipts) == {
            ("a", Status.NEW): 1,
            ("b", Status.NEW): 1,
            ("a", Status.DUPLICATE): CALLERS - 1,
            ("b", Status.DUPLICATE): CALLERS - 1,
        }

    @needs("keys")
    async def test_crossing_batches_do_not_block_each_other(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        ids = [f"j{n}" for n in range(50)]
        calls = [
            engines[n % 2].enqueue([a_job(id_, key=id_) for id_ in (ids if n % 3 else ids[::-1])])
            for n in range(CALLERS)
        ]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        assert sum(receipt.status is Status.NEW for receipt in receipts) == 50

    @needs("keys")
    async def test_a_key_is_given_to_one_of_many(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        calls = [engines[n % 2].enqueue([a_job(f"j{n}", key="k")]) for n in range(CALLERS)]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        new = [receipt for receipt in receipts if receipt.status is Status.NEW]
        assert len(new) == 1
        assert {receipt.id for receipt in receipts} == {new[0].id}

    @needs("inspect", "fencing", "results")
    async def test_law_04_one_of_many_verdicts_ends_a_lease(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        for round_ in range(5):
            lease = await leased(harness.engine, id=f"j{round_}")
            verdicts: list[Verdict] = [Complete(b"r"), Bury()] * (CALLERS // 2)
            outcomes = await at_once(
                settle(engines[n // 2 % 2], lease, verdict) for n, verdict in enumerate(verdicts)
            )
            job = await harness.engine.get(lease.id)
            assert job is not None
            won = Complete if job.state is State.DONE else Bury
            for verdict, outcome in zip(verdicts, outcomes, strict=True):
                assert outcome is (Outcome.SETTLED if type(verdict) is won else Outcome.LOST)
            assert job.version == 3

    @needs("inspect", "fencing", "follow_ups")
    async def test_law_08_many_repeats_of_a_settle_count_once(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        lease = await leased(harness.engine)
        verdict = Complete(then=(a_job("x"),))
        outcomes = await at_once(settle(engines[n % 2], lease, verdict) for n in range(CALLERS))
        assert set(outcomes) == {Outcome.SETTLED}
        x = await harness.engine.get("x")
        assert x is not None
        assert x.version == 1

    @needs("inspect", "results")
    async def test_a_late_worker_races_the_reaper_and_the_next_worker(
        self, harness: Harness
    ) -> None:
        """Whichever call wins, the job is completed once and the loser gets LOST."""
        engines = await engines_of(harness)
        for round_ in range(10):
            id_ = f"j{round_}"
            lease = await leased(harness.engine, id=id_)
            harness.clock.advance(lease.lease_ms)
            outcome, reaped, taken = await asyncio.gather(
                settle(engines[0], lease, Complete(b"late")),
                settle(engines[1], lease, Retry()),
                engines[1].lease(from_default(queues=(), ids=(id_,))),
            )
            job = await harness.engine.get(id_)
            assert job is not None
            if outcome is Outcome.SETTLED:
                assert (job.state, job.result) == (State.DONE, b"late")
                assert taken == []
            else:
                assert reaped is Outcome.SETTLED
                assert job.token == taken[0].token
                await settle(engines[0], taken[0], Complete())

    @needs("inspect", "renew")
    async def test_renewals_race_a_settle(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        lease = await leased(harness.engine)
        calls = [engines[n % 2].renew([Renewal(lease=lease)]) for n in range(CALLERS)]
        outcome, *_ = await asyncio.gather(settle(harness.engine, lease, Complete()), *calls)
        assert outcome is Outcome.SETTLED
        job = await harness.engine.get("a")
        assert job is not None
        assert (job.state, job.deadline_at) == (State.DONE, None)

    @needs("inspect")
    async def test_amendments_count_each_job_once(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        await harness.engine.enqueue([a_job(f"j{n}") for n in range(60)])
        counts = await at_once(
            engines[n % 2].amend(JobFilter(), Cancel(by=f"p{n}"), limit=40) for n in range(6)
        )
        assert sum(counts) == 60
        acts: list[Amendment] = [Redrive(), Delete(), Redrive(), Delete()]
        cancelled = JobFilter(states=(State.CANCELLED,))
        counts = await at_once(
            engines[n % 2].amend(cancelled, act, limit=100) for n, act in enumerate(acts)
        )
        assert sum(counts) == 60

    @needs("exact_counts", "limits")
    async def test_the_depth_is_never_passed(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        await harness.engine.declare(a_queue(max_depth=7))
        calls = [engines[n % 2].enqueue([a_job(f"j{n}a"), a_job(f"j{n}b")]) for n in range(CALLERS)]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        assert Counter(receipt.code for receipt in receipts) == {"": 7, "queue_full": 33}
        (view,) = await harness.engine.queues()
        assert view.ready == 7

    @needs("records")
    async def test_one_of_many_saves_a_version(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        for version in range(5):
            record = Record(kind="setting", key="a", value=b"%d" % version, version=version)
            answers = await at_once(engines[n % 2].save([record]) for n in range(CALLERS))
            assert Counter(answer for (answer,) in answers) == {
                Saved.SAVED: 1,
                Saved.STALE: CALLERS - 1,
            }

    @needs("exact_counts")
    async def test_many_workers_drain_a_queue(self, harness: Harness) -> None:
        """Every job is completed once, whatever is retried and released in between."""
        engines = await engines_of(harness)
        await harness.engine.enqueue([a_job(f"j{n}") for n in range(100)])
        completed: Counter[str] = Counter()

        async def work(number: int) -> None:
            engine = engines[number % 2]
            while leases := await engine.lease(from_default(7, worker=f"w{number}")):
                verdicts = [
                    Retry() if (n + number) % 5 == 0 and lease.job.attempt == 1
                    else Release() if (n + number) % 7 == 0 and lease.job.releases == 0
                    else Complete()
                    for n, lease in enumerate(leases)
                ]  # fmt: skip
                batch = [
                    Settlement(lease=lease, verdict=verdict)
                    for lease, verdict in zip(leases, verdicts, strict=True)
                ]
                outcomes = await engine.settle(batch)
                assert set(outcomes) == {Outcome.SETTLED}
                completed.update(
                    given.lease.id for given in batch if isinstance(given.verdict, Complete)
                )

        await at_once(work(number) for number in range(8))
        await work(8)
        assert completed == Counter(f"j{n}" for n in range(100))
        (view,) = await harness.engine.queues()
        assert (view.done, view.ready, view.leased) == (100, 0, 0)


LEASERS = 8
TIMEOUT_S = 60


class CallerCrowd:
    """Callers that work through a queue together; `look` checks every start and end."""

    def __init__(self, engines: list[Engine], count: int, *, limit: int = 3) -> None:
        self.held: dict[str, Lease] = {}
        self.started: list[str] = []
        self.ended: set[str] = set()
        """Jobs whose completion has begun."""
        self.done: set[str] = set()
        self._engines = engines
        self._count = count
        self._limit = limit

    async def run(self, look: Callable[[CallerCrowd], None]) -> None:
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            for number in range(LEASERS):
                group.create_task(self._work(self._engines[number % 2], number, look))
        assert len(self.done) == self._count

    async def _work(self, engine: Engine, number: int, look: Callable[[CallerCrowd], None]) -> None:
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
) -> CallerCrowd:
    """Jobs whose fields depend on their number."""
    engines = await engines_of(harness)
    await harness.engine.declare(queue)
    await harness.engine.enqueue(
        [
            a_job(f"j{n:03}", **{name: make(n) for name, make in fields.items()})
            for n in range(count)
        ]
    )
    return CallerCrowd(engines, count)


class FlowConcurrencyContract:
    """Races on limits, groups and dependencies."""

    @needs("limits")
    async def test_law_16_many_leasers_keep_to_a_limit(self, harness: Harness) -> None:
        queue = a_queue(
            limits=(a_limit("all", concurrency=7), a_limit("each", concurrency=2, key="{tenant}"))
        )
        many = await crowd(harness, queue, 90, tenant=lambda n: f"t{n % 5}")

        def look(crowd: CallerCrowd) -> None:
            assert len(crowd.held) <= 7
            tenants = Counter(lease.job.tenant for lease in crowd.held.values())
            assert max(tenants.values(), default=0) <= 2

        await many.run(look)
        flow = await harness.engine.flow("default", limit=10)
        assert flow.slots == ()
        assert await harness.engine.recount(1_000) == 0

    @needs("groups")
    async def test_law_15_many_leasers_keep_the_order_of_groups(self, harness: Harness) -> None:
        many = await crowd(harness, a_queue(), 90, group=lambda n: f"g{n % 6}")

        def look(crowd: CallerCrowd) -> None:
            groups = Counter(lease.job.group for lease in crowd.held.values())
            assert max(groups.values(), default=0) <= 1

        await many.run(look)
        self._check_order(many, 6)

    @needs("groups")
    async def test_law_15_many_leasers_and_batches_of_groups(self, harness: Harness) -> None:
        many = await crowd(harness, a_queue(group_batch=3), 90, group=lambda n: f"g{n % 6}")

        def look(crowd: CallerCrowd) -> None:
            workers = defaultdict(set)
            for lease in crowd.held.values():
                workers[lease.job.group].add(lease.job.worker)
            assert all(len(each) == 1 for each in workers.values())

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    @needs("dependencies")
    async def test_law_17_many_leasers_and_a_family(self, harness: Harness) -> None:
        """Each job is after the two before it; ten such chains run in parallel."""
        many = await crowd(
            harness,
            a_queue(),
            80,
            after=lambda n: tuple(f"j{parent:03}" for parent in (n - 10, n - 20) if parent >= 0),
        )

        def look(crowd: CallerCrowd) -> None:
            for lease in crowd.held.values():
                assert crowd.ended.issuperset(lease.job.after)

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    @needs("priority", "limits", "fairness")
    async def test_many_callers_starve_no_tenant(self, harness: Harness) -> None:
        queue = a_queue(
            fairness="shares", limits=(a_limit(concurrency=4, key="{tenant}"),), aging_ms=10
        )
        many = await crowd(
            harness, queue, 120, tenant=lambda n: f"t{n % 3}", priority=lambda n: n % 4
        )

        def look(crowd: CallerCrowd) -> None:
            tenants = Counter(lease.job.tenant for lease in crowd.held.values())
            assert max(tenants.values(), default=0) <= 4

        await many.run(look)
        assert await harness.engine.recount(1_000) == 0

    @needs("limits")
    async def test_all_at_once_for_one_slot(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        await harness.engine.declare(a_queue(limits=(a_limit(concurrency=1),)))
        await harness.engine.enqueue([a_job(f"j{n}") for n in range(LEASERS)])
        calls = [engines[n % 2].lease(from_default(2, worker=f"w{n}")) for n in range(LEASERS)]
        batches = await asyncio.gather(*calls)
        # Callers that find the slot busy get nothing; none gets a second slot.
        assert sum(len(batch) for batch in batches) == 1

    @staticmethod
    def _check_order(many: CallerCrowd, groups: int) -> None:
        for group in range(groups):
            first = list(
                dict.fromkeys(id_ for id_ in many.started if int(id_[1:]) % groups == group)
            )
            assert first == sorted(first)
