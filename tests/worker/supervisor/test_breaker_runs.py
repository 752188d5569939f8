"""A task with a breaker in real workers: it opens, others go on, one job probes, it closes."""

import msgspec
import pytest

from holdfast.core import breaker as rules
from holdfast.core.backoff import Backoff
from holdfast.core.breaker import KIND, Breaker, BreakerRecord, BreakerState
from holdfast.core.model import JobFilter, Overrides, State
from holdfast.ops.breakers import BreakerRecords
from holdfast.worker import processes
from holdfast.worker.supervisor import supervisor
from holdfast.worker.supervisor.intake import LeaseAhead
from holdfast.worker.wire import TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import Place, until
from tests.worker.supervisor_driver import SupervisorDriver

LATER = Backoff(kind="constant", first_ms=1_000_000, cap_ms=1_000_000, jitter=0.0)
_RETRIED = {"max_attempts": 100, "backoff": "constant(1ms, jitter=0)"}


async def stands(place: Place) -> BreakerRecord:
    for each in await place.app.engine.load(KIND, limit=10):
        if each.key == "task:frail":
            return msgspec.json.decode(each.value or b"", type=BreakerRecord)
    return BreakerRecord()


async def test_a_failing_task_is_shut_out_and_comes_back(place: Place) -> None:
    ids = [f"f{number}" for number in range(30)]
    await place.worker(name="one", concurrency=2, prefetch=50)
    await place.worker(name="two", concurrency=2, prefetch=50)
    await place.enqueue("frail", *ids, **_RETRIED)

    async def opened() -> bool:
        return (await stands(place)).state is BreakerState.OPEN

    await until(opened, "the breaker to open")
    await place.enqueue("note", *(f"n{number}" for number in range(10)))
    others = await place.finished(*(f"n{number}" for number in range(10)))
    assert {job.state for job in others} == {State.DONE}, "what works goes on"

    async def probed() -> bool:
        return (await stands(place)).openings >= 3

    await until(probed, "two probes to fail")
    failed = len(place.journal("start")) - 10
    record = await stands(place)
    # Three opened it, beside those that ran at the time and those a worker had heard nothing yet
    # of; each later opening is one probe. Without it there would be thousands.
    assert failed < 100, record
    assert record.last == "ConnectionError: nobody there"
    place.go()
    jobs = await place.finished(*ids)
    assert {job.state for job in jobs} == {State.DONE}
    starts = [entry.id for entry in place.journal("start")]
    assert all(job.attempt == starts.count(job.id) for job in jobs), "only real runs are charged"

    async def closed() -> bool:
        return (await stands(place)).state is BreakerState.CLOSED

    await until(closed, "the breaker to close")


async def test_jobs_leased_ahead_are_released_and_no_more_are_leased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One supervisor, with a double for its child."""
    monkeypatch.setattr(supervisor, "_ORDERS_S", 0.01)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(LeaseAhead, "count", lambda _self: 20)
    engine = TroubledEngine()
    await engine.open()
    driver = SupervisorDriver(engine, prefetch=20)
    await driver.enqueue(
        *(f"j{number}" for number in range(10)), overrides=Overrides(backoff=LATER)
    )
    policy = Breaker(failures=2, cooldown_ms=1_000_000, cooldown_ms_max=1_000_000)
    capacity = driver.supervisor._capacity
    async with driver.running():
        driver.child.ready(TaskInfo("work", breaker=policy), TaskInfo("other"))
        calls = await driver.calls(4)
        await until(lambda: len(driver.supervisor._held) == 10, "all to be leased")
        driver.end(*calls[:2], failed=True)
        await until(lambda: capacity.shut_out == {"work"}, "the breaker to open")
        # Those that took the places of the two before it was known run on.
        running = {job.id for call in driver.open_calls for job in call.jobs}
        await until(lambda: len(driver.supervisor._held) == len(running), "the others to go back")
        driver.end(driver.open_calls[0])
        await driver.enqueue("later")
        await driver.enqueue("another", task="other")
        await until(lambda: any(call.task == "other" for call in driver.open_calls))
        page = await engine.find(JobFilter(states=(State.WAITING,)), limit=20)
        failed = {job.id for call in calls[:2] for job in call.jobs}
        leased = [job for job in page.jobs if job.leased_at is not None]
        given_back = [job for job in leased if job.id not in failed]
        assert len(given_back) == 10 - 2 - len(running)
        costs = {(job.attempt, job.releases) for job in given_back}
        assert costs == {(0, 0)}, "it costs nothing"
        assert "later" in {job.id for job in page.jobs}
        assert await driver.supervisor._find_stall() == ""
        book = BreakerRecords(engine, lambda _: None)
        await book.load()
        assert await book.change("task:work", lambda record, _: rules.closed(record))
        await until(lambda: not capacity.shut_out, "the breaker to close")
        driver.end(*driver.open_calls)
        await until(lambda: any(call.task == "work" for call in driver.open_calls), "it to go on")
