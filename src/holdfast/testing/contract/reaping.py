"""What the reaper and the pruner read: lapsed leases, expired jobs, finished jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import limits, policy
from holdfast.core.model import EventKind, FailureKind, JobFilter, Note, Reason, Renewal, State
from holdfast.core.verdict import Bury, Cancel, Complete, Delete, Outcome, Release, Settlement
from holdfast.errors import UsageError
from holdfast.testing.contract.making import (
    ERROR,
    a_job,
    a_queue,
    case,
    jobs,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class Reaping:
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

    async def test_a_reaped_job_waits_again_with_its_failure(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(30_000)
        now = harness.clock.wall_ms()
        assert await reap(twin) == [Outcome.SETTLED]
        job = await twin.the("a")
        assert (job.state, job.due_at, job.attempt, job.deadline_at) == ("waiting", now, 1, None)
        assert job.token == lease.token
        (event,) = job.events
        assert (event.kind, event.by, event.at) == (EventKind.RETRIED, "w", now)
        assert event.failure is not None
        assert event.failure.kind is FailureKind.OVERDUE
        assert (await twin.overdue()).leases == ()

    async def test_reaping_the_last_attempt_buries(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("default", max_attempts=1))
        await leased(twin)
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED]
        job = await twin.the("a")
        assert (job.state, job.reason) == (State.DEAD, Reason.ATTEMPTS)

    async def test_two_reapers_and_a_late_worker_settle_once(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        verdict = policy.after_overdue(a_queue(), lapsed.job)
        assert await settle(twin, lease, Complete(b"made it")) is Outcome.SETTLED
        assert await settle(twin, lapsed, verdict) is Outcome.LOST
        assert (await twin.the("a")).result == b"made it"

    async def test_law_12_the_reaper_ends_no_lease_that_was_renewed_since_it_looked(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        late = policy.after_overdue(a_queue(), lease.job)
        last = policy.after_overdue(a_queue(max_attempts=1), lease.job)
        for verdict in (late, last):
            assert await settle(twin, lease, verdict) is Outcome.LOST
        assert (await twin.the("a")).state is State.LEASED
        harness.clock.advance(lease.lease_ms - 1)
        assert (await twin.renew([Renewal(lease=lease)]))[0] is not None
        harness.clock.advance(lease.lease_ms - 1)
        assert await settle(twin, lease, last) is Outcome.LOST
        harness.clock.advance(1)
        assert await settle(twin, lease, late) is Outcome.SETTLED

    async def test_law_06_an_attempt_given_back_in_time_is_not_held_against_the_job(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", max_attempts=1))
        lease = await leased(twin)
        harness.clock.advance(lease.lease_ms)
        (lapsed,) = (await twin.overdue()).leases
        last = policy.after_overdue(a_queue(max_attempts=1), lapsed.job)
        assert await settle(twin, lease, Release("stopping")) is Outcome.SETTLED
        assert await settle(twin, lapsed, last) is Outcome.LOST
        job = await twin.the("a")
        assert (job.state, job.attempt) == (State.WAITING, 0)
        assert (await lease_one(twin)).job.attempt == 1

    async def test_a_repeat_of_the_reapers_verdict_is_harmless(
        self, harness: Harness, twin: Twin
    ) -> None:
        for queue in (a_queue("default"), a_queue("default", max_attempts=1)):
            await twin.declare(queue)
            await twin.amend(JobFilter(), Delete())
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms)
            verdict = policy.after_overdue(queue, lease.job)
            for _ in range(2):
                assert await settle(twin, lease, verdict) is Outcome.SETTLED
                assert len((await twin.the("a")).events) == 1

    async def test_a_reaper_with_a_stale_read_changes_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await leased(twin)
        harness.clock.advance(30_000)
        (lapsed,) = (await twin.overdue()).leases
        await reap(twin)
        fresh = await lease_one(twin)
        assert await settle(twin, lapsed, Bury(Reason.ATTEMPTS)) is Outcome.LOST
        assert (await twin.the("a")).token == fresh.token

    @pytest.mark.parametrize("size", [10, 100_000])
    async def test_what_the_reaper_reads_has_no_payload(
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
        await twin.amend(JobFilter(ids=("b",)), policy.after_expiry(expired))
        assert (await twin.the("a")).payload == (await twin.the("b")).payload == payload
        assert (await lease_one(twin)).job.payload == lease.job.payload == payload

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

    async def test_a_dead_letter_is_kept_no_shorter_than_a_done_one(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", retention_ms=100, dead_retention_ms=10))
        await settle(twin, await leased(twin), Bury())
        harness.clock.advance(99)
        assert await twin.finished() == []
        harness.clock.advance(1)
        assert [job.id for job in await twin.finished()] == ["a"]

    async def test_retention_of_zero_and_a_changed_retention(
        self, harness: Harness, twin: Twin
    ) -> None:
        await settle(twin, await leased(twin), Complete())
        assert await twin.finished() == []
        await twin.declare(a_queue("default", retention_ms=0))
        assert [job.id for job in await twin.finished()] == ["a"]

    async def test_what_the_pruner_read_is_deleted_by_version(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", retention_ms=0))
        await settle(twin, await leased(twin), Complete())
        (job,) = await twin.finished()
        stale = JobFilter(ids=("a",), version=job.version - 1)
        assert await twin.amend(stale, Delete()) == 0
        assert await twin.amend(replace(stale, version=job.version), Delete()) == 1
        assert await twin.get("a") is None
        assert await twin.finished() == []

    async def test_law_10_every_list_is_bounded(self, twin: Twin) -> None:
        for limit in (0, -1, limits.PAGE_MAX + 1):
            with case(limit):
                with pytest.raises(UsageError):
                    await twin.overdue(limit)
                with pytest.raises(UsageError):
                    await twin.expired(limit)
                with pytest.raises(UsageError):
                    await twin.finished(limit)
