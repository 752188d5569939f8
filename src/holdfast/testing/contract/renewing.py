"""Pushing deadlines, leaving notes, and hearing that the lease is lost or the job unwanted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import JobFilter, Lease, Note, Renewal
from holdfast.core.verdict import Cancel, Complete, Delete, Outcome, Retry, Settlement
from holdfast.errors import UsageError
from holdfast.testing.contract.making import case, jobs, lease_one, leased, reap, settle
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

LEASE_MS = 30_000
BAD_NOTES = (
    Note(progress=-0.1),
    Note(progress=1.1),
    Note(progress=float("nan")),
    Note(progress=float("inf")),
    Note(checkpoint=b"x" * (limits.CHECKPOINT_MAX + 1)),
)


async def renew(twin: Twin, lease: Lease, lease_ms: int | None = None) -> Lease | None:
    (renewed,) = await twin.renew([Renewal(lease=lease, lease_ms=lease_ms)])
    return renewed


class Renewing:
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

    async def test_a_renewal_of_zero_ends_the_lease_at_once(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await renew(twin, lease, 0) is not None
        assert [lapsed.id for lapsed in (await twin.overdue()).leases] == ["a"]
        assert await renew(twin, lease) is None

    async def test_law_05_a_late_renew_does_not_win(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.advance(LEASE_MS)
        before = await twin.the("a")
        assert await renew(twin, lease) is None
        assert await twin.the("a") == before
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    async def test_law_04_a_stale_token_renews_nothing(self, harness: Harness, twin: Twin) -> None:
        stale = await leased(twin)
        harness.clock.advance(LEASE_MS)
        await reap(twin)
        assert await renew(twin, stale) is None
        fresh = await lease_one(twin)
        before = await twin.the("a")
        (answer,) = await twin.renew([Renewal(lease=stale, note=Note(progress=1.0, output=b"x"))])
        assert answer is None
        assert await twin.the("a") == before
        assert await renew(twin, fresh) is not None

    async def test_a_settled_job_is_not_renewed(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Retry())
        assert await renew(twin, lease) is None
        again = await lease_one(twin)
        await settle(twin, again, Complete())
        assert await renew(twin, again) is None

    async def test_an_unknown_or_deleted_job_is_not_renewed(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await twin.amend(JobFilter(ids=("a",)), Delete(force=True)) == 1
        assert await renew(twin, lease) is None
        made_up = replace(lease, job=replace(lease.job, id="never"))
        assert await renew(twin, made_up) is None

    async def test_a_batch_answers_each_in_order(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        leases = [await lease_one(twin) for _ in "abc"]
        await settle(twin, leases[1], Complete())
        renewals = [Renewal(lease=lease) for lease in (leases[2], leases[1], leases[0], leases[2])]
        renewed = await twin.renew(renewals)
        assert [lease and lease.id for lease in renewed] == ["c", None, "a", "c"]
        assert await twin.renew([]) == []

    async def test_notes_are_kept_and_none_leaves_what_is_there(self, twin: Twin) -> None:
        lease = await leased(twin)
        for note in (
            Note(progress=0.25, checkpoint=b"\x00\xff", output=b"first"),
            Note(output=b"second"),
            Note(),
            Note(progress=0.0, checkpoint=b""),
        ):
            assert (await twin.renew([Renewal(lease=lease, note=note)]))[0] is not None
        job = await twin.the("a")
        assert (job.progress, job.checkpoint, job.output) == (0.0, b"", b"second")
        assert job.events == ()

    async def test_a_settlement_may_carry_the_last_note(self, twin: Twin) -> None:
        lease = await leased(twin)
        note = Note(progress=1.0, checkpoint=b"c", output=b"bye")
        await twin.settle([Settlement(lease=lease, verdict=Complete(b"r"), note=note)])
        job = await twin.the("a")
        assert (job.progress, job.checkpoint, job.output, job.result) == (1.0, b"c", b"bye", b"r")

    async def test_a_long_output_keeps_its_head_and_tail(self, twin: Twin) -> None:
        lease = await leased(twin)
        output = b"head" + b"." * limits.OUTPUT_MAX + b"tail"
        await twin.renew([Renewal(lease=lease, note=Note(output=output))])
        kept = (await twin.the("a")).output
        assert kept == checks.clip_output(output)
        assert kept.startswith(b"head")
        assert kept.endswith(b"tail")
        assert len(kept) <= limits.OUTPUT_MAX

    async def test_a_bad_note_is_refused_and_nothing_is_written(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        for note in BAD_NOTES:
            harness.clock.advance(1)
            with case(note):
                with pytest.raises(UsageError):
                    await twin.renew([Renewal(lease=lease), Renewal(lease=lease, note=note)])
                bad = Settlement(lease=lease, verdict=Complete(), note=note)
                assert await twin.settle([bad]) == [Outcome.REFUSED]
                assert await twin.the("a") == before

    async def test_law_10_a_renewal_is_bounded(self, twin: Twin) -> None:
        lease = await leased(twin)
        for lease_ms in (-1, limits.LEASE_MS_MAX + 1, 10**30):
            with pytest.raises(UsageError):
                await twin.renew([Renewal(lease=lease, lease_ms=lease_ms)])
        with pytest.raises(UsageError):
            await twin.renew([Renewal(lease=lease)] * (limits.BATCH_MAX + 1))

    async def test_a_renewal_brings_the_cancel_request(self, twin: Twin) -> None:
        lease = await leased(twin)
        renewed = await renew(twin, lease)
        assert renewed is not None
        assert not renewed.cancel_requested
        await twin.amend(JobFilter(ids=("a",)), Cancel(by="ann"))
        renewed = await renew(twin, lease)
        assert renewed is not None
        assert renewed.cancel_requested
