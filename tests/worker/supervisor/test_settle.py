"""Verdicts are settled in batches and kept through outages; a refused one affects no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.conformance.contract.cases import reap
from holdfast.core import bounds
from holdfast.core.model import Failure, JobFilter, LeaseRequest, NewJob, Note, Queue, State
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.errors import EngineClosed, EngineUnavailable, InvalidJob, OutcomeUnknown, StorageFull
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor import settle as module
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases
from holdfast.worker.supervisor.settle import EndedBatch, Settler
from holdfast.worker.wire import AskedCancel, Returned
from tests.worker.doubles import TroubledEngine, hold_new
from tests.worker.live_workers import until


class SettlerDriver:
    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.held = HeldLeases()
        self.left = 0
        self.lost: list[str] = []
        self.settler = Settler(engine, self.held, lambda name: Queue(name=name), self._leave, "w")

    def _leave(self, over: list[HeldLease]) -> None:
        self.left += 1
        self.lost += [held.job.id for held in over if held.lost]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.settler.run())
        yield
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def state(self, id: str) -> State:
        job = await self.engine.get(id)
        assert job is not None
        return job.state


@pytest.fixture
async def driver(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> SettlerDriver:
    monkeypatch.setattr(module, "_PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(module, "_PAUSE_S_MAX", 0.004)
    engine = TroubledEngine(clock)
    await engine.open()
    return SettlerDriver(engine)


async def test_verdicts_that_gather_are_settled_together(driver: SettlerDriver) -> None:
    helds = await hold_new(driver.engine, driver.held, *"abc")
    for held in helds:
        driver.settler.add(held, Complete(b"1"))
    assert driver.settler.backlog == 3
    async with driver.running():
        await driver.settler.drain()
    assert [len(batch) for batch in driver.engine.settled] == [3]
    assert [await driver.state(id_) for id_ in "abc"] == [State.DONE] * 3
    assert (len(driver.held), driver.left, driver.settler.backlog) == (0, 1, 0)


async def test_the_backlog_counts_the_batch_under_way(driver: SettlerDriver) -> None:
    """These verdicts are lost if the worker ends now."""
    (held,) = await hold_new(driver.engine, driver.held, "a")
    asked, go = asyncio.Event(), asyncio.Event()
    settle = driver.engine.settle

    async def slow(settlements: Sequence[Settlement]) -> list[Outcome]:
        asked.set()
        await go.wait()
        return await settle(settlements)

    driver.engine.settle = slow  # type: ignore[method-assign]
    async with driver.running():
        driver.settler.add(held, Complete())
        await asked.wait()
        assert driver.settler.backlog == 1
        go.set()
        await driver.settler.drain()
    assert driver.settler.backlog == 0


async def test_batches_are_bounded(driver: SettlerDriver) -> None:
    ids = [f"j{number}" for number in range(bounds.BATCH_MAX)]
    for held in await hold_new(driver.engine, driver.held, *ids):
        driver.settler.add(held, Complete())
    for held in await hold_new(driver.engine, driver.held, "x", "y"):
        driver.settler.add(held, Complete())
    async with driver.running():
        await driver.settler.drain()
    assert [len(batch) for batch in driver.engine.settled] == [bounds.BATCH_MAX, 2]


@pytest.mark.parametrize("error", [EngineUnavailable, OutcomeUnknown, StorageFull])
async def test_verdicts_outlast_an_outage(
    driver: SettlerDriver, clock: ManualClock, error: type[Exception]
) -> None:
    """Longer than the lease: a reaper has taken the jobs back meanwhile."""
    (first,) = await hold_new(driver.engine, driver.held, "a")
    driver.engine.for_ever["settle"] = error("down")
    async with driver.running():
        driver.settler.add(first, Complete(b"1"))
        await until(lambda: driver.engine.asked.get("settle", 0) > 3)
        assert driver.settler.backlog == 1
        (second,) = await hold_new(driver.engine, driver.held, "b")
        driver.settler.add(second, Complete(b"2"))
        assert len(driver.held) == 2
        clock.advance(60_000)
        del driver.engine.for_ever["settle"]
        await reap(driver.engine)
        await driver.settler.drain()
    assert [await driver.state(id_) for id_ in "ab"] == [State.DONE] * 2
    assert (driver.settler.lost, len(driver.held)) == (0, 0)


async def test_a_verdict_that_came_too_late_is_counted(
    driver: SettlerDriver, clock: ManualClock
) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    clock.advance(60_000)
    await reap(driver.engine)
    (other,) = await driver.engine.lease(LeaseRequest(queues=("default",), worker="other"))
    driver.settler.add(held, Complete(b"late"))
    async with driver.running():
        await driver.settler.drain()
    assert (driver.settler.lost, len(driver.held)) == (1, 0)
    assert driver.lost == ["a"]
    settlement = Settlement(lease=other, verdict=Complete(b"theirs"))
    assert await driver.engine.settle([settlement]) == [Outcome.SETTLED]
    job = await driver.engine.get("a")
    assert job is not None
    assert job.result == b"theirs"


async def test_a_follow_up_for_no_queue_is_a_failure(driver: SettlerDriver) -> None:
    (bad, good) = await hold_new(driver.engine, driver.held, *"ab")
    nowhere = NewJob(id="next", task="work", queue="nowhere")
    bad.add_note(Note(output=b"words"))
    driver.settler.add(bad, Complete(b"1", (nowhere,)))
    driver.settler.add(good, Complete())
    async with driver.running():
        await driver.settler.drain()
    job = await driver.engine.get("a")
    assert job is not None
    (event,) = job.events
    assert event.failure is not None
    assert (job.state, event.failure.type) == (State.WAITING, "Refused")
    assert "queue that does not exist" in event.failure.message
    assert await driver.state("b") is State.DONE


async def test_the_output_of_each_attempt_is_kept(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    held.add_note(Note(output=b"first"))
    # A renewal has stored the note, and the worker has forgotten it.
    held.note = None
    driver.settler.add(held, Retry(0, Failure(message="no")))
    async with driver.running():
        await driver.settler.drain()
        leases = await driver.engine.lease(LeaseRequest(queues=("default",)))
        again = HeldLease(leases[0], 0.0, "python")
        driver.held.add([again])
        driver.settler.add(again, Complete())
        await driver.settler.drain()
    job = await driver.engine.get("a")
    assert job is not None
    assert job.failures[0].failure == Failure(message="no", output="first")
    # The second attempt printed nothing.
    assert (job.state, job.output) == (State.DONE, b"")


async def test_a_result_too_large_is_a_failure(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.settler.add(held, Complete(b"x" * (bounds.RESULT_MAX + 1)))
    async with driver.running():
        await driver.settler.drain()
    job = await driver.engine.get("a")
    assert job is not None
    assert job.events[0].failure is not None
    assert str(bounds.RESULT_MAX) in job.events[0].failure.message


async def test_a_refused_batch_is_settled_one_by_one(driver: SettlerDriver) -> None:
    """An error of the whole call must affect only the job that caused it."""
    helds = await hold_new(driver.engine, driver.held, *"abc")
    driver.engine.trouble["settle"] = [InvalidJob("all of it"), InvalidJob("this one")]
    for held in helds:
        driver.settler.add(held, Complete())
    async with driver.running():
        await driver.settler.drain()
    assert [await driver.state(id_) for id_ in "abc"] == [State.WAITING, State.DONE, State.DONE]
    assert len(driver.held) == 0
    job = await driver.engine.get("a")
    assert job is not None
    assert job.events[0].failure is not None
    assert job.events[0].failure.message == "not accepted: this one"


async def test_an_outage_in_the_middle_of_a_refused_batch(driver: SettlerDriver) -> None:
    helds = await hold_new(driver.engine, driver.held, *"abc")
    driver.engine.trouble["settle"] = [InvalidJob("all of it")]
    driver.engine.trouble["settle"] += [InvalidJob("this one"), EngineUnavailable("down")]
    for held in helds:
        driver.settler.add(held, Complete())
    async with driver.running():
        await driver.settler.drain()
        await until(lambda: not driver.settler.backlog)
    assert [await driver.state(id_) for id_ in "abc"] == [State.WAITING, State.DONE, State.DONE]


async def test_a_handler_cancels_its_own_job(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.settler.add_ended([EndedBatch([held], AskedCancel("enough"))])
    driver.engine.trouble["settle"] = [OutcomeUnknown("the answer was lost")]
    async with driver.running():
        await driver.settler.drain()
    assert await driver.state("a") is State.CANCELLED


async def test_jobs_that_ended_alike_are_settled_apart(driver: SettlerDriver) -> None:
    """A lost job, and one with a verdict already, keep what they have."""
    helds = await hold_new(driver.engine, driver.held, *"abcd")
    driver.held.lose(helds[1])
    driver.settler.add(helds[2], Retry(1_000))
    before = driver.held.active["python"]
    driver.settler.add_ended([EndedBatch(helds, Returned(b"1", output=b"out"))])
    assert driver.held.active["python"] == before - 2
    assert helds[1].verdict is None
    async with driver.running():
        await driver.settler.drain()
    states = [await driver.state(id_) for id_ in "abcd"]
    assert states == [State.DONE, State.LEASED, State.WAITING, State.DONE]
    job = await driver.engine.get("d")
    assert job is not None
    assert (job.result, job.output) == (b"1", b"out")


async def test_a_late_handler_does_not_cancel_the_next_run(
    driver: SettlerDriver, clock: ManualClock
) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    clock.advance(60_000)
    await reap(driver.engine)
    (other,) = await driver.engine.lease(LeaseRequest(queues=("default",), worker="other"))
    driver.settler.add_ended([EndedBatch([held], AskedCancel("enough"))])
    async with driver.running():
        await driver.settler.drain()
    job = await driver.engine.get("a")
    assert job is not None
    assert (job.state, job.token, job.cancel_requested) == (State.LEASED, other.token, False)


async def test_only_the_first_verdict_is_settled(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.settler.add(held, Complete(b"1"))
    driver.settler.add(held, Retry())
    assert driver.settler.backlog == 1
    async with driver.running():
        await driver.settler.drain()
    assert await driver.state("a") is State.DONE


async def test_a_lost_job_is_not_settled(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.held.lose(held)
    driver.settler.add(held, Complete())
    assert (driver.settler.backlog, await driver.state("a")) == (0, State.LEASED)


async def test_a_closed_engine_ends_it(driver: SettlerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.settler.add(held, Complete())
    await driver.engine.close()
    with pytest.raises(EngineClosed):
        await driver.settler.run()


async def test_without_verdicts_the_engine_is_not_called(driver: SettlerDriver) -> None:
    async with driver.running():
        await driver.settler.drain()
    assert driver.engine.settled == []
    page = await driver.engine.find(JobFilter(), limit=1)
    assert page.jobs == ()
