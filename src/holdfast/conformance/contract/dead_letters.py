"""Dead letters: moved to a dead queue, leased on request, deleted, put back, kept by retention."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    CRASH,
    ERROR,
    a_job,
    a_queue,
    case,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds, retry_policy
from holdfast.core.model import (
    EventKind,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    Note,
    Reason,
    Renewal,
    State,
    Waits,
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
    Retry,
    Settlement,
    Verdict,
)

A = JobFilter(ids=("a",))
BURY = Bury()
BACK: tuple[Verdict, ...] = (Retry(), Retry(0, ERROR), Bury(Reason.REJECTED, ERROR), Release())


@needs("dead_leases", "inspect")
class DeadLetterContract:
    """Queue `q` has the dead queue `grave`."""

    async def test_a_job_in_a_dead_queue_is_a_dead_letter(self, twin: Twin) -> None:
        await _declare(twin)
        await twin.enqueue([a_job("x", queue="grave")])
        job = await _buried(twin, verdict=Bury(Reason.REJECTED, ERROR))
        assert (job.queue, job.origin, job.attempt) == ("grave", "q", 1)
        assert (job.reason, job.failures[-1].failure) == (Reason.REJECTED, ERROR)
        assert [found.id for found in await twin.find(JobFilter(states=(State.DEAD,)))] == ["a"]
        assert await lease_ids(twin, queues=("grave",)) == ["x"]
        assert await lease_ids(twin, queues=("grave",), dead=True) == ["a"]

    async def test_it_is_leased_on_request_only(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        for queues in (("grave",), ("q",), ("grave", "q")):
            assert await lease_ids(twin, queues=queues) == []
        assert await twin.lease(_by_id("a")) == []
        assert await lease_ids(twin, queues=("q",), dead=True) == []
        (lease,) = await twin.lease(_by_id("a", dead=True))
        assert (lease.job.state, lease.job.reason) == (State.LEASED, Reason.EXPLICIT)
        assert (lease.job.origin, lease.job.attempt) == ("q", 1)
        assert await lease_ids(twin, queues=("grave",), dead=True) == []

    async def test_one_that_died_in_place_is_leased_alike(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        await settle(twin, await lease_one(twin), Bury())
        await twin.enqueue(jobs("b"))
        lease = await lease_one(twin, dead=True)
        assert (lease.id, lease.job.origin) == ("a", None)
        assert await lease_ids(twin) == ["b"]

    @needs("exact_counts")
    async def test_it_is_counted_as_leased(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        await lease_one(twin, queues=("grave",), dead=True)
        (view,) = await twin.queues(names=("grave",))
        assert (view.ready, view.leased, view.dead) == (0, 1, 0)
        assert [job.id for job in await twin.find(JobFilter(states=(State.LEASED,)))] == ["a"]
        assert await twin.find(JobFilter(states=(State.DEAD,))) == []
        (tally,) = await twin.tally(JobFilter(), "state")
        assert (tally.value, tally.count) == ("leased", 1)

    async def test_it_keeps_its_attempts(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        before = await _buried(twin, retries=2)
        assert before.attempt == 3
        for verdict in BACK:
            lease = await lease_one(twin, queues=("grave",), dead=True)
            assert lease.job.attempt == 3
            harness.clock.advance(1)
            with case(verdict):
                assert await settle(twin, lease, verdict) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.attempt, job.releases, job.state) == (3, len(BACK), State.DEAD)

    async def test_releases_of_the_job_are_not_those_of_the_dead_letter(self, twin: Twin) -> None:
        await _declare(twin)
        await twin.enqueue([a_job(queue="q")])
        for _ in range(3):
            await settle(twin, await _lease_a(twin), Release())
        lease = await _lease_a(twin)
        assert lease.job.releases == 3
        for _ in range(2):
            assert await settle(twin, lease, BURY) is Outcome.SETTLED
            assert (await twin.require("a")).releases == 0
        await settle(twin, await lease_one(twin, queues=("grave",), dead=True), Release())
        assert (await twin.require("a")).releases == 1

    async def test_completing_deletes_it(self, twin: Twin) -> None:
        await _declare(twin)
        for verdict in (Complete(), Complete(b"1"), Complete(then=(a_job("b"),))):
            await _buried(twin)
            lease = await lease_one(twin, queues=("grave",), dead=True)
            with case(verdict):
                assert await settle(twin, lease, verdict) is Outcome.SETTLED
                assert await twin.get("a") is None
                assert await settle(twin, lease, verdict) is Outcome.LOST
        assert await lease_ids(twin) == ["b"]

    @needs("follow_ups", "dependencies")
    async def test_for_the_jobs_that_follow_it_is_dead(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        then = (a_job("b", after=("a",)), a_job("c", after=("a",), after_on="death"))
        held = a_job("d", after=("a",), parent_death="hold")
        assert await settle(twin, lease, Complete(then=(*then, held))) is Outcome.SETTLED
        assert (await twin.require("b")).state is State.CANCELLED
        assert await lease_ids(twin) == ["c"]
        assert await twin.waits("d") == Waits(parents=("a",), parent_count=1)

    async def test_completed_among_others(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        await twin.enqueue(jobs("bc"))
        dead = await lease_one(twin, queues=("grave",), dead=True)
        others = await twin.lease(from_default(2))
        batch = [Settlement(lease=lease, verdict=Complete()) for lease in (*others, dead)]
        assert await twin.settle(batch) == [Outcome.SETTLED] * 3
        assert await twin.get("a") is None
        assert (await twin.require("b")).state is State.DONE

    async def test_a_dead_lease_that_ends_otherwise_leaves_it_dead(
        self, harness: Harness, twin: Twin
    ) -> None:
        await _declare(twin)
        before = await _buried(twin, verdict=Bury(Reason.CRASHED, CRASH))
        for number, verdict in enumerate((*BACK, Retry(0, CRASH)), 1):
            harness.clock.advance(7)
            lease = await lease_one(twin, queues=("grave",), dead=True)
            now = harness.clock.wall_ms()
            with case(verdict):
                assert await settle(twin, lease, verdict) is Outcome.SETTLED
                job = await twin.require("a")
                assert job == replace(
                    before,
                    due_at=now,
                    leased_at=now,
                    worker="w",
                    token=None,
                    crashes=before.crashes + (verdict == Retry(0, CRASH)),
                    releases=number,
                    version=lease.job.version + 1,
                    events=job.events,
                )
                event = job.events[-1]
                assert (event.kind, event.text) == (EventKind.RELEASED, "dead letter not handled")
                assert await settle(twin, lease, verdict) is Outcome.LOST

    async def test_it_is_offered_again_after_a_delay(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        for verdict in (Retry(50, ERROR), Release("busy", delay_ms=50)):
            lease = await lease_one(twin, queues=("grave",), dead=True)
            await settle(twin, lease, verdict)
            harness.clock.advance(49)
            assert await lease_ids(twin, queues=("grave",), dead=True) == []
            harness.clock.advance(1)
        assert await lease_ids(twin, queues=("grave",), dead=True) == ["a"]

    async def test_the_policy_offers_it_ever_less_often(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        delays = []
        for _ in range(3):
            (lease,) = await twin.lease(_by_id("a", dead=True))
            queue = a_queue("grave", max_attempts=1)
            verdict = retry_policy.after_failure(queue, lease.job, ERROR, 0.999)
            assert isinstance(verdict, Retry)
            delays.append(verdict.delay_ms)
            await settle(twin, lease, Retry(0, ERROR))
        assert delays == sorted(set(delays))

    async def test_a_timeline_does_not_grow_for_ever(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        for _ in range(bounds.RELEASES_MAX + 3):
            lease = await lease_one(twin, queues=("grave",), dead=True)
            assert await settle(twin, lease, Retry(0, ERROR)) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.releases, len(job.events)) == (bounds.RELEASES_MAX + 3, bounds.RELEASES_MAX + 1)

    async def test_an_overdue_lease_leaves_it_dead(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        late = await lease_one(twin, queues=("grave",), dead=True, lease_ms=100)
        assert (await twin.overdue()).next_ms == 100
        harness.clock.advance(100)
        assert [lease.id for lease in (await twin.overdue()).leases] == ["a"]
        assert await reap(twin) == [Outcome.SETTLED]
        job = await twin.require("a")
        assert (job.state, job.reason, job.queue) == (State.DEAD, Reason.EXPLICIT, "grave")
        assert await settle(twin, late, Complete()) is Outcome.LOST
        assert await lease_ids(twin, queues=("grave",), dead=True) == ["a"]

    @needs("renew", "notes")
    async def test_its_lease_can_be_renewed(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True, lease_ms=100)
        harness.clock.advance(99)
        note = Note(progress=0.5, output=b"half")
        (renewed,) = await twin.renew([Renewal(lease=lease, lease_ms=100, note=note)])
        assert renewed is not None
        assert (renewed.job.state, renewed.job.reason) == (State.LEASED, Reason.EXPLICIT)
        harness.clock.advance(99)
        assert (await twin.overdue()).leases == ()
        harness.clock.advance(1)
        assert await twin.renew([Renewal(lease=renewed)]) == [None]

    @needs("ordered")
    async def test_law_09_the_longest_due_is_leased_first(
        self, harness: Harness, twin: Twin
    ) -> None:
        await _declare(twin)
        await twin.enqueue([a_job("a", queue="q", delay_ms=9), *jobs("bc", queue="q", priority=1)])
        harness.clock.advance(9)
        for verdict in (Bury(), Bury(), Bury()):
            await settle(twin, await lease_one(twin, queues=("q",)), verdict)
        first = await lease_one(twin, queues=("grave",), dead=True)
        assert first.id == "b"
        await settle(twin, first, Retry(1))
        harness.clock.advance(1)
        assert await lease_ids(twin, queues=("grave",), dead=True) == ["c", "a", "b"]

    async def test_tasks_select_dead_letters_too(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", task="x"), a_job("b", task="y")])
        await twin.amend(JobFilter(), BuryWaiting())
        assert await lease_ids(twin, dead=True, tasks=frozenset(("z",))) == []
        assert await lease_ids(twin, dead=True, tasks=frozenset(("y", "z"))) == ["b"]
        assert await twin.lease(_by_id("a", dead=True, tasks=frozenset("y"))) == []

    async def test_a_paused_queue_leases_none(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        await twin.declare(a_queue("grave", paused=True))
        assert await lease_ids(twin, queues=("grave",), dead=True) == []
        assert await twin.lease(_by_id("a", dead=True)) == []

    async def test_a_job_buried_before_it_was_due_can_be_leased(self, twin: Twin) -> None:
        await twin.enqueue([a_job(delay_ms=bounds.DAY_MS)])
        await twin.amend(A, BuryWaiting())
        assert await lease_ids(twin, dead=True) == ["a"]

    async def test_one_that_expired_can_be_leased(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(expires_ms=5)])
        harness.clock.advance(5)
        await twin.amend(A, BuryWaiting(reason=Reason.EXPIRED))
        assert await lease_ids(twin, dead=True) == ["a"]

    async def test_law_12_an_operator_does_not_end_its_lease(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        for act in (Redrive(), Delete(), Edit(priority=1), Move(queue="q"), BuryWaiting()):
            assert await twin.amend(A, act) == 0
        assert await twin.amend(A, Cancel(by="ann")) == 1
        assert (await twin.require("a")).cancel_requested
        assert await settle(twin, lease, Retry()) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.state, job.cancel_requested) == (State.DEAD, False)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        assert await twin.amend(A, Delete(force=True)) == 1
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    async def test_a_redrive_puts_it_back_to_its_origin(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin, retries=1)
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Redrive(by="ann", delay_ms=9)) == 1
        job = await twin.require("a")
        assert (job.queue, job.origin, job.state) == ("q", None, State.WAITING)
        assert (job.attempt, job.reason, job.finished_at) == (0, None, None)
        assert (job.due_at, job.redrives) == (now + 9, 1)
        harness.clock.advance(9)
        assert await lease_ids(twin, queues=("grave",)) == []
        lease = await lease_one(twin, queues=("q",))
        await settle(twin, lease, Bury())
        assert (await twin.require("a")).queue == "grave"

    async def test_without_its_origin_it_is_put_back_where_it_is(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        await twin.drop("q")
        assert await twin.amend(A, Redrive()) == 1
        assert await lease_ids(twin, queues=("grave",)) == ["a"]

    async def test_a_moved_dead_letter_is_put_back_where_it_was_moved(self, twin: Twin) -> None:
        await _declare(twin)
        await twin.declare(a_queue("other"))
        await _buried(twin)
        assert await twin.amend(A, Move(queue="other")) == 1
        assert await twin.amend(A, Redrive()) == 1
        assert await lease_ids(twin, queues=("other",)) == ["a"]

    async def test_a_forwarded_job_that_dies_stays_where_it_died(self, twin: Twin) -> None:
        await _declare(twin)
        await twin.enqueue(jobs("a"))
        await settle(twin, await lease_one(twin), Forward("grave"))
        await settle(twin, await lease_one(twin, queues=("grave",)), Bury())
        assert await twin.amend(A, Redrive()) == 1
        assert (await twin.require("a")).queue == "grave"

    async def test_a_forwarded_dead_letter_starts_afresh_and_may_die_again(
        self, twin: Twin
    ) -> None:
        await _declare(twin)
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        assert await settle(twin, lease, Forward("q")) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.state, job.reason, job.fingerprint) == (State.WAITING, None, None)
        assert (job.attempt, job.finished_at) == (0, None)
        await settle(twin, await lease_one(twin, queues=("q",)), Bury())
        assert (await twin.require("a")).queue == "grave"

    async def test_a_forwarded_dead_letter_that_expired_starts_afresh(
        self, harness: Harness, twin: Twin
    ) -> None:
        await _declare(twin)
        await twin.enqueue([a_job("a", queue="q", expires_ms=5)])
        harness.clock.advance(5)
        await twin.amend(A, BuryWaiting(reason=Reason.EXPIRED))
        lease = await lease_one(twin, queues=("grave",), dead=True)
        assert await settle(twin, lease, Forward("q")) is Outcome.SETTLED
        assert (await twin.require("a")).expires_at is None
        assert (await lease_one(twin, queues=("q",))).id == "a"

    async def test_dead_queues_may_form_a_cycle(self, twin: Twin) -> None:
        await _declare(twin)
        await twin.declare(a_queue("grave", dead_queue="q"))
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        await settle(twin, lease, Bury())
        assert (await twin.require("a")).queue == "grave"

    @needs("keys")
    async def test_its_key_is_free_after_the_window(self, harness: Harness, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin, key="k", key_window_ms=10)
        await lease_one(twin, queues=("grave",), dead=True)
        again = a_job("b", queue="q", key="k")
        assert [receipt.id for receipt in await twin.enqueue([again])] == ["a"]
        harness.clock.advance(10)
        assert [receipt.id for receipt in await twin.enqueue([again])] == ["b"]

    async def test_dead_retention_applies_in_the_dead_queue(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("grave", retention_ms=5, dead_retention_ms=100))
        await twin.declare(a_queue("q", dead_queue="grave", dead_retention_ms=bounds.DAY_MS))
        await _buried(twin)
        harness.clock.advance(50)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        harness.clock.advance(50)
        assert await twin.finished() == []
        await settle(twin, lease, Retry(bounds.DAY_MS, ERROR))
        # Counted from its death: handling it in vain does not keep it.
        assert [job.id for job in await twin.finished()] == ["a"]

    async def test_a_dropped_queue_takes_its_leased_dead_letters_along(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        await twin.drop("grave")
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert await twin.get("a") is None

    @needs("fairness")
    async def test_a_leased_one_is_not_counted_for_its_tenant(self, twin: Twin) -> None:
        await _declare(twin)
        await _buried(twin, tenant="t")
        lease = await lease_one(twin, queues=("grave",), dead=True)
        await twin.declare(a_queue("grave", fairness="shares"))
        assert (await twin.flow("grave")).tenants == ()
        assert await settle(twin, lease, Release()) is Outcome.SETTLED
        assert (await twin.flow("grave")).tenants == ()

    @pytest.mark.parametrize("verdict", [Complete(), Retry(), Bury(), Release()])
    async def test_law_04_a_stale_token_changes_nothing(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        await _declare(twin)
        await _buried(twin)
        stale = await lease_one(twin, queues=("grave",), dead=True, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        lease = await lease_one(twin, queues=("grave",), dead=True)
        before = await twin.require("a")
        assert await settle(twin, stale, verdict) is Outcome.LOST
        assert await twin.require("a") == before
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED


async def _declare(twin: Twin) -> None:
    await twin.declare(a_queue("grave"))
    await twin.declare(a_queue("q", dead_queue="grave"))


async def _buried(twin: Twin, *, verdict: Verdict = BURY, retries: int = 0, **fields: Any) -> Job:
    """A new job `a` of queue `q`, dead after some retries."""
    await twin.enqueue([a_job(queue="q", **fields)])
    for _ in range(retries):
        await settle(twin, await _lease_a(twin), Retry())
    await settle(twin, await _lease_a(twin), verdict)
    return await twin.require("a")


async def _lease_a(twin: Twin) -> Lease:
    return await lease_one(twin, queues=("q",))


def _by_id(id: str, **fields: Any) -> LeaseRequest:
    return from_default(queues=(), ids=(id,), **fields)
