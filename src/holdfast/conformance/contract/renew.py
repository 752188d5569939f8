"""Renewing: deadlines, notes, lost leases, cancel requests; and state for the next attempt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    CRASH,
    a_job,
    a_queue,
    case,
    jobs,
    lease_one,
    leased,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds, checks
from holdfast.core.model import JobFilter, Lease, Note, Renewal, State
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
)
from holdfast.errors import UsageError

LEASE_MS = 30_000
BAD_NOTES = (
    Note(progress=-0.1),
    Note(progress=1.1),
    Note(progress=float("nan")),
    Note(progress=float("inf")),
    Note(checkpoint=b"x" * (bounds.CHECKPOINT_MAX + 1)),
)


async def renew(twin: Twin, lease: Lease, lease_ms: int | None = None) -> Lease | None:
    (renewed,) = await twin.renew([Renewal(lease=lease, lease_ms=lease_ms)])
    return renewed


class RenewContract:
    """Deadlines and notes."""

    @needs("renew", "overdue")
    async def test_renewing_pushes_the_deadline(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(LEASE_MS - 1)
        now = harness.clock.wall_ms()
        renewed = await renew(twin, lease)
        assert renewed is not None
        assert (renewed.token, renewed.lease_ms) == (lease.token, LEASE_MS)
        assert renewed.job.deadline_at == now + LEASE_MS
        assert renewed.job.leased_at == lease.job.leased_at
        harness.clock.advance(LEASE_MS - 1)
        assert (await twin.overdue()).leases == ()
        harness.clock.advance(1)
        assert [lease.id for lease in (await twin.overdue()).leases] == ["a"]

    @needs("renew", "overdue")
    async def test_a_renewal_may_ask_for_its_own_length(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        renewed = await renew(twin, lease, 70_000)
        assert renewed is not None
        assert renewed.lease_ms == 70_000
        assert (await twin.overdue()).next_ms == 70_000
        shorter = await renew(twin, renewed, 5)
        assert shorter is not None
        assert (await twin.overdue()).next_ms == 5
        kept = await renew(twin, renewed)
        assert kept is not None
        assert kept.lease_ms == 70_000

    @needs("renew", "overdue")
    async def test_a_renewal_of_zero_ends_the_lease_at_once(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await renew(twin, lease, 0) is not None
        assert [lapsed.id for lapsed in (await twin.overdue()).leases] == ["a"]
        assert await renew(twin, lease) is None

    @needs("inspect", "renew", "fencing")
    async def test_law_05_a_late_renew_does_not_win(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(LEASE_MS)
        before = await twin.require("a")
        assert await renew(twin, lease) is None
        assert await twin.require("a") == before
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("inspect", "renew", "fencing", "notes")
    async def test_law_04_a_stale_token_renews_nothing(self, harness: Harness, twin: Twin) -> None:
        stale = await leased(twin)
        harness.clock.advance(LEASE_MS)
        await reap(twin)
        assert await renew(twin, stale) is None
        fresh = await lease_one(twin)
        before = await twin.require("a")
        (answer,) = await twin.renew([Renewal(lease=stale, note=Note(progress=1.0, output=b"x"))])
        assert answer is None
        assert await twin.require("a") == before
        assert await renew(twin, fresh) is not None

    @needs("renew", "fencing")
    async def test_a_settled_job_is_not_renewed(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Retry())
        assert await renew(twin, lease) is None
        again = await lease_one(twin)
        await settle(twin, again, Complete())
        assert await renew(twin, again) is None

    @needs("inspect", "renew")
    async def test_an_unknown_or_deleted_job_is_not_renewed(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await twin.amend(JobFilter(ids=("a",)), Delete(force=True)) == 1
        assert await renew(twin, lease) is None
        made_up = replace(lease, job=replace(lease.job, id="never"))
        assert await renew(twin, made_up) is None

    @needs("renew", "ordered")
    async def test_a_batch_answers_each_in_order(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        leases = [await lease_one(twin) for _ in "abc"]
        await settle(twin, leases[1], Complete())
        renewals = [Renewal(lease=lease) for lease in (leases[2], leases[1], leases[0], leases[2])]
        renewed = await twin.renew(renewals)
        assert [lease and lease.id for lease in renewed] == ["c", None, "a", "c"]
        assert await twin.renew([]) == []

    @needs("inspect", "renew", "notes")
    async def test_notes_are_kept_and_none_leaves_what_is_there(self, twin: Twin) -> None:
        lease = await leased(twin)
        for note in (
            Note(progress=0.25, checkpoint=b"\x00\xff", output=b"first"),
            Note(output=b"second"),
            Note(),
            Note(progress=0.0, checkpoint=b""),
        ):
            assert (await twin.renew([Renewal(lease=lease, note=note)]))[0] is not None
        job = await twin.require("a")
        assert (job.progress, job.checkpoint, job.output) == (0.0, b"", b"second")
        assert job.events == ()

    @needs("inspect", "results", "notes")
    async def test_a_settlement_may_carry_the_last_note(self, twin: Twin) -> None:
        lease = await leased(twin)
        note = Note(progress=1.0, checkpoint=b"c", output=b"bye")
        await twin.settle([Settlement(lease=lease, verdict=Complete(b"r"), note=note)])
        job = await twin.require("a")
        assert (job.progress, job.checkpoint, job.output, job.result) == (1.0, b"c", b"bye", b"r")

    @needs("inspect", "renew", "notes")
    async def test_a_long_output_keeps_its_head_and_tail(self, twin: Twin) -> None:
        lease = await leased(twin)
        output = b"head" + b"." * bounds.OUTPUT_MAX + b"tail"
        await twin.renew([Renewal(lease=lease, note=Note(output=output))])
        kept = (await twin.require("a")).output
        assert kept == checks.clip_output(output)
        assert kept.startswith(b"head")
        assert kept.endswith(b"tail")
        assert len(kept) <= bounds.OUTPUT_MAX

    @needs("inspect")
    async def test_a_bad_note_is_refused_and_nothing_is_written(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        for note in BAD_NOTES:
            harness.clock.advance(1)
            with case(note):
                with pytest.raises(UsageError):
                    await twin.renew([Renewal(lease=lease), Renewal(lease=lease, note=note)])
                bad = Settlement(lease=lease, verdict=Complete(), note=note)
                assert await twin.settle([bad]) == [Outcome.REFUSED]
                assert await twin.require("a") == before

    async def test_law_10_a_renewal_is_bounded(self, twin: Twin) -> None:
        lease = await leased(twin)
        for lease_ms in (-1, bounds.LEASE_MS_MAX + 1, 10**30):
            with pytest.raises(UsageError):
                await twin.renew([Renewal(lease=lease, lease_ms=lease_ms)])
        with pytest.raises(UsageError):
            await twin.renew([Renewal(lease=lease)] * (bounds.BATCH_MAX + 1))

    @needs("inspect", "renew")
    async def test_a_renewal_brings_the_cancel_request(self, twin: Twin) -> None:
        lease = await leased(twin)
        renewed = await renew(twin, lease)
        assert renewed is not None
        assert not renewed.cancel_requested
        await twin.amend(JobFilter(ids=("a",)), Cancel(by="ann"))
        renewed = await renew(twin, lease)
        assert renewed is not None
        assert renewed.cancel_requested


A = JobFilter(ids=("a",))
NOTE = Note(progress=0.5, checkpoint=b"here", output=b"so far")


class ResumeContract:
    """Checkpoints and isolation that one attempt leaves for the next."""

    @needs("inspect", "renew", "refunds", "notes")
    async def test_a_release_alone_is_carried_by_every_reading(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        assert not lease.job.alone
        assert await settle(twin, lease, Release(alone=True)) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.alone, job.runs_alone, job.releases, job.attempt) == (True, True, 1, 0)
        assert [found.alone for found in await twin.find(JobFilter())] == [True]
        lease = await lease_one(twin)
        assert (lease.job.alone, lease.job.releases) == (True, 1)
        (renewed,) = await twin.renew([Renewal(lease=lease, note=NOTE)])
        assert renewed is not None
        assert (renewed.job.alone, renewed.job.checkpoint) == (True, b"here")
        harness.clock.advance(30_000)
        assert [lapsed.job.alone for lapsed in (await twin.overdue()).leases] == [True]
        await reap(twin)
        lease = await lease_one(twin)
        assert (lease.job.alone, lease.job.progress) == (True, 0.5)

    @needs("inspect", "refunds")
    async def test_a_repeated_release_changes_nothing(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Release())
        assert await settle(twin, lease, Release(alone=True)) is Outcome.SETTLED
        assert not (await twin.require("a")).alone

    @needs("inspect", "priority", "keys", "refunds")
    async def test_alone_stays_with_whatever_goes_on_as_the_same_job(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await self._released_alone(twin, key="k")
        await twin.enqueue([a_job("b", key="k", key_policy="merge", payload=b'{"n":1}')])
        await twin.enqueue([a_job("b", key="k", key_policy="replace", payload=b"2")])
        acts = (Edit(priority=1, payload=b"3"), Retime(delay_ms=0), Expedite(), Move(queue="q"))
        for act in acts:
            assert await twin.amend(A, act) == 1
            assert (await twin.require("a")).alone
        for verdict in (Retry(0, CRASH), Release()):
            lease = await lease_one(twin, queues=("q",))
            assert lease.job.alone
            await settle(twin, lease, verdict)
        lease = await lease_one(twin, queues=("q",))
        assert (lease.job.alone, lease.job.crashes, lease.job.releases) == (True, 1, 2)
        await settle(twin, lease, Bury())
        job = await twin.require("a")
        # The releases of a dead letter are those since its death.
        assert (job.state, job.alone, job.crashes, job.releases) == (State.DEAD, True, 1, 0)

    @needs("inspect", "refunds")
    async def test_a_job_that_starts_afresh_is_not_alone(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Forward("grave"))
        job = await twin.require("a")
        assert (job.queue, job.alone, job.releases) == ("grave", False, 0)

    @needs("inspect", "refunds")
    async def test_a_redriven_job_is_not_alone(self, twin: Twin) -> None:
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Bury())
        assert await twin.amend(A, Redrive()) == 1
        assert not (await twin.require("a")).alone
        assert not (await lease_one(twin)).job.alone

    @needs("refunds", "dead_leases")
    async def test_a_job_in_the_dead_queue_stays_alone(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("default", dead_queue="grave"))
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Bury())
        lease = await lease_one(twin, queues=("grave",), dead=True)
        assert (lease.id, lease.job.alone) == ("a", True)

    @needs("inspect", "refunds", "results")
    async def test_a_done_job_was_alone(self, twin: Twin) -> None:
        await self._released_alone(twin, payload=b"x" * 2_000)
        await settle(twin, await lease_one(twin), Complete(b"y" * 2_000))
        job = await twin.require("a")
        assert (job.state, job.alone, job.result) == (State.DONE, True, b"y" * 2_000)

    @needs("inspect", "keys", "renew", "notes")
    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_a_payload_that_comes_by_the_key_forgets_where_to_go_on(
        self, twin: Twin, policy: str
    ) -> None:
        await self._retried(twin, key="k")
        await twin.enqueue([a_job("b", key="k", key_policy=policy, payload=b'{"n":2}')])
        await self._forgot(twin, b'{"n":2}')

    @needs("inspect", "renew", "notes")
    async def test_an_edited_payload_forgets_where_to_go_on(self, twin: Twin) -> None:
        await self._retried(twin)
        assert await twin.amend(A, Edit(payload=b'{"n":2}')) == 1
        await self._forgot(twin, b'{"n":2}')

    @needs("inspect", "renew", "notes")
    async def test_even_the_same_payload_given_again_forgets(self, twin: Twin) -> None:
        await self._retried(twin, payload=b"")
        assert await twin.amend(A, Edit(payload=b"")) == 1
        await self._forgot(twin, b"")

    @needs("inspect", "renew", "notes")
    async def test_a_dead_letter_with_a_new_payload_starts_from_the_beginning(
        self, twin: Twin
    ) -> None:
        lease = await self._noted(twin)
        await settle(twin, lease, Bury())
        await twin.amend(A, Edit(payload=b"2"))
        await twin.amend(A, Redrive())
        await self._forgot(twin, b"2")

    @needs("inspect", "priority", "renew", "notes")
    @pytest.mark.parametrize(
        "act",
        [Edit(priority=1, expires_ms=9), Retime(delay_ms=0), Expedite(), Move(queue="q")],
        ids=lambda act: type(act).__name__,
    )
    async def test_an_act_that_leaves_the_payload_leaves_the_notes(
        self, twin: Twin, act: Amendment
    ) -> None:
        await twin.declare(a_queue("q"))
        await self._retried(twin)
        assert await twin.amend(A, act) == 1
        lease = await lease_one(twin, queues=("default", "q"))
        assert (lease.job.progress, lease.job.checkpoint) == (0.5, b"here")

    @needs("inspect", "keys", "renew", "notes")
    async def test_a_moved_job_is_not_replaced_by_its_key(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await self._retried(twin, key="k")
        await twin.amend(A, Move(queue="q"))
        await twin.enqueue([a_job("b", key="k", key_policy="replace", payload=b"2")])
        job = await twin.require("a")
        assert (job.payload, job.progress, job.checkpoint) == (b"{}", 0.5, b"here")

    @needs("inspect", "renew", "notes")
    async def test_notes_begin_again_after_they_were_forgotten(self, twin: Twin) -> None:
        await self._retried(twin)
        await twin.amend(A, Edit(payload=b"2"))
        lease = await lease_one(twin)
        await twin.renew([Renewal(lease=lease, note=Note(progress=0.1))])
        job = await twin.require("a")
        assert (job.progress, job.checkpoint, job.output) == (0.1, None, b"so far")

    async def _released_alone(self, twin: Twin, **fields: object) -> None:
        await settle(twin, await leased(twin, **fields), Release(alone=True))

    async def _noted(self, twin: Twin, **fields: object) -> Lease:
        lease = await leased(twin, **fields)
        await twin.renew([Renewal(lease=lease, note=NOTE)])
        return lease

    async def _retried(self, twin: Twin, **fields: object) -> None:
        await settle(twin, await self._noted(twin, **fields), Retry())

    async def _forgot(self, twin: Twin, payload: bytes) -> None:
        job = await twin.require("a")
        assert (job.payload, job.progress, job.checkpoint) == (payload, None, None)
        assert job.output == b"so far", "the output of the lost run stays"
        lease = await lease_one(twin)
        assert (lease.job.progress, lease.job.checkpoint) == (None, None)
        assert lease.job.payload == payload
