"""Once-only keys: holder, window, and later jobs with the same key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    jobs,
    lease_ids,
    lease_one,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import (
    EventKind,
    JobFilter,
    KeyPolicy,
    Receipt,
    Status,
)
from holdfast.core.verdict import (
    BuryWaiting,
    Complete,
    Delete,
    Move,
    Outcome,
    Redrive,
)

WINDOW_MS = 1_000
A = JobFilter(ids=("a",))


@needs("keys")
class KeyContract:
    """Once-only keys: holder, window, and later jobs with the same key."""

    @needs("inspect")
    async def test_a_held_key_makes_a_duplicate_of_the_holder(self, twin: Twin) -> None:
        receipts = await twin.enqueue([a_job("a", key="k"), a_job("b", key="k", payload=b"2")])
        assert receipts[1] == Receipt(id="a", status=Status.DUPLICATE)
        assert await twin.get("b") is None
        job = await twin.require("a")
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

    @needs("inspect")
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

    @needs("inspect")
    async def test_a_key_let_go_by_finished_is_free(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS)])
        await settle(twin, await lease_one(twin), Complete())
        harness.clock.advance(WINDOW_MS)
        await twin.finished()
        assert await self._meets(twin) == "b"
        assert (await twin.require("a")).key == "k"

    async def test_finished_keeps_the_keys_of_unfinished_jobs(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=0)])
        harness.clock.advance(1)
        await twin.finished()
        assert await self._meets(twin) == "a"

    @needs("inspect")
    async def test_a_key_stays_in_the_queue_it_was_given_in(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job("a", key="k")])
        assert await twin.amend(A, Move(queue="q")) == 1
        assert await self._meets(twin) == "a"
        (receipt,) = await twin.enqueue([a_job("c", key="k", queue="q")])
        assert receipt.status is Status.NEW

    @needs("inspect")
    async def test_replace_updates_the_waiting_holder(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", key="k", labels={"l": "1"}), a_job("z")])
        harness.clock.advance(7)
        now = harness.clock.wall_ms()
        later = a_job(
            "b", key="k", key_policy="replace", task="other", payload=b"2", delay_ms=5, tenant="t"
        )
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.require("a")
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

    @needs("inspect", "priority", "ordered")
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
        job = await twin.require("a")
        assert json.loads(job.payload) == {"a": {"x": 1, "z": 3}, "b": 1}
        assert (job.priority, job.version, job.token) == (0, 2, None)
        assert [event.kind for event in job.events] == [EventKind.REPLACED]
        assert await lease_ids(twin) == ["a", "z"]

    @needs("inspect")
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
        job = await twin.require("a")
        assert (job.payload, job.version, job.events) == (b'{"a":1}', 1, ())

    @needs("inspect")
    async def test_nothing_is_merged_into_a_job_of_another_task(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", task="command", key="k", payload=b'{"a":1}')])
        later = a_job("b", task="mail", key="k", key_policy="merge", payload=b'{"a":2}')
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.require("a")
        assert (job.payload, job.task, job.version) == (b'{"a":1}', "command", 1)

    @needs("inspect")
    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_a_leased_or_finished_holder_is_left_alone(
        self, twin: Twin, policy: KeyPolicy
    ) -> None:
        await twin.enqueue([a_job("a", key="k")])
        later = a_job("b", key="k", key_policy=policy, payload=b'{"n":1}')
        lease = await lease_one(twin)
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        assert (await twin.require("a")).payload == b"{}"
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED
        (receipt,) = await twin.enqueue([later])
        assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        assert (await twin.require("a")).payload == b"{}"

    @needs("inspect", "fencing")
    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_law_04_a_late_worker_cannot_settle_what_was_replaced(
        self, harness: Harness, twin: Twin, policy: KeyPolicy
    ) -> None:
        await twin.enqueue([a_job("a", key="k")])
        lease = await lease_one(twin)
        await self._reap(harness, twin)
        await twin.enqueue([a_job("b", key="k", key_policy=policy, payload=b'{"n":1}')])
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert (await twin.require("a")).state == "waiting"

    @needs("key_hold")
    async def test_a_window_ends_although_its_job_is_unfinished(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS, key_hold="window")])
        harness.clock.advance(WINDOW_MS - 1)
        assert await self._meets(twin, key_hold="window") == "a"
        await lease_one(twin)
        assert await self._meets(twin, key_hold="window") == "a"
        harness.clock.advance(1)
        assert await self._meets(twin, key_hold="window") == "b"
        assert await self._meets(twin, "c", key_hold="window") == "b"

    @needs("key_hold")
    async def test_the_window_counts_from_the_first_job(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS, key_hold="window")])
        harness.clock.advance(WINDOW_MS - 1)
        again: dict[str, Any] = {"key_window_ms": WINDOW_MS, "key_hold": "window"}
        assert await self._meets(twin, **again) == "a"
        harness.clock.advance(1)
        assert await self._meets(twin, **again) == "b"

    @needs("key_hold")
    async def test_the_later_job_decides_what_holds_a_key(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS, key_hold="window")])
        harness.clock.advance(WINDOW_MS)
        assert await self._meets(twin, key_hold="job") == "a"
        await twin.finished()
        assert await self._meets(twin, key_hold="job") == "a"
        assert await self._meets(twin, key_hold="window") == "b"

    @needs("inspect", "key_hold")
    async def test_the_end_of_a_job_that_lost_its_key_frees_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS)])
        lease = await lease_one(twin)
        harness.clock.advance(WINDOW_MS)
        assert await self._meets(twin, key_window_ms=2 * WINDOW_MS, key_hold="window") == "b"
        await settle(twin, lease, Complete())
        assert await self._meets(twin, "c", key_hold="window") == "b"
        await twin.amend(A, Delete())
        harness.clock.advance(WINDOW_MS)
        await twin.finished()
        assert await self._meets(twin, "c", key_hold="window") == "b"
        # A job that lost its key still knows its own id.
        (receipt,) = await twin.enqueue([a_job("b", key="k", key_hold="window")])
        assert receipt == Receipt(id="b", status=Status.DUPLICATE)

    @needs("inspect", "key_hold")
    async def test_a_redriven_job_does_not_take_its_key_back(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS)])
        harness.clock.advance(WINDOW_MS)
        assert await twin.amend(A, BuryWaiting()) == 1
        assert await self._meets(twin) == "b"
        assert await twin.amend(A, Redrive()) == 1
        assert await self._meets(twin, "c") == "b"
        await twin.enqueue([a_job("d", key="k", key_policy="replace", payload=b"2")])
        assert [(await twin.require(id_)).payload for id_ in "ab"] == [b"{}", b"2"]

    @needs("inspect", "key_hold")
    async def test_a_job_that_is_not_retained_keeps_its_window(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue(retention_ms=0))
        await twin.enqueue([a_job("a", key="k", key_window_ms=WINDOW_MS, key_hold="window")])
        await settle(twin, await lease_one(twin), Complete())
        assert [job.id for job in await twin.finished()] == ["a"]
        assert await twin.amend(A, Delete()) == 1
        harness.clock.advance(WINDOW_MS - 1)
        await twin.finished()
        assert await self._meets(twin, key_hold="window") == "a"
        harness.clock.advance(1)
        assert await self._meets(twin, key_hold="window") == "b"

    @needs("inspect", "key_hold")
    @pytest.mark.parametrize("policy", ["replace", "merge"])
    async def test_a_job_past_its_window_is_neither_replaced_nor_merged(
        self, harness: Harness, twin: Twin, policy: KeyPolicy
    ) -> None:
        fields: dict[str, Any] = {"key": "k", "key_window_ms": WINDOW_MS, "key_hold": "window"}
        await twin.enqueue([a_job("a", **fields, payload=b'{"n":1}')])
        later = a_job("b", **fields, key_policy=policy, payload=b'{"n":2}')
        await twin.enqueue([later])
        assert (await twin.require("a")).payload == b'{"n":2}'
        harness.clock.advance(WINDOW_MS)
        (receipt,) = await twin.enqueue([replace(later, payload=b'{"n":3}')])
        assert receipt == Receipt(id="b", status=Status.NEW)
        payloads = [(await twin.require(id_)).payload for id_ in "ab"]
        assert payloads == [b'{"n":2}', b'{"n":3}']

    @needs("key_hold")
    async def test_windows_hold_within_one_call(self, twin: Twin) -> None:
        open_, over = ({"key_window_ms": ms, "key_hold": "window"} for ms in (WINDOW_MS, 0))
        receipts = await twin.enqueue(
            [*jobs("ab", key="k", **open_), *jobs("cd", key="l", **over), a_job("e", key="l")]
        )
        assert [receipt.id for receipt in receipts] == ["a", "a", "c", "d", "d"]

    async def _meets(self, twin: Twin, id: str = "b", **fields: Any) -> str:
        """The id in the receipt of a new job with the key: its own if it was stored."""
        (receipt,) = await twin.enqueue([a_job(id, key="k", **fields)])
        assert (receipt.status is Status.NEW) == (receipt.id == id)
        return receipt.id

    async def _reap(self, harness: Harness, twin: Twin) -> None:
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED]
