"""Reading one job, pages of jobs and counts, each with its stated order and bound."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance import inputs
from holdfast.conformance.contract.cases import (
    ERROR,
    a_job,
    a_queue,
    case,
    jobs,
    lease_one,
    leased,
    needs,
    settle,
)
from holdfast.conformance.harness import TALLIED, Harness, Twin, find_all
from holdfast.core import bounds
from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import (
    JobFilter,
    Note,
    QueueView,
    Reason,
    Record,
    Renewal,
    State,
    Tally,
    WaitingKind,
)
from holdfast.core.verdict import Bury, Cancel, Complete, Delete, Retime, Retry
from holdfast.engines.base import Saved
from holdfast.engines.extras import Countable, Revisioned, extra, find_rows
from holdfast.errors import UsageError


async def found(twin: Twin, **wanted: Any) -> str:
    """The ids found, oldest first, joined."""
    return "".join(job.id for job in reversed(await twin.find(JobFilter(**wanted))))


class SearchContract:
    """Get, find, tally and queue counts."""

    @needs("inspect")
    async def test_get_of_an_unknown_id_is_none(self, twin: Twin) -> None:
        assert await twin.get("nobody") is None

    @needs("inspect", "renew", "results", "notes")
    async def test_each_view_carries_what_it_says(self, twin: Twin) -> None:
        lease = await leased(twin, payload=b"p")
        note = Note(progress=0.5, checkpoint=b"c", output=b"o")
        await twin.renew([Renewal(lease=lease, note=note)])
        await settle(twin, lease, Retry(0, ERROR))
        await settle(twin, await lease_one(twin), Complete(b"r"))
        whole = await twin.require("a")
        assert (whole.progress, whole.checkpoint, whole.output) == (0.5, b"c", b"o")
        assert (whole.result, len(whole.events)) == (b"r", 1)
        (brief,) = await twin.find(JobFilter())
        assert (brief.progress, brief.checkpoint, brief.output, brief.result) == (None,) * 4
        assert (brief.events, brief.payload) == ((), b"p")

    @needs("inspect")
    async def test_events_stay_in_the_order_they_happened(self, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        for text in ("one", "two", "three"):
            lease = await lease_one(twin)
            await settle(twin, lease, Retry(0, type(ERROR)(message=text)))
        failures = (await twin.require("a")).failures
        assert [event.failure and event.failure.message for event in failures] == [
            "one",
            "two",
            "three",
        ]
        assert [event.attempt for event in failures] == [1, 2, 3]

    @needs("inspect", "ordered")
    async def test_law_09_find_is_newest_first_by_pages(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abcdefg"))
        first = await harness.engine.find(JobFilter(), limit=3)
        assert [job.id for job in first.jobs] == ["g", "f", "e"]
        second = await harness.engine.find(JobFilter(), limit=3, after=first.after)
        assert [job.id for job in second.jobs] == ["d", "c", "b"]
        ids = [job.id for job in await find_all(harness.engine, JobFilter(), limit=1)]
        assert "".join(ids) == "gfedcba"

    @needs("inspect", "ordered")
    async def test_a_page_skips_and_repeats_nothing_while_jobs_come_and_go(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("abcdef"))
        page = await harness.engine.find(JobFilter(), limit=2)
        await twin.enqueue(jobs("gh"))
        await settle(twin, await lease_one(twin), Retry())
        rest = await harness.engine.find(JobFilter(), limit=10, after=page.after)
        assert [job.id for job in (*page.jobs, *rest.jobs)] == list("fedcba")
        assert rest.after is None

    @needs("inspect", "keys", "groups", "combinations")
    async def test_each_filter_alone(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        start = harness.clock.wall_ms()
        await twin.enqueue([a_job("a", tenant="t1", group="g1", key="k1", labels={"x": "1"})])
        harness.clock.advance(10)
        await twin.enqueue([a_job("b", queue="q", task="other", labels={"x": "1", "y": "2"})])
        harness.clock.advance(10)
        await twin.enqueue([a_job("c", expires_ms=5, tenant="T1")])
        await settle(twin, await lease_one(twin, worker="w1"), Bury(Reason.REJECTED))
        harness.clock.advance(10)
        assert await found(twin) == "abc"
        assert await found(twin, ids=("c", "a", "gone")) == "ac"
        assert await found(twin, ids=()) == ""
        assert await found(twin, queue="q") == "b"
        assert await found(twin, states=(State.WAITING,)) == "bc"
        assert await found(twin, states=()) == ""
        assert await found(twin, states=(State.DEAD, State.LEASED)) == "a"
        assert await found(twin, task="other") == "b"
        assert await found(twin, tenant="t1") == "a"
        assert await found(twin, group="g1") == "a"
        assert await found(twin, key="k1") == "a"
        assert await found(twin, worker="w1") == "a"
        assert await found(twin, reason=Reason.REJECTED) == "a"
        mark = fingerprint(Reason.REJECTED, None, "work")
        assert await found(twin, fingerprint=mark) == "a"
        assert await found(twin, fingerprint="other") == ""
        assert await found(twin, labels={"x": "1"}) == "ab"
        assert await found(twin, labels={"x": "1", "y": "2"}) == "b"
        assert await found(twin, labels={"x": "2"}) == ""
        assert await found(twin, labels={}) == "abc"
        assert await found(twin, created_from=start + 10) == "bc"
        assert await found(twin, created_before=start + 10) == "a"
        assert await found(twin, finished_before_ms=10) == "a"
        assert await found(twin, finished_before_ms=11) == ""
        assert await found(twin, expired=True) == "c"
        assert await found(twin, expired=False) == "ab"
        assert await found(twin, version=1) == "bc"
        assert await found(twin, version=3) == "a"

    @needs("inspect", "dependencies", "ordered", "parent_filter")
    async def test_the_children_of_a_job_are_found_while_it_runs_and_after(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("p"), a_job("q")])
        await twin.enqueue(
            [a_job("a", after=("p",)), a_job("b", after=("q", "p")), a_job("c", labels={"p": "p"})]
        )
        await twin.enqueue([a_job("d", after=("a",)), a_job("e", after=("p",), task="other")])

        async def children(**more: Any) -> str:
            return await found(twin, parent="p", **more)

        assert await children() == "abe"
        assert await found(twin, parent="q") == "b"
        assert await found(twin, parent="none") == ""
        assert await children(ids=("b", "c", "d")) == "b"
        assert await children(task="other") == "e"
        page = await harness.engine.find(JobFilter(parent="p"), limit=2)
        assert [job.id for job in page.jobs] == ["e", "b"]
        rest = await harness.engine.find(JobFilter(parent="p"), limit=2, after=page.after)
        assert ([job.id for job in rest.jobs], rest.after) == (["a"], None)
        rows = await find_rows(harness.engine, JobFilter(parent="p"), limit=10)
        assert [job.id for job in rows.jobs] == ["e", "b", "a"]
        assert await twin.tally(JobFilter(parent="p"), "task") == [
            Tally(value="work", count=2),
            Tally(value="other", count=1),
        ]
        for _ in "pqabcde":
            await settle(twin, await lease_one(twin), Complete())
        assert await children(states=(State.DONE,)) == "abe"
        await twin.enqueue([a_job("f", after=("p",))])
        assert await children() == "abef"
        assert await twin.amend(JobFilter(parent="p", states=(State.WAITING,)), Cancel()) == 1
        assert await twin.amend(JobFilter(parent="p", task="other"), Delete()) == 1
        assert await children() == "abf"
        assert await twin.amend(JobFilter(ids=("p",)), Delete()) == 1
        assert await children() == "abf", "its children have not forgotten it"

    @needs("inspect", "ordered")
    async def test_waiting_jobs_by_kind(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab"))
        await settle(twin, await lease_one(twin), Retry(5_000, ERROR))
        await settle(twin, await lease_one(twin), Complete())
        await twin.enqueue([a_job("c", delay_ms=5_000), a_job("d")])
        pending, scheduled, failed = WaitingKind
        waiting = (State.WAITING,)
        assert await found(twin, states=waiting, waiting=(failed,)) == "a"
        assert await found(twin, states=waiting, waiting=(scheduled,)) == "c"
        assert await found(twin, states=waiting, waiting=(pending,)) == "cd"
        assert await found(twin, states=waiting, waiting=(failed, scheduled, failed)) == "ac"
        assert await found(twin, states=waiting, waiting=(pending, failed)) == "acd"
        assert await found(twin, states=waiting, waiting=()) == ""
        assert await found(twin, waiting=(failed,)) == "ab", "b does not wait"
        both = JobFilter(states=(State.WAITING, State.DONE), waiting=(failed,))
        assert await twin.tally(both, "state") == [
            Tally(value="done", count=1),
            Tally(value="waiting", count=1),
        ]
        assert await twin.amend(both, Delete()) == 2
        assert await found(twin) == "cd"

    @needs("inspect")
    async def test_filters_together_must_all_match(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", tenant="t", task="x"), a_job("b", tenant="t", task="y")])
        assert await found(twin, tenant="t", task="y", states=(State.WAITING,)) == "b"
        assert await found(twin, tenant="t", task="y", states=(State.DONE,)) == ""

    @needs("inspect", "keys", "ordered")
    async def test_search_is_for_plain_text_in_id_task_key_and_tenant(self, twin: Twin) -> None:
        new = [
            a_job("a", key="100%_done"),
            a_job("b", tenant="100 x done\\"),
            a_job("c", task="Mail.Send"),
            a_job("d", key="[a-z]*?", payload=b"hidden", labels={"l": "hidden"}),
        ]
        await twin.enqueue(new)
        for text, ids in {
            "%": "a",
            "_": "a",
            "\\": "b",
            "100": "ab",
            "done": "ab",
            "mail": "",
            "Mail.S": "c",
            "*?": "d",
            "[a": "d",
            "hidden": "",
            "": "abcd",
        }.items():
            assert await found(twin, search=text) == ids, text

    @needs("inspect", "keys", "groups")
    async def test_storable_texts_are_found_exactly(self, twin: Twin) -> None:
        await twin.enqueue(
            [
                a_job(f"j{n}", key=text, tenant=text, group=text, labels={text: text})
                for n, text in enumerate(inputs.STORABLE_TEXTS)
            ]
        )
        for n, text in enumerate(inputs.STORABLE_TEXTS):
            for name in ("key", "tenant", "group"):
                assert await found(twin, **{name: text}) == f"j{n}"
            assert await found(twin, labels={text: text}) == f"j{n}"
            assert f"j{n}" in await found(twin, search=text)

    @needs("inspect", "renew", "ordered", "exact_counts")
    async def test_queues_count_by_state_and_clock(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job(id_, queue="q") for id_ in "abcdef"])
        await twin.enqueue([a_job("late", queue="q", delay_ms=1_000)])
        await twin.enqueue([a_job("old", queue="q", expires_ms=1)])
        leases = [await lease_one(twin, queues=("q",)) for _ in "abcd"]
        await settle(twin, leases[0], Complete())
        await settle(twin, leases[1], Bury())
        await twin.amend(JobFilter(ids=("f",)), Cancel())
        await twin.renew([Renewal(lease=leases[2], lease_ms=10), Renewal(lease=leases[3])])
        harness.clock.advance(10)
        await twin.enqueue([a_job("new", queue="q")])
        _, view = await twin.queues()
        assert view == QueueView(
            queue=a_queue("q"),
            ready=2,
            delayed=1,
            leased=2,
            overdue=1,
            done=1,
            dead=1,
            cancelled=1,
            oldest_age_ms=10,
        )
        assert (await twin.queues(counts=False))[1] == QueueView(queue=a_queue("q"))

    @needs("exact_counts")
    async def test_law_10_counts_are_exact_to_their_bound_and_then_say_so(
        self, harness: Harness
    ) -> None:
        engine = harness.engine
        for start in range(0, bounds.COUNT_EXACT_MAX, 1_000):
            await engine.enqueue([a_job(f"j{n}") for n in range(start, start + 1_000)])
        (view,) = await engine.queues()
        assert view.ready == bounds.COUNT_EXACT_MAX
        await engine.enqueue(jobs("a"))
        (view,) = await engine.queues()
        exact = "ready" not in view.estimated
        assert view.ready == bounds.COUNT_EXACT_MAX + exact
        assert view.estimated <= {"ready"}
        countable = extra(engine, Countable)
        if countable is not None:
            views = await countable.count_far(["default", "none"], most=bounds.COUNT_FAR_MAX)
            assert [(far.queue.name, far.ready, far.estimated) for far in views] == [
                ("default", bounds.COUNT_EXACT_MAX + 1, frozenset())
            ]

    @needs("inspect")
    async def test_a_revision_changes_with_every_write(self, harness: Harness) -> None:
        revisioned = extra(harness.engine, Revisioned)
        if revisioned is None or await revisioned.revision() is None:
            return
        seen = [await revisioned.revision()]
        await harness.engine.enqueue(jobs("a"))
        seen.append(await revisioned.revision())
        await harness.engine.declare(a_queue("q"))
        seen.append(await revisioned.revision())
        await harness.engine.save([Record(kind="setting", key="k", value=b"v")])
        seen.append(await revisioned.revision())
        await harness.engine.amend(JobFilter(ids=("a",)), Delete(), limit=1)
        seen.append(await revisioned.revision())
        assert len(set(seen)) == len(seen)

    @needs("inspect", "records")
    async def test_the_revision_of_counts_changes_with_jobs_and_not_with_records(
        self, harness: Harness
    ) -> None:
        engine = harness.engine
        revisioned = extra(engine, Revisioned)
        if revisioned is None or await revisioned.count_revision() is None:
            return
        seen: list[str | None] = [await revisioned.count_revision()]

        async def change() -> None:
            """Wait for a change: the statistics of a server may come late."""
            async with asyncio.timeout(60):
                while True:
                    now = await revisioned.count_revision()
                    if now != seen[-1]:
                        break
                    await asyncio.sleep(0.05)
            seen.append(now)

        await engine.enqueue(jobs("ab"))
        await change()
        first, second = await lease_one(engine), await lease_one(engine)
        await change()
        await settle(engine, first, Complete())
        await change()
        await settle(engine, second, Retry(1_000, ERROR))
        await change()
        for amendment in (Retime(delay_ms=5_000), Cancel(), Delete()):
            assert await engine.amend(JobFilter(ids=("b",)), amendment, limit=1) == 1
            await change()
        await engine.declare(a_queue("q"))
        await change()
        assert len(set(seen)) == len(seen)
        async with asyncio.timeout(60):
            for version in count():
                before = await revisioned.count_revision()
                record = Record(kind="setting", key="k", value=b"v", version=version)
                assert await engine.save([record]) == [Saved.SAVED]
                if await revisioned.count_revision() == before:
                    break

    @needs("inspect")
    async def test_rows_are_jobs_without_their_payloads(self, harness: Harness) -> None:
        engine = harness.engine
        payloads = (b"1", b'"%s"' % (b"x" * 5_000), b"null")
        await engine.enqueue([a_job(f"j{n}", payload=each) for n, each in enumerate(payloads)])
        after: int | None = None
        for _ in payloads:
            page = await engine.find(JobFilter(task="work"), limit=1, after=after)
            rows = await find_rows(engine, JobFilter(task="work"), limit=1, after=after)
            assert len(page.jobs) == 1
            assert rows == replace(page, jobs=(replace(page.jobs[0], payload=b""),))
            after = page.after

    @needs("inspect", "ordered")
    async def test_law_09_a_tally_is_by_count_then_by_value(self, twin: Twin) -> None:
        tenants = ("b", "a", "B", None, "b", "é", None, "b")
        await twin.enqueue([a_job(f"j{n}", tenant=tenant) for n, tenant in enumerate(tenants)])
        assert await twin.tally(JobFilter(), "tenant") == [
            Tally(value="b", count=3),
            Tally(value=None, count=2),
            Tally(value="B", count=1),
            Tally(value="a", count=1),
            Tally(value="é", count=1),
        ]
        assert len(await twin.tally(JobFilter(), "tenant", limit=2)) == 2

    @needs("inspect", "ordered")
    async def test_a_tally_counts_what_matches(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("abc", task="x"), *jobs("de", task="y")])
        lease = await lease_one(twin, worker="w1")
        await settle(twin, lease, Bury(Reason.CRASHED))
        assert await twin.tally(JobFilter(task="x"), "state") == [
            Tally(value="waiting", count=2),
            Tally(value="dead", count=1),
        ]
        assert await twin.tally(JobFilter(), "reason") == [
            Tally(value=None, count=4),
            Tally(value="crashed", count=1),
        ]
        assert await twin.tally(JobFilter(worker="w1"), "worker") == [Tally(value="w1", count=1)]
        assert await twin.tally(JobFilter(task="z"), "queue") == []

    @needs("inspect", "groups")
    async def test_a_tally_by_each_value_there_is(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job("a", tenant="A", group="g", task="x"), a_job("b", queue="q")])
        await settle(twin, await lease_one(twin), Bury(Reason.REJECTED))
        values = {
            by: [tally.value for tally in await twin.tally(JobFilter(), by)] for by in TALLIED
        }
        assert values == {
            "queue": ["default", "q"],
            "state": ["dead", "waiting"],
            "task": ["work", "x"],
            "tenant": [None, "A"],
            "reason": [None, "rejected"],
            "worker": [None, "w"],
            "group": [None, "g"],
            "fingerprint": [None, fingerprint(Reason.REJECTED, None, "x")],
        }

    @needs("inspect")
    async def test_law_10_looking_is_bounded(self, twin: Twin) -> None:
        for limit in (0, -1, bounds.PAGE_MAX + 1):
            with case(limit):
                with pytest.raises(UsageError):
                    await twin.find(JobFilter(), limit=limit)
                with pytest.raises(UsageError):
                    await twin.tally(JobFilter(), "state", limit=limit)
