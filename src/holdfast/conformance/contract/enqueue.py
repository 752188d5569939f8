"""Enqueueing: stored fields, refusals, batches, and hostile input, which is stored byte for byte
or refused with a reason and never harms other jobs.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance import inputs
from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    from_default,
    jobs,
    lease_ids,
    leased,
    needs,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import (
    Failure,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Receipt,
    Renewal,
    State,
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

OVERRIDES = Overrides(
    lease_ms=11,
    timeout_ms=12,
    max_attempts=0,
    max_crashes=13,
    backoff=Backoff(kind="constant", first_ms=5, jitter=0.5),
)


class EnqueueContract:
    """New jobs."""

    @needs("inspect", "priority", "keys", "groups", "combinations")
    async def test_every_field_is_kept(self, harness: Harness, twin: Twin) -> None:
        now = harness.clock.wall_ms()
        new = a_job(
            task="mail.send",
            payload=b"\x00\xff",
            content_type="application/octet-stream; x=1",
            priority=-100,
            delay_ms=5,
            expires_ms=50,
            key="k",
            tenant="t",
            group="g",
            labels={"b": "1", "a": ""},
            headers={"trace": "é"},
            overrides=OVERRIDES,
        )
        (receipt,) = await twin.enqueue([new])
        assert receipt == Receipt(id="a", status=Status.NEW)
        job = await twin.require("a")
        assert job.seq > 0
        assert job == Job(
            id="a",
            task="mail.send",
            queue="default",
            payload=b"\x00\xff",
            content_type="application/octet-stream; x=1",
            priority=-100,
            state=State.WAITING,
            seq=job.seq,
            version=1,
            created_at=now,
            due_at=now + 5,
            expires_at=now + 50,
            key="k",
            tenant="t",
            group="g",
            labels={"b": "1", "a": ""},
            headers={"trace": "é"},
            overrides=OVERRIDES,
        )

    @needs("inspect")
    async def test_the_least_a_job_says(self, harness: Harness, twin: Twin) -> None:
        now = harness.clock.wall_ms()
        await twin.enqueue([a_job(payload=b"")])
        job = await twin.require("a")
        assert job == Job(
            id="a", task="work", queue="default", seq=job.seq, created_at=now, due_at=now
        )

    @needs("inspect", "priority")
    async def test_law_13_a_repeated_enqueue_adds_and_changes_nothing(self, twin: Twin) -> None:
        await twin.enqueue([a_job(payload=b"1")])
        (receipt,) = await twin.enqueue([a_job(payload=b"2", priority=9)])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.require("a")
        assert (job.payload, job.priority, job.version, job.events) == (b"1", 0, 1, ())

    @needs("keys")
    async def test_an_id_is_known_in_every_queue_and_state(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("a"))
        (receipt,) = await twin.enqueue([a_job(queue="q")])
        assert receipt.status is Status.DUPLICATE
        assert await lease_ids(twin) == ["a"]
        (receipt,) = await twin.enqueue([a_job()])
        assert receipt.status is Status.DUPLICATE

    @needs("limits")
    async def test_jobs_of_one_batch_see_each_other(self, twin: Twin) -> None:
        await twin.declare(a_queue("q", max_depth=2))
        batch = [a_job(id_, queue="q") for id_ in "aabcb"]
        receipts = await twin.enqueue(batch)
        assert [receipt.status for receipt in receipts] == [
            Status.NEW,
            Status.DUPLICATE,
            Status.NEW,
            Status.REFUSED,
            Status.DUPLICATE,
        ]

    async def test_an_empty_batch_is_fine(self, twin: Twin) -> None:
        assert await twin.enqueue([]) == []

    @needs("ordered")
    async def test_law_09_receipts_come_in_the_order_of_the_jobs(self, twin: Twin) -> None:
        ids = [f"j{number}" for number in (5, 3, 9, 1, 7)]
        receipts = await twin.enqueue([a_job(id_) for id_ in ids])
        assert [receipt.id for receipt in receipts] == ids
        assert await lease_ids(twin) == ids

    @needs("inspect")
    async def test_law_10_an_enqueue_is_bounded(self, twin: Twin) -> None:
        most = [a_job(f"j{number}") for number in range(bounds.BATCH_MAX)]
        with pytest.raises(UsageError):
            await twin.enqueue([*most, a_job("one-too-many")])
        assert await twin.get("j0") is None
        receipts = await twin.enqueue(most)
        assert {receipt.status for receipt in receipts} == {Status.NEW}

    @needs("inspect")
    async def test_an_unknown_queue_is_refused(self, twin: Twin) -> None:
        (receipt,) = await twin.enqueue([a_job(queue="nowhere")])
        assert (receipt.id, receipt.status, receipt.code) == (
            "a",
            Status.REFUSED,
            "unknown_queue",
        )
        assert "nowhere" in receipt.text
        assert await twin.get("a") is None

    @needs("keys")
    async def test_a_queue_that_accepts_nothing(self, twin: Twin) -> None:
        await twin.enqueue([a_job("old", key="k")])
        await twin.declare(a_queue("default", accepting=False))
        receipts = await twin.enqueue([a_job("new"), a_job("old"), a_job("other", key="k")])
        assert [receipt.code for receipt in receipts] == ["not_accepting", "", ""]
        assert [receipt.id for receipt in receipts] == ["new", "old", "old"]
        assert await lease_ids(twin) == ["old"]

    @needs("limits")
    async def test_the_depth_counts_waiting_jobs_only(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", max_depth=2))
        receipts = await twin.enqueue([a_job("a"), a_job("b", delay_ms=1_000), a_job("c")])
        assert [receipt.code for receipt in receipts] == ["", "", "queue_full"]
        assert await lease_ids(twin) == ["a"]
        receipts = await twin.enqueue(jobs("cd"))
        assert [receipt.code for receipt in receipts] == ["", "queue_full"]

    @needs("inspect")
    async def test_a_queue_bounds_its_payloads(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", payload_max=3))
        receipts = await twin.enqueue([a_job("a", payload=b"1234"), a_job("b", payload=b"123")])
        assert [receipt.code for receipt in receipts] == ["payload_too_large", ""]
        assert (await twin.require("b")).payload == b"123"

    @needs("inspect")
    async def test_an_id_is_free_again_when_its_job_is_deleted(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job(queue="q", payload=b"old")])
        first = (await twin.require("a")).seq
        await twin.drop("q")
        (receipt,) = await twin.enqueue([a_job(payload=b"new")])
        assert receipt.status is Status.NEW
        job = await twin.require("a")
        assert (job.payload, job.queue) == (b"new", "default")
        assert job.seq > first


WORST_IDS = ("", "\x00", "\ud800", "'; DROP TABLE job; --", "x" * 100_000, "é")
WORST_TOKENS = (-1, 0, 2**63 - 1, 2**63, -(2**63) - 1, 10**30)


class HostileInputContract:
    """Odd bytes, texts and values."""

    @needs("inspect", "payload_max")
    async def test_every_payload_is_kept_byte_for_byte(self, twin: Twin) -> None:
        for number, payload in enumerate(inputs.PAYLOADS):
            (receipt,) = await twin.enqueue([a_job(f"j{number}", payload=payload)])
            assert receipt.status is Status.NEW
        assert len(await twin.lease(from_default(100))) == len(inputs.PAYLOADS)
        for number, payload in enumerate(inputs.PAYLOADS):
            assert (await twin.require(f"j{number}")).payload == payload

    @needs("inspect", "results", "notes")
    async def test_results_checkpoints_and_outputs_are_kept_byte_for_byte(self, twin: Twin) -> None:
        for data in inputs.PAYLOADS:
            lease = await leased(twin, id=f"r{hash(data) & 0xFFFFFF}")
            output = data[: bounds.OUTPUT_MAX]
            note = Note(checkpoint=data, output=output)
            (outcome,) = await twin.settle(
                [Settlement(lease=lease, verdict=Complete(data), note=note)]
            )
            assert outcome is Outcome.SETTLED
            job = await twin.require(lease.id)
            assert (job.result, job.checkpoint, job.output) == (data, data, output)

    async def test_a_payload_too_large_for_every_queue_is_refused(self, twin: Twin) -> None:
        (receipt,) = await twin.enqueue([a_job(payload=inputs.PAYLOAD_TOO_LARGE)])
        assert (receipt.status, receipt.code) == (Status.REFUSED, "payload_too_large")
        assert str(bounds.QUEUE_PAYLOAD_MAX) in receipt.text

    @needs("inspect", "payload_max")
    async def test_a_queue_can_accept_an_envelope_around_a_mebibyte(self, twin: Twin) -> None:
        largest = b"x" * bounds.PAYLOAD_MAX
        (receipt,) = await twin.enqueue([a_job(payload=largest[: bounds.QUEUE_PAYLOAD_MAX + 1])])
        assert receipt.code == "payload_too_large", "the default is a mebibyte"
        await twin.declare(a_queue(payload_max=bounds.PAYLOAD_MAX))
        receipts = await twin.enqueue(
            [a_job("a", payload=largest), a_job("b", payload=largest + b"x")]
        )
        assert [receipt.code for receipt in receipts] == ["", "payload_too_large"]
        (lease,) = await twin.lease(from_default())
        assert lease.job.payload == largest

    @needs("inspect")
    async def test_a_bad_job_harms_no_neighbour(self, twin: Twin) -> None:
        for number, (code, bad) in enumerate(inputs.BAD_JOBS):
            batch = [a_job(f"before{number}"), bad, a_job(f"after{number}")]
            receipts = await twin.enqueue(batch)
            assert [receipt.code for receipt in receipts] == ["", code, ""], bad
            assert [receipt.id for receipt in receipts] == [job.id for job in batch]
            assert receipts[1].text
        assert len(await twin.find(JobFilter())) == 2 * len(inputs.BAD_JOBS)

    async def test_the_whole_corpus_in_one_batch(self, twin: Twin) -> None:
        batch: list[NewJob] = []
        for number, (_, bad) in enumerate(inputs.BAD_JOBS):
            batch += [bad, a_job(f"good{number}")]
        receipts = await twin.enqueue(batch)
        assert [receipt.code for receipt in receipts[::2]] == [c for c, _ in inputs.BAD_JOBS]
        assert {receipt.status for receipt in receipts[1::2]} == {Status.NEW}

    @needs("inspect")
    async def test_error_texts_are_cleaned_and_kept(self, twin: Twin) -> None:
        await twin.enqueue([a_job(f"j{n}") for n, _ in enumerate(inputs.ERROR_TEXTS)])
        leases = await twin.lease(from_default(100))
        failures = [
            Failure(type=text, message=text, trace=text, output=text, exit_code=-9, signal=9)
            for text in inputs.ERROR_TEXTS
        ]
        batch = [
            Settlement(lease=lease, verdict=Retry(0, failure))
            for lease, failure in zip(leases, failures, strict=True)
        ]
        assert set(await twin.settle(batch)) == {Outcome.SETTLED}
        for lease, given in zip(leases, failures, strict=True):
            (event,) = (await twin.require(lease.id)).events
            assert event.failure is not None
            assert "\x00" not in event.failure.message
            assert len(event.failure.trace) <= bounds.ERROR_TEXT_MAX
            assert len(event.failure.output) <= bounds.ERROR_TEXT_MAX
            if given.message in inputs.STORABLE_TEXTS:
                assert event.failure == given

    @needs("inspect", "priority", "refunds")
    async def test_texts_of_people_and_workers_are_cleaned_and_stored(self, twin: Twin) -> None:
        for text in inputs.ERROR_TEXTS:
            lease = await leased(twin)
            wanted = JobFilter(ids=("a",))
            assert await settle(twin, lease, Release(text)) is Outcome.SETTLED
            assert await twin.amend(wanted, Edit(by=text, priority=1)) == 1
            act = BuryWaiting(by=text, failure=Failure(message=text))
            assert await twin.amend(wanted, act) == 1
            assert len((await twin.require("a")).events) == 3
            await twin.enqueue(jobs("b"))
            assert await twin.amend(JobFilter(ids=("b",)), Cancel(by=text, text=text)) == 1
            assert len((await twin.require("b")).events) == 1
            await twin.amend(JobFilter(), Delete())

    @needs("inspect")
    async def test_workers_with_odd_names(self, twin: Twin) -> None:
        for number, text in enumerate(inputs.STORABLE_TEXTS):
            await twin.enqueue([a_job(f"j{number}")])
            (lease,) = await twin.lease(from_default(worker=text))
            assert lease.job.worker == text
            assert len(await twin.find(JobFilter(worker=text))) == 1

    @needs("inspect", "renew", "fencing", "results")
    async def test_a_hostile_id_or_token_of_a_lease_is_lost(self, twin: Twin) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        worst: list[Lease] = [replace(lease, token=token) for token in WORST_TOKENS]
        worst += [replace(lease, job=replace(lease.job, id=id_)) for id_ in WORST_IDS]
        for bad in worst:
            renewed = await twin.renew([Renewal(lease=bad), Renewal(lease=lease)])
            assert renewed[0] is None
            assert renewed[1] is not None
            for verdict in (Complete(b"x"), Retry(), Release()):
                assert await settle(twin, bad, verdict) is Outcome.LOST
        assert await twin.require("a") == before

    @needs("fencing", "results")
    async def test_a_lost_lease_in_a_batch_harms_no_neighbour(self, twin: Twin) -> None:
        lease = await leased(twin)
        bad = [replace(lease, token=token) for token in WORST_TOKENS]
        bad += [replace(lease, job=replace(lease.job, id=id_)) for id_ in WORST_IDS]
        batch = [Settlement(lease=each, verdict=Complete(b"x")) for each in (*bad, lease)]
        outcomes = await twin.settle(batch)
        assert outcomes == [Outcome.LOST] * len(bad) + [Outcome.SETTLED]

    @needs("inspect")
    async def test_asking_for_hostile_ids_finds_nothing(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for id_ in WORST_IDS:
            assert await twin.get(id_) is None

    @needs("inspect")
    async def test_hostile_requests_and_filters_are_refused_or_find_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("a"))
        texts = [text for text in inputs.UNSTORABLE_TEXTS if text]
        requests = [LeaseRequest(queues=(name,)) for name in inputs.BAD_QUEUE_NAMES]
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
        filters += [JobFilter(version=number) for number in inputs.HUGE_NUMBERS]
        filters += [JobFilter(finished_before_ms=number) for number in inputs.HUGE_NUMBERS]
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

    @needs("inspect", "follow_ups")
    async def test_bad_jobs_among_follow_ups_refuse_the_settlement_alone(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab"))
        first, second = await twin.lease(from_default(2))
        for _, bad in inputs.BAD_JOBS:
            batch = [
                Settlement(lease=first, verdict=Complete(then=(a_job("x"), bad))),
                Settlement(lease=second, verdict=Complete()),
            ]
            assert await twin.settle(batch) == [Outcome.REFUSED, Outcome.SETTLED]
        assert await twin.get("x") is None
