"""For engines that several processes may open on one store: they see one truth."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.model import JobFilter, Record, Renewal, State, Status
from holdfast.core.verdict import Cancel, Complete, Outcome, Retry
from holdfast.engines.base import Engine, Saved
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.contract.waiting import ids_of, patient, settled
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


async def another(harness: Harness) -> Engine:
    engine = await harness.another()
    assert engine is not None
    return engine


class SharedWaiting:
    async def test_a_job_of_one_ends_the_wait_of_the_other(self, harness: Harness) -> None:
        second = await another(harness)
        with patient(second) as task:
            await settled(task)
            await harness.engine.enqueue(jobs("a"))
            assert await ids_of(task) == ["a"]

    async def test_a_retry_by_one_ends_the_wait_of_the_other(self, harness: Harness) -> None:
        second = await another(harness)
        lease = await leased(harness.engine)
        with patient(second) as task:
            await settled(task)
            assert await settle(harness.engine, lease, Retry()) is Outcome.SETTLED
            assert await ids_of(task) == ["a"]

    async def test_a_slot_that_one_frees_ends_the_wait_of_the_other(self, harness: Harness) -> None:
        second = await another(harness)
        await harness.engine.declare(a_queue(limits=(a_limit(concurrency=1),)))
        await harness.engine.enqueue(jobs("ab"))
        lease = await lease_one(harness.engine)
        with patient(second) as task:
            await settled(task)
            await end(harness.engine, lease)
            assert await ids_of(task) == ["b"]

    async def test_a_parent_that_one_ends_ends_the_wait_of_the_other(
        self, harness: Harness
    ) -> None:
        second = await another(harness)
        await harness.engine.enqueue([a_job("p"), a_job("a", after=("p",))])
        lease = await lease_one(harness.engine)
        with patient(second) as task:
            await settled(task)
            await end(harness.engine, lease)
            assert await ids_of(task) == ["a"]

    async def test_the_next_of_a_group_that_one_frees_ends_the_wait_of_the_other(
        self, harness: Harness
    ) -> None:
        second = await another(harness)
        await harness.engine.enqueue(jobs("ab", group="g"))
        lease = await lease_one(harness.engine)
        with patient(second) as task:
            await settled(task)
            await end(harness.engine, lease)
            assert await ids_of(task) == ["b"]


class SharedContract(SharedWaiting):
    async def test_limits_and_groups_and_children_over_two_engines(
        self, harness: Harness, twin: Twin
    ) -> None:
        second = await another(harness)
        limit = a_limit(concurrency=2, key="{tenant}")
        await twin.declare(a_queue(limits=(limit,), fairness="shares"))
        await twin.enqueue(
            [a_job(f"{t}{n}", tenant=t, group=f"g{n}") for n in range(3) for t in "xy"]
        )
        await twin.enqueue([a_job("z", tenant="z", after=("x0", "y1"))])
        for _ in range(10):
            for engine in (second, harness.engine):
                twin.engine = engine
                leases = await twin.lease(from_default(2))
                twin.engine = second
                await end(twin, *leases)
            await twin.agree()
        assert (await twin.the("z")).state is State.DONE

    async def test_what_one_writes_the_other_reads_at_once(
        self, harness: Harness, twin: Twin
    ) -> None:
        second = await another(harness)
        await twin.declare(a_queue("q", lease_ms=99))
        await twin.enqueue([a_job(queue="q")])
        twin.engine = second
        await twin.agree()
        assert await lease_ids(twin, queues=("q",)) == ["a"]
        twin.engine = harness.engine
        await twin.agree()

    async def test_settings_changed_by_one_hold_for_the_other(
        self, harness: Harness, twin: Twin
    ) -> None:
        second = await another(harness)
        await second.queues()
        await twin.enqueue(jobs("ab"))
        changed = a_queue(paused=True, accepting=False, lease_ms=50, retention_ms=1)
        await twin.declare(changed)
        twin.engine = second
        assert await lease_ids(twin) == []
        assert (await twin.enqueue(jobs("c")))[0].code == "not_accepting"
        await twin.declare(replace(changed, paused=False))
        twin.engine = harness.engine
        (lease,) = await twin.lease(from_default())
        assert lease.lease_ms == 50

    async def test_a_queue_dropped_by_one_is_unknown_to_the_other(
        self, harness: Harness, twin: Twin
    ) -> None:
        second = await another(harness)
        await twin.declare(a_queue("q"))
        await second.enqueue([])
        twin.engine = second
        lease = await leased(twin, queue="q")
        twin.engine = harness.engine
        await twin.drop("q")
        twin.engine = second
        assert (await twin.enqueue([a_job("b", queue="q")]))[0].code == "unknown_queue"
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    async def test_law_04_a_lease_may_be_used_through_either_and_is_fenced_in_both(
        self, harness: Harness, twin: Twin
    ) -> None:
        second = await another(harness)
        lease = await leased(twin)
        twin.engine = second
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        await twin.amend(JobFilter(), Cancel())
        twin.engine = harness.engine
        (renewed,) = await twin.renew([Renewal(lease=lease)])
        assert renewed is not None
        assert renewed.cancel_requested
        harness.clock.advance(lease.lease_ms)
        twin.engine = second
        await reap(twin)
        twin.engine = harness.engine
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    async def test_law_03_tokens_grow_over_both(self, harness: Harness, twin: Twin) -> None:
        engines = [harness.engine, await another(harness)]
        await twin.enqueue(jobs("a"))
        tokens = []
        for n in range(6):
            twin.engine = engines[n % 2]
            (lease,) = await twin.lease(from_default())
            tokens.append(lease.token)
            await settle(twin, lease, Retry())
        assert tokens == sorted(set(tokens))

    async def test_ids_keys_and_records_are_one(self, harness: Harness, twin: Twin) -> None:
        second = await another(harness)
        await twin.enqueue([a_job(key="k")])
        await twin.save([Record(kind="setting", key="s", value=b"1")])
        twin.engine = second
        receipts = await twin.enqueue([a_job(), a_job("b", key="k")])
        assert [(receipt.id, receipt.status) for receipt in receipts] == [
            ("a", Status.DUPLICATE)
        ] * 2
        assert await twin.save([Record(kind="setting", key="s", value=b"2")]) == [Saved.STALE]

    async def test_closing_one_leaves_the_other_open(self, harness: Harness, twin: Twin) -> None:
        second = await another(harness)
        await second.close()
        await twin.enqueue(jobs("a"))
        assert await lease_ids(twin) == ["a"]
