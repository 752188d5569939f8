"""A worker that leased several members of a strict group at once runs them one by one."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Queue, State
from holdfast.core.verdict import Cancel, Outcome, Settlement
from holdfast.errors import EngineUnavailable
from holdfast.process import boot_s
from holdfast.testing.clock import ManualClock
from holdfast.worker.wire import AskedRelease, CallsEnded
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import until
from tests.worker.supervisor_driver import TASKS, SupervisorDriver

pytestmark = pytest.mark.usefixtures("hurried")

QUEUE = Queue(name="default", group_batch=5)


@pytest.fixture
async def engine(troubled: TroubledEngine) -> TroubledEngine:
    await troubled.declare(QUEUE)
    return troubled


async def running(driver: SupervisorDriver, count: int = 1) -> str:
    """The ids of the jobs in open calls, once there are so many."""
    return "".join(given.id for call in await driver.calls(count) for given in call.jobs)


async def runs(driver: SupervisorDriver, id: str) -> None:
    """Wait until this job runs, and no other."""
    await until(
        lambda: [given.id for call in driver.open_calls for given in call.jobs] == [id],
        f"{id} to run",
    )


async def the(engine: TroubledEngine, *ids: str) -> list[Job]:
    found = [await engine.get(id_) for id_ in ids]
    return [job for job in found if job is not None]


async def everything_settled(driver: SupervisorDriver) -> None:
    await until(lambda: not len(driver.supervisor._held), "everything to be settled")


async def test_members_run_one_by_one_in_order(engine: TroubledEngine) -> None:
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"abcd", group="g")
    async with driver.running():
        for id_ in "abcd":
            await runs(driver, id_)
            driver.end(*driver.open_calls)
        await everything_settled(driver)
    assert [call.jobs[0].id for call in driver.child.calls] == list("abcd")
    assert [job.state for job in await the(engine, *"abcd")] == [State.DONE] * 4


async def test_no_member_starts_before_the_store_has_answered(engine: TroubledEngine) -> None:
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"ab", group="g")
    async with driver.running():
        assert await running(driver) == "a"
        engine.for_ever["settle"] = EngineUnavailable("down")
        driver.end(*driver.open_calls)
        await until(lambda: engine.asked.get("settle", 0) > 3, "some tries")
        assert driver.open_calls == []
        del engine.for_ever["settle"]
        assert await running(driver) == "b"


async def test_other_groups_run_beside_them(engine: TroubledEngine) -> None:
    """Waiting members take no slot from another group."""
    driver = SupervisorDriver(engine)
    for group in "gh":
        await driver.enqueue(*(f"{group}{number}" for number in range(4)), group=group)
    await driver.enqueue("x", "y")
    async with driver.running():
        assert sorted(await running(driver, 4)) == sorted("g0h0xy")
        assert len(driver.supervisor._held) <= 4 + 3 + 3


@pytest.mark.parametrize("how", ["failed", "released", "crashed"])
async def test_members_behind_a_retried_job_are_released_uncharged(
    engine: TroubledEngine, how: str
) -> None:
    driver = SupervisorDriver(engine)
    await engine.declare(replace(QUEUE, max_attempts=9))
    await driver.enqueue(*"abc", group="g")
    async with driver.running():
        (call,) = await driver.calls(1)
        # Released jobs stay in the store, to be examined.
        await engine.declare(replace(QUEUE, paused=True, max_attempts=9))
        match how:
            case "failed":
                driver.end(call, failed=True)
            case "released":
                driver.child.answer(CallsEnded([call.number], (AskedRelease("not now"),)))
            case _:
                driver.child.run(call.number)
                driver.child.die()
        await everything_settled(driver)
        first, *others = await the(engine, *"abc")
        assert (first.state, first.attempt) == (State.WAITING, 0 if how == "released" else 1)
        assert [(job.state, job.attempt, job.releases) for job in others] == [
            (State.WAITING, 0, 0)
        ] * 2


async def test_a_dead_letter_lets_the_next_start(engine: TroubledEngine) -> None:
    await engine.declare(replace(QUEUE, max_attempts=1))
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"ab", group="g")
    async with driver.running():
        driver.end(*await driver.calls(1), failed=True)
        await runs(driver, "b")
        (dead,) = await the(engine, "a")
        assert dead.state is State.DEAD


async def test_a_late_settle_starts_no_member(engine: TroubledEngine) -> None:
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"abc", group="g")
    settle = engine.settle

    async def lost(settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await settle(settlements)
        return [
            Outcome.LOST if each.lease.id == "a" else outcome
            for each, outcome in zip(settlements, outcomes, strict=True)
        ]

    async with driver.running():
        (call,) = await driver.calls(1)
        await engine.declare(replace(QUEUE, paused=True))
        engine.settle = lost  # type: ignore[method-assign]
        driver.end(call)
        await everything_settled(driver)
        assert [job.state for job in await the(engine, *"bc")] == [State.WAITING] * 2
        assert len(driver.child.calls) == 1


async def test_a_lost_lease_releases_the_members_behind_it(engine: TroubledEngine) -> None:
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"abcd", group="g")
    async with driver.running():
        await driver.calls(1)
        await engine.declare(replace(QUEUE, paused=True))
        leases = driver.supervisor._held
        (third,) = (held for held in leases.all() if held.job.id == "c")
        leases.lose(third)
        driver.supervisor._lose(third)
        (last,) = await until(lambda: settled(engine, "d"), "the last to go back")
        assert last.state is State.WAITING
        driver.end(*driver.open_calls)
        await runs(driver, "b")
        driver.end(*driver.open_calls)
        await everything_settled(driver)
    assert [job.state for job in await the(engine, *"ab")] == [State.DONE] * 2
    assert [call.jobs[0].id for call in driver.child.calls] == ["a", "b"]


async def settled(engine: TroubledEngine, id: str) -> list[Job]:
    return [job for job in await the(engine, id) if job.state is not State.LEASED]


async def test_a_waiting_job_that_is_cancelled_is_skipped(
    engine: TroubledEngine,
) -> None:
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"abc", group="g")
    async with driver.running():
        await driver.calls(1)
        await engine.amend(JobFilter(ids=("b",)), Cancel(by="ada"), limit=1)
        driver.supervisor._renewer.at_once()
        (second,) = await until(lambda: settled(engine, "b"), "it to be cancelled")
        assert second.state is State.CANCELLED
        driver.end(*driver.open_calls)
        await runs(driver, "c")


async def test_waiting_members_are_renewed(clock: ManualClock) -> None:
    """Soon, because their leases are short; by the engine's clock none ever lapses."""
    engine = TroubledEngine(clock)
    await engine.open()
    await engine.declare(replace(QUEUE, lease_ms=600))
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"ab", group="g")
    renewed: set[str] = set()
    renew = engine.renew

    async def watched(renewals: Sequence[object]) -> list[Lease | None]:
        leases = await renew(renewals)  # type: ignore[arg-type]
        renewed.update(lease.id for lease in leases if lease is not None)
        return leases

    engine.renew = watched  # type: ignore[method-assign]
    async with driver.running():
        await driver.calls(1)
        await until(lambda: renewed == {"a", "b"}, "both to be renewed")


