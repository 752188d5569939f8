"""Jobs past their expiry: who sees them, who buries them, and how one gets more time."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import policy
from holdfast.core.model import JobFilter, Overrides, Reason, Renewal, Reroute, State
from holdfast.core.verdict import Bury, Cancel, Complete, Delete, Edit, Move, Outcome
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    lease_ids,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class Expiring:
    async def test_law_09_expired_jobs_come_by_expiry_then_arrival(
        self, harness: Harness, twin: Twin
    ) -> None:
        assert (await twin.expired()).next_ms is None
        expiries = {"a": 20, "b": 10, "c": 20, "d": 5, "e": 30}
        await twin.enqueue([a_job(id_, expires_ms=at) for id_, at in expiries.items()])
        await twin.enqueue([a_job("never"), a_job("delayed", delay_ms=99, expires_ms=7)])
        assert (await twin.expired()).next_ms == 5
        harness.clock.advance(20)
        expired = await twin.expired()
        assert [job.id for job in expired.jobs] == ["d", "delayed", "b", "a", "c"]
        assert expired.next_ms == 10
        expired = await twin.expired(limit=2)
        assert [job.id for job in expired.jobs] == ["d", "delayed"]
        assert expired.next_ms == 0
        assert (await twin.expired(limit=5)).next_ms == 0
        assert (await twin.expired(limit=6)).next_ms == 10

    async def test_expired_jobs_are_buried_by_the_reapers_amendment(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", expires_ms=5), a_job("b", expires_ms=50)])
        harness.clock.advance(5)
        await lease_ids(twin)
        (job,) = (await twin.expired()).jobs
        wanted = JobFilter(ids=(job.id,), version=job.version, expired=True)
        assert await twin.amend(wanted, policy.after_expiry(job)) == 1
        buried = await twin.the("a")
        assert (buried.state, buried.reason) == (State.DEAD, Reason.EXPIRED)
        assert (buried.finished_at, buried.attempt) == (harness.clock.wall_ms(), 0)
        assert buried.events[0].by == "reaper"
        assert await twin.amend(wanted, policy.after_expiry(job)) == 0

    async def test_an_addressed_job_says_who_did_not_take_it(
        self, harness: Harness, twin: Twin
    ) -> None:
        queue = worker_queue("ann-1")
        await twin.declare(a_queue(queue))
        await twin.enqueue([a_job(queue=queue, expires_ms=ADDRESSED_EXPIRES_MS)])
        harness.clock.advance(ADDRESSED_EXPIRES_MS)
        (job,) = (await twin.expired()).jobs
        assert await twin.amend(JobFilter(ids=("a",)), policy.after_expiry(job)) == 1
        dead = await twin.the("a")
        assert (dead.queue, dead.state, dead.reason) == (queue, State.DEAD, Reason.EXPIRED)
        failure = dead.failures[0].failure
        assert failure is not None
        assert failure.message == "worker ann-1 did not take it within its TTL of 5m"

    async def test_expiry_of_a_finished_or_missing_job_changes_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job(id_, expires_ms=5) for id_ in "abcde"])
        await settle(twin, await lease_one(twin), Complete(b"r"))
        await settle(twin, await lease_one(twin), Bury())
        await twin.amend(JobFilter(ids=("c",)), Cancel())
        await lease_one(twin)
        harness.clock.advance(5)
        (expired,) = (await twin.expired()).jobs
        assert expired.id == "e"
        await twin.amend(JobFilter(ids=("e",)), Delete())
        before = [await twin.get(id_) for id_ in "abcde"]
        assert [job and job.state for job in before] == [
            "done",
            "dead",
            "cancelled",
            "leased",
            None,
        ]
        late = JobFilter(ids=tuple("abcde"), expired=True)
        assert await twin.amend(late, policy.after_expiry(expired)) == 0
        assert await twin.amend(JobFilter(ids=tuple("abcde")), policy.after_expiry(expired)) == 0
        assert [await twin.get(id_) for id_ in "abcde"] == before

    async def test_the_time_to_live_of_a_waiting_job_can_be_changed_at_any_time(
        self, harness: Harness, twin: Twin
    ) -> None:
        a = JobFilter(ids=("a",))
        await twin.enqueue([a_job(expires_ms=1_000), a_job("never")])
        for expires_ms in (5_000, 20, 300):
            assert await twin.amend(a, Edit(expires_ms=expires_ms)) == 1
            assert (await twin.expired()).next_ms == expires_ms
            harness.clock.advance(10)
        assert await twin.amend(JobFilter(ids=("never",)), Edit(expires_ms=100)) == 1
        assert (await twin.expired()).next_ms == 100
        await twin.amend(JobFilter(ids=("never",)), Delete())
        assert await twin.amend(a, Edit(expires_ms=0)) == 1
        expired = await twin.expired()
        assert ([job.id for job in expired.jobs], expired.next_ms) == (["a"], None)
        assert await lease_ids(twin) == []
        assert await twin.amend(a, Edit(expires_ms=40)) == 1
        expired = await twin.expired()
        assert (expired.jobs, expired.next_ms) == ((), 40)
        harness.clock.advance(39)
        assert await lease_ids(twin) == ["a"]

    async def test_an_expired_job_that_was_met_and_given_more_time_runs(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", expires_ms=5), a_job("b")])
        harness.clock.advance(5)
        assert await lease_ids(twin) == ["b"]
        assert await twin.amend(JobFilter(ids=("a",)), Edit(expires_ms=10)) == 1
        assert await lease_ids(twin) == ["a"]

    async def test_an_expired_job_that_a_lease_met_is_counted_as_before(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", expires_ms=5), a_job("b", expires_ms=5, delay_ms=20)])
        harness.clock.advance(5)
        for _ in range(2):
            assert await lease_ids(twin) == []
            (view,) = await twin.queues()
            assert (view.ready, view.delayed) == (0, 1)
        harness.clock.advance(15)
        (view,) = await twin.queues()
        assert (view.ready, view.delayed) == (0, 0)

    async def test_law_12_expiry_does_not_end_a_valid_lease(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin, expires_ms=5)
        harness.clock.advance(6)
        assert (await twin.expired()).jobs == ()
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        assert await twin.amend(JobFilter(expired=True), Delete()) == 0
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    async def test_what_expired_while_leased_is_not_leased_again(
        self, harness: Harness, twin: Twin
    ) -> None:
        await leased(twin, expires_ms=5)
        harness.clock.advance(30_000)
        await reap(twin)
        assert await lease_ids(twin) == []
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]

    async def test_a_move_may_give_more_time(self, harness: Harness, twin: Twin) -> None:
        """An expired job that goes on to another queue in one write, with what is left of its
        policy."""
        await twin.declare(a_queue("q"))
        policy = Overrides(max_attempts=9, reroute=Reroute(labels={"zone": "eu"}))
        await twin.enqueue([a_job("a", expires_ms=1_000, overrides=policy)])
        harness.clock.advance(1_000)
        left = Reroute(labels={"zone": "eu"}, done=1, ttl_ms=1_000)
        act = Move(by="reaper", queue="q", text="not taken", expires_ms=1_000, reroute=left)
        assert await twin.amend(JobFilter(ids=("a",), expired=True), act) == 1
        assert await twin.amend(JobFilter(ids=("a",), expired=True), act) == 0
        moved = await twin.the("a")
        assert moved.expires_at == harness.clock.wall_ms() + 1_000
        assert moved.overrides == replace(policy, reroute=left)
        assert moved.events[-1].text == "from default to q: not taken"
        assert await lease_ids(twin, queues=("q",)) == ["a"]
