"""How many of a strict group one call may take together."""

from __future__ import annotations

import pytest

from holdfast.core.flow import Waits
from holdfast.core.verdict import (
    Complete,
    Outcome,
    Retry,
)
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

LONG_MS = 100_000


class GroupBatches:
    """`Queue.group_batch`: how many of a group one call may take together."""

    async def test_law_15_one_call_takes_the_next_of_a_group_together(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcde", group="g"))
        first = await twin.lease(from_default(10))
        assert [lease.id for lease in first] == ["a", "b", "c"]
        assert await lease_ids(twin) == []
        await end(twin, *first[:2])
        assert await lease_ids(twin) == []
        await end(twin, first[2])
        assert await lease_ids(twin) == ["d", "e"]

    async def test_a_batch_comes_in_the_order_of_the_group(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(
            [a_job(id_, group="g", priority=n) for n, id_ in enumerate("abc")]
            + [a_job("d", priority=1)]
        )
        # The head decides when the batch goes, and the others go with it.
        assert await lease_ids(twin) == ["d", "a", "b", "c"]

    async def test_a_batch_goes_before_what_comes_after_its_head(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue([*jobs("a", group="g"), *jobs("x"), *jobs("bc", group="g")])
        assert await lease_ids(twin, limit=3) == ["a", "b", "x"]

    async def test_a_batch_keeps_to_the_limit_of_the_call(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcd", group="g"))
        leases = await twin.lease(from_default(2))
        assert [lease.id for lease in leases] == ["a", "b"]
        # A second call gets nothing, though two are fewer than three.
        assert await lease_ids(twin) == []

    @pytest.mark.parametrize(
        "fields",
        [{"delay_ms": 50}, {"expires_ms": 0}, {"task": "other"}, {"after": ("p",)}],
        ids=lambda fields: next(iter(fields)),
    )
    async def test_a_batch_ends_before_who_cannot_go(
        self, twin: Twin, fields: dict[str, object]
    ) -> None:
        await twin.declare(a_queue(group_batch=5))
        await twin.enqueue([a_job("p", delay_ms=LONG_MS)])
        await twin.enqueue([*jobs("ab", group="g"), a_job("c", group="g", **fields)])
        await twin.enqueue(jobs("d", group="g"))
        assert await lease_ids(twin, tasks=frozenset({"work"})) == ["a", "b"]

    async def test_a_batch_of_which_one_comes_back(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue(jobs("abc", group="g"))
        a, b = await twin.lease(from_default(10))
        await settle(twin, a, Retry())
        assert await lease_ids(twin) == []
        assert (await twin.waits("a")) == Waits(group_head="b")
        await end(twin, b)
        assert await lease_ids(twin) == ["a", "c"]

    async def test_several_groups_each_with_its_batch(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue([a_job(f"{group}{n}", group=group) for n in range(3) for group in "gh"])
        assert await lease_ids(twin) == ["g0", "g1", "h0", "h1"]

    async def test_the_batch_changes_at_once(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcdefg", group="g"))
        leases = await twin.lease(from_default(10))
        await twin.declare(a_queue(group_batch=1))
        await end(twin, *leases)
        (lease,) = await twin.lease(from_default(10))
        await twin.declare(a_queue(group_batch=2))
        assert await lease_ids(twin) == []
        await end(twin, lease)
        assert await lease_ids(twin) == ["e", "f"]

    async def test_a_batch_of_a_lapsed_worker(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue(jobs("abc", group="g"))
        late = await twin.lease(from_default(10, lease_ms=10))
        harness.clock.advance(10)
        assert await reap(twin) == [Outcome.SETTLED] * 2
        assert await settle(twin, late[1], Complete()) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a", "c"]
