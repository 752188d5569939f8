"""Limits that change while jobs wait and run."""

from __future__ import annotations

import asyncio

from holdfast.core.flow import Flow
from holdfast.testing.contract.limiting import limited, used
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
)
from holdfast.testing.twin import Twin


class Changing:
    """Every limit changes at once, whatever waits and whatever is leased."""

    async def test_raised(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue(jobs("abcd"))
        assert await lease_ids(twin) == ["a"]
        await limited(twin, 3)
        assert await lease_ids(twin) == ["b", "c"]

    async def test_lowered_below_what_is_leased(self, twin: Twin) -> None:
        await limited(twin, 3)
        await twin.enqueue(jobs("abcde"))
        leases = await twin.lease(from_default(10))
        await limited(twin, 1)
        for lease in leases[:2]:
            await end(twin, lease)
            assert await lease_ids(twin) == []
        await end(twin, leases[2])
        assert await lease_ids(twin) == ["d"]

    async def test_added_to_a_backlog(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abcde"))
        a = await lease_one(twin)
        await limited(twin)
        # A lease from before the limit holds no slot of it.
        b = await lease_one(twin)
        assert await lease_ids(twin) == []
        await end(twin, a)
        assert await lease_ids(twin) == []
        await end(twin, b)
        assert await lease_ids(twin) == ["c"]

    async def test_taken_away_from_a_backlog_and_given_again(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue(jobs("abcd"))
        a = await lease_one(twin)
        await twin.declare(a_queue())
        assert await twin.flow() == Flow()
        assert await lease_ids(twin, limit=2) == ["b", "c"]
        await limited(twin)
        assert await used(twin) == {"": 1}
        assert await lease_ids(twin) == []
        await end(twin, a)
        assert await lease_ids(twin) == ["d"]

    async def test_counted_by_something_else(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue(
            [a_job(f"{tenant}{n}", tenant=tenant) for n in range(2) for tenant in "xy"]
        )
        x, y = await twin.lease(from_default(10))
        await limited(twin)
        assert await used(twin) == {"": 0, "x": 1, "y": 1}
        assert await lease_ids(twin) == ["x1"]
        await end(twin, x)
        assert await lease_ids(twin) == []
        await limited(twin, key="{tenant}")
        # The slot of y is held still; x1 holds one that is not counted by now.
        assert await lease_ids(twin) == []
        await end(twin, y)
        assert await lease_ids(twin) == ["y1"]

    async def test_counted_by_what_the_backlog_lacks(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("ab"), a_job("c", labels={"region": "eu"})])
        await limited(twin, key="{region}")
        assert await lease_ids(twin) == ["a", "c"]

    async def test_narrowed_to_a_task(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue([*jobs("ab"), *jobs("cd", task="heavy")])
        await limited(twin, task="heavy")
        assert await lease_ids(twin) == ["a", "b", "c"]

    async def test_a_second_limit(self, twin: Twin) -> None:
        await limited(twin, 2)
        await twin.enqueue([a_job(id_, tenant=t) for id_, t in zip("abcd", "xxyy", strict=True)])
        await twin.declare(
            a_queue(limits=(a_limit(concurrency=2), a_limit("m", concurrency=1, key="{tenant}")))
        )
        assert await lease_ids(twin) == ["a", "c"]

    async def test_a_large_backlog_is_sorted_anew(self, twin: Twin) -> None:
        for batch in range(3):
            await twin.enqueue([a_job(f"j{batch}-{n:03}", tenant=f"t{n % 5}") for n in range(900)])
        await limited(twin, key="{tenant}")
        assert await lease_ids(twin) == [f"j0-{n:03}" for n in range(5)]
        await twin.declare(a_queue())
        assert await lease_ids(twin, limit=2) == ["j0-005", "j0-006"]

    async def test_nobody_is_missed_whose_parent_ends_meanwhile(self, twin: Twin) -> None:
        ids = [f"c{n:02}" for n in range(20)]
        await twin.declare(a_queue("other"))
        await twin.enqueue([a_job(f"p-{id_}", queue="other") for id_ in ids])
        await twin.enqueue([a_job(id_, priority=1, after=(f"p-{id_}",)) for id_ in ids])
        for batch in range(3):
            await twin.enqueue([a_job(f"j{batch}-{n:03}") for n in range(900)])
        parents = await twin.lease(from_default(20, queues=("other",)))
        async with asyncio.TaskGroup() as group:
            group.create_task(limited(twin, 100))
            for lease in parents:
                await end(twin, lease)
        assert await lease_ids(twin, limit=20) == ids

    async def test_a_job_that_waits_in_no_lane_keeps_its_place(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a"), a_job("b", priority=1), a_job("c")])
        await limited(twin, 9)
        await twin.enqueue([a_job("d", priority=1)])
        assert await lease_ids(twin) == ["b", "d", "a", "c"]
