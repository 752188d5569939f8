"""What a limit counts by, and who holds its slots."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import limits
from holdfast.core.flow import Flow, Limit, Rate, Slot, Waits
from holdfast.core.model import JobFilter, Status
from holdfast.core.verdict import (
    Complete,
    Delete,
    Move,
    Outcome,
)
from holdfast.errors import UnknownQueue, UsageError
from holdfast.testing.contract.limiting import limited, used
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    case,
    end,
    jobs,
    lease_ids,
    lease_one,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

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
    {"labels": {"region": "x" * (limits.NAME_BYTES_MAX + 1)}},
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
    Limit(name="l", concurrency=1, key="x" * (limits.NAME_BYTES_MAX + 1)),
    Limit(name="l", concurrency=1, key="\0"),
    Limit(name="l", concurrency=1, task="a b"),
)


class Counting:
    """What a limit counts by."""

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

    async def test_a_field_that_the_job_lacks(self, twin: Twin) -> None:
        await limited(twin, key="{region}")
        await twin.declare(a_queue("q"))
        for fields in LACKING:
            with case(fields):
                new = [a_job("a", **fields), a_job("b", labels={"region": "x"})]
                receipts = await twin.enqueue(new)
                assert [each.code or each.status for each in receipts] == ["invalid_job", "new"]
                assert await twin.get("a") is None
                # What is in already is not turned out: it counts as having it empty.
                await twin.enqueue([a_job("a", queue="q", **fields)])
                await twin.amend(A, Move(queue="default"))
                assert await lease_ids(twin) == ["b", "a"]
                assert await used(twin) == {"": 1, "x": 1}
                await twin.the("a")
                await twin.amend(JobFilter(), Delete(force=True))

    @pytest.mark.parametrize("name", ["tenant", "group"])
    async def test_a_job_without_tenant_or_group(self, twin: Twin, name: str) -> None:
        await limited(twin, key=f"{{{name}}}")
        receipts = await twin.enqueue([a_job("a"), a_job("b", **{name: "x"})])
        assert [receipt.code or receipt.status for receipt in receipts] == ["invalid_job", "new"]
        assert name in receipts[0].text

    async def test_a_limit_of_another_task_needs_no_field(self, twin: Twin) -> None:
        await limited(twin, key="{region}", task="other")
        (receipt,) = await twin.enqueue([a_job("a")])
        assert receipt.status is Status.NEW
        assert await twin.flow() == Flow()

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

    async def test_a_replacement_that_lacks_a_field(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue([a_job("a", tenant="t", key="k")])
        before = await twin.the("a")
        (receipt,) = await twin.enqueue([a_job("b", key="k", key_policy="replace")])
        assert (receipt.id, receipt.code) == ("b", "invalid_job")
        assert await twin.the("a") == before
        await twin.enqueue([a_job("b", key="k", key_policy="replace", tenant="u")])
        assert await used(twin) == {"u": 0}

    async def test_a_merge_that_takes_a_field_away(self, twin: Twin) -> None:
        await limited(twin, key="{n}")
        await twin.enqueue([a_job("a", payload=b'{"n":1}', key="k")])
        merge = {"key": "k", "key_policy": "merge"}
        (receipt,) = await twin.enqueue([a_job("b", payload=b'{"n":null}', **merge)])
        assert receipt.code == "invalid_job"
        (receipt,) = await twin.enqueue([a_job("b", payload=b'{"n":2}', **merge)])
        assert receipt.status is Status.DUPLICATE
        assert await used(twin) == {"2": 0}

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

    async def test_too_many_limits(self, twin: Twin) -> None:
        many = tuple(a_limit(f"l{n}", concurrency=1) for n in range(limits.LIMITS_MAX + 1))
        with pytest.raises(UsageError):
            await twin.declare(a_queue(limits=many))
        await twin.declare(a_queue(limits=many[1:]))
        await twin.enqueue(jobs("ab"))
        assert await lease_ids(twin) == ["a"]


class Reading:
    """Who holds a slot can be asked."""

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

    async def test_at_most_twenty_holders(self, twin: Twin) -> None:
        await limited(twin, 100)
        ids = [f"j{n:02}" for n in range(30)]
        await twin.enqueue([a_job(id_) for id_ in ids])
        await lease_ids(twin, limit=25)
        (slot,) = (await twin.flow()).slots
        assert (slot.used, slot.holders) == (25, tuple(ids[:20]))

    async def test_a_slot_that_nobody_needs_is_not_there(self, twin: Twin) -> None:
        await limited(twin, key="{tenant}")
        await twin.enqueue(jobs("a", tenant="x"))
        await end(twin, await lease_one(twin))
        assert await twin.flow() == Flow()

    async def test_the_holders_of_other_queues(self, twin: Twin) -> None:
        await limited(twin, 5)
        await limited(twin, 7, name="q")
        await twin.enqueue([*jobs("a"), *jobs("b", queue="q")])
        await lease_ids(twin, queues=("default", "q"))
        (slot,) = (await twin.flow("q")).slots
        assert (slot.concurrency, slot.used, slot.holders) == (7, 2, ("a", "b"))
        await twin.declare(a_queue("other", limits=(a_limit("another", concurrency=1),)))
        assert await twin.flow("other") == Flow()

    async def test_what_cannot_be_asked(self, twin: Twin) -> None:
        with pytest.raises(UnknownQueue):
            await twin.flow("nowhere")
        for limit in (0, limits.PAGE_MAX + 1):
            with pytest.raises(UsageError):
                await twin.flow(limit=limit)
            with pytest.raises(UsageError):
                await twin.recount(limit)
