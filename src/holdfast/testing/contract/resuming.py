"""What one run leaves for the next: where to go on, and that it must run alone."""

from __future__ import annotations

import pytest

from holdfast.core.model import JobFilter, Lease, Note, Renewal, State
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Complete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
)
from holdfast.testing.contract.making import (
    CRASH,
    a_job,
    a_queue,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

A = JobFilter(ids=("a",))
NOTE = Note(progress=0.5, checkpoint=b"here", output=b"so far")


class Resuming:
    async def test_a_release_alone_is_carried_by_every_reading(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        assert not lease.job.alone
        assert await settle(twin, lease, Release(alone=True)) is Outcome.SETTLED
        job = await twin.the("a")
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

    async def test_a_repeated_release_changes_nothing(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Release())
        assert await settle(twin, lease, Release(alone=True)) is Outcome.SETTLED
        assert not (await twin.the("a")).alone

    async def test_alone_stays_with_whatever_goes_on_as_the_same_job(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await self._released_alone(twin, key="k")
        await twin.enqueue([a_job("b", key="k", key_policy="merge", payload=b'{"n":1}')])
        await twin.enqueue([a_job("b", key="k", key_policy="replace", payload=b"2")])
        acts = (Edit(priority=1, payload=b"3"), Retime(delay_ms=0), Expedite(), Move(queue="q"))
        for act in acts:
            assert await twin.amend(A, act) == 1
            assert (await twin.the("a")).alone
        for verdict in (Retry(0, CRASH), Release(), Bury()):
            lease = await lease_one(twin, queues=("q",))
            assert lease.job.alone
            await settle(twin, lease, verdict)
        job = await twin.the("a")
        assert (job.state, job.alone, job.crashes, job.releases) == (State.DEAD, True, 1, 2)

    async def test_a_job_that_starts_afresh_is_not_alone(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Forward("grave"))
        job = await twin.the("a")
        assert (job.queue, job.alone, job.releases) == ("grave", False, 0)

    async def test_a_redriven_job_is_not_alone(self, twin: Twin) -> None:
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Bury())
        assert await twin.amend(A, Redrive()) == 1
        assert not (await twin.the("a")).alone
        assert not (await lease_one(twin)).job.alone

    async def test_a_job_of_the_dead_queue_is_not_alone(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("default", dead_queue="grave"))
        await self._released_alone(twin)
        await settle(twin, await lease_one(twin), Bury())
        lease = await lease_one(twin, queues=("grave",))
        assert (lease.id, lease.job.alone) == ("a", False)

    async def test_a_done_job_was_alone(self, twin: Twin) -> None:
        await self._released_alone(twin, payload=b"x" * 2_000)
        await settle(twin, await lease_one(twin), Complete(b"y" * 2_000))
        job = await twin.the("a")
        assert (job.state, job.alone, job.result) == (State.DONE, True, b"y" * 2_000)

    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_a_payload_that_comes_by_the_key_forgets_where_to_go_on(
        self, twin: Twin, policy: str
    ) -> None:
        await self._retried(twin, key="k")
        await twin.enqueue([a_job("b", key="k", key_policy=policy, payload=b'{"n":2}')])
        await self._forgot(twin, b'{"n":2}')

    async def test_an_edited_payload_forgets_where_to_go_on(self, twin: Twin) -> None:
        await self._retried(twin)
        assert await twin.amend(A, Edit(payload=b'{"n":2}')) == 1
        await self._forgot(twin, b'{"n":2}')

    async def test_even_the_same_payload_given_again_forgets(self, twin: Twin) -> None:
        await self._retried(twin, payload=b"")
        assert await twin.amend(A, Edit(payload=b"")) == 1
        await self._forgot(twin, b"")

    async def test_a_dead_letter_with_a_new_payload_starts_from_the_beginning(
        self, twin: Twin
    ) -> None:
        lease = await self._noted(twin)
        await settle(twin, lease, Bury())
        await twin.amend(A, Edit(payload=b"2"))
        await twin.amend(A, Redrive())
        await self._forgot(twin, b"2")

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

    async def test_what_was_moved_on_is_not_made_to_forget(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await self._retried(twin, key="k")
        await twin.amend(A, Move(queue="q"))
        await twin.enqueue([a_job("b", key="k", key_policy="replace", payload=b"2")])
        job = await twin.the("a")
        assert (job.payload, job.progress, job.checkpoint) == (b"{}", 0.5, b"here")

    async def test_notes_begin_again_after_they_were_forgotten(self, twin: Twin) -> None:
        await self._retried(twin)
        await twin.amend(A, Edit(payload=b"2"))
        lease = await lease_one(twin)
        await twin.renew([Renewal(lease=lease, note=Note(progress=0.1))])
        job = await twin.the("a")
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
        job = await twin.the("a")
        assert (job.payload, job.progress, job.checkpoint) == (payload, None, None)
        assert job.output == b"so far", "what was done is still told"
        lease = await lease_one(twin)
        assert (lease.job.progress, lease.job.checkpoint) == (None, None)
        assert lease.job.payload == payload
