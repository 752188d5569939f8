"""Queues and records: declare, change, drop and list queues, save and load versioned records, open
and close the engine.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.conformance import inputs
from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    case,
    jobs,
    lease_ids,
    leased,
    needs,
    settle,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.limits import Limit
from holdfast.core.model import LeaseRequest, Queue, Record, Renewal, Status
from holdfast.core.verdict import Bury, Complete, Outcome
from holdfast.engines.base import Saved
from holdfast.errors import EngineClosed, InvalidQueue, UnknownQueue, UsageError

FULL = Queue(
    name="full",
    lease_ms=1_000,
    timeout_ms=2_000,
    max_attempts=0,
    max_crashes=1,
    backoff=Backoff(kind="linear", first_ms=7, factor=1.5, cap_ms=70, jitter=0.25),
    order="keep",
    retention_ms=0,
    dead_retention_ms=1,
    dead_queue="default",
    max_depth=3,
    payload_max=10,
    accepting=False,
    paused=True,
    expires_ms=5,
)
BAD_SETTINGS: tuple[tuple[str, object], ...] = (
    ("lease_ms", 9),
    ("lease_ms", 10**30),
    ("timeout_ms", 0),
    ("max_attempts", -1),
    ("max_crashes", 0),
    ("retention_ms", -1),
    ("dead_retention_ms", 2**63),
    ("max_depth", 0),
    ("expires_ms", 0),
    ("payload_max", 0),
    ("order", "random"),
    ("dead_queue", "default"),
    ("dead_queue", "'"),
)


class DeclareContract:
    """Queues and the engine's own lifecycle."""

    @needs("exact_counts")
    async def test_queues_by_name(self, twin: Twin) -> None:
        """Existing queues, sorted by name, regardless of order and repeats in `names`."""
        for name in ("b", "a", "c"):
            await twin.declare(a_queue(name, lease_ms=1_000))
        await twin.enqueue([a_job(queue="b")])
        for counts in (True, False):
            views = await twin.queues(names=["c", "b", "c", "none"], counts=counts)
            assert [view.queue.name for view in views] == ["b", "c"]
            assert [view.ready for view in views] == ([1, 0] if counts else [0, 0])
            assert views[0].queue == a_queue("b", lease_ms=1_000)
        assert await twin.queues(names=[]) == []
        assert len(await twin.queues(names=None)) == 4

    async def test_names_that_no_queue_can_have_are_not_found(self, twin: Twin) -> None:
        names = {"", "a\0b", "\ud800", "x" * 1_000, "a b", "default"}
        assert [view.queue.name for view in await twin.queues(names=names)] == ["default"]

    async def test_open_is_idempotent_and_makes_the_default_queue(self, harness: Harness) -> None:
        await harness.engine.open()
        assert [view.queue for view in await harness.engine.queues()] == [a_queue("default")]

    @needs("inspect")
    async def test_a_closed_engine_says_so(self, harness: Harness) -> None:
        await harness.engine.close()
        await harness.engine.close()
        with pytest.raises(EngineClosed):
            await harness.engine.enqueue(jobs("a"))
        with pytest.raises(EngineClosed):
            await harness.engine.lease(LeaseRequest(queues=("default",)))
        with pytest.raises(EngineClosed):
            await harness.engine.get("a")
        with pytest.raises(EngineClosed):
            await harness.engine.queues()

    @needs("limits", "keep_order")
    async def test_every_setting_is_kept(self, twin: Twin) -> None:
        await twin.declare(FULL)
        views = await twin.queues(counts=False)
        assert [view.queue for view in views] == [a_queue("default"), FULL]

    @needs("limits", "keep_order")
    async def test_declaring_again_replaces_every_setting(self, twin: Twin) -> None:
        await twin.declare(FULL)
        await twin.declare(a_queue("full"))
        assert (await twin.queues())[1].queue == a_queue("full")

    @needs("limits")
    async def test_declared_only_if_new_leaves_what_is_there(self, twin: Twin) -> None:
        assert await twin.declare(FULL, instead_of=None)
        assert not await twin.declare(a_queue("full"), instead_of=None)
        assert not await twin.declare(a_queue("default", paused=True), instead_of=None)
        views = await twin.queues(counts=False)
        assert [view.queue for view in views] == [a_queue("default"), FULL]
        assert await twin.declare(a_queue("full"))
        await twin.drop("full")
        assert await twin.declare(FULL, instead_of=None)

    @needs("limits")
    async def test_a_change_counts_only_while_its_ground_is_there(self, twin: Twin) -> None:
        known = a_queue("q", max_depth=1)
        assert not await twin.declare(a_queue("q", max_depth=2), instead_of=known)
        await twin.declare(known)
        changed = a_queue("q", max_depth=2, limits=(Limit(name="l", concurrency=1),))
        assert await twin.declare(changed, instead_of=known)
        assert not await twin.declare(a_queue("q", max_depth=3), instead_of=known)
        back = a_queue("q", max_depth=4)
        assert await twin.declare(back, instead_of=changed)
        views = await twin.queues(counts=False)
        assert [view.queue for view in views] == [a_queue("default"), back]

    @needs("limits")
    async def test_no_change_of_many_at_once_is_lost(self, harness: Harness) -> None:
        engine = harness.engine

        async def grow() -> None:
            while True:
                views = await engine.queues(counts=False)
                known = next(view.queue for view in views if view.queue.name == "default")
                more = a_queue("default", max_depth=(known.max_depth or 0) + 1)
                if await engine.declare(more, instead_of=known):
                    return

        await asyncio.gather(*(grow() for _ in range(8)))
        (view,) = await engine.queues()
        assert view.queue.max_depth == 8

    async def test_only_if_new_refuses_what_declare_refuses(self, twin: Twin) -> None:
        for queue, error in (
            (a_queue("'"), InvalidQueue),
            (a_queue("default", lease_ms=9), InvalidQueue),
            (a_queue("default", dead_queue="nowhere"), UnknownQueue),
        ):
            with pytest.raises(error):
                await twin.declare(queue, instead_of=None)

    @needs("limits")
    async def test_one_of_many_concurrent_declarations_creates_the_queue(
        self, harness: Harness
    ) -> None:
        engine = harness.engine
        made = await asyncio.gather(
            *(engine.declare(a_queue("q", max_depth=n), instead_of=None) for n in range(1, 9))
        )
        assert sum(made) == 1
        (view,) = [view for view in await engine.queues() if view.queue.name == "q"]
        assert view.queue.max_depth == made.index(True) + 1

    @needs("ordered")
    async def test_law_09_queues_come_by_name(self, twin: Twin) -> None:
        for name in ("b", "A", "a", "B", "-", "_", "."):
            await twin.declare(a_queue(name))
        names = [view.queue.name for view in await twin.queues()]
        assert names == ["-", ".", "A", "B", "_", "a", "b", "default"]

    @needs("inspect")
    async def test_names_that_differ_in_case_are_two_queues(self, twin: Twin) -> None:
        await twin.declare(a_queue("Mail"))
        await twin.declare(a_queue("mail", paused=True))
        await twin.enqueue([a_job("upper", queue="Mail"), a_job("lower", queue="mail")])
        assert await lease_ids(twin, queues=("mail",)) == []
        assert await lease_ids(twin, queues=("Mail",)) == ["upper"]
        await twin.drop("mail")
        assert await twin.get("upper") is not None

    @needs("queue_name_max")
    async def test_odd_names_each_make_a_queue(self, twin: Twin) -> None:
        for number, name in enumerate(inputs.QUEUE_NAMES):
            await twin.declare(a_queue(name))
            await twin.enqueue([a_job(f"j{number}", queue=name)])
        for number, name in enumerate(inputs.QUEUE_NAMES):
            assert await lease_ids(twin, queues=(name,)) == [f"j{number}"]

    async def test_bad_names_are_refused(self, twin: Twin) -> None:
        for name in inputs.BAD_QUEUE_NAMES:
            with pytest.raises(InvalidQueue):
                await twin.declare(a_queue(name))
            await twin.drop(name)
        assert len(await twin.queues()) == 1

    async def test_bad_settings_are_refused_and_change_nothing(self, twin: Twin) -> None:
        for setting, value in BAD_SETTINGS:
            with case(setting, value):
                with pytest.raises(InvalidQueue):
                    await twin.declare(a_queue("default", **{setting: value}))
                assert (await twin.queues())[0].queue == a_queue("default")

    async def test_a_dead_queue_must_exist(self, twin: Twin) -> None:
        with pytest.raises(UnknownQueue):
            await twin.declare(a_queue("q", dead_queue="nowhere"))
        assert len(await twin.queues()) == 1

    @needs("inspect", "keys", "renew")
    async def test_law_12_drop_removes_jobs_and_revokes_leases(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin, queue="q", key="k")
        await twin.enqueue([a_job("b", queue="q"), a_job("other")])
        await twin.drop("q")
        assert await twin.get("a") is None
        assert await twin.get("b") is None
        assert await twin.get("other") is not None
        assert await twin.renew([Renewal(lease=lease)]) == [None]
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert [view.queue.name for view in await twin.queues()] == ["default"]
        assert (await twin.overdue()).next_ms is None

    async def test_drop_of_an_unknown_queue_is_no_error(self, twin: Twin) -> None:
        await twin.drop("nowhere")

    @needs("keys", "limits")
    async def test_a_queue_dropped_and_declared_again_starts_empty(self, twin: Twin) -> None:
        await twin.declare(a_queue("q", max_depth=1))
        await twin.enqueue([a_job(queue="q", key="k")])
        await twin.drop("q")
        await twin.declare(a_queue("q", max_depth=1))
        assert await lease_ids(twin, queues=("q",)) == []
        (receipt,) = await twin.enqueue([a_job("b", queue="q", key="k")])
        assert receipt.status is Status.NEW
        (receipt,) = await twin.enqueue([a_job("a", queue="q")])
        assert receipt.code == "queue_full"

    @needs("inspect")
    async def test_a_dead_queue_that_was_dropped_leaves_the_dead_in_place(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        lease = await leased(twin, queue="q")
        await twin.drop("grave")
        assert await settle(twin, lease, Bury()) is Outcome.SETTLED
        job = await twin.require("a")
        assert (job.state, job.queue, job.origin) == ("dead", "q", None)

    @needs("ordered")
    async def test_settings_count_from_now_on_for_jobs_already_there(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab"))
        await twin.declare(a_queue("default", lease_ms=77))
        (lease,) = await twin.lease(LeaseRequest(queues=("default",)))
        assert lease.lease_ms == 77
        await twin.declare(a_queue("default", paused=True))
        assert await lease_ids(twin) == []
        await twin.declare(a_queue("default", paused=False))
        assert await lease_ids(twin) == ["b"]


_BAD_NAMES = ("", "A", "a b", "x" * 41, "\x00", "\ud800", "'; DROP")


def record(key: str = "a", value: bytes | None = b"1", version: int = 0) -> Record:
    return Record(kind="setting", key=key, value=value, version=version)


@needs("records")
class RecordContract:
    """Versioned records stored with the jobs: load and save."""

    async def test_a_saved_record_comes_back_with_the_next_version(self, twin: Twin) -> None:
        assert await twin.load("setting") == []
        value = "\x00é".encode()
        assert await twin.save([record(value=value)]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=value, version=1)]
        assert await twin.save([record(value=b"", version=1)]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=b"", version=2)]

    async def test_only_the_version_that_was_read_can_be_replaced(self, twin: Twin) -> None:
        await twin.save([record()])
        await twin.save([record(value=b"2", version=1)])
        for version in (0, 1, 3):
            assert await twin.save([record(value=b"x", version=version)]) == [Saved.STALE]
        assert await twin.load("setting") == [record(value=b"2", version=2)]

    async def test_a_record_that_is_not_there_has_version_zero(self, twin: Twin) -> None:
        assert await twin.save([record(version=1)]) == [Saved.STALE]
        assert await twin.load("setting") == []

    async def test_none_deletes(self, twin: Twin) -> None:
        await twin.save([record()])
        assert await twin.save([record(value=None)]) == [Saved.STALE]
        assert await twin.save([record(value=None, version=1)]) == [Saved.SAVED]
        assert await twin.load("setting") == []
        assert await twin.save([record(value=None)]) == [Saved.SAVED]
        assert await twin.load("setting") == []
        assert await twin.save([record(value=b"again")]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=b"again", version=1)]

    async def test_a_batch_is_answered_one_by_one_and_sees_itself(self, twin: Twin) -> None:
        batch = [record("a"), record("a"), record("b"), record("a", b"2", 1), record("c", b"x", 9)]
        assert await twin.save(batch) == [
            Saved.SAVED,
            Saved.STALE,
            Saved.SAVED,
            Saved.SAVED,
            Saved.STALE,
        ]
        assert [kept.version for kept in await twin.load("setting")] == [2, 1]
        assert await twin.save([]) == []

    async def test_a_record_is_as_old_as_its_last_save(self, harness: Harness, twin: Twin) -> None:
        await twin.save([record(), record("b")])
        harness.clock.advance(70)
        assert [kept.age_ms for kept in await twin.load("setting")] == [70, 70]
        stale = replace(record(value=b"2", version=9), age_ms=5)
        assert await twin.save([stale]) == [Saved.STALE]
        assert await twin.save([replace(stale, version=1)]) == [Saved.SAVED]
        assert [kept.age_ms for kept in await twin.load("setting")] == [0, 70]
        harness.clock.advance(3)
        assert [kept.age_ms for kept in await twin.load("setting")] == [3, 73]
        harness.clock.jump(-50)
        assert [kept.age_ms for kept in await twin.load("setting")] == [0, 23]

    async def test_each_kind_is_by_itself(self, twin: Twin) -> None:
        other = replace(record(), kind="task", value=b"{}")
        assert await twin.save([record(), other]) == [Saved.SAVED, Saved.SAVED]
        assert await twin.load("setting") == [record(version=1)]
        assert await twin.load("task") == [replace(other, version=1)]
        assert await twin.load("nothing") == []

    @needs("ordered")
    async def test_law_09_records_come_by_the_bytes_of_their_keys(self, twin: Twin) -> None:
        keys = ["b", "B", "a", "é", "\uffff", "\U00010000", "a b", "a/b", "ab", "_", "10", "9"]
        await twin.save([record(key) for key in keys])
        kept = [kept.key for kept in await twin.load("setting")]
        assert kept == sorted(keys, key=str.encode)
        assert [kept.key for kept in await twin.load("setting", limit=2)] == kept[:2] == ["10", "9"]
        for place, key in enumerate(kept):
            rest = await twin.load("setting", after=key)
            assert [kept.key for kept in rest] == kept[place + 1 :]
        assert len(await twin.load("setting", after="")) == len(keys)

    async def test_hostile_keys_are_kept_exactly(self, twin: Twin) -> None:
        await twin.save([record(text, text.encode()) for text in inputs.STORABLE_TEXTS])
        kept = {kept.key: kept.value for kept in await twin.load("setting")}
        assert kept == {text: text.encode() for text in inputs.STORABLE_TEXTS}

    async def test_a_bad_record_is_refused_and_the_batch_with_it(self, twin: Twin) -> None:
        bad = [record(text) for text in inputs.UNSTORABLE_TEXTS]
        bad += [replace(record(), kind=name) for name in _BAD_NAMES]
        bad += [record(value=b"x" * (bounds.RECORD_MAX + 1))]
        for each in bad:
            with pytest.raises(UsageError):
                await twin.save([record("good"), each])
        assert await twin.load("setting") == []

    async def test_the_largest_record_fits(self, twin: Twin) -> None:
        # A server also checks what a record of its kind may contain.
        value = b"{}".ljust(bounds.RECORD_MAX)
        largest = replace(record(), kind="task", value=value)
        assert await twin.save([largest]) == [Saved.SAVED]
        assert (await twin.load("task"))[0].value == value

    async def test_law_10_records_are_bounded(self, twin: Twin) -> None:
        with pytest.raises(UsageError):
            await twin.save([record(f"k{n}") for n in range(bounds.BATCH_MAX + 1)])
        for limit in (0, -1, bounds.PAGE_MAX + 1):
            with pytest.raises(UsageError):
                await twin.load("setting", limit=limit)
        for name, after in (("\x00", None), ("", None), ("setting", "\x00"), ("setting", "\ud800")):
            with pytest.raises(UsageError):
                await twin.load(name, after=after)
