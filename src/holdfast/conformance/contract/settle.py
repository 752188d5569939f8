"""Settles: each verdict and the job after it, and fencing, by which only the holder of the current
token ends a lease, once, even late.
"""

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
    jobs,
    lease_ids,
    lease_one,
    leased,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds
from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import Event, EventKind, Job, JobFilter, Lease, Reason, State
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Forward,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.errors import UsageError

A = JobFilter(ids=("a",))
OUT_OF_BOUNDS: tuple[Verdict, ...] = (
    Retry(-1),
    Retry(10**30),
    Release("", -1),
    Release("", 2**63),
    Complete(b"x" * (bounds.RESULT_MAX + 1)),
    Complete(then=(a_job("bad id"),)),
    Complete(then=(a_job("x"),) * (bounds.FOLLOW_UPS_MAX + 1)),
)


def event(lease: Lease, at: int, what: EventKind, **fields: Any) -> Event:
    job = lease.job
    return Event(at=at, kind=what, attempt=job.attempt, by="w", started_at=job.leased_at, **fields)


@needs("inspect")
class SettleContract:
    """Every verdict."""

    @needs("results")
    async def test_complete(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Complete(b"\x00r")) is Outcome.SETTLED
        assert await twin.require("a") == replace(
            lease.job,
            state=State.DONE,
            deadline_at=None,
            finished_at=now,
            result=b"\x00r",
            version=3,
        )

    async def test_the_happy_path_adds_no_timeline_rows(self, twin: Twin) -> None:
        await settle(twin, await leased(twin), Complete())
        job = await twin.require("a")
        assert (job.events, job.result) == ((), None)

    async def test_retry(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Retry(40, ERROR)) is Outcome.SETTLED
        assert await twin.require("a") == replace(
            lease.job,
            state=State.WAITING,
            deadline_at=None,
            due_at=now + 40,
            version=3,
            events=(event(lease, now, EventKind.RETRIED, failure=ERROR),),
        )

    async def test_a_crash_is_counted(self, twin: Twin) -> None:
        await settle(twin, await leased(twin), Retry(0, CRASH))
        await settle(twin, await lease_one(twin), Retry(0, ERROR))
        await settle(twin, await lease_one(twin), Retry(0, CRASH))
        job = await twin.require("a")
        assert (job.crashes, job.attempt) == (2, 3)
        assert [row.failure for row in job.events] == [CRASH, ERROR, CRASH]
        assert job.failures == job.events

    async def test_bury(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Bury(Reason.ATTEMPTS, ERROR)) is Outcome.SETTLED
        assert await twin.require("a") == replace(
            lease.job,
            state=State.DEAD,
            deadline_at=None,
            finished_at=now,
            reason=Reason.ATTEMPTS,
            fingerprint=fingerprint(Reason.ATTEMPTS, ERROR, "work"),
            version=3,
            events=(event(lease, now, EventKind.BURIED, text="attempts", failure=ERROR),),
        )

    @needs("refunds")
    async def test_law_06_release_gives_the_attempt_back(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Release("busy", 40)) is Outcome.SETTLED
        assert await twin.require("a") == replace(
            lease.job,
            state=State.WAITING,
            deadline_at=None,
            due_at=now + 40,
            attempt=0,
            releases=1,
            version=3,
            events=(event(lease, now, EventKind.RELEASED, text="busy"),),
        )

    @needs("refunds")
    async def test_law_06_releases_are_free_only_so_often(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for _ in range(bounds.RELEASES_MAX + 2):
            await settle(twin, await lease_one(twin), Release())
        job = await twin.require("a")
        assert (job.attempt, job.releases) == (2, bounds.RELEASES_MAX + 2)

    @needs("refunds")
    async def test_law_06_what_was_not_started_is_given_back_however_often(
        self, twin: Twin
    ) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await twin.enqueue(jobs("a"))
        for _ in range(bounds.RELEASES_MAX + 2):
            lease = await lease_one(twin)
            await settle(twin, lease, Release("the breaker is open", unstarted=True))
        job = await twin.require("a")
        assert (job.state, job.attempt, job.releases) == (State.WAITING, 0, 0)

    @needs("refunds")
    async def test_law_06_releases_beyond_that_come_to_an_end(self, twin: Twin) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await twin.enqueue(jobs("a"))
        for _ in range(bounds.RELEASES_MAX + 1):
            lease = await lease_one(twin)
            assert await settle(twin, lease, Release("busy")) is Outcome.SETTLED
        assert await settle(twin, lease, Release("busy")) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.state, job.reason, job.attempt) == (State.DEAD, Reason.ATTEMPTS, 1)

    @needs("keys")
    async def test_forward(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin, expires_ms=99, key="k")
        await settle(twin, lease, Retry(0, CRASH))
        lease = await lease_one(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Forward("q")) is Outcome.SETTLED
        job = await twin.require("a")
        assert job == replace(
            lease.job,
            queue="q",
            origin="default",
            state=State.WAITING,
            deadline_at=None,
            due_at=now,
            attempt=0,
            crashes=0,
            token=None,
            version=5,
            events=(
                job.events[0],
                event(lease, now, EventKind.FORWARDED, text="from default to q"),
            ),
        )
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=("q",)) == ["a"]

    async def test_forward_to_an_unknown_queue_is_refused_and_the_lease_goes_on(
        self, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        for name in ("nowhere", "'; DROP", "\x00", "\ud800", "z" * 81):
            assert await settle(twin, lease, Forward(name)) is Outcome.REFUSED
        assert await twin.require("a") == before
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("exact_counts", "atomic")
    async def test_law_14_a_move_to_the_dead_queue_is_one_step(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        lease = await leased(twin, queue="q", expires_ms=50_000, payload=b"\x00kept")
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Bury(Reason.CRASHED, CRASH)) is Outcome.SETTLED
        text = "crashed: moved from q to grave"
        assert await twin.require("a") == replace(
            lease.job,
            queue="grave",
            origin="q",
            state=State.DEAD,
            deadline_at=None,
            finished_at=now,
            crashes=1,
            reason=Reason.CRASHED,
            fingerprint=fingerprint(Reason.CRASHED, CRASH, "work"),
            version=3,
            events=(event(lease, now, EventKind.BURIED, text=text, failure=CRASH),),
        )
        counts = {view.queue.name: (view.ready, view.dead) for view in await twin.queues()}
        assert counts == {"default": (0, 0), "grave": (0, 1), "q": (0, 0)}
        assert await settle(twin, lease, Bury()) is Outcome.SETTLED
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert len(await twin.find(JobFilter())) == 1

    async def test_law_10_a_settle_is_bounded(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await twin.settle([]) == []
        with pytest.raises(UsageError):
            await twin.settle([Settlement(lease=lease, verdict=Complete())] * 1_001)
        assert (await twin.require("a")).state is State.LEASED

    async def test_a_verdict_out_of_bounds_is_refused_and_the_lease_goes_on(
        self, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        for number, verdict in enumerate(OUT_OF_BOUNDS):
            with case(verdict):
                await twin.enqueue([a_job(f"good{number}")])
                good = await lease_one(twin)
                batch = [
                    Settlement(lease=lease, verdict=verdict),
                    Settlement(lease=good, verdict=Complete()),
                ]
                assert await twin.settle(batch) == [Outcome.REFUSED, Outcome.SETTLED]
                assert await twin.require("a") == before

    async def test_cancel_requested_turns_going_back_into_cancelled(
        self, harness: Harness, twin: Twin
    ) -> None:
        for verdict in (Retry(5, ERROR), Release("x"), Forward("default")):
            lease = await leased(twin)
            await twin.amend(A, Cancel())
            now = harness.clock.wall_ms()
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            job = await twin.require("a")
            assert (job.state, job.finished_at, job.attempt) == (State.CANCELLED, now, 1)
            assert job.events[-1].kind is EventKind.CANCELLED
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            assert await settle(twin, lease, Complete()) is Outcome.LOST
            await twin.amend(A, Delete())

    @needs("results")
    async def test_cancel_requested_leaves_complete_and_bury_alone(self, twin: Twin) -> None:
        for verdict, state in ((Complete(b"1"), State.DONE), (Bury(), State.DEAD)):
            lease = await leased(twin)
            await twin.amend(A, Cancel())
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            assert (await twin.require("a")).state is state
            await twin.amend(A, Delete())


VERDICTS: tuple[Verdict, ...] = (
    Complete(b"late"),
    Retry(5, ERROR),
    Bury(Reason.REJECTED, ERROR),
    Release("late", 5),
    Forward("default"),
)


class FenceContract:
    """Late, repeated and stale settles and renewals."""

    @needs("inspect", "fencing", "refunds", "results")
    async def test_law_05_a_late_settle_wins_while_the_job_is_leased(
        self, harness: Harness, twin: Twin
    ) -> None:
        for verdict in VERDICTS:
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms + 1)
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            await twin.agree()
            await twin.amend(A, Delete())

    @needs("inspect", "fencing", "results")
    async def test_law_05_a_late_settle_wins_while_the_job_waits_under_its_token(
        self, harness: Harness, twin: Twin
    ) -> None:
        wins: list[Verdict] = [Complete(b"late"), Bury(Reason.REJECTED, ERROR), Forward("default")]
        for verdict, state in zip(wins, ("done", "dead", "waiting"), strict=True):
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms)
            assert await reap(twin) == [Outcome.SETTLED]
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            job = await twin.require("a")
            assert job.state == state
            await twin.amend(A, Delete())

    @needs("inspect", "fencing")
    async def test_law_05_a_late_retry_of_what_already_waits_changes_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(lease.lease_ms)
        await reap(twin)
        before = await twin.require("a")
        assert await settle(twin, lease, Retry(99, CRASH)) is Outcome.SETTLED
        assert await settle(twin, lease, Release("x", 99)) is Outcome.SETTLED
        assert await twin.require("a") == before

    @needs("inspect", "fencing", "results")
    @pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: type(verdict).__name__)
    async def test_law_04_a_stale_token_changes_nothing_once_leased_anew(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        stale = await leased(twin)
        harness.clock.advance(stale.lease_ms)
        await reap(twin)
        fresh = await lease_one(twin)
        before = await twin.require("a")
        assert await settle(twin, stale, verdict) is Outcome.LOST
        assert await twin.require("a") == before
        assert await settle(twin, fresh, Complete(b"right")) is Outcome.SETTLED
        assert await settle(twin, stale, verdict) is Outcome.LOST
        assert (await twin.require("a")).result == b"right"

    @needs("inspect", "fencing", "results")
    @pytest.mark.parametrize("ending", [Complete(b"1"), Bury()], ids=["done", "dead"])
    async def test_law_05_a_late_settle_never_wins_once_it_is_finished(
        self, twin: Twin, ending: Verdict
    ) -> None:
        lease = await leased(twin)
        await settle(twin, lease, ending)
        before = await twin.require("a")
        for verdict in VERDICTS:
            repeat = type(verdict) is type(ending)
            expected = Outcome.SETTLED if repeat else Outcome.LOST
            assert await settle(twin, lease, verdict) is expected
        assert await twin.require("a") == before

    @needs("inspect", "fencing", "refunds", "results")
    @pytest.mark.parametrize("verdict", VERDICTS[:4], ids=lambda verdict: type(verdict).__name__)
    async def test_law_08_repeating_a_settle_is_harmless(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, verdict) is Outcome.SETTLED
        before = await twin.require("a")
        harness.clock.advance(3)
        assert await settle(twin, lease, verdict) is Outcome.SETTLED
        assert await twin.require("a") == before

    @needs("inspect", "fencing")
    async def test_law_08_a_repeat_within_one_batch_is_harmless(self, twin: Twin) -> None:
        lease = await leased(twin)
        twice = [Settlement(lease=lease, verdict=Retry(7, CRASH))] * 2
        assert await twin.settle(twice) == [Outcome.SETTLED, Outcome.SETTLED]
        job = await twin.require("a")
        assert (job.crashes, len(job.events), job.version) == (1, 1, 3)

    @needs("inspect", "results")
    async def test_the_first_of_two_verdicts_in_a_batch_counts(self, twin: Twin) -> None:
        lease = await leased(twin)
        batch = [
            Settlement(lease=lease, verdict=Bury(Reason.REJECTED)),
            Settlement(lease=lease, verdict=Complete(b"no")),
        ]
        assert await twin.settle(batch) == [Outcome.SETTLED, Outcome.LOST]
        assert (await twin.require("a")).state is State.DEAD

    @needs("inspect", "ordered", "refunds", "results", "follow_ups")
    async def test_a_batch_of_every_verdict_harms_no_neighbour(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("abcdefgh"))
        leases = [await lease_one(twin) for _ in "abcdefgh"]
        await settle(twin, leases[5], Complete())
        verdicts: list[Verdict] = [
            Complete(b"1"),
            Retry(1, ERROR),
            Bury(Reason.EXPLICIT, ERROR),
            Release("r"),
            Forward("q"),
            Retry(),
            Forward("nowhere"),
            Complete(then=(a_job("x", queue="nowhere"),)),
        ]
        outcomes = await twin.settle(
            [Settlement(lease=lease, verdict=verdict)
             for lease, verdict in zip(leases, verdicts, strict=True)]
        )  # fmt: skip
        assert [str(outcome) for outcome in outcomes] == ["settled"] * 5 + ["lost"] + [
            "refused"
        ] * 2
        states = [(await twin.require(id_)).state for id_ in "abcdefgh"]
        expected = "done waiting dead waiting waiting done leased leased".split()
        assert [str(state) for state in states] == expected

    @needs("inspect", "fencing", "results")
    @pytest.mark.parametrize("change", [-1, 1, 2**40])
    async def test_law_04_a_wrong_token_changes_nothing(self, twin: Twin, change: int) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        wrong = replace(lease, token=lease.token + change)
        for verdict in VERDICTS:
            assert await settle(twin, wrong, verdict) is Outcome.LOST
        assert await twin.require("a") == before

    async def test_an_unknown_job_is_lost(self, twin: Twin) -> None:
        lease = await leased(twin)
        made_up = replace(lease, job=Job(id="never", task="t", queue="default"))
        assert await settle(twin, made_up, Complete()) is Outcome.LOST
