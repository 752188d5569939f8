"""Limits: never exceeded, held and freed with the lease, changeable at any time."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    needs,
    reap,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import Flow, JobFilter
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retry,
    Verdict,
)

A, B, C = (JobFilter(ids=(id_,)) for id_ in "abc")


async def limited(twin: Twin, concurrency: int = 1, name: str = "default", **fields: str) -> None:
    await twin.declare(a_queue(name, limits=(a_limit(concurrency=concurrency, **fields),)))


async def used(twin: Twin, queue: str = "default") -> dict[str, int]:
    """Used slots by key."""
    return {slot.key: slot.used for slot in (await twin.flow(queue)).slots}


@needs("limits")
class LimitContract:
    """Limits on concurrency."""

    @pytest.mark.parametrize("concurrency", [1, 2, 3])
    async def test_law_16_no_more_are_leased_than_the_limit_says(
        self, twin: Twin, concurrency: int
    ) -> None:
        await limited(twin, concurrency)
        await twin.enqueue(jobs("abcde"))
        leases = await twin.lease(from_default(10))
        assert [lease.id for lease in leases] == list("abcde")[:concurrency]
        assert await lease_ids(twin) == []
        await end(twin, leases[0])
        assert await lease_ids(twin) == ["abcde"[concurrency]]
        assert await lease_ids(twin) == []

    @needs("refunds")
    @pytest.mark.parametrize(
        "verdict",
        [Complete(), Retry(50), Release("", 50), Bury(), Forward("q")],
        ids=lambda verdict: type(verdict).__name__,
    )
    async def test_every_end_of_a_lease_gives_back(self, twin: Twin, verdict: Verdict) -> None:
        await twin.declare(a_queue("q"))
        await limited(twin)
        await twin.enqueue(jobs("abc"))
        lease = await lease_one(twin)
        for _ in range(2):
            # A repeat gives nothing back a second time.
            await settle(twin, lease, verdict)
        assert await lease_ids(twin) == ["b"]
        assert await used(twin) == {"": 1}

    async def test_a_dead_queue_gives_back_too(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave", limits=(a_limit(concurrency=1),)))
        limit = a_limit(concurrency=1)
        await twin.declare(a_queue("q", dead_queue="grave", limits=(limit,)))
        await twin.enqueue(jobs("ab", queue="q"))
        await settle(twin, await lease_one(twin, queues=("q",)), Bury())
        assert await lease_ids(twin, queues=("grave", "q")) == ["b"]
        assert await used(twin, "q") == await used(twin, "grave") == {"": 1}

    @needs("dead_leases")
    async def test_law_16_a_lease_of_a_dead_letter_takes_no_slot(self, twin: Twin) -> None:
        await twin.declare(a_queue(limits=(a_limit(concurrency=1),), fairness="shares"))
        await twin.enqueue(jobs("abc", tenant="t"))
        await settle(twin, await lease_one(twin), Bury())
        dead = await lease_one(twin, dead=True)
        assert await used(twin) == {"": 0}
        assert await lease_ids(twin) == ["b"]
        assert await settle(twin, dead, Release()) is Outcome.SETTLED
        assert await lease_ids(twin, dead=True) == ["a"]
        assert (await lease_ids(twin), await used(twin)) == ([], {"": 1})

    @needs("inspect")
    async def test_a_lease_holds_its_slot_until_it_is_settled(
        self, harness: Harness, twin: Twin
    ) -> None:
        await limited(twin)
        await twin.enqueue(jobs("abc"))
        lease = await lease_one(twin, lease_ms=10)
        assert await twin.amend(A, Cancel()) == 1
        assert await lease_ids(twin) == []
        harness.clock.advance(10)
        assert await lease_ids(twin) == []
        assert await reap(twin) == [Outcome.SETTLED]
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert await lease_ids(twin) == ["b"]

    @needs("inspect", "priority", "fencing")
    async def test_law_05_a_late_settle_gives_nothing_back_twice(
        self, harness: Harness, twin: Twin
    ) -> None:
        await limited(twin)
        await twin.enqueue([a_job("a"), a_job("b", priority=1), a_job("c")])
        await twin.amend(B, Edit(priority=-1))
        late = await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        second = await lease_one(twin)
        assert (late.id, second.id) == ("a", "c")
        assert await settle(twin, late, Complete()) is Outcome.SETTLED
        assert await lease_ids(twin) == []
        assert await used(twin) == {"": 1}
        await end(twin, second)
        assert await lease_ids(twin) == ["b"]

    @needs("inspect", "fencing")
    async def test_law_04_a_stale_token_gives_nothing_back(
        self, harness: Harness, twin: Twin
    ) -> None:
        await limited(twin)
        await twin.enqueue(jobs("ab"))
        late = await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        await twin.amend(B, Cancel())
        again = await lease_one(twin)
        assert again.id == late.id
        assert await settle(twin, late, Complete()) is Outcome.LOST
        assert await used(twin) == {"": 1}

    @needs("inspect")
    async def test_law_12_a_forced_delete_and_a_drop_give_back(self, twin: Twin) -> None:
        await limited(twin)
        await limited(twin, name="q")
        await twin.enqueue([*jobs("ab"), *jobs("c", queue="q")])
        lease = await lease_one(twin)
        assert await lease_ids(twin, queues=("q",)) == []
        await twin.amend(A, Delete(force=True))
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert await lease_ids(twin, queues=("q",)) == ["c"]
        assert await lease_ids(twin) == []
        await twin.drop("q")
        assert await lease_ids(twin) == ["b"]

    @needs("priority")
    async def test_keys_without_room_are_skipped(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue(
            [a_job(f"{tenant}{n}", tenant=tenant, priority=n) for tenant in "xyz" for n in range(3)]
        )
        assert await lease_ids(twin) == ["x2", "y2", "z2"]
        assert await used(twin) == {"x": 1, "y": 1, "z": 1}
        assert await lease_ids(twin) == []

    @needs("priority")
    async def test_one_task_alone_is_bounded(self, twin: Twin) -> None:
        await limited(twin, task="heavy")
        await twin.enqueue([*jobs("ab", task="heavy", priority=1), *jobs("cd")])
        assert await lease_ids(twin) == ["a", "c", "d"]
        assert await lease_ids(twin) == []

    @needs("priority")
    async def test_priority_decides_between_lanes(self, twin: Twin) -> None:
        await twin.declare(a_queue(limits=(a_limit(concurrency=2, key="{tenant}"),)))
        await twin.enqueue(
            [
                a_job("a", tenant="x"),
                a_job("b", tenant="y", priority=1),
                a_job("c", tenant="x", priority=2),
                a_job("d", tenant="y"),
                a_job("e", tenant="x", priority=1),
            ]
        )
        assert await lease_ids(twin) == ["c", "b", "e", "d"]

    async def test_jobs_with_a_limit_and_without_in_one_order(self, twin: Twin) -> None:
        await limited(twin, 2, task="heavy")
        await twin.enqueue([a_job(id_, task="heavy" if id_ in "bde" else "x") for id_ in "abcdef"])
        assert await lease_ids(twin, limit=2) == ["a", "b"]
        assert await lease_ids(twin) == ["c", "d", "f"]

    async def test_several_limits_at_once(self, twin: Twin) -> None:
        bounds = (
            a_limit("all", concurrency=3),
            a_limit("each", concurrency=2, key="{tenant}"),
            a_limit("heavy", concurrency=1, task="heavy"),
        )
        await twin.declare(a_queue(limits=bounds))
        await twin.enqueue(
            [
                *jobs("ab", tenant="x", task="heavy"),
                *jobs("cd", tenant="x"),
                *jobs("ef", tenant="y"),
            ]
        )
        leases = await twin.lease(from_default(10))
        assert [lease.id for lease in leases] == ["a", "c", "e"]
        flow = await twin.flow()
        assert [(slot.limit, slot.key, slot.used) for slot in flow.slots] == [
            ("all", "", 3),
            ("each", "x", 2),
            ("each", "y", 1),
            ("heavy", "", 1),
        ]
        await end(twin, leases[2])
        assert await lease_ids(twin) == ["f"]
        await end(twin, leases[0])
        assert await lease_ids(twin) == ["b"]

    async def test_a_name_is_one_limit_over_all_queues(self, twin: Twin) -> None:
        await twin.declare(a_queue(limits=(a_limit(concurrency=3, key="{tenant}"),)))
        await twin.declare(a_queue("q", limits=(a_limit(concurrency=1, key="{tenant}"),)))
        await twin.enqueue([*jobs("abcd", tenant="x"), *jobs("ef", tenant="x", queue="q")])
        # Each queue says how many may be leased in all for one of its own to start.
        (e,) = await twin.lease(from_default(9, queues=("q",)))
        assert await lease_ids(twin) == ["a", "b"]
        await end(twin, e)
        assert await lease_ids(twin, queues=("q",)) == []
        assert await lease_ids(twin) == ["c"]
        assert await used(twin) == await used(twin, "q") == {"x": 3}

    async def test_leasing_from_both_in_one_call(self, twin: Twin) -> None:
        await limited(twin, 2)
        await limited(twin, 2, name="q")
        await twin.enqueue([*jobs("ab"), *jobs("cd", queue="q")])
        assert await lease_ids(twin, queues=("q", "default")) == ["c", "d"]
        assert await lease_ids(twin, queues=("default", "q")) == []

    @needs("inspect")
    async def test_leasing_by_id(self, twin: Twin) -> None:
        await limited(twin, 2)
        await twin.enqueue(jobs("abcd"))
        assert await lease_ids(twin, queues=(), ids=("d", "c", "a")) == ["d", "c"]
        assert await lease_ids(twin) == []

    async def test_a_limit_applies_to_the_requested_tasks(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue([a_job("a", task="other"), *jobs("bc")])
        assert await lease_ids(twin, tasks=frozenset({"work"})) == ["b"]
        assert await lease_ids(twin, tasks=frozenset({"other"})) == []

    @needs("priority", "exact_counts")
    async def test_delayed_and_expired_jobs_take_no_slot(
        self, harness: Harness, twin: Twin
    ) -> None:
        await limited(twin)
        await twin.enqueue(
            [a_job("a", delay_ms=50, priority=9), a_job("b", expires_ms=0), a_job("c")]
        )
        assert await lease_ids(twin) == ["c"]
        (view,) = await twin.queues()
        assert (view.ready, view.delayed, view.blocked) == (0, 1, 0)
        harness.clock.advance(50)
        (view,) = await twin.queues()
        assert (view.ready, view.delayed, view.blocked) == (1, 0, 0)
        assert await lease_ids(twin) == []

    @needs("inspect", "priority")
    async def test_a_redriven_job_needs_a_slot_again(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue(jobs("ab"))
        await settle(twin, await lease_one(twin), Bury())
        b = await lease_one(twin)
        await twin.amend(A, Redrive())
        await twin.amend(A, Expedite())
        assert await lease_ids(twin) == []
        await end(twin, b)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect")
    async def test_moved_under_a_limit_and_out_of_it(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await limited(twin, key="{region}")
        await twin.enqueue([*jobs("ab", queue="q"), *jobs("cd", labels={"region": "eu"})])
        # A field that the job lacks counts as empty in the key.
        assert await twin.amend(JobFilter(queue="q"), Move(queue="default")) == 2
        assert await lease_ids(twin) == ["c", "a"]
        assert await used(twin) == {"": 1, "eu": 1}
        await twin.amend(JobFilter(ids=("b", "d")), Move(queue="q"))
        assert await lease_ids(twin, queues=("q",)) == ["b", "d"]

    @needs("inspect")
    async def test_an_edit_changes_the_lane(self, twin: Twin) -> None:
        await limited(twin, key="{region}")
        await twin.enqueue([a_job(id_, labels={"region": "eu"}) for id_ in "abc"])
        await twin.amend(B, Edit(labels={"region": "us"}))
        await twin.amend(C, Edit(labels={}, payload=b"[1]"))
        assert await lease_ids(twin) == ["a", "b", "c"]
        assert await used(twin) == {"": 1, "eu": 1, "us": 1}

    @needs("groups")
    async def test_groups_under_a_limit(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue(
            [
                a_job("a", tenant="x"),
                a_job("b", tenant="x", group="g"),
                a_job("c", tenant="y", group="g"),
                a_job("d", tenant="y"),
            ]
        )
        a, d = await twin.lease(from_default(10))
        assert (a.id, d.id) == ("a", "d")
        await end(twin, d)
        # Room for c, but b goes before it.
        assert await lease_ids(twin) == []
        await end(twin, a)
        assert await lease_ids(twin) == ["b"]

    @needs("groups")
    async def test_a_batch_of_a_group_takes_a_slot_for_each(self, twin: Twin) -> None:
        limit = a_limit(concurrency=2, key="{tenant}")
        await twin.declare(a_queue(group_batch=5, limits=(limit,)))
        await twin.enqueue(jobs("abc", tenant="x", group="g"))
        await twin.enqueue(
            [a_job(id_, tenant=t, group="h") for id_, t in zip("def", "yzy", strict=True)]
        )
        # The other group's second is of another lane.
        assert await lease_ids(twin) == ["a", "b", "d"]

    @needs("priority", "dependencies")
    async def test_children_under_a_limit(self, twin: Twin) -> None:
        await limited(twin)
        await twin.enqueue([a_job("p"), *jobs("ab", after=("p",)), a_job("x", priority=-1)])
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin) == ["a"]
        assert await lease_ids(twin) == []


@needs("limits")
class LimitChangeContract:
    """A changed limit applies at once to waiting and leased jobs."""

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
        # Engines sort up to a thousand jobs in one step: these take two.
        for batch in range(2):
            await twin.enqueue([a_job(f"j{batch}-{n:03}", tenant=f"t{n % 5}") for n in range(600)])
        await limited(twin, key="{tenant}")
        assert await lease_ids(twin) == [f"j0-{n:03}" for n in range(5)]
        await twin.declare(a_queue())
        assert await lease_ids(twin, limit=2) == ["j0-005", "j0-006"]

    @needs("priority", "dependencies")
    async def test_a_child_whose_parent_ends_meanwhile_is_released(self, twin: Twin) -> None:
        ids = [f"c{n:02}" for n in range(20)]
        await twin.declare(a_queue("other"))
        await twin.enqueue([a_job(f"p-{id_}", queue="other") for id_ in ids])
        await twin.enqueue([a_job(id_, priority=1, after=(f"p-{id_}",)) for id_ in ids])
        for batch in range(3):
            await twin.enqueue([a_job(f"j{batch}-{n:03}") for n in range(700)])
        parents = await twin.lease(from_default(20, queues=("other",)))
        async with asyncio.TaskGroup() as group:
            group.create_task(limited(twin, 100))
            for lease in parents:
                await end(twin, lease)
        assert await lease_ids(twin, limit=20) == ids

    @needs("priority")
    async def test_a_job_that_waits_in_no_lane_keeps_its_place(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a"), a_job("b", priority=1), a_job("c")])
        await limited(twin, 9)
        await twin.enqueue([a_job("d", priority=1)])
        assert await lease_ids(twin) == ["b", "d", "a", "c"]
