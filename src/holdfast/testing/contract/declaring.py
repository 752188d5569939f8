"""Queues: declare, change, drop, list; and the engine's own opening and closing."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.flow import Limit
from holdfast.core.model import LeaseRequest, Queue, Renewal, Status
from holdfast.core.verdict import Bury, Complete, Outcome
from holdfast.errors import EngineClosed, InvalidQueue, UnknownQueue
from holdfast.testing import hostile
from holdfast.testing.contract.making import a_job, a_queue, case, jobs, lease_ids, leased, settle
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

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
    ("payload_max", 0),
    ("order", "random"),
    ("dead_queue", "default"),
    ("dead_queue", "'"),
)


class Declaring:
    async def test_open_is_idempotent_and_makes_the_default_queue(self, harness: Harness) -> None:
        await harness.engine.open()
        assert [view.queue for view in await harness.engine.queues()] == [a_queue("default")]

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

    async def test_every_setting_is_kept(self, twin: Twin) -> None:
        await twin.declare(FULL)
        views = await twin.queues(counts=False)
        assert [view.queue for view in views] == [a_queue("default"), FULL]

    async def test_declaring_again_replaces_every_setting(self, twin: Twin) -> None:
        await twin.declare(FULL)
        await twin.declare(a_queue("full"))
        assert (await twin.queues())[1].queue == a_queue("full")

    async def test_declared_only_if_new_leaves_what_is_there(self, twin: Twin) -> None:
        assert await twin.declare(FULL, instead_of=None)
        assert not await twin.declare(a_queue("full"), instead_of=None)
        assert not await twin.declare(a_queue("default", paused=True), instead_of=None)
        views = await twin.queues(counts=False)
        assert [view.queue for view in views] == [a_queue("default"), FULL]
        assert await twin.declare(a_queue("full"))
        await twin.drop("full")
        assert await twin.declare(FULL, instead_of=None)

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

    async def test_one_of_many_who_declare_a_new_queue_makes_it(self, harness: Harness) -> None:
        engine = harness.engine
        made = await asyncio.gather(
            *(engine.declare(a_queue("q", max_depth=n), instead_of=None) for n in range(1, 9))
        )
        assert sum(made) == 1
        (view,) = [view for view in await engine.queues() if view.queue.name == "q"]
        assert view.queue.max_depth == made.index(True) + 1

    async def test_law_09_queues_come_by_name(self, twin: Twin) -> None:
        for name in ("b", "A", "a", "B", "-", "_", "."):
            await twin.declare(a_queue(name))
        names = [view.queue.name for view in await twin.queues()]
        assert names == ["-", ".", "A", "B", "_", "a", "b", "default"]

    async def test_names_that_differ_in_case_are_two_queues(self, twin: Twin) -> None:
        await twin.declare(a_queue("Mail"))
        await twin.declare(a_queue("mail", paused=True))
        await twin.enqueue([a_job("upper", queue="Mail"), a_job("lower", queue="mail")])
        assert await lease_ids(twin, queues=("mail",)) == []
        assert await lease_ids(twin, queues=("Mail",)) == ["upper"]
        await twin.drop("mail")
        assert await twin.get("upper") is not None

    async def test_odd_names_each_make_a_queue(self, twin: Twin) -> None:
        for number, name in enumerate(hostile.QUEUE_NAMES):
            await twin.declare(a_queue(name))
            await twin.enqueue([a_job(f"j{number}", queue=name)])
        for number, name in enumerate(hostile.QUEUE_NAMES):
            assert await lease_ids(twin, queues=(name,)) == [f"j{number}"]

    async def test_bad_names_are_refused(self, twin: Twin) -> None:
        for name in hostile.BAD_QUEUE_NAMES:
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

    async def test_a_dead_queue_that_was_dropped_leaves_the_dead_in_place(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        lease = await leased(twin, queue="q")
        await twin.drop("grave")
        assert await settle(twin, lease, Bury()) is Outcome.SETTLED
        job = await twin.the("a")
        assert (job.state, job.queue, job.origin) == ("dead", "q", None)

    async def test_settings_count_from_now_on_for_jobs_already_there(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab"))
        await twin.declare(a_queue("default", lease_ms=77))
        (lease,) = await twin.lease(LeaseRequest(queues=("default",)))
        assert lease.lease_ms == 77
        await twin.declare(a_queue("default", paused=True))
        assert await lease_ids(twin) == []
        await twin.declare(a_queue("default", paused=False))
        assert await lease_ids(twin) == ["b"]
