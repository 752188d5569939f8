"""Every way a lease ends, and what the job looks like afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import Event, EventKind, JobFilter, Lease, Reason, State
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
from holdfast.testing.contract.making import (
    CRASH,
    ERROR,
    a_job,
    a_queue,
    case,
    jobs,
    lease_ids,
    lease_one,
    leased,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

A = JobFilter(ids=("a",))
OUT_OF_BOUNDS: tuple[Verdict, ...] = (
    Retry(-1),
    Retry(10**30),
    Release("", -1),
    Release("", 2**63),
    Complete(b"x" * (limits.RESULT_MAX + 1)),
    Complete(then=(a_job("bad id"),)),
    Complete(then=(a_job("x"),) * (limits.FOLLOW_UPS_MAX + 1)),
)


def event(lease: Lease, at: int, what: EventKind, **fields: Any) -> Event:
    return Event(at=at, kind=what, attempt=lease.job.attempt, by="w", **fields)


class Settling:
    async def test_complete(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Complete(b"\x00r")) is Outcome.SETTLED
        assert await twin.the("a") == replace(
            lease.job,
            state=State.DONE,
            deadline_at=None,
            finished_at=now,
            result=b"\x00r",
            version=3,
        )

    async def test_the_happy_path_adds_no_timeline_rows(self, twin: Twin) -> None:
        await settle(twin, await leased(twin), Complete())
        job = await twin.the("a")
        assert (job.events, job.result) == ((), None)

    async def test_retry(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Retry(40, ERROR)) is Outcome.SETTLED
        assert await twin.the("a") == replace(
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
        job = await twin.the("a")
        assert (job.crashes, job.attempt) == (2, 3)
        assert [row.failure for row in job.events] == [CRASH, ERROR, CRASH]
        assert job.failures == job.events

    async def test_bury(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Bury(Reason.ATTEMPTS, ERROR)) is Outcome.SETTLED
        assert await twin.the("a") == replace(
            lease.job,
            state=State.DEAD,
            deadline_at=None,
            finished_at=now,
            reason=Reason.ATTEMPTS,
            fingerprint=fingerprint(Reason.ATTEMPTS, ERROR, "work"),
            version=3,
            events=(event(lease, now, EventKind.BURIED, text="attempts", failure=ERROR),),
        )

    async def test_law_06_release_gives_the_attempt_back(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Release("busy", 40)) is Outcome.SETTLED
        assert await twin.the("a") == replace(
            lease.job,
            state=State.WAITING,
            deadline_at=None,
            due_at=now + 40,
            attempt=0,
            releases=1,
            version=3,
            events=(event(lease, now, EventKind.RELEASED, text="busy"),),
        )

    async def test_law_06_releases_are_free_only_so_often(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for _ in range(limits.RELEASES_MAX + 2):
            await settle(twin, await lease_one(twin), Release())
        job = await twin.the("a")
        assert (job.attempt, job.releases) == (2, limits.RELEASES_MAX + 2)

    async def test_law_06_what_was_not_started_is_given_back_however_often(
        self, twin: Twin
    ) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await twin.enqueue(jobs("a"))
        for _ in range(limits.RELEASES_MAX + 2):
            lease = await lease_one(twin)
            await settle(twin, lease, Release("the breaker is open", unstarted=True))
        job = await twin.the("a")
        assert (job.state, job.attempt, job.releases) == (State.WAITING, 0, 0)

    async def test_law_06_releases_beyond_that_come_to_an_end(self, twin: Twin) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await twin.enqueue(jobs("a"))
        for _ in range(limits.RELEASES_MAX + 1):
            lease = await lease_one(twin)
            assert await settle(twin, lease, Release("busy")) is Outcome.SETTLED
        assert await settle(twin, lease, Release("busy")) is Outcome.SETTLED
        job = await twin.the("a")
        assert (job.state, job.reason, job.attempt) == (State.DEAD, Reason.ATTEMPTS, 1)

    async def test_a_job_moves_to_a_dead_queue_once(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.declare(a_queue(dead_queue="q"))
        await twin.declare(a_queue("q", dead_queue="default"))
        await twin.enqueue(jobs("a"))
        await settle(twin, await lease_one(twin), Bury())
        await settle(twin, await lease_one(twin, queues=("q",)), Bury())
        job = await twin.the("a")
        assert (job.queue, job.state, job.origin) == ("q", State.DEAD, "default")

    async def test_a_forwarded_dead_letter_may_die_again(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.declare(a_queue(dead_queue="q"))
        await twin.enqueue(jobs("a"))
        await settle(twin, await lease_one(twin), Bury())
        await settle(twin, await lease_one(twin, queues=("q",)), Forward("default"))
        assert (await twin.the("a")).reason is None
        await settle(twin, await lease_one(twin), Bury())
        assert (await twin.the("a")).queue == "q"

    async def test_forward(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin, expires_ms=99, key="k")
        await settle(twin, lease, Retry(0, CRASH))
        lease = await lease_one(twin)
        harness.clock.advance(9)
        now = harness.clock.wall_ms()
        assert await settle(twin, lease, Forward("q")) is Outcome.SETTLED
        job = await twin.the("a")
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
        before = await twin.the("a")
        for name in ("nowhere", "'; DROP", "\x00", "\ud800", "z" * 81):
            assert await settle(twin, lease, Forward(name)) is Outcome.REFUSED
        assert await twin.the("a") == before
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

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
        assert await twin.the("a") == replace(
            lease.job,
            queue="grave",
            origin="q",
            state=State.WAITING,
            deadline_at=None,
            due_at=now,
            expires_at=None,
            attempt=0,
            token=None,
            reason=Reason.CRASHED,
            version=3,
            events=(event(lease, now, EventKind.BURIED, text=text, failure=CRASH),),
        )
        counts = {view.queue.name: (view.ready, view.dead) for view in await twin.queues()}
        assert counts == {"default": (0, 0), "grave": (1, 0), "q": (0, 0)}
        assert await settle(twin, lease, Bury()) is Outcome.LOST
        assert len(await twin.find(JobFilter())) == 1

    async def test_law_10_a_settle_is_bounded(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await twin.settle([]) == []
        with pytest.raises(UsageError):
            await twin.settle([Settlement(lease=lease, verdict=Complete())] * 1_001)
        assert (await twin.the("a")).state is State.LEASED

    async def test_a_verdict_out_of_bounds_is_refused_and_the_lease_goes_on(
        self, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        for number, verdict in enumerate(OUT_OF_BOUNDS):
            with case(verdict):
                await twin.enqueue([a_job(f"good{number}")])
                good = await lease_one(twin)
                batch = [
                    Settlement(lease=lease, verdict=verdict),
                    Settlement(lease=good, verdict=Complete()),
                ]
                assert await twin.settle(batch) == [Outcome.REFUSED, Outcome.SETTLED]
                assert await twin.the("a") == before

    async def test_cancel_requested_turns_going_back_into_cancelled(
        self, harness: Harness, twin: Twin
    ) -> None:
        for verdict in (Retry(5, ERROR), Release("x"), Forward("default")):
            lease = await leased(twin)
            await twin.amend(A, Cancel())
            now = harness.clock.wall_ms()
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            job = await twin.the("a")
            assert (job.state, job.finished_at, job.attempt) == (State.CANCELLED, now, 1)
            assert job.events[-1].kind is EventKind.CANCELLED
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            assert await settle(twin, lease, Complete()) is Outcome.LOST
            await twin.amend(A, Delete())

    async def test_cancel_requested_leaves_complete_and_bury_alone(self, twin: Twin) -> None:
        for verdict, state in ((Complete(b"1"), State.DONE), (Bury(), State.DEAD)):
            lease = await leased(twin)
            await twin.amend(A, Cancel())
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            assert (await twin.the("a")).state is state
            await twin.amend(A, Delete())
