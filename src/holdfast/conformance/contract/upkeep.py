"""The lists for reaper and pruner: overdue leases, expired jobs, finished jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    ERROR,
    a_job,
    a_limit,
    a_queue,
    case,
    jobs,
    lease_ids,
    lease_one,
    leased,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds, retry_policy
from holdfast.core.model import (
    EventKind,
    FailureKind,
    JobFilter,
    Note,
    Overrides,
    Reason,
    Renewal,
    Reroute,
    State,
)
from holdfast.core.verdict import (
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
)
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from holdfast.errors import UsageError


class ReapContract:
    """Overdue leases and finished jobs."""

    @needs("ordered")
    async def test_overdue_has_the_time_to_the_next_deadline(
        self, harness: Harness, twin: Twin
    ) -> None:
        assert (await twin.overdue()).next_ms is None
        await twin.enqueue(jobs("ab"))
        await lease_one(twin, lease_ms=100)
        await lease_one(twin, lease_ms=300)
        assert (await twin.overdue()).next_ms == 100
        harness.clock.advance(99)
        overdue = await twin.overdue()
        assert (overdue.leases, overdue.next_ms) == ((), 1)
        harness.clock.advance(1)
        overdue = await twin.overdue()
        assert [lease.id for lease in overdue.leases] == ["a"]
        assert overdue.next_ms == 200

    @needs("inspect", "ordered")
    async def test_law_09_overdue_comes_by_deadline_then_arrival(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("abcd"))
        for id_, lease_ms in (("c", 50), ("b", 50), ("d", 20), ("a", 90)):
            await lease_one(twin, queues=(), ids=(id_,), lease_ms=lease_ms)
        harness.clock.advance(90)
        overdue = await twin.overdue()
        assert [lease.id for lease in overdue.leases] == ["d", "b", "c", "a"]
        assert overdue.next_ms is None
        overdue = await twin.overdue(limit=2)
        assert [lease.id for lease in overdue.leases] == ["d", "b"]
        assert overdue.next_ms == 0
        assert (await twin.overdue(limit=4)).next_ms == 0

    @needs("renew", "notes")
    async def test_overdue_leases_can_be_settled_and_are_brief(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        await twin.renew([Renewal(lease=lease, note=Note(progress=0.5, checkpoint=b"c"))])
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        assert lapsed.token == lease.token
        assert lapsed.lease_ms == 0
        assert (lapsed.job.progress, lapsed.job.checkpoint, lapsed.job.output) == (None,) * 3

    @needs("inspect")
    async def test_a_reaped_job_waits_again_with_its_failure(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(30_000)
        now = harness.clock.wall_ms()
        assert await reap(twin) == [Outcome.SETTLED]
        job = await twin.require("a")
        assert (job.state, job.due_at, job.attempt, job.deadline_at) == ("waiting", now, 1, None)
        assert job.token == lease.token
        (event,) = job.events
        assert (event.kind, event.by, event.at) == (EventKind.RETRIED, "w", now)
        assert event.failure is not None
        assert event.failure.kind is FailureKind.OVERDUE
        assert (await twin.overdue()).leases == ()

    @needs("inspect")
    async def test_reaping_the_last_attempt_buries(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("default", max_attempts=1))
        await leased(twin)
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED]
        job = await twin.require("a")
        assert (job.state, job.reason) == (State.DEAD, Reason.ATTEMPTS)

    @needs("inspect", "results")
    async def test_two_reapers_and_a_late_worker_settle_once(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        verdict = retry_policy.after_overdue(a_queue(), lapsed.job)
        assert await settle(twin, lease, Complete(b"made it")) is Outcome.SETTLED
        assert await settle(twin, lapsed, verdict) is Outcome.LOST
        assert (await twin.require("a")).result == b"made it"

    @needs("inspect", "renew")
    async def test_law_12_the_reaper_ends_no_lease_that_was_renewed_since_it_looked(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        late = retry_policy.after_overdue(a_queue(), lease.job)
        last = retry_policy.after_overdue(a_queue(max_attempts=1), lease.job)
        for verdict in (late, last):
            assert await settle(twin, lease, verdict) is Outcome.LOST
        assert (await twin.require("a")).state is State.LEASED
        harness.clock.advance(lease.lease_ms - 1)
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        harness.clock.advance(lease.lease_ms - 1)
        assert await settle(twin, lease, last) is Outcome.LOST
        harness.clock.advance(1)
        assert await settle(twin, lease, late) is Outcome.SETTLED

    @needs("inspect", "refunds")
    async def test_law_06_an_attempt_given_back_in_time_is_not_held_against_the_job(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", max_attempts=1))
        lease = await leased(twin)
        harness.clock.advance(lease.lease_ms)
        (lapsed,) = (await twin.overdue()).leases
        last = retry_policy.after_overdue(a_queue(max_attempts=1), lapsed.job)
        assert await settle(twin, lease, Release("stopping")) is Outcome.SETTLED
        assert await settle(twin, lapsed, last) is Outcome.LOST
        job = await twin.require("a")
        assert (job.state, job.attempt) == (State.WAITING, 0)
        assert (await lease_one(twin)).job.attempt == 1

    @needs("inspect")
    async def test_a_repeat_of_the_reapers_verdict_is_harmless(
        self, harness: Harness, twin: Twin
    ) -> None:
        for queue in (a_queue("default"), a_queue("default", max_attempts=1)):
            await twin.declare(queue)
            await twin.amend(JobFilter(), Delete())
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms)
            verdict = retry_policy.after_overdue(queue, lease.job)
            for _ in range(2):
                assert await settle(twin, lease, verdict) is Outcome.SETTLED
                assert len((await twin.require("a")).events) == 1

    @needs("inspect", "fencing")
    async def test_a_reaper_with_a_stale_read_changes_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await leased(twin)
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        await reap(twin)
        fresh = await lease_one(twin)
        assert await settle(twin, lapsed, Bury(Reason.ATTEMPTS)) is Outcome.LOST
        assert (await twin.require("a")).token == fresh.token

    @needs("inspect")
    @pytest.mark.parametrize("size", [10, 100_000])
    async def test_lists_for_the_reaper_have_no_payload(
        self, harness: Harness, twin: Twin, size: int
    ) -> None:
        payload = b"x" * size
        lease = await leased(twin, payload=payload)
        await twin.enqueue([a_job("b", payload=payload, expires_ms=5)])
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        (expired,) = (await twin.expired()).jobs
        assert (lapsed.job.payload, expired.payload) == (b"", b"")
        await reap(twin)
        await twin.amend(JobFilter(ids=("b",)), retry_policy.after_expiry(expired))
        assert (await twin.require("a")).payload == (await twin.require("b")).payload == payload
        assert (await lease_one(twin)).job.payload == lease.job.payload == payload

    @needs("inspect", "renew", "ordered", "results", "notes")
    async def test_finished_jobs_past_retention_come_whole_and_in_order(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", retention_ms=100, dead_retention_ms=300))
        await twin.enqueue(jobs("abcd"))
        leases = {id_: await lease_one(twin) for id_ in "abcd"}
        await twin.renew([Renewal(lease=leases["b"], note=Note(checkpoint=b"c", output=b"o"))])
        done = [Settlement(lease=leases[id_], verdict=Complete(b"r")) for id_ in "ba"]
        await twin.settle(done)
        await settle(twin, leases["c"], Bury(Reason.ATTEMPTS, ERROR))
        await twin.amend(JobFilter(ids=("d",)), Cancel())
        harness.clock.advance(99)
        assert await twin.finished() == []
        harness.clock.advance(1)
        assert [job.id for job in await twin.finished()] == ["a", "b"]
        assert [job.id for job in await twin.finished(limit=1)] == ["a"]
        b = (await twin.finished())[1]
        assert (b.result, b.checkpoint, b.output) == (b"r", b"c", b"o")
        harness.clock.advance(200)
        *_, c = await twin.finished()
        assert c.id == "c"
        assert [event.failure for event in c.events] == [ERROR]

    @needs("overdue")
    async def test_a_dead_letter_is_kept_no_shorter_than_a_done_one(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", retention_ms=100, dead_retention_ms=10))
        await settle(twin, await leased(twin), Bury())
        harness.clock.advance(99)
        assert await twin.finished() == []
        harness.clock.advance(1)
        assert [job.id for job in await twin.finished()] == ["a"]

    @needs("overdue")
    async def test_retention_of_zero_and_a_changed_retention(
        self, harness: Harness, twin: Twin
    ) -> None:
        await settle(twin, await leased(twin), Complete())
        assert await twin.finished() == []
        await twin.declare(a_queue("default", retention_ms=0))
        assert [job.id for job in await twin.finished()] == ["a"]

    @needs("inspect")
    async def test_finished_jobs_are_deleted_by_version(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("default", retention_ms=0))
        await settle(twin, await leased(twin), Complete())
        (job,) = await twin.finished()
        stale = JobFilter(ids=("a",), version=job.version - 1)
        assert await twin.amend(stale, Delete()) == 0
        assert await twin.amend(replace(stale, version=job.version), Delete()) == 1
        assert await twin.get("a") is None
        assert await twin.finished() == []

    async def test_law_10_every_list_is_bounded(self, twin: Twin) -> None:
        for limit in (0, -1, bounds.PAGE_MAX + 1):
            with case(limit):
                with pytest.raises(UsageError):
                    await twin.overdue(limit)
                with pytest.raises(UsageError):
                    await twin.expired(limit)
                with pytest.raises(UsageError):
                    await twin.finished(limit)


class ExpiryContract:
    """Jobs past their expiry."""

    @needs("ordered")
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

    @needs("inspect")
    async def test_expired_jobs_are_buried_by_the_reapers_amendment(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", expires_ms=5), a_job("b", expires_ms=50)])
        harness.clock.advance(5)
        await lease_ids(twin)
        (job,) = (await twin.expired()).jobs
        wanted = JobFilter(ids=(job.id,), version=job.version, expired=True)
        assert await twin.amend(wanted, retry_policy.after_expiry(job)) == 1
        buried = await twin.require("a")
        assert (buried.state, buried.reason) == (State.DEAD, Reason.EXPIRED)
        assert (buried.finished_at, buried.attempt) == (harness.clock.wall_ms(), 0)
        assert buried.events[0].by == "reaper"
        assert await twin.amend(wanted, retry_policy.after_expiry(job)) == 0

    @needs("inspect")
    async def test_an_addressed_job_names_the_worker_that_did_not_take_it(
        self, harness: Harness, twin: Twin
    ) -> None:
        queue = worker_queue("ann-1")
        await twin.declare(a_queue(queue))
        await twin.enqueue([a_job(queue=queue, expires_ms=ADDRESSED_EXPIRES_MS)])
        harness.clock.advance(ADDRESSED_EXPIRES_MS)
        (job,) = (await twin.expired()).jobs
        assert await twin.amend(JobFilter(ids=("a",)), retry_policy.after_expiry(job)) == 1
        dead = await twin.require("a")
        assert (dead.queue, dead.state, dead.reason) == (queue, State.DEAD, Reason.EXPIRED)
        failure = dead.failures[0].failure
        assert failure is not None
        assert failure.message == "worker ann-1 did not take it within its TTL of 5m"

    @needs("inspect", "ordered", "results")
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
        assert await twin.amend(late, retry_policy.after_expiry(expired)) == 0
        assert (
            await twin.amend(JobFilter(ids=tuple("abcde")), retry_policy.after_expiry(expired)) == 0
        )
        assert [await twin.get(id_) for id_ in "abcde"] == before

    @needs("inspect")
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

    @needs("inspect")
    async def test_an_expired_job_that_was_met_and_given_more_time_runs(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", expires_ms=5), a_job("b")])
        harness.clock.advance(5)
        assert await lease_ids(twin) == ["b"]
        assert await twin.amend(JobFilter(ids=("a",)), Edit(expires_ms=10)) == 1
        assert await lease_ids(twin) == ["a"]

    @needs("exact_counts")
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

    @needs("inspect", "renew")
    async def test_law_12_expiry_does_not_end_a_valid_lease(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin, expires_ms=5)
        harness.clock.advance(6)
        assert (await twin.expired()).jobs == ()
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        assert await twin.amend(JobFilter(expired=True), Delete()) == 0
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("overdue")
    async def test_a_job_that_expired_while_leased_is_not_leased_again(
        self, harness: Harness, twin: Twin
    ) -> None:
        await leased(twin, expires_ms=5)
        harness.clock.advance(30_000)
        await reap(twin)
        assert await lease_ids(twin) == []
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]

    @needs("inspect")
    async def test_a_move_may_give_more_time(self, harness: Harness, twin: Twin) -> None:
        """An expired job moves to another queue in one write, with the rest of its policy."""
        await twin.declare(a_queue("q"))
        policy = Overrides(max_attempts=9, reroute=Reroute(labels={"zone": "eu"}))
        await twin.enqueue([a_job("a", expires_ms=1_000, overrides=policy)])
        harness.clock.advance(1_000)
        left = Reroute(labels={"zone": "eu"}, done=1, ttl_ms=1_000)
        act = Move(by="reaper", queue="q", text="not taken", expires_ms=1_000, reroute=left)
        assert await twin.amend(JobFilter(ids=("a",), expired=True), act) == 1
        assert await twin.amend(JobFilter(ids=("a",), expired=True), act) == 0
        moved = await twin.require("a")
        assert moved.expires_at == harness.clock.wall_ms() + 1_000
        assert moved.overrides == replace(policy, reroute=left)
        assert moved.events[-1].text == "from default to q: not taken"
        assert await lease_ids(twin, queues=("q",)) == ["a"]


@needs("inspect", "queue_expiry")
class QueueExpiryContract:
    """Jobs that expire by the setting of their queue."""

    async def test_it_counts_from_when_a_job_is_due(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(expires_ms=100))
        await twin.enqueue([a_job("a", delay_ms=50), a_job("b")])
        now = harness.clock.wall_ms()
        for id_, at in (("a", now + 150), ("b", now + 100)):
            job = await twin.require(id_)
            assert (job.expires_at, job.queue_expiry) == (at, True)
        assert (await twin.expired()).next_ms == 100
        harness.clock.advance(149)
        assert [job.id for job in (await twin.expired()).jobs] == ["b"]
        assert await lease_ids(twin) == ["a"]

    async def test_law_02_it_is_not_leased_afterwards(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(expires_ms=100))
        await twin.enqueue(jobs("ab"))
        harness.clock.advance(100)
        assert await lease_ids(twin) == []
        assert len((await twin.expired()).jobs) == 2
        (view,) = await twin.queues()
        assert (view.ready, view.oldest_age_ms) == (0, None)
        found = JobFilter(expired=True, states=(State.WAITING,))
        assert await twin.amend(found, retry_policy.after_expiry(await twin.require("a"))) == 2
        assert (await twin.require("b")).reason is Reason.EXPIRED

    async def test_a_jobs_own_expiry_wins(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(expires_ms=100))
        await twin.enqueue([a_job("a", expires_ms=50), a_job("b", expires_ms=900), a_job("c")])
        harness.clock.advance(50)
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]
        await twin.amend(JobFilter(ids=("c",)), Edit(expires_ms=200))
        await twin.declare(a_queue(expires_ms=10))
        harness.clock.advance(100)
        assert sorted(await lease_ids(twin)) == ["b", "c"]

    async def test_it_can_be_changed_at_any_time(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([*jobs("ab"), a_job("g", group="g"), a_job("h", group="g")])
        harness.clock.advance(60)
        for expires_ms, count in ((50, 4), (100, 0), (None, 0), (60, 4)):
            with case(expires_ms):
                await twin.declare(a_queue(expires_ms=expires_ms))
                assert len((await twin.expired()).jobs) == count
                if count:
                    # They are found past their expiry, and come back when the setting changes.
                    assert await lease_ids(twin) == []
        await twin.declare(a_queue())
        assert not (await twin.require("a")).queue_expiry
        assert sorted(await lease_ids(twin)) == ["a", "b", "g"]

    @needs("limits")
    async def test_in_a_queue_with_limits(self, harness: Harness, twin: Twin) -> None:
        limit = a_limit(concurrency=1, key="{tenant}")
        await twin.declare(a_queue(limits=(limit,), expires_ms=100))
        await twin.enqueue([a_job("a", tenant="x"), a_job("b", tenant="y", delay_ms=50)])
        harness.clock.advance(100)
        assert await lease_ids(twin, limit=1) == ["b"]
        assert await lease_ids(twin) == []
        await twin.declare(a_queue(limits=(limit,), expires_ms=500))
        assert await lease_ids(twin) == ["a"]

    async def test_law_12_it_never_ends_a_lease(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(expires_ms=100))
        lease = await leased(twin)
        harness.clock.advance(1_000)
        await twin.declare(a_queue(expires_ms=1))
        assert (await twin.expired()).jobs == ()
        assert (await twin.overdue()).leases == ()
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Retry(20)) is Outcome.SETTLED
        assert (await twin.require("a")).expires_at == now + 21

    async def test_it_is_that_of_the_queue_a_job_is_in(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(expires_ms=100))
        await twin.declare(a_queue("q", expires_ms=700))
        await twin.declare(a_queue("r"))
        await twin.enqueue([a_job("a"), a_job("b", expires_ms=50)])
        now = harness.clock.wall_ms()
        for name, expires_at in (("q", now + 700), ("r", None), ("default", now + 100)):
            await twin.amend(JobFilter(), Move(queue=name))
            job = await twin.require("a")
            assert (job.expires_at, job.queue_expiry) == (expires_at, expires_at is not None)
            assert (await twin.require("b")).expires_at == now + 50
        lease = await lease_one(twin, ids=("a",), queues=())
        await settle(twin, lease, Forward("q"))
        assert (await twin.require("a")).expires_at == now + 700
        await twin.amend(JobFilter(ids=("a",)), Retime(delay_ms=5))
        assert (await twin.require("a")).expires_at == now + 705
        await twin.amend(JobFilter(ids=("a",)), BuryWaiting())
        await twin.amend(JobFilter(ids=("a",)), Redrive(delay_ms=9))
        assert (await twin.require("a")).expires_at == now + 709

    @needs("follow_ups", "keys", "combinations")
    async def test_follow_ups_and_replacements(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q", expires_ms=100))
        then = (a_job("b", queue="q", delay_ms=5), a_job("c", queue="q", key="k"))
        await settle(twin, await leased(twin), Complete(then=then))
        now = harness.clock.wall_ms()
        assert (await twin.require("b")).expires_at == now + 105
        harness.clock.advance(10)
        again = a_job("x", queue="q", key="k", key_policy="replace", delay_ms=50)
        await twin.enqueue([again])
        assert (await twin.require("c")).expires_at == now + 160
