"""Contracts by kind of store: durable, shared, and independent of the wall clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    CRASH,
    ERROR,
    a_job,
    a_limit,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    leased,
    needs,
    reap,
    settle,
)
from holdfast.conformance.contract.lease_wait import ids_of, patient, settled
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.bounds import DAY_MS
from holdfast.core.model import JobFilter, Note, Record, Renewal, State, Status
from holdfast.core.verdict import Bury, Cancel, Complete, Outcome, Redrive, Release, Retry
from holdfast.engines.base import Engine, Saved


class DurableContract:
    """For durable engines: answered calls survive a restart."""

    @needs("limits", "keep_order")
    async def test_law_01_everything_answered_survives_a_restart(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave", order="keep", max_depth=50))
        await twin.enqueue([a_job(id_, queue="q", payload=b"\x00\xff") for id_ in "abcdefg"])
        await twin.enqueue([a_job("late", delay_ms=5_000), a_job("keyed", key="k")])
        leases = await twin.lease(from_default(5, queues=("q",)))
        await twin.renew([Renewal(lease=leases[4], note=Note(progress=0.5, checkpoint=b"c"))])
        await settle(twin, leases[0], Complete(b"r", (a_job("next"),)))
        await settle(twin, leases[1], Retry(10, CRASH))
        await settle(twin, leases[3], Release(alone=True))
        await settle(twin, leases[2], Bury(failure=ERROR))
        await twin.amend(JobFilter(ids=("d", "f")), Cancel(by="ann"))
        await twin.save([Record(kind="setting", key="s", value=b"\x00")])
        twin.engine = await harness.restart()
        await twin.agree()
        harness.clock.advance(5)
        kept = (await twin.load("setting"))[0]
        assert (kept.version, kept.age_ms) == (1, 5)
        assert (await twin.enqueue([a_job("other", key="k")]))[0].id == "keyed"
        assert (await twin.renew([Renewal(lease=leases[4])]))[0] is not None

    @needs("limits")
    async def test_law_01_flow_survives_a_restart(self, harness: Harness, twin: Twin) -> None:
        limits = (a_limit(concurrency=2, key="{tenant}"), a_limit("r", rate="1/100", burst=4))
        await twin.declare(a_queue(limits=limits, fairness="shares", group_batch=2))
        await twin.enqueue([a_job(f"{t}{n}", tenant=t, group=t) for n in range(4) for t in "xyz"])
        await twin.enqueue([a_job("c", tenant="c", after=("x0", "y0"), parent_death="hold")])
        held = await twin.lease(from_default(3))
        await settle(twin, held[0], Bury())
        for _ in range(2):
            twin.engine = await harness.restart()
            await twin.agree()
            held += await twin.lease(from_default(3))
            harness.clock.advance(100)
        await end(twin, *held[1:])
        await twin.amend(JobFilter(states=(State.DEAD,)), Redrive())
        await twin.agree()
        while leases := await twin.lease(from_default(3)):
            twin.engine = await harness.abandon()
            await end(twin, *leases)
            harness.clock.advance(400)
        assert (await twin.require("c")).state is State.DONE

    async def test_law_01_nothing_depends_on_closing(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        lease = await lease_one(twin)
        done = await lease_one(twin)
        await settle(twin, done, Complete())
        twin.engine = await harness.abandon()
        await twin.agree()
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("overdue")
    async def test_a_lease_goes_on_through_a_restart(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        twin.engine = await harness.restart()
        harness.clock.advance(lease.lease_ms - 1)
        assert (await twin.overdue()).next_ms == 1
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("overdue")
    async def test_a_zombies_lease_is_lost_after_a_restart(
        self, harness: Harness, twin: Twin
    ) -> None:
        zombie = await leased(twin)
        harness.clock.advance(zombie.lease_ms)
        twin.engine = await harness.restart()
        await reap(twin)
        fresh = await lease_one(twin)
        assert fresh.token > zombie.token
        assert await settle(twin, zombie, Complete()) is Outcome.LOST
        assert (await twin.require("a")).state is State.LEASED

    @needs("fencing", "ordered")
    async def test_law_03_tokens_and_arrival_go_on_growing(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        for _ in range(3):
            await settle(twin, lease, Retry())
            twin.engine = await harness.restart()
            again = await lease_one(twin)
            assert again.token > lease.token
            lease = again
        await twin.enqueue(jobs("b"))
        assert (await twin.require("b")).seq > before.seq

    @needs("ordered")
    async def test_the_line_keeps_its_order(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abcd"))
        await settle(twin, await lease_one(twin), Retry())
        twin.engine = await harness.restart()
        await twin.enqueue(jobs("e"))
        assert await lease_ids(twin) == ["b", "c", "d", "a", "e"]

    @needs("records")
    async def test_opening_again_changes_no_settings(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("default", lease_ms=77, paused=True))
        twin.engine = await harness.restart()
        assert (await twin.queues())[0].queue == a_queue("default", lease_ms=77, paused=True)
        saved = await twin.save([Record(kind="setting", key="s", value=b"1")])
        assert saved == [Saved.SAVED]


async def another(harness: Harness) -> Engine:
    engine = await harness.another()
    assert engine is not None
    return engine


class SharedWaitContract:
    """A change by one engine wakes a lease that waits in another."""

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

    @needs("limits")
    async def test_a_slot_that_one_frees_ends_the_wait_of_the_other(self, harness: Harness) -> None:
        second = await another(harness)
        await harness.engine.declare(a_queue(limits=(a_limit(concurrency=1),)))
        await harness.engine.enqueue(jobs("ab"))
        lease = await lease_one(harness.engine)
        with patient(second) as task:
            await settled(task)
            await end(harness.engine, lease)
            assert await ids_of(task) == ["b"]

    @needs("dependencies")
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

    @needs("groups")
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


class SharedContract(SharedWaitContract):
    """For engines whose store several processes may open."""

    @needs("limits")
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
        assert (await twin.require("z")).state is State.DONE

    async def test_writes_of_one_engine_are_visible_to_the_other(
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

    @needs("prompt_settings")
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

    @needs("prompt_settings")
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

    @needs("fencing")
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

    @needs("fencing")
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

    @needs("keys")
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


class JumpContract:
    """For engines whose leases do not depend on the wall clock: it may jump."""

    @needs("renew")
    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS, 3_600_000, -3_600_000])
    async def test_a_jump_neither_ends_nor_stretches_a_lease(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(10_000)
        harness.clock.jump(jump)
        overdue = await twin.overdue()
        assert (overdue.leases, overdue.next_ms) == ((), 20_000)
        (renewed,) = await twin.renew([Renewal(lease=lease)])
        assert renewed is not None
        assert renewed.job.deadline_at == harness.clock.wall_ms() + 30_000
        harness.clock.advance(30_000)
        assert (await twin.renew([Renewal(lease=lease)])) == [None]
        assert await reap(twin) == [Outcome.SETTLED]

    @needs("delay_ms_max", "exact_counts")
    async def test_jobs_go_by_the_wall_clock(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", delay_ms=DAY_MS), a_job("b", expires_ms=DAY_MS)])
        harness.clock.jump(DAY_MS)
        assert await lease_ids(twin) == ["a"]
        harness.clock.jump(-DAY_MS)
        assert (await twin.queues())[0].ready == 1
        assert await lease_ids(twin) == ["b"]

    @needs("exact_counts")
    async def test_after_a_jump_back_what_was_due_waits_and_new_jobs_do_not(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("a"))
        harness.clock.jump(-DAY_MS)
        await twin.enqueue(jobs("b"))
        lease_now = await lease_ids(twin)
        assert lease_now == ["b"]
        assert (await twin.queues())[0].delayed == 1
        harness.clock.advance(DAY_MS)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect", "fencing")
    async def test_settling_after_a_jump_back(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.jump(-DAY_MS)
        now = harness.clock.wall_ms()
        await settle(twin, lease, Retry())
        assert (await twin.require("a")).due_at == now
        (id_,) = await lease_ids(twin)
        assert id_ == "a"
        lease_again = await twin.require("a")
        assert lease_again.leased_at == now
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    @needs("rates")
    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS])
    async def test_a_jump_neither_opens_nor_closes_a_rate(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        await twin.enqueue(jobs("abc"))
        harness.clock.advance(DAY_MS)
        await twin.declare(a_queue(limits=(a_limit(rate="1/1000"),)))
        assert await lease_ids(twin) == ["a"]
        harness.clock.jump(jump)
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        harness.clock.jump(-jump)
        assert await lease_ids(twin) == ["b"]

    @needs("fairness")
    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS])
    async def test_a_jump_in_the_books_of_tenants(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        await twin.declare(a_queue(fairness="noisy"))
        await twin.enqueue([a_job("a", tenant="x"), a_job("b", tenant="y"), a_job("c", tenant="x")])
        (a, b) = [await lease_ids(twin, limit=1) for _ in range(2)]
        assert (a, b) == (["a"], ["b"])
        harness.clock.jump(jump)
        assert await reap(twin) == []
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED] * 2
        await twin.flow()
