"""Jobs on their way in: what is kept, what is refused, and that neighbours do not matter."""

from __future__ import annotations

import pytest

from holdfast.core import limits
from holdfast.core.backoff import Backoff
from holdfast.core.model import Job, Overrides, Receipt, State, Status
from holdfast.errors import UsageError
from holdfast.testing.contract.making import a_job, a_queue, jobs, lease_ids
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

OVERRIDES = Overrides(
    lease_ms=11,
    timeout_ms=12,
    max_attempts=0,
    max_crashes=13,
    backoff=Backoff(kind="constant", first_ms=5, jitter=0.5),
)


class Enqueueing:
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
        job = await twin.the("a")
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

    async def test_the_least_a_job_says(self, harness: Harness, twin: Twin) -> None:
        now = harness.clock.wall_ms()
        await twin.enqueue([a_job(payload=b"")])
        job = await twin.the("a")
        assert job == Job(
            id="a", task="work", queue="default", seq=job.seq, created_at=now, due_at=now
        )

    async def test_law_13_a_repeated_enqueue_adds_and_changes_nothing(self, twin: Twin) -> None:
        await twin.enqueue([a_job(payload=b"1")])
        (receipt,) = await twin.enqueue([a_job(payload=b"2", priority=9)])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.the("a")
        assert (job.payload, job.priority, job.version, job.events) == (b"1", 0, 1, ())

    async def test_an_id_is_known_in_every_queue_and_state(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("a"))
        (receipt,) = await twin.enqueue([a_job(queue="q")])
        assert receipt.status is Status.DUPLICATE
        assert await lease_ids(twin) == ["a"]
        (receipt,) = await twin.enqueue([a_job()])
        assert receipt.status is Status.DUPLICATE

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

    async def test_law_09_receipts_come_in_the_order_of_the_jobs(self, twin: Twin) -> None:
        ids = [f"j{number}" for number in (5, 3, 9, 1, 7)]
        receipts = await twin.enqueue([a_job(id_) for id_ in ids])
        assert [receipt.id for receipt in receipts] == ids
        assert await lease_ids(twin) == ids

    async def test_law_10_an_enqueue_is_bounded(self, twin: Twin) -> None:
        most = [a_job(f"j{number}") for number in range(limits.BATCH_MAX)]
        with pytest.raises(UsageError):
            await twin.enqueue([*most, a_job("one-too-many")])
        assert await twin.get("j0") is None
        receipts = await twin.enqueue(most)
        assert {receipt.status for receipt in receipts} == {Status.NEW}

    async def test_an_unknown_queue_is_refused(self, twin: Twin) -> None:
        (receipt,) = await twin.enqueue([a_job(queue="nowhere")])
        assert (receipt.id, receipt.status, receipt.code) == (
            "a",
            Status.REFUSED,
            "unknown_queue",
        )
        assert "nowhere" in receipt.text
        assert await twin.get("a") is None

    async def test_a_queue_that_accepts_nothing(self, twin: Twin) -> None:
        await twin.enqueue([a_job("old", key="k")])
        await twin.declare(a_queue("default", accepting=False))
        receipts = await twin.enqueue([a_job("new"), a_job("old"), a_job("other", key="k")])
        assert [receipt.code for receipt in receipts] == ["not_accepting", "", ""]
        assert [receipt.id for receipt in receipts] == ["new", "old", "old"]
        assert await lease_ids(twin) == ["old"]

    async def test_the_depth_counts_waiting_jobs_only(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", max_depth=2))
        receipts = await twin.enqueue([a_job("a"), a_job("b", delay_ms=1_000), a_job("c")])
        assert [receipt.code for receipt in receipts] == ["", "", "queue_full"]
        assert await lease_ids(twin) == ["a"]
        receipts = await twin.enqueue(jobs("cd"))
        assert [receipt.code for receipt in receipts] == ["", "queue_full"]

    async def test_a_queue_bounds_its_payloads(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", payload_max=3))
        receipts = await twin.enqueue([a_job("a", payload=b"1234"), a_job("b", payload=b"123")])
        assert [receipt.code for receipt in receipts] == ["payload_too_large", ""]
        assert (await twin.the("b")).payload == b"123"

    async def test_an_id_is_free_again_when_its_job_is_deleted(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job(queue="q", payload=b"old")])
        first = (await twin.the("a")).seq
        await twin.drop("q")
        (receipt,) = await twin.enqueue([a_job(payload=b"new")])
        assert receipt.status is Status.NEW
        job = await twin.the("a")
        assert (job.payload, job.queue) == (b"new", "default")
        assert job.seq > first
