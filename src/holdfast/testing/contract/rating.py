"""Rates: so many starts in a time, evenly apart but for a burst, and none ever given back."""

from __future__ import annotations

import pytest

from holdfast.core.flow import Rate, Waits
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Delete, Release, Retry
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    end,
    jobs,
    lease_ids,
    lease_one,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

IDS = [f"j{n:03}" for n in range(120)]


async def rated(twin: Twin, rate: str, name: str = "default", burst: int = 1, **more: str) -> None:
    await twin.declare(a_queue(name, limits=(a_limit(rate=rate, burst=burst, **more),)))


class Rating:
    async def test_law_16_starts_are_evenly_apart(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "4/1000")
        await twin.enqueue(jobs("abcdef"))
        assert await lease_ids(twin) == ["a"]
        for id_ in "bcd":
            harness.clock.advance(249)
            assert await lease_ids(twin) == []
            harness.clock.advance(1)
            assert await lease_ids(twin) == [id_]

    async def test_law_16_a_time_without_starts_saves_nothing_up(
        self, harness: Harness, twin: Twin
    ) -> None:
        await rated(twin, "4/1000")
        harness.clock.advance(60_000)
        await twin.enqueue(jobs("abc"))
        assert await lease_ids(twin) == ["a"]
        harness.clock.advance(60_000)
        assert await lease_ids(twin) == ["b"]
        assert await lease_ids(twin) == []

    @pytest.mark.parametrize("burst", [2, 3, 50])
    async def test_a_burst_starts_at_once(self, harness: Harness, twin: Twin, burst: int) -> None:
        await rated(twin, "10/1000", burst=burst)
        await twin.enqueue([a_job(id_) for id_ in IDS])
        assert await lease_ids(twin) == IDS[:burst]
        assert await lease_ids(twin) == []
        harness.clock.advance(100)
        assert await lease_ids(twin) == IDS[burst : burst + 1]
        harness.clock.advance(100 * burst)
        assert await lease_ids(twin) == IDS[burst + 1 : 2 * burst + 1]

    async def test_law_16_no_window_sees_more(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "7/100", burst=3)
        await twin.enqueue([a_job(id_) for id_ in IDS])
        starts: list[int] = []
        for step in range(120):
            starts += [harness.clock.wall_ms()] * len(await lease_ids(twin, limit=1 + step % 4))
            harness.clock.advance(1 + step % 3)
        windows = [sum(at <= other < at + 100 for other in starts) for at in starts]
        assert max(windows) <= 7 + 2
        assert len(starts) >= 7 * 2

    async def test_more_than_one_start_in_a_millisecond(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "2000/1000", burst=2)
        await twin.enqueue([a_job(id_) for id_ in IDS])
        for start in range(0, 20, 2):
            assert await lease_ids(twin) == IDS[start : start + 2]
            harness.clock.advance(1)

    async def test_nothing_gives_a_start_back(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abcd"))
        await settle(twin, await lease_one(twin), Release("busy"))
        assert await lease_ids(twin) == []
        harness.clock.advance(1_000)
        # It went to the tail.
        await settle(twin, await lease_one(twin), Retry())
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["c"]
        await twin.amend(JobFilter(ids=("c",)), Delete(force=True))
        assert await lease_ids(twin) == []

    async def test_each_key_has_its_own_rate(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000", key="{tenant}")
        await twin.enqueue([a_job(id_, tenant=t) for id_, t in zip("abcde", "xxyyz", strict=True)])
        assert await lease_ids(twin) == ["a", "c", "e"]
        harness.clock.advance(1_000)
        assert await lease_ids(twin) == ["b", "d"]

    async def test_a_rate_over_two_queues(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await rated(twin, "1/100", "q")
        await twin.enqueue([*jobs("ab"), *jobs("cd", queue="q")])
        assert await lease_ids(twin) == ["a"]
        # The slower queue's start counts for the faster one, and the other way round.
        harness.clock.advance(999)
        assert await lease_ids(twin, queues=("q",)) == []
        harness.clock.advance(1)
        assert await lease_ids(twin, queues=("q", "default")) == ["c"]
        harness.clock.advance(100)
        assert await lease_ids(twin, queues=("default", "q")) == ["b"]

    async def test_a_rate_and_a_concurrency(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/100", concurrency=2)  # type: ignore[arg-type]
        await twin.enqueue(jobs("abcd"))
        a = await lease_one(twin)
        harness.clock.advance(100)
        assert await lease_ids(twin) == ["b"]
        harness.clock.advance(100)
        assert await lease_ids(twin) == []
        await end(twin, a)
        assert await lease_ids(twin) == ["c"]

    async def test_jobs_over_their_rate_hold_up_nobody(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000", task="slow")
        await twin.enqueue([*jobs("ab", task="slow", priority=5), *jobs("cd")])
        assert await lease_ids(twin) == ["a", "c", "d"]
        (view,) = await twin.queues()
        assert (view.ready, view.delayed, view.blocked) == (1, 0, 0)

    async def test_leasing_by_id_spends_too(self, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abc"))
        assert await lease_ids(twin, queues=(), ids=("c", "b")) == ["c"]
        assert await lease_ids(twin) == []

    async def test_a_batch_of_a_group_spends_for_each(self, harness: Harness, twin: Twin) -> None:
        limit = a_limit(rate="1/100", burst=2)
        await twin.declare(a_queue(group_batch=9, limits=(limit,)))
        await twin.enqueue(jobs("abc", group="g"))
        assert await lease_ids(twin) == ["a", "b"]

    async def test_the_time_to_the_next_start_can_be_read(
        self, harness: Harness, twin: Twin
    ) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abc"))
        await lease_ids(twin)
        harness.clock.advance(300)
        (slot,) = (await twin.flow()).slots
        assert (slot.rate, slot.free_ms) == (Rate(count=1, per_ms=1_000), 700)
        assert await twin.waits("b") == Waits(slots=(slot,))
        harness.clock.advance(700)
        (slot,) = (await twin.flow()).slots
        assert slot.free_ms == 0

    async def test_raised_while_waiting(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/100000")
        await twin.enqueue(jobs("abc"))
        await lease_ids(twin)
        await rated(twin, "1/100")
        # What the old rate said of the future does not bind the new one.
        assert await lease_ids(twin) == []
        harness.clock.advance(100)
        assert await lease_ids(twin) == ["b"]

    async def test_lowered_while_waiting(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/100")
        await twin.enqueue(jobs("abc"))
        await lease_ids(twin)
        await rated(twin, "1/1000")
        harness.clock.advance(100)
        assert await lease_ids(twin) == ["b"]
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["c"]

    async def test_raised_beside_a_slower_queue(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abc"))
        await lease_ids(twin)
        await rated(twin, "1/10", "q")
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["b"]

    async def test_a_smaller_burst(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "10/1000", burst=5)
        await twin.enqueue([a_job(id_) for id_ in IDS])
        assert await lease_ids(twin) == IDS[:5]
        await rated(twin, "10/1000")
        harness.clock.advance(100)
        assert await lease_ids(twin) == IDS[5:6]

    async def test_taken_away_and_given_again(self, harness: Harness, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abcd"))
        assert await lease_ids(twin) == ["a"]
        await twin.declare(a_queue())
        assert await lease_ids(twin, limit=2) == ["b", "c"]
        harness.clock.advance(999)
        await rated(twin, "1/1000")
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["d"]
