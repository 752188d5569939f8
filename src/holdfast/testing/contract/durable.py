"""For engines whose store outlives them: what was answered is still there."""

from __future__ import annotations

from holdfast.core.model import JobFilter, Note, Record, Renewal, State
from holdfast.core.verdict import Bury, Cancel, Complete, Outcome, Redrive, Release, Retry
from holdfast.engines.base import Saved
from holdfast.testing.contract.making import (
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
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class DurableContract:
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
        assert (await twin.the("c")).state is State.DONE

    async def test_law_01_nothing_depends_on_closing(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        lease = await lease_one(twin)
        done = await lease_one(twin)
        await settle(twin, done, Complete(b"r"))
        twin.engine = await harness.abandon()
        await twin.agree()
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    async def test_a_lease_goes_on_through_a_restart(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        twin.engine = await harness.restart()
        harness.clock.advance(lease.lease_ms - 1)
        assert (await twin.overdue()).next_ms == 1
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

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
        assert (await twin.the("a")).state is State.LEASED

    async def test_law_03_tokens_and_arrival_go_on_growing(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        for _ in range(3):
            await settle(twin, lease, Retry())
            twin.engine = await harness.restart()
            again = await lease_one(twin)
            assert again.token > lease.token
            lease = again
        await twin.enqueue(jobs("b"))
        assert (await twin.the("b")).seq > before.seq

    async def test_the_line_keeps_its_order(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abcd"))
        await settle(twin, await lease_one(twin), Retry())
        twin.engine = await harness.restart()
        await twin.enqueue(jobs("e"))
        assert await lease_ids(twin) == ["b", "c", "d", "a", "e"]

    async def test_opening_again_changes_no_settings(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("default", lease_ms=77, paused=True))
        twin.engine = await harness.restart()
        assert (await twin.queues())[0].queue == a_queue("default", lease_ms=77, paused=True)
        saved = await twin.save([Record(kind="setting", key="s", value=b"1")])
        assert saved == [Saved.SAVED]
