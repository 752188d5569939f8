"""Leasing: which jobs, when, in which order, and the content of a lease."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    case,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    leased,
    needs,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Note, Overrides, Renewal, State
from holdfast.core.verdict import Complete, Edit, Expedite, Outcome, Release, Retry, Settlement
from holdfast.errors import UsageError

UNBOUNDED: tuple[dict[str, Any], ...] = (
    {"queues": (), "ids": ()},
    {"ids": ("a",)},
    {"limit": 0},
    {"limit": bounds.BATCH_MAX + 1},
    {"limit": -1},
    {"wait_ms": -1},
    {"wait_ms": bounds.WAIT_MS_MAX + 1},
    {"lease_ms": 0},
    {"lease_ms": bounds.LEASE_MS_MAX + 1},
    {"worker": "\x00"},
    {"queues": ("q",) * (bounds.BATCH_MAX + 1)},
    {"queues": (), "ids": ("i",) * (bounds.BATCH_MAX + 1)},
)


class LeaseContract:
    """Order, filters and content of leases."""

    @needs("inspect")
    async def test_a_lease_says_what_is_leased(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(payload=b"p", labels={"l": "1"})])
        harness.clock.advance(3)
        now = harness.clock.wall_ms()
        lease = await lease_one(twin)
        assert (lease.id, lease.lease_ms, lease.cancel_requested) == ("a", 30_000, False)
        job = lease.job
        assert (job.state, job.attempt, job.worker) == (State.LEASED, 1, "w")
        assert (job.leased_at, job.deadline_at, job.created_at) == (now, now + 30_000, now - 3)
        assert (job.payload, job.labels, job.version) == (b"p", {"l": "1"}, 2)
        assert job.token == lease.token > 0
        assert await twin.require("a") == job

    @needs("inspect", "fencing")
    async def test_law_03_a_leased_job_is_not_leased_again(
        self, harness: Harness, twin: Twin
    ) -> None:
        first = await leased(twin)
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=(), ids=("a",)) == []
        harness.clock.advance(30_000)
        assert await lease_ids(twin) == [], "an overdue lease ends by settle, not by another lease"
        assert (await twin.require("a")).token == first.token

    @needs("fencing", "refunds")
    async def test_law_03_each_lease_of_a_job_has_a_greater_token(self, twin: Twin) -> None:
        lease = await leased(twin)
        for verdict in (Retry(), Release(), Retry()):
            assert await settle(twin, lease, verdict) is Outcome.SETTLED
            again = await lease_one(twin)
            assert again.token > lease.token
            lease = again

    @needs("inspect")
    async def test_law_02_never_before_it_is_due(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job(delay_ms=1_000)])
        assert await lease_ids(twin) == []
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=(), ids=("a",)) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["a"]

    @needs("exact_times")
    async def test_law_02_a_retry_is_never_early(self, harness: Harness, twin: Twin) -> None:
        await settle(twin, await leased(twin), Retry(delay_ms=50))
        harness.clock.advance(49)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect", "ordered")
    async def test_law_02_never_after_it_expired(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", expires_ms=10), a_job("b", expires_ms=11), a_job("c")])
        harness.clock.advance(10)
        assert await lease_ids(twin, queues=(), ids=("a",)) == []
        assert await lease_ids(twin) == ["b", "c"]
        assert (await twin.require("a")).state is State.WAITING

    @needs("overdue")
    async def test_a_job_that_expires_at_once_is_kept_but_not_leased(self, twin: Twin) -> None:
        await twin.enqueue([a_job(expires_ms=0)])
        assert await lease_ids(twin) == []
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]

    @needs("priority", "ordered")
    async def test_many_expired_jobs_in_front_hide_nothing(
        self, harness: Harness, twin: Twin
    ) -> None:
        for start in range(0, 600, 200):
            numbers = range(start, start + 200)
            await twin.enqueue([a_job(f"old{n}", expires_ms=1, priority=9) for n in numbers])
        harness.clock.advance(1)
        await twin.enqueue(jobs("ab"))
        assert await lease_ids(twin, limit=1) == ["a"]
        assert await lease_ids(twin, limit=5) == ["b"]
        assert await lease_ids(twin) == []
        assert len((await twin.expired(limit=1_000)).jobs) == 600

    @needs("priority", "ordered")
    async def test_law_09_by_priority_then_due_then_arrival(
        self, harness: Harness, twin: Twin
    ) -> None:
        new = [
            a_job("later", delay_ms=2),
            a_job("sooner", delay_ms=1),
            a_job("first"),
            a_job("low", priority=-1),
            a_job("high", priority=1, delay_ms=2),
            a_job("second"),
        ]
        await twin.enqueue(new)
        harness.clock.advance(2)
        assert await lease_ids(twin) == ["high", "first", "second", "sooner", "later", "low"]

    @needs("priority")
    async def test_a_delayed_job_of_higher_priority_does_not_hide_others(self, twin: Twin) -> None:
        await twin.enqueue([a_job("high", priority=100, delay_ms=1_000), a_job("low")])
        assert await lease_ids(twin) == ["low"]

    @needs("priority", "ordered")
    async def test_queues_are_served_in_the_order_of_the_request(self, twin: Twin) -> None:
        for name in ("q1", "q2", "q3"):
            await twin.declare(a_queue(name))
        await twin.enqueue([a_job("one", queue="q1", priority=9), a_job("two", queue="q2")])
        await twin.enqueue([a_job("too", queue="q2"), a_job("not", queue="q3")])
        request = LeaseRequest(queues=("q2", "nowhere", "q1", "q2"), limit=10)
        assert [lease.id for lease in await twin.lease(request)] == ["two", "too", "one"]

    @needs("inspect")
    async def test_ids_are_served_in_the_order_of_the_request(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([*jobs("abc"), a_job("d", queue="q"), a_job("late", delay_ms=1)])
        request = LeaseRequest(ids=("d", "c", "gone", "late", "c", "a"), limit=10)
        assert [lease.id for lease in await twin.lease(request)] == ["d", "c", "a"]
        request = LeaseRequest(ids=("b",), tasks=frozenset({"else"}))
        assert await twin.lease(request) == []

    @needs("inspect", "ordered")
    async def test_the_limit_is_kept(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abcde"))
        assert await lease_ids(twin, limit=2) == ["a", "b"]
        assert await lease_ids(twin, limit=2, queues=(), ids=tuple("edc")) == ["e", "d"]
        assert await lease_ids(twin, limit=2) == ["c"]

    @needs("ordered")
    async def test_only_tasks_the_worker_knows(self, twin: Twin) -> None:
        tasks = ["x", "y", "x", "z", "y"]
        await twin.enqueue([a_job(f"j{n}", task=task) for n, task in enumerate(tasks)])
        assert await lease_ids(twin, tasks=frozenset()) == []
        assert await lease_ids(twin, tasks=frozenset({"X"})) == []
        assert await lease_ids(twin, tasks=frozenset({"y", "z"}), limit=2) == ["j1", "j3"]
        assert await lease_ids(twin) == ["j0", "j2", "j4"]

    @needs("inspect")
    async def test_a_paused_queue_gives_nothing(self, twin: Twin) -> None:
        await twin.declare(a_queue("default", paused=True))
        await twin.enqueue(jobs("a"))
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=(), ids=("a",)) == []

    @needs("ordered")
    async def test_the_deadline_is_the_requests_then_the_jobs_then_the_queues(
        self, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", lease_ms=300))
        own = Overrides(lease_ms=200)
        await twin.enqueue([a_job("a", overrides=own), a_job("b", overrides=own), a_job("c")])
        assert (await lease_one(twin, lease_ms=100)).lease_ms == 100
        assert (await lease_one(twin)).lease_ms == 200
        assert (await lease_one(twin)).lease_ms == 300

    @needs("inspect")
    async def test_law_06_the_attempt_is_counted_when_leased(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert lease.job.attempt == 1
        await settle(twin, lease, Retry())
        assert (await twin.require("a")).attempt == 1
        assert (await lease_one(twin)).job.attempt == 2

    @needs("overdue")
    async def test_law_11_the_engine_has_no_policy(self, twin: Twin) -> None:
        """The engine does not compare attempts with their maximum: that is policy."""
        await twin.declare(a_queue("default", max_attempts=1, max_crashes=1))
        await twin.enqueue(jobs("a"))
        for attempt in range(1, 5):
            lease = await lease_one(twin)
            assert lease.job.attempt == attempt
            assert await settle(twin, lease, Retry()) is Outcome.SETTLED

    @needs("renew", "notes")
    async def test_a_lease_brings_the_checkpoint_but_not_the_output(self, twin: Twin) -> None:
        lease = await leased(twin)
        note = Note(progress=0.5, checkpoint=b"\x00c", output=b"out")
        (renewed,) = await twin.renew([Renewal(lease=lease, note=note)])
        assert renewed is not None
        assert (renewed.job.progress, renewed.job.checkpoint) == (0.5, b"\x00c")
        assert renewed.job.output is None
        await settle(twin, lease, Retry())
        again = (await lease_one(twin)).job
        assert (again.progress, again.checkpoint) == (0.5, b"\x00c")
        assert (again.output, again.result, again.events) == (None, None, ())

    async def test_the_worker_may_stay_unnamed(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        assert (await lease_one(twin, worker="")).job.worker is None

    @needs("inspect", "priority")
    async def test_expedited_jobs_come_first(self, twin: Twin) -> None:
        await twin.enqueue([a_job("high", priority=99), a_job("late", delay_ms=1_000)])
        assert await twin.amend(JobFilter(ids=("late",)), Expedite()) == 1
        assert await lease_ids(twin) == ["late", "high"]

    async def test_law_10_a_request_is_bounded(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for fields in UNBOUNDED:
            with case(fields), pytest.raises(UsageError):
                await twin.lease(from_default(**fields))
        assert await lease_ids(twin) == ["a"]

    @needs("ordered")
    async def test_a_thousand_at_once(self, twin: Twin) -> None:
        new: list[NewJob] = [a_job(f"j{n}") for n in range(bounds.BATCH_MAX)]
        await twin.enqueue(new)
        leases = await twin.lease(from_default(bounds.BATCH_MAX))
        assert [lease.id for lease in leases] == [job.id for job in new]
        done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        assert set(await twin.settle(done)) == {Outcome.SETTLED}


@needs("priority", "ordered")
class AgingContract:
    """Priority that grows with waiting: no job starves."""

    @needs("priority", "fairness")
    @pytest.mark.parametrize("fairness", ["off", "shares", "noisy"])
    async def test_a_low_job_under_constant_load_starts_within_its_bound(
        self, harness: Harness, twin: Twin, fairness: str
    ) -> None:
        await twin.declare(a_queue(aging_ms=10, fairness=fairness))
        await twin.enqueue([a_job("low", priority=-3)])
        began = harness.clock.wall_ms()
        for number in range(100):
            await twin.enqueue([a_job(f"high{number}", priority=5)])
            lease = await lease_one(twin)
            await end(twin, lease)
            if lease.id == "low":
                break
            harness.clock.advance(1)
        # At the bound they are equal, and the higher priority goes first.
        assert harness.clock.wall_ms() - began == (5 + 3) * 10 + 1

    async def test_without_aging_it_starves(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("low")])
        for number in range(100):
            await twin.enqueue([a_job(f"high{number}", priority=1)])
            await end(twin, lease := await lease_one(twin))
            assert lease.id != "low"
            harness.clock.advance(1_000_000)

    async def test_the_order_of_a_list(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=100))
        await twin.enqueue([a_job("a"), a_job("b", priority=1)])
        harness.clock.advance(100)
        await twin.enqueue([a_job("c", priority=1), a_job("d")])
        harness.clock.advance(1)
        await twin.enqueue([a_job("e", priority=1), a_job("f", priority=2)])
        assert await lease_ids(twin) == ["b", "f", "c", "a", "e", "d"]

    async def test_a_delayed_job_ages_from_when_it_is_due(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue([a_job("a", delay_ms=100)])
        harness.clock.advance(100)
        await twin.enqueue([a_job("b", priority=1)])
        assert await lease_ids(twin) == ["b", "a"]

    async def test_a_retried_job_begins_anew(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue(jobs("a"))
        harness.clock.advance(100)
        await settle(twin, await lease_one(twin), Retry())
        await twin.enqueue([a_job("b", priority=1)])
        assert await lease_ids(twin) == ["b", "a"]

    async def test_changed_with_a_backlog(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        harness.clock.advance(50)
        await twin.enqueue([a_job("b", priority=9), a_job("c", priority=9)])
        await twin.enqueue([*jobs("d"), a_job("e", priority=9)])
        assert await lease_ids(twin, limit=1) == ["b"]
        await twin.declare(a_queue(aging_ms=1))
        assert await lease_ids(twin, limit=1) == ["a"]
        await twin.declare(a_queue(aging_ms=100))
        assert await lease_ids(twin) == ["c", "e", "d"]

    @needs("inspect")
    async def test_acts_of_people(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue(jobs("abc"))
        await twin.amend(JobFilter(ids=("b",)), Edit(priority=1))
        await twin.amend(JobFilter(ids=("c",)), Expedite())
        assert await lease_ids(twin) == ["c", "b", "a"]

    @needs("inspect", "priority", "limits")
    async def test_under_a_limit(self, harness: Harness, twin: Twin) -> None:
        limit = a_limit(concurrency=1, key="{tenant}")
        await twin.declare(a_queue(aging_ms=10, limits=(limit,)))
        await twin.enqueue([a_job("a", tenant="x"), a_job("b", tenant="y")])
        harness.clock.advance(30)
        await twin.enqueue([a_job("c", tenant="x", priority=2), a_job("d", tenant="y", priority=4)])
        a = await lease_one(twin, queues=(), ids=("a",))
        assert await lease_ids(twin) == ["d"]
        await end(twin, a)
        assert await lease_ids(twin) == ["c"]

    @needs("priority", "groups")
    async def test_in_groups(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue([a_job("a", group="g"), a_job("b", group="g", priority=50), a_job("c")])
        await twin.enqueue([a_job("d", priority=1)])
        assert await lease_ids(twin) == ["d", "a", "c"]

    @needs("priority", "fairness")
    async def test_with_shares_the_best_job_names_the_priority(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue(aging_ms=10, fairness="shares"))
        await twin.enqueue([a_job("x0", tenant="x"), a_job("x1", tenant="x")])
        harness.clock.advance(50)
        await twin.enqueue([a_job("y0", tenant="y"), a_job("z0", tenant="z", priority=4)])
        # x0 is the best, so that those of its priority go, in turn; until z0 is better than y0.
        assert await lease_ids(twin, limit=20) == ["x0", "y0", "x1", "z0"]

    @pytest.mark.parametrize("aging_ms", [0, -1])
    async def test_no_time_at_all(self, twin: Twin, aging_ms: int) -> None:
        with pytest.raises(UsageError):
            await twin.declare(a_queue(aging_ms=aging_ms))