async def test_a_long_wait_for_its_turn_is_no_wait_for_a_slot(
    engine: TroubledEngine,
) -> None:
    """Otherwise it would be released as a job that did not start."""
    driver = SupervisorDriver(engine)
    await driver.enqueue(*"ab", group="g")
    async with driver.running():
        (call,) = await driver.calls(1)
        for held in driver.supervisor._held.all():
            held.came_at -= 3_600
        driver.end(call)
        await runs(driver, "b")
        assert boot_s() - driver.supervisor._held.all()[0].came_at < 60


async def test_a_stopping_worker_releases_waiting_members(engine: TroubledEngine) -> None:
    driver = SupervisorDriver(engine, grace_ms=60_000)
    await driver.enqueue(*"abc", group="g")
    task = asyncio.create_task(driver.supervisor.run())
    await until(lambda: driver.children)
    driver.child.ready(*TASKS)
    (call,) = await driver.calls(1)
    driver.supervisor.drain()
    await until(lambda: settled(engine, "c"), "the others to go back")
    driver.end(call)
    await task
    jobs = await the(engine, *"abc")
    assert [(job.state, job.attempt) for job in jobs] == [
        (State.DONE, 1),
        (State.WAITING, 0),
        (State.WAITING, 0),
    ]
    request = LeaseRequest(queues=("default",), limit=5)
    assert [lease.id for lease in await engine.lease(request)] == ["b", "c"]
