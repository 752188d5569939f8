"""Amendments: acts on jobs without a lease, each guarded by the job's state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    CRASH,
    ERROR,
    a_job,
    a_queue,
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
from holdfast.core.model import Event, EventKind, JobFilter, Reason, Renewal, Reroute, State
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Move,
    Outcome,
    Redrive,
    Retime,
    Retry,
)
from holdfast.errors import UnknownQueue, UsageError

A = JobFilter(ids=("a",))
EVERY: tuple[Amendment, ...] = (
    Cancel(by="ann"),
    Redrive(by="ann"),
    BuryWaiting(by="ann"),
    Edit(by="ann", payload=b"2"),
    Move(by="ann", queue="q"),
    Retime(by="ann", delay_ms=5),
    Expedite(by="ann"),
    Delete(),
    Delete(force=True),
)
BAD: tuple[Amendment, ...] = (
    Edit(payload=b"x" * (bounds.PAYLOAD_MAX + 1)),
    Edit(priority=101),
    Edit(expires_ms=-1),
    Edit(labels={"": "x"}),
    Edit(headers={"h": "\x00"}),
    Edit(content_type=""),
    Move(queue="'; DROP"),
    Move(queue="q", expires_ms=-1),
    Move(queue="q", reroute=Reroute(most=0)),
    Retime(delay_ms=-1),
    Retime(delay_ms=10**30),
    Redrive(delay_ms=-1),
)
ACTS_ON: dict[str, str] = {
    "waiting": "Cancel BuryWaiting Edit Move Retime Expedite Delete Delete",
    "leased": "Cancel Delete",
    "done": "Redrive Delete Delete",
    "dead": "Redrive Edit Move Delete Delete",
    "cancelled": "Redrive Delete Delete",
}


async def in_state(twin: Twin, state: str) -> None:
    lease = await leased(twin)
    match state:
        case "waiting":
            await settle(twin, lease, Retry())
        case "done":
            await settle(twin, lease, Complete(b"r"))
        case "dead":
            await settle(twin, lease, Bury(Reason.ATTEMPTS, ERROR))
        case "cancelled":
            await twin.amend(A, Cancel())
            await settle(twin, lease, Retry())
        case _:
            assert state == "leased"


@needs("inspect")
class AmendContract:
    """Every amendment in every state."""

    @needs("priority", "results")
    @pytest.mark.parametrize("state", ACTS_ON)
    async def test_each_act_applies_to_its_states_only(self, twin: Twin, state: str) -> None:
        await twin.declare(a_queue("q"))
        acted = []
        for act in EVERY:
            await in_state(twin, state)
            before = await twin.require("a")
            # A state is named, because a redrive without one means dead letters.
            count = await twin.amend(replace(A, states=tuple(State)), act)
            if count:
                acted.append(type(act).__name__)
            else:
                assert await twin.require("a") == before
            await twin.agree()
            await twin.amend(A, Delete(force=True))
        assert " ".join(acted) == ACTS_ON[state]

    async def test_cancel_a_waiting_job(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(delay_ms=99)])
        before = await twin.require("a")
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Cancel(by="ann", text="why")) == 1
        event = Event(at=now, kind=EventKind.CANCELLED, by="ann", text="why")
        assert await twin.require("a") == replace(
            before, state=State.CANCELLED, finished_at=now, version=2, events=(event,)
        )
        assert await twin.amend(A, Cancel()) == 0

    @needs("priority", "renew")
    async def test_law_12_a_leased_job_only_gets_a_cancel_request(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin)
        now = harness.clock.wall_ms()
        for act in EVERY[1:8]:
            assert await twin.amend(A, act) == 0
        assert await twin.amend(A, Cancel(by="ann", text="why")) == 1
        event = Event(at=now, kind=EventKind.CANCEL_REQUESTED, attempt=1, by="ann", text="why")
        assert await twin.require("a") == replace(
            lease.job, cancel_requested=True, version=3, events=(event,)
        )
        (renewed,) = await twin.renew([Renewal(lease=lease)])
        assert renewed is not None
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    async def test_a_second_cancel_request_changes_and_counts_nothing(self, twin: Twin) -> None:
        await leased(twin)
        assert await twin.amend(A, Cancel()) == 1
        before = await twin.require("a")
        assert await twin.amend(A, Cancel()) == 0
        assert await twin.require("a") == before

    @needs("ordered")
    async def test_a_second_cancel_does_not_use_up_the_limit(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        await lease_ids(twin, limit=2)
        assert await twin.amend(A, Cancel()) == 1
        assert await twin.amend(JobFilter(), Cancel(), limit=1) == 1
        assert (await twin.require("b")).cancel_requested

    async def test_law_12_a_forced_delete_revokes_the_lease(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await twin.amend(A, Delete(force=True)) == 1
        assert await twin.get("a") is None
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert (await twin.overdue()).next_ms is None

    @needs("keys")
    async def test_redrive(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(expires_ms=9_000, key="k")])
        await settle(twin, await lease_one(twin), Retry(0, CRASH))
        lease = await lease_one(twin)
        await settle(twin, lease, Bury(Reason.ATTEMPTS, ERROR))
        before = await twin.require("a")
        harness.clock.advance(3)
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Redrive(by="ann", delay_ms=7)) == 1
        event = Event(at=now, kind=EventKind.REDRIVEN, attempt=2, by="ann")
        assert await twin.require("a") == replace(
            before,
            state=State.WAITING,
            attempt=0,
            crashes=0,
            due_at=now + 7,
            expires_at=None,
            finished_at=None,
            reason=None,
            fingerprint=None,
            redrives=1,
            token=None,
            version=before.version + 1,
            events=(*before.events, event),
        )
        assert await settle(twin, lease, Bury()) is Outcome.LOST

    @needs("keys")
    async def test_redrives_are_counted_for_the_life_of_a_job(self, twin: Twin) -> None:
        await twin.enqueue([a_job(key="k")])
        for redrives in (1, 2, 3):
            await settle(twin, await lease_one(twin), Bury(Reason.ATTEMPTS, ERROR))
            assert await twin.amend(A, Redrive()) == 1
            assert (await twin.require("a")).redrives == redrives
        await twin.enqueue([a_job("b", key="k", key_policy="replace", payload=b"2")])
        job = await twin.require("a")
        assert (job.payload, job.redrives) == (b"2", 3)
        (found,) = await twin.find(JobFilter())
        assert found.redrives == 3

    async def test_a_job_that_crashed_its_workers_is_redriven_alone(self, twin: Twin) -> None:
        await twin.enqueue([a_job()])
        await settle(twin, await lease_one(twin), Bury(Reason.CRASHED, CRASH))
        assert await twin.amend(A, Edit(by="ann", payload=b"2", text="patched")) == 1
        assert await twin.amend(A, Redrive(by="ann", text="redrive 7")) == 1
        job = await twin.require("a")
        assert (job.alone, job.crashes) == (True, 0)
        texts = [(event.by, event.text) for event in job.events[-2:]]
        assert texts == [("ann", "payload: patched"), ("ann", "redrive 7")]
        assert (await lease_one(twin)).job.runs_alone

    @needs("results")
    async def test_redrive_of_a_done_job_must_be_explicit(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Complete(b"r"))
        assert await twin.amend(A, Redrive()) == 0
        assert await twin.amend(replace(A, states=(State.DONE,)), Redrive()) == 1
        job = await twin.require("a")
        assert (job.state, job.result, job.token) == (State.WAITING, None, None)
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    @needs("ordered")
    async def test_redriven_jobs_go_to_the_tail_in_the_order_of_arrival(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        for _ in "ab":
            await settle(twin, await lease_one(twin), Bury())
        assert await twin.amend(JobFilter(), Redrive()) == 2
        assert await lease_ids(twin) == ["c", "a", "b"]

    async def test_bury_a_waiting_job(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        before = await twin.require("a")
        now = harness.clock.wall_ms()
        act = BuryWaiting(by="ann", reason=Reason.EXPLICIT, failure=ERROR)
        assert await twin.amend(A, act) == 1
        event = Event(at=now, kind=EventKind.BURIED, by="ann", text="explicit", failure=ERROR)
        assert await twin.require("a") == replace(
            before,
            state=State.DEAD,
            finished_at=now,
            reason=Reason.EXPLICIT,
            fingerprint=fingerprint(Reason.EXPLICIT, ERROR, "work"),
            version=2,
            events=(event,),
        )

    async def test_bury_into_the_dead_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        await twin.enqueue([a_job(queue="q", expires_ms=50)])
        assert await twin.amend(A, BuryWaiting()) == 1
        job = await twin.require("a")
        assert (job.queue, job.origin, job.state) == ("grave", "q", "dead")
        assert job.reason is Reason.EXPLICIT
        assert await lease_ids(twin, queues=("grave",)) == []

    @needs("priority")
    async def test_edit_changes_what_is_given_and_nothing_else(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job(labels={"l": "1"}, headers={"h": "1"}, priority=3)])
        before = await twin.require("a")
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Edit(by="ann", payload=b"\x00")) == 1
        event = Event(at=now, kind=EventKind.EDITED, by="ann", text="payload")
        edited = replace(before, payload=b"\x00", version=2, events=(event,))
        assert await twin.require("a") == edited
        act = Edit(content_type="x/y", priority=0, expires_ms=9, labels={}, headers={"g": "2"})
        assert await twin.amend(A, act) == 1
        job = await twin.require("a")
        assert (job.content_type, job.priority, job.expires_at) == ("x/y", 0, now + 9)
        assert (job.labels, job.headers, job.payload) == ({}, {"g": "2"}, b"\x00")
        text = "content_type, expires_at, headers, labels, priority"
        assert job.events[1].text == text

    @needs("priority")
    async def test_an_edited_priority_counts_at_once(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        await twin.amend(JobFilter(ids=("c",)), Edit(priority=1))
        await twin.amend(A, Edit(priority=-1))
        assert await lease_ids(twin) == ["c", "b", "a"]

    async def test_move(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await in_state(twin, "waiting")
        await twin.enqueue([a_job("x", queue="q")])
        before = await twin.require("a")
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Move(by="ann", queue="q")) == 1
        text = "from default to q"
        event = Event(at=now, kind=EventKind.MOVED, attempt=1, by="ann", text=text)
        assert await twin.require("a") == replace(
            before,
            queue="q",
            origin="default",
            token=None,
            version=before.version + 1,
            events=(*before.events, event),
        )
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=("q",)) == ["x", "a"]

    async def test_move_to_an_unknown_queue_is_refused(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        with pytest.raises(UnknownQueue):
            await twin.amend(A, Move(queue="nowhere"))
        assert (await twin.require("a")).version == 1

    @needs("limits")
    async def test_moved_jobs_pass_a_full_or_closed_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("q", max_depth=1, accepting=False))
        await twin.enqueue(jobs("ab"))
        assert await twin.amend(JobFilter(), Move(queue="q")) == 2
        (receipt,) = await twin.enqueue([a_job("c", queue="q")])
        assert receipt.code == "not_accepting"

    async def test_of_several_ids_only_unchanged_jobs_are_amended(
        self, harness: Harness, twin: Twin
    ) -> None:
        """Acts on many jobs depend on it: ids with the version and the time they were read at."""
        await twin.enqueue(jobs("abcd"))
        await twin.amend(JobFilter(ids=("b",)), Edit(labels={"x": "y"}))
        await twin.amend(JobFilter(ids=("d",)), Delete())
        read_at = harness.clock.wall_ms()
        harness.clock.advance(1)
        await twin.enqueue([a_job("d")])
        wanted = JobFilter(ids=tuple("abcde"), version=1, created_before=read_at + 1)
        assert await twin.amend(wanted, Cancel(by="ann", text="why")) == 2
        states = [(await twin.require(id_)).state for id_ in "abcd"]
        assert states == [State.CANCELLED, State.WAITING, State.CANCELLED, State.WAITING]
        assert await twin.amend(wanted, Cancel(by="ann", text="why")) == 0

    @needs("ordered")
    async def test_retime(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", delay_ms=1_000), a_job("b")])
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Retime(by="ann", delay_ms=0, text="why")) == 1
        job = await twin.require("a")
        assert (job.due_at, job.version) == (now, 2)
        assert job.events == (Event(at=now, kind=EventKind.RETIMED, by="ann", text="why"),)
        assert await lease_ids(twin) == ["b", "a"]

    @needs("priority")
    async def test_expedite(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(delay_ms=1_000)])
        now = harness.clock.wall_ms()
        assert await twin.amend(A, Expedite(by="ann", text="why")) == 1
        job = await twin.require("a")
        assert (job.due_at, job.priority) == (now, bounds.PRIORITY_MAX)
        assert job.events == (Event(at=now, kind=EventKind.EXPEDITED, by="ann", text="why"),)

    @needs("priority", "fencing")
    async def test_law_04_any_act_on_a_waiting_job_takes_its_token(
        self, harness: Harness, twin: Twin
    ) -> None:
        acts: list[Amendment] = [
            Cancel(),
            BuryWaiting(),
            Edit(priority=1),
            Move(queue="default"),
            Retime(delay_ms=0),
            Expedite(),
            Delete(),
        ]
        for act in acts:
            lease = await leased(twin)
            harness.clock.advance(30_000)
            await reap(twin)
            assert (await twin.require("a")).token == lease.token
            assert await twin.amend(A, act) == 1
            assert await settle(twin, lease, Complete()) is Outcome.LOST
            await twin.agree()
            await twin.amend(A, Delete())

    @needs("ordered")
    async def test_law_09_the_oldest_matching_jobs_are_chosen_up_to_the_limit(
        self, twin: Twin
    ) -> None:
        await twin.enqueue([a_job(id_, tenant="t" if id_ in "bde" else "u") for id_ in "abcdef"])
        assert await twin.amend(JobFilter(tenant="t"), Cancel(), limit=2) == 2
        cancelled = await twin.find(JobFilter(states=(State.CANCELLED,)))
        assert [job.id for job in cancelled] == ["d", "b"]
        assert await twin.amend(JobFilter(tenant="t"), Cancel(), limit=2) == 1

    @needs("priority")
    async def test_a_version_guards_against_what_changed_since_it_was_read(
        self, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("a"))
        seen = await twin.require("a")
        await twin.amend(A, Edit(priority=5))
        assert await twin.amend(replace(A, version=seen.version), Cancel()) == 0
        assert await twin.amend(replace(A, version=seen.version + 1), Cancel()) == 1

    async def test_law_13_repeating_an_act_with_its_version_is_safe(self, twin: Twin) -> None:
        await in_state(twin, "dead")
        guarded = replace(A, version=(await twin.require("a")).version)
        assert await twin.amend(guarded, Redrive()) == 1
        assert await twin.amend(guarded, Redrive()) == 0
        assert (await twin.require("a")).events[-1].kind is EventKind.REDRIVEN

    async def test_a_bad_act_is_refused_and_changes_nothing(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for act in BAD:
            with pytest.raises(UsageError):
                await twin.amend(A, act)
        assert (await twin.require("a")).version == 1

    async def test_law_10_an_act_is_bounded(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for limit in (0, -1, bounds.PAGE_MAX + 1):
            with pytest.raises(UsageError):
                await twin.amend(JobFilter(), Cancel(), limit=limit)
        with pytest.raises(UsageError):
            await twin.amend(JobFilter(ids=("x",) * 1_001), Cancel())
        assert (await twin.require("a")).state is State.WAITING
