"""Bad input is stored byte for byte or refused with a reason; neighbours never notice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import (
    Failure,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Renewal,
    Status,
)
from holdfast.core.verdict import (
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Outcome,
    Release,
    Retry,
    Settlement,
)
from holdfast.errors import UsageError
from holdfast.testing import hostile
from holdfast.testing.contract.making import a_job, from_default, jobs, leased, settle
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

WORST_IDS = ("", "\x00", "\ud800", "'; DROP TABLE job; --", "x" * 100_000, "é")
WORST_TOKENS = (-1, 0, 2**63 - 1, 2**63, -(2**63) - 1, 10**30)


class Hostility:
    async def test_every_payload_is_kept_byte_for_byte(self, twin: Twin) -> None:
        for number, payload in enumerate(hostile.PAYLOADS):
            (receipt,) = await twin.enqueue([a_job(f"j{number}", payload=payload)])
            assert receipt.status is Status.NEW
        assert len(await twin.lease(from_default(100))) == len(hostile.PAYLOADS)
        for number, payload in enumerate(hostile.PAYLOADS):
            assert (await twin.the(f"j{number}")).payload == payload

    async def test_results_checkpoints_and_outputs_are_kept_byte_for_byte(self, twin: Twin) -> None:
        for data in hostile.PAYLOADS:
            lease = await leased(twin, id=f"r{hash(data) & 0xFFFFFF}")
            output = data[: limits.OUTPUT_MAX]
            note = Note(checkpoint=data, output=output)
            (outcome,) = await twin.settle(
                [Settlement(lease=lease, verdict=Complete(data), note=note)]
            )
            assert outcome is Outcome.SETTLED
            job = await twin.the(lease.id)
            assert (job.result, job.checkpoint, job.output) == (data, data, output)

    async def test_a_payload_one_byte_too_large_is_refused(self, twin: Twin) -> None:
        (receipt,) = await twin.enqueue([a_job(payload=hostile.PAYLOAD_TOO_LARGE)])
        assert (receipt.status, receipt.code) == (Status.REFUSED, "payload_too_large")
        assert str(limits.PAYLOAD_MAX) in receipt.text

    async def test_a_bad_job_harms_no_neighbour(self, twin: Twin) -> None:
        for number, (code, bad) in enumerate(hostile.BAD_JOBS):
            batch = [a_job(f"before{number}"), bad, a_job(f"after{number}")]
            receipts = await twin.enqueue(batch)
            assert [receipt.code for receipt in receipts] == ["", code, ""], bad
            assert [receipt.id for receipt in receipts] == [job.id for job in batch]
            assert receipts[1].text
        assert len(await twin.find(JobFilter())) == 2 * len(hostile.BAD_JOBS)

    async def test_the_whole_corpus_in_one_batch(self, twin: Twin) -> None:
        batch: list[NewJob] = []
        for number, (_, bad) in enumerate(hostile.BAD_JOBS):
            batch += [bad, a_job(f"good{number}")]
        receipts = await twin.enqueue(batch)
        assert [receipt.code for receipt in receipts[::2]] == [c for c, _ in hostile.BAD_JOBS]
        assert {receipt.status for receipt in receipts[1::2]} == {Status.NEW}

    async def test_error_texts_are_cleaned_and_kept(self, twin: Twin) -> None:
        await twin.enqueue([a_job(f"j{n}") for n, _ in enumerate(hostile.ERROR_TEXTS)])
        leases = await twin.lease(from_default(100))
        failures = [
            Failure(type=text, message=text, trace=text, exit_code=-9, signal=9)
            for text in hostile.ERROR_TEXTS
        ]
        batch = [
            Settlement(lease=lease, verdict=Retry(0, failure))
            for lease, failure in zip(leases, failures, strict=True)
        ]
        assert set(await twin.settle(batch)) == {Outcome.SETTLED}
        for lease, given in zip(leases, failures, strict=True):
            (event,) = (await twin.the(lease.id)).events
            assert event.failure is not None
            assert "\x00" not in event.failure.message
            assert len(event.failure.trace) <= limits.ERROR_TEXT_MAX
            if given.message in hostile.STORABLE_TEXTS:
                assert event.failure == given

    async def test_what_people_and_workers_say_is_cleaned_and_kept(self, twin: Twin) -> None:
        for text in hostile.ERROR_TEXTS:
            lease = await leased(twin)
            wanted = JobFilter(ids=("a",))
            assert await settle(twin, lease, Release(text)) is Outcome.SETTLED
            assert await twin.amend(wanted, Edit(by=text, priority=1)) == 1
            act = BuryWaiting(by=text, failure=Failure(message=text))
            assert await twin.amend(wanted, act) == 1
            assert len((await twin.the("a")).events) == 3
            await twin.enqueue(jobs("b"))
            assert await twin.amend(JobFilter(ids=("b",)), Cancel(by=text, text=text)) == 1
            assert len((await twin.the("b")).events) == 1
            await twin.amend(JobFilter(), Delete())

    async def test_workers_with_odd_names(self, twin: Twin) -> None:
        for number, text in enumerate(hostile.STORABLE_TEXTS):
            await twin.enqueue([a_job(f"j{number}")])
            (lease,) = await twin.lease(from_default(worker=text))
            assert lease.job.worker == text
            assert len(await twin.find(JobFilter(worker=text))) == 1

    async def test_a_hostile_id_or_token_of_a_lease_is_lost(self, twin: Twin) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        worst: list[Lease] = [replace(lease, token=token) for token in WORST_TOKENS]
        worst += [replace(lease, job=replace(lease.job, id=id_)) for id_ in WORST_IDS]
        for bad in worst:
            renewed = await twin.renew([Renewal(lease=bad), Renewal(lease=lease)])
            assert renewed[0] is None
            assert renewed[1] is not None
            for verdict in (Complete(b"x"), Retry(), Release()):
                assert await settle(twin, bad, verdict) is Outcome.LOST
        assert await twin.the("a") == before

    async def test_a_lost_lease_in_a_batch_harms_no_neighbour(self, twin: Twin) -> None:
        lease = await leased(twin)
        bad = [replace(lease, token=token) for token in WORST_TOKENS]
        bad += [replace(lease, job=replace(lease.job, id=id_)) for id_ in WORST_IDS]
        batch = [Settlement(lease=each, verdict=Complete(b"x")) for each in (*bad, lease)]
        outcomes = await twin.settle(batch)
        assert outcomes == [Outcome.LOST] * len(bad) + [Outcome.SETTLED]

    async def test_asking_for_hostile_ids_finds_nothing(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for id_ in WORST_IDS:
            assert await twin.get(id_) is None

    async def test_hostile_requests_and_filters_are_refused_or_find_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("a"))
        texts = [text for text in hostile.UNSTORABLE_TEXTS if text]
        requests = [LeaseRequest(queues=(name,)) for name in hostile.BAD_QUEUE_NAMES]
        requests += [LeaseRequest(ids=(id_,)) for id_ in WORST_IDS]
        requests += [from_default(tasks=frozenset({text})) for text in texts]
        for request in requests:
            with pytest.raises(UsageError):
                await twin.lease(request)
        names = ("queue", "task", "tenant", "group", "key", "worker", "search")
        given: list[dict[str, Any]] = [{name: text} for name in names for text in texts]
        filters = [JobFilter(**fields) for fields in given]
        filters += [JobFilter(ids=(text,)) for text in texts[:4]]
        filters += [JobFilter(labels={text: "v"}) for text in texts]
        filters += [JobFilter(version=number) for number in hostile.HUGE_NUMBERS]
        filters += [JobFilter(finished_before_ms=number) for number in hostile.HUGE_NUMBERS]
        for wanted in filters:
            for ask in (
                lambda wanted=wanted: twin.find(wanted),
                lambda wanted=wanted: twin.tally(wanted, "state"),
                lambda wanted=wanted: twin.amend(wanted, Cancel()),
            ):
                with pytest.raises(UsageError):
                    await ask()
        with pytest.raises(UsageError):
            await harness.engine.find(JobFilter(), limit=1, after=10**30)

    async def test_bad_jobs_among_follow_ups_refuse_the_settlement_alone(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab"))
        first, second = await twin.lease(from_default(2))
        for _, bad in hostile.BAD_JOBS:
            batch = [
                Settlement(lease=first, verdict=Complete(then=(a_job("x"), bad))),
                Settlement(lease=second, verdict=Complete()),
            ]
            assert await twin.settle(batch) == [Outcome.REFUSED, Outcome.SETTLED]
        assert await twin.get("x") is None
