"""Many callers at once: each race has one winner, and the sums are right.

Which caller wins is not the engine's business, so nothing here looks at the reference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from holdfast.core.model import JobFilter, Record, Renewal, State, Status
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
from holdfast.testing.contract.making import a_job, a_queue, from_default, jobs, leased, settle
from holdfast.testing.harness import Harness

T = TypeVar("T")
CALLERS = 20


async def at_once(calls: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*calls))


async def engines_of(harness: Harness) -> list[Engine]:
    """Two processes' engines where a store can be shared, else twice the same."""
    return [harness.engine, await harness.another() or harness.engine]


class Concurrency:
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

    async def test_crossing_batches_do_not_block_each_other(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        ids = [f"j{n}" for n in range(50)]
        calls = [
            engines[n % 2].enqueue([a_job(id_, key=id_) for id_ in (ids if n % 3 else ids[::-1])])
            for n in range(CALLERS)
        ]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        assert sum(receipt.status is Status.NEW for receipt in receipts) == 50

    async def test_a_key_is_given_to_one_of_many(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        calls = [engines[n % 2].enqueue([a_job(f"j{n}", key="k")]) for n in range(CALLERS)]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        new = [receipt for receipt in receipts if receipt.status is Status.NEW]
        assert len(new) == 1
        assert {receipt.id for receipt in receipts} == {new[0].id}

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

    async def test_law_08_many_repeats_of_a_settle_count_once(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        lease = await leased(harness.engine)
        verdict = Complete(then=(a_job("x"),))
        outcomes = await at_once(settle(engines[n % 2], lease, verdict) for n in range(CALLERS))
        assert set(outcomes) == {Outcome.SETTLED}
        x = await harness.engine.get("x")
        assert x is not None
        assert x.version == 1

    async def test_a_late_worker_races_the_reaper_and_the_next_worker(
        self, harness: Harness
    ) -> None:
        """Whoever comes first: the job is done once, and a loser is told."""
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

    async def test_renewals_race_a_settle(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        lease = await leased(harness.engine)
        calls = [engines[n % 2].renew([Renewal(lease=lease)]) for n in range(CALLERS)]
        outcome, *_ = await asyncio.gather(settle(harness.engine, lease, Complete()), *calls)
        assert outcome is Outcome.SETTLED
        job = await harness.engine.get("a")
        assert job is not None
        assert (job.state, job.deadline_at) == (State.DONE, None)

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

    async def test_the_depth_is_never_passed(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        await harness.engine.declare(a_queue(max_depth=7))
        calls = [engines[n % 2].enqueue([a_job(f"j{n}a"), a_job(f"j{n}b")]) for n in range(CALLERS)]
        receipts = [receipt for batch in await at_once(calls) for receipt in batch]
        assert Counter(receipt.code for receipt in receipts) == {"": 7, "queue_full": 33}
        (view,) = await harness.engine.queues()
        assert view.ready == 7

    async def test_one_of_many_saves_a_version(self, harness: Harness) -> None:
        engines = await engines_of(harness)
        for version in range(5):
            record = Record(kind="setting", key="a", value=b"%d" % version, version=version)
            answers = await at_once(engines[n % 2].save([record]) for n in range(CALLERS))
            assert Counter(answer for (answer,) in answers) == {
                Saved.SAVED: 1,
                Saved.STALE: CALLERS - 1,
            }

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
