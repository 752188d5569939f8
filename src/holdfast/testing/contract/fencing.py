"""Who may end a lease: the token's holder, once, late but not too late."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, Reason, State
from holdfast.core.verdict import (
    Bury,
    Complete,
    Delete,
    Forward,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.testing.contract.making import (
    CRASH,
    ERROR,
    a_job,
    a_queue,
    jobs,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

A = JobFilter(ids=("a",))
VERDICTS: tuple[Verdict, ...] = (
    Complete(b"late"),
    Retry(5, ERROR),
    Bury(Reason.REJECTED, ERROR),
    Release("late", 5),
    Forward("default"),
)


class Fencing:
    async def test_law_05_a_late_settle_wins_while_the_job_is_leased(
        self, harness: Harness, twin: Twin
    ) -> None:
        for verdict in VERDICTS:
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms + 1)
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            await twin.agree()
            await twin.amend(A, Delete())

    async def test_law_05_a_late_settle_wins_while_the_job_waits_under_its_token(
        self, harness: Harness, twin: Twin
    ) -> None:
        wins: list[Verdict] = [Complete(b"late"), Bury(Reason.REJECTED, ERROR), Forward("default")]
        for verdict, state in zip(wins, ("done", "dead", "waiting"), strict=True):
            lease = await leased(twin)
            harness.clock.advance(lease.lease_ms)
            assert await reap(twin) == [Outcome.SETTLED]
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            job = await twin.the("a")
            assert job.state == state
            await twin.amend(A, Delete())

    async def test_law_05_a_late_retry_of_what_already_waits_changes_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(lease.lease_ms)
        await reap(twin)
        before = await twin.the("a")
        assert await settle(twin, lease, Retry(99, CRASH)) is Outcome.SETTLED
        assert await settle(twin, lease, Release("x", 99)) is Outcome.SETTLED
        assert await twin.the("a") == before

    @pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: type(verdict).__name__)
    async def test_law_04_a_stale_token_changes_nothing_once_leased_anew(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        stale = await leased(twin)
        harness.clock.advance(stale.lease_ms)
        await reap(twin)
        fresh = await lease_one(twin)
        before = await twin.the("a")
        assert await settle(twin, stale, verdict) is Outcome.LOST
        assert await twin.the("a") == before
        assert await settle(twin, fresh, Complete(b"right")) is Outcome.SETTLED
        assert await settle(twin, stale, verdict) is Outcome.LOST
        assert (await twin.the("a")).result == b"right"

    @pytest.mark.parametrize("ending", [Complete(b"1"), Bury()], ids=["done", "dead"])
    async def test_law_05_a_late_settle_never_wins_once_it_is_finished(
        self, twin: Twin, ending: Verdict
    ) -> None:
        lease = await leased(twin)
        await settle(twin, lease, ending)
        before = await twin.the("a")
        for verdict in VERDICTS:
            repeat = type(verdict) is type(ending)
            expected = Outcome.SETTLED if repeat else Outcome.LOST
            assert await settle(twin, lease, verdict) is expected
        assert await twin.the("a") == before

    @pytest.mark.parametrize("verdict", VERDICTS[:4], ids=lambda verdict: type(verdict).__name__)
    async def test_law_08_repeating_a_settle_is_harmless(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, verdict) is Outcome.SETTLED
        before = await twin.the("a")
        harness.clock.advance(3)
        assert await settle(twin, lease, verdict) is Outcome.SETTLED
        assert await twin.the("a") == before

    async def test_law_08_a_repeat_within_one_batch_is_harmless(self, twin: Twin) -> None:
        lease = await leased(twin)
        twice = [Settlement(lease=lease, verdict=Retry(7, CRASH))] * 2
        assert await twin.settle(twice) == [Outcome.SETTLED, Outcome.SETTLED]
        job = await twin.the("a")
        assert (job.crashes, len(job.events), job.version) == (1, 1, 3)

    async def test_the_first_of_two_verdicts_in_a_batch_counts(self, twin: Twin) -> None:
        lease = await leased(twin)
        batch = [
            Settlement(lease=lease, verdict=Bury(Reason.REJECTED)),
            Settlement(lease=lease, verdict=Complete(b"no")),
        ]
        assert await twin.settle(batch) == [Outcome.SETTLED, Outcome.LOST]
        assert (await twin.the("a")).state is State.DEAD

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
        states = [(await twin.the(id_)).state for id_ in "abcdefgh"]
        expected = "done waiting dead waiting waiting done leased leased".split()
        assert [str(state) for state in states] == expected

    @pytest.mark.parametrize("change", [-1, 1, 2**40])
    async def test_law_04_a_wrong_token_changes_nothing(self, twin: Twin, change: int) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        wrong = replace(lease, token=lease.token + change)
        for verdict in VERDICTS:
            assert await settle(twin, wrong, verdict) is Outcome.LOST
        assert await twin.the("a") == before

    async def test_an_unknown_job_is_lost(self, twin: Twin) -> None:
        lease = await leased(twin)
        made_up = replace(lease, job=Job(id="never", task="t", queue="default"))
        assert await settle(twin, made_up, Complete()) is Outcome.LOST
