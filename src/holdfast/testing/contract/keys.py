"""Once-only keys: who holds one, how long, and what a later job under it does."""

from __future__ import annotations

import json

import pytest

from holdfast.core.model import EventKind, JobFilter, KeyPolicy, Receipt, Status
from holdfast.core.verdict import Complete, Delete, Move, Outcome
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    lease_ids,
    lease_one,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

WINDOW_MS = 1_000
A = JobFilter(ids=("a",))


class Keys:
    async def test_a_held_key_makes_a_duplicate_of_the_holder(self, twin: Twin) -> None:
        receipts = await twin.enqueue([a_job("a", key="k"), a_job("b", key="k", payload=b"2")])
        assert receipts[1] == Receipt(id="a", status=Status.DUPLICATE)
        assert await twin.get("b") is None
        job = await twin.the("a")
        assert (job.payload, job.version) == (b"{}", 1)

    async def test_law_13_repeating_an_enqueue_with_its_key_is_safe(self, twin: Twin) -> None:
        for _ in range(2):
            (receipt,) = await twin.enqueue([a_job("a", key="k")])
            assert receipt.id == "a"
        assert receipt.status is Status.DUPLICATE

    async def test_keys_are_of_their_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        receipts = await twin.enqueue([a_job("a", key="k"), a_job("b", key="k", queue="q")])
        assert {receipt.status for receipt in receipts} == {Status.NEW}

    async def test_keys_differ_in_every_byte(self, twin: Twin) -> None:
        keys = ("k", "K", "k ", "\u00e9", "e\u0301")
        receipts = await twin.enqueue([a_job(f"j{n}", key=key) for n, key in enumerate(keys)])
        assert {receipt.status for receipt in receipts} == {Status.NEW}

    async def test_a_key_is_held_while_its_job_is_unfinished(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=0)])
        harness.clock.advance(1_000_000)
        assert await self._meets(twin) == "a"
        lease = await lease_one(twin)
        assert await self._meets(twin) == "a"
        await settle(twin, lease, Complete())
        assert await self._meets(twin) == "b"

    async def test_a_key_outlives_its_job_to_the_end_of_the_window(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS)])
        await settle(twin, await lease_one(twin), Complete())
        await twin.amend(A, Delete())
        harness.clock.advance(WINDOW_MS - 1)
        assert await self._meets(twin) == "a"
        await twin.finished()
        assert await self._meets(twin) == "a"
        harness.clock.advance(1)
        assert await self._meets(twin) == "b"

    async def test_a_key_let_go_by_finished_is_free(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS)])
        await settle(twin, await lease_one(twin), Complete())
        harness.clock.advance(WINDOW_MS)
        await twin.finished()
        assert await self._meets(twin) == "b"
        assert (await twin.the("a")).key == "k"

    async def test_finished_keeps_the_keys_of_unfinished_jobs(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=0)])
        harness.clock.advance(1)
        await twin.finished()
        assert await self._meets(twin) == "a"

    async def test_a_key_stays_in_the_queue_it_was_given_in(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job("a", key="k")])
        assert await twin.amend(A, Move(queue="q")) == 1
        assert await self._meets(twin) == "a"
        (receipt,) = await twin.enqueue([a_job("c", key="k", queue="q")])
        assert receipt.status is Status.NEW

    async def test_replace_lets_the_waiting_holder_take_over_what_is_said(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", labels={"l": "1"}), a_job("z")])
        harness.clock.advance(7)
        now = harness.clock.wall_ms()
        later = a_job(
            "b", key="k", key_policy="replace", task="other", payload=b"2", delay_ms=5, tenant="t"
        )
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.the("a")
        assert (job.task, job.payload, job.due_at, job.tenant, job.labels) == (
            "other",
            b"2",
            now + 5,
            "t",
            {},
        )
        assert (job.created_at, job.version, job.token) == (now - 7, 2, None)
        assert [(event.at, event.kind) for event in job.events] == [(now, EventKind.REPLACED)]
        harness.clock.advance(5)
        assert await lease_ids(twin) == ["z", "a"]

    async def test_merge_lays_the_payload_over_the_waiting_holders(
        self, harness: Harness, twin: Twin
    ) -> None:
        first = a_job("a", key="k", payload=b'{"a":{"x":1,"y":2},"b":1}')
        await twin.enqueue([first, a_job("z")])
        harness.clock.advance(7)
        patch = a_job(
            "b", key="k", key_policy="merge", payload=b'{"a":{"y":null,"z":3}}', priority=9
        )
        (receipt,) = await twin.enqueue([patch])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.the("a")
        assert json.loads(job.payload) == {"a": {"x": 1, "z": 3}, "b": 1}
        assert (job.priority, job.version, job.token) == (0, 2, None)
        assert [event.kind for event in job.events] == [EventKind.REPLACED]
        assert await lease_ids(twin) == ["a", "z"]

    async def test_merge_refuses_what_is_not_json_or_grows_too_large(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", payload_max=12))
        await twin.enqueue([a_job("a", key="k", payload=b'{"a":1}')])
        bad = [b"\xff", b"", b'{"b":123456}', b"[" * 12]
        receipts = await twin.enqueue(
            [
                a_job(f"b{number}", key="k", key_policy="merge", payload=payload)
                for number, payload in enumerate(bad)
            ]
        )
        assert [receipt.code for receipt in receipts] == [
            "invalid_job",
            "invalid_job",
            "payload_too_large",
            "invalid_job",
        ]
        job = await twin.the("a")
        assert (job.payload, job.version, job.events) == (b'{"a":1}', 1, ())

    async def test_nothing_is_merged_into_a_job_of_another_task(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", task="command", key="k", payload=b'{"a":1}')])
        later = a_job("b", task="mail", key="k", key_policy="merge", payload=b'{"a":2}')
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.the("a")
        assert (job.payload, job.task, job.version) == (b'{"a":1}', "command", 1)

    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_a_leased_or_finished_holder_is_left_alone(
        self, twin: Twin, policy: KeyPolicy
    ) -> None:
        await twin.enqueue([a_job("a", key="k")])
        later = a_job("b", key="k", key_policy=policy, payload=b'{"n":1}')
        lease = await lease_one(twin)
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        assert (await twin.the("a")).payload == b"{}"
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        assert (await twin.the("a")).payload == b"{}"

    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_law_04_a_late_worker_cannot_settle_what_was_replaced(
        self, harness: Harness, twin: Twin, policy: KeyPolicy
    ) -> None:
        await twin.enqueue([a_job("a", key="k")])
        lease = await lease_one(twin)
        await self._reap(harness, twin)
        await twin.enqueue([a_job("b", key="k", key_policy=policy, payload=b'{"n":1}')])
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert (await twin.the("a")).state == "waiting"

    async def _meets(self, twin: Twin) -> str:
        """The id of the job that a newcomer `b` under the key meets: its own if it gets in."""
        (receipt,) = await twin.enqueue([a_job("b", key="k")])
        assert (receipt.status is Status.NEW) == (receipt.id == "b")
        return receipt.id

    async def _reap(self, harness: Harness, twin: Twin) -> None:
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED]
