"""Keys and rates of limits, and the views of their slots. A rate is a number of leases per time,
evenly spaced except for a burst, never given back.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    case,
    end,
    jobs,
    lease_ids,
    lease_one,
    needs,
    settle,
)
from holdfast.conformance.contract.limits import limited, used
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds
from holdfast.core.limits import Limit, Rate, Slot
from holdfast.core.model import Flow, JobFilter, Status, Waits
from holdfast.core.verdict import (
    Complete,
    Delete,
    Move,
    Outcome,
    Release,
    Retry,
)
from holdfast.errors import UnknownQueue, UsageError

A = JobFilter(ids=("a",))
LACKING: tuple[dict[str, Any], ...] = (
    {},
    {"payload": b"[1]"},
    {"payload": b'{"region":null}'},
    {"payload": b'{"region":true}'},
    {"payload": b'{"region":[1]}'},
    {"payload": b'{"region":"x"'},
    {"payload": b'{"region":"\xff"}'},
    {"payload": b'{"region":' + b"[" * 50_000},
    {"payload": b'{"region":"x"}', "content_type": "text/plain"},
    {"payload": b'{"region":"\\u0000"}'},
    {"labels": {"region": "x" * (bounds.NAME_BYTES_MAX + 1)}},
)
"""Fields of a job that has no text for {region}."""
NO_LIMITS = (
    Limit(name="l"),
    Limit(name="", concurrency=1),
    Limit(name="a b", concurrency=1),
    Limit(name="l", concurrency=0),
    Limit(name="l", rate=Rate(count=0, per_ms=1_000)),
    Limit(name="l", rate=Rate(count=1, per_ms=0)),
    Limit(name="l", rate=Rate(count=1, per_ms=1, burst=0)),
    Limit(name="l", concurrency=1, key="{"),
    Limit(name="l", concurrency=1, key="{}"),
    Limit(name="l", concurrency=1, key="{a.b}"),
    Limit(name="l", concurrency=1, key="{a!r}"),
    Limit(name="l", concurrency=1, key="{a:>9}"),
    Limit(name="l", concurrency=1, key="{a[0]}"),
    Limit(name="l", concurrency=1, key="x" * (bounds.NAME_BYTES_MAX + 1)),
    Limit(name="l", concurrency=1, key="\0"),
    Limit(name="l", concurrency=1, task="a b"),
)


class LimitKeyContract:
    """Jobs share a slot by the key of the limit."""

    @needs("groups", "limits")
    async def test_fields_of_the_job_its_labels_and_its_payload(self, twin: Twin) -> None:
        limit = a_limit(concurrency=1, key="{queue}:{task}:{tenant}:{group}:{region}:{n}!")
        await twin.declare(a_queue(limits=(limit,)))
        await twin.enqueue(
            [
                a_job("a", tenant="t", group="g", labels={"region": "é"}, payload=b'{"n":7}'),
                a_job("b", tenant="t", group="g", payload=b'{"n":"7","region":"\xc3\xa9"}'),
            ]
        )
        assert await used(twin) == {"default:work:t:g:é:7!": 0}

    @needs("inspect", "limits")
    async def test_a_field_that_the_job_lacks(self, twin: Twin) -> None:
        await limited(twin, key="{region}")
        await twin.declare(a_queue("q"))
        for fields in LACKING:
            with case(fields):
                new = [a_job("a", **fields), a_job("b", labels={"region": "x"})]
                receipts = await twin.enqueue(new)
                assert [each.code or each.status for each in receipts] == ["invalid_job", "new"]
                assert await twin.get("a") is None
                # A job that is already stored stays; the missing field counts as empty.
                await twin.enqueue([a_job("a", queue="q", **fields)])
                await twin.amend(A, Move(queue="default"))
                assert await lease_ids(twin) == ["b", "a"]
                assert await used(twin) == {"": 1, "x": 1}
                await twin.require("a")
                await twin.amend(JobFilter(), Delete(force=True))

    @needs("groups", "limits")
    @pytest.mark.parametrize("name", ["tenant", "group"])
    async def test_a_job_without_tenant_or_group(self, twin: Twin, name: str) -> None:
        await limited(twin, key=f"{{{name}}}")
        receipts = await twin.enqueue([a_job("a"), a_job("b", **{name: "x"})])
        assert [receipt.code or receipt.status for receipt in receipts] == ["invalid_job", "new"]
        assert name in receipts[0].text

    @needs("limits")
    async def test_a_limit_of_another_task_needs_no_field(self, twin: Twin) -> None:
        await limited(twin, key="{region}", task="other")
        (receipt,) = await twin.enqueue([a_job("a")])
        assert receipt.status is Status.NEW
        assert await twin.flow() == Flow()

    @needs("inspect", "follow_ups", "limits")
    async def test_a_follow_up_that_lacks_a_field(self, twin: Twin) -> None:
        await limited(twin, name="q", key="{tenant}")
        await twin.enqueue(jobs("a"))
        lease = await lease_one(twin)
        for then in ((a_job("x", queue="q"),), (a_job("y"), a_job("x", queue="q"))):
            assert await settle(twin, lease, Complete(then=then)) is Outcome.REFUSED
        assert await twin.get("y") is None
        then = (a_job("x", queue="q", tenant="t"),)
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert await lease_ids(twin, queues=("q",)) == ["x"]

    @needs("inspect", "keys", "limits")
    async def test_a_replacement_that_lacks_a_field(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue([a_job("a", tenant="t", key="k")])
        before = await twin.require("a")
        (receipt,) = await twin.enqueue([a_job("b", key="k", key_policy="replace")])
        assert (receipt.id, receipt.code) == ("b", "invalid_job")
        assert await twin.require("a") == before
        await twin.enqueue([a_job("b", key="k", key_policy="replace", tenant="u")])
        assert await used(twin) == {"u": 0}

    @needs("keys", "limits")
    async def test_a_merge_that_takes_a_field_away(self, twin: Twin) -> None:
        await limited(twin, key="{n}")
        await twin.enqueue([a_job("a", payload=b'{"n":1}', key="k")])
        merge = {"key": "k", "key_policy": "merge"}
        (receipt,) = await twin.enqueue([a_job("b", payload=b'{"n":null}', **merge)])
        assert receipt.code == "invalid_job"
        (receipt,) = await twin.enqueue([a_job("b", payload=b'{"n":2}', **merge)])
        assert receipt.status is Status.DUPLICATE
        assert await used(twin) == {"2": 0}

    @needs("limits")
    async def test_a_limit_that_is_none(self, twin: Twin) -> None:
        await limited(twin)
        for limit in NO_LIMITS:
            with case(limit):
                with pytest.raises(UsageError) as caught:
                    await twin.declare(a_queue(limits=(limit,)))
                assert caught.value.code == "invalid_queue"
                (view,) = await twin.queues()
                assert view.queue.limits == (a_limit(concurrency=1),)

    async def test_limits_of_one_name_in_one_queue(self, twin: Twin) -> None:
        with pytest.raises(UsageError):
            await twin.declare(
                a_queue(limits=(a_limit(concurrency=1), a_limit(concurrency=2, task="t")))
            )

    @needs("limits")
    async def test_too_many_limits(self, twin: Twin) -> None:
        many = tuple(a_limit(f"l{n}", concurrency=1) for n in range(bounds.LIMITS_MAX + 1))
        with pytest.raises(UsageError):
            await twin.declare(a_queue(limits=many))
        await twin.declare(a_queue(limits=many[1:]))
        await twin.enqueue(jobs("ab"))
        assert await lease_ids(twin) == ["a"]


class FlowViewContract:
    """`flow` and `waits` show the slots and their holders."""

    @needs("inspect", "limits")
    async def test_slots_and_their_holders(self, harness: Harness, twin: Twin) -> None:
        await limited(twin, 2, key="{tenant}")
        await twin.enqueue(
            [a_job(f"{tenant}{n}", tenant=tenant) for n in range(3) for tenant in "xy"]
        )
        assert await lease_ids(twin, queues=(), ids=("x1",)) == ["x1"]
        harness.clock.advance(1)
        assert await lease_ids(twin, queues=(), ids=("x0",)) == ["x0"]
        x = Slot(limit="l", key="x", concurrency=2, rate=None, used=2, holders=("x1", "x0"))
        y = Slot(limit="l", key="y", concurrency=2, rate=None, used=0)
        assert await twin.flow() == Flow(slots=(x, y))
        assert await twin.flow(limit=1) == Flow(slots=(x,))
        assert await twin.waits("x2") == Waits(slots=(x,))
        assert await twin.waits("y0") == Waits(slots=(y,))
        assert await twin.waits("x0") is None

    @needs("limits")
    async def test_at_most_twenty_holders(self, twin: Twin) -> None:
        await limited(twin, 100)
        ids = [f"j{n:02}" for n in range(30)]
        await twin.enqueue([a_job(id_) for id_ in ids])
        await lease_ids(twin, limit=25)
        (slot,) = (await twin.flow()).slots
        assert (slot.used, slot.holders) == (25, tuple(ids[:20]))

    @needs("limits")
    async def test_an_unused_slot_is_not_shown(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue(jobs("a", tenant="x"))
        await end(twin, await lease_one(twin))
        assert await twin.flow() == Flow()

    @needs("limits")
    async def test_the_holders_of_other_queues(self, twin: Twin) -> None:
        await limited(twin, 5)
        await limited(twin, 7, name="q")
        await twin.enqueue([*jobs("a"), *jobs("b", queue="q")])
        await lease_ids(twin, queues=("default", "q"))
        (slot,) = (await twin.flow("q")).slots
        assert (slot.concurrency, slot.used, slot.holders) == (7, 2, ("a", "b"))
        await twin.declare(a_queue("other", limits=(a_limit("another", concurrency=1),)))
        assert await twin.flow("other") == Flow()

    async def test_invalid_flow_requests_are_refused(self, twin: Twin) -> None:
        with pytest.raises(UnknownQueue):
            await twin.flow("nowhere")
        for limit in (0, bounds.PAGE_MAX + 1):
            with pytest.raises(UsageError):
                await twin.flow(limit=limit)
            with pytest.raises(UsageError):
                await twin.recount(limit)


IDS = [f"j{n:03}" for n in range(120)]


async def rated(twin: Twin, rate: str, name: str = "default", burst: int = 1, **more: str) -> None:
    await twin.declare(a_queue(name, limits=(a_limit(rate=rate, burst=burst, **more),)))


@needs("rates")
class RateContract:
    """Limits on leases per time."""

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

    @needs("inspect", "refunds")
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

    @needs("limits")
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

    @needs("priority", "exact_counts")
    async def test_jobs_over_their_rate_do_not_block_others(
        self, harness: Harness, twin: Twin
    ) -> None:
        await rated(twin, "1/1000", task="slow")
        await twin.enqueue([*jobs("ab", task="slow", priority=5), *jobs("cd")])
        assert await lease_ids(twin) == ["a", "c", "d"]
        (view,) = await twin.queues()
        assert (view.ready, view.delayed, view.blocked) == (1, 0, 0)

    @needs("inspect")
    async def test_leasing_by_id_spends_too(self, twin: Twin) -> None:
        await rated(twin, "1/1000")
        await twin.enqueue(jobs("abc"))
        assert await lease_ids(twin, queues=(), ids=("c", "b")) == ["c"]
        assert await lease_ids(twin) == []

    @needs("groups")
    async def test_a_batch_of_a_group_spends_for_each(self, harness: Harness, twin: Twin) -> None:
        limit = a_limit(rate="1/100", burst=2)
        await twin.declare(a_queue(group_batch=9, limits=(limit,)))
        await twin.enqueue(jobs("abc", group="g"))
        assert await lease_ids(twin) == ["a", "b"]

    @needs("inspect")
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
        # Waits caused by the old rate do not apply to the new one.
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
