"""Breakers of tasks: workers of one store count together; jobs behind an open breaker go back."""

import msgspec

from holdfast.core.breaker import KIND, BreakerRecord
from holdfast.core.model import Failure, Record
from holdfast.engines.base import Engine
from holdfast.testing.clock import ManualClock
from holdfast.worker.wire import AskedBury, AskedRetry, Raised, TaskInfo
from tests.worker.breaker_worker import (
    BAD,
    GOOD,
    POLICY,
    SECOND,
    Worker,
    a_job,
    opened,
    record,
    state,
)


async def test_failures_of_several_workers_add_up_and_open_the_breaker_for_all(
    engine: Engine,
) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    await one.breakers.sync()
    assert await state(engine) == "closed", "it is there to be seen before anything fails"
    one.saw(BAD)
    await one.breakers.sync()
    await two.breakers.sync()
    two.saw(BAD, BAD)
    assert two.breakers.sooner.is_set(), "what opens it is told at once"
    await two.breakers.sync()
    assert (set(one.shut), set(two.shut)) == (set(), {"t"})
    await one.breakers.sync()
    assert one.shut == {"t"}
    found = await record(engine)
    assert found is not None
    assert (found.last, found.open_ms) == ("OSError: no route", 10_000)


async def test_a_success_in_between_resets_the_count(engine: Engine) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    one.saw(BAD, BAD)
    await one.breakers.sync()
    await two.breakers.sync()
    two.saw(GOOD)
    await two.breakers.sync()
    one.saw(BAD, BAD)
    await one.breakers.sync()
    assert await state(engine) == "closed"


async def test_endings_that_are_not_the_tasks_fault_do_not_count(engine: Engine) -> None:
    worker = Worker(engine, "1")
    failure = Failure(type="ValueError")
    worker.saw(*[AskedRetry(failure, 1_000)] * 9, *[AskedBury(failure)] * 9)
    worker.saw(*[Raised(failure, fatal=True)] * 9)
    worker.saw(*[BAD] * 9, task="u")
    await worker.breakers.sync()
    assert await state(engine) == "closed"
    worker.breakers.crashed(a_job(), Failure(type="SIGSEGV"))
    worker.saw(BAD, BAD)
    await worker.breakers.sync()
    assert await state(engine) == "open", "a crash counts"


async def test_an_operator_opens_and_closes_it(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1")
    await worker.breakers.sync()
    [known] = await engine.load(KIND, limit=1)
    by_hand = msgspec.json.encode(BreakerRecord(policy=POLICY, state="open", by="me"))  # type: ignore[arg-type]
    await engine.save([Record(kind=KIND, key="task:t", value=by_hand, version=known.version)])
    worker.jobs = [a_job()]
    clock.advance(1_000 * SECOND)
    await worker.breakers.sync()
    assert (set(worker.shut), worker.started) == ({"t"}, [])


async def test_jobs_leased_before_the_breaker_opened_are_released(engine: Engine) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.breakers.admit([a_job(), a_job("u")])
    assert [held.job.task for held in worker.started] == ["u"]
    [release] = worker.given_back
    assert release.unstarted, "however often it comes back, it costs nothing"
    assert release.delay_ms == 0
    assert release.text == (
        "the breaker of task t is open after 3 failures, last: OSError: no route"
    )


async def test_a_task_without_a_breaker_any_more_is_leased_again(engine: Engine) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.breakers.learn({"t": TaskInfo("t")})
    await worker.breakers.sync()
    assert worker.shut == frozenset()


async def test_without_breakers_the_store_is_not_read(engine: Engine) -> None:
    worker = Worker(engine, "1")
    worker.breakers.learn({"t": TaskInfo("t")})

    async def never(*_: object, **__: object) -> list[Record]:
        raise AssertionError

    engine.load = never  # type: ignore[method-assign]
    await worker.breakers.sync()
    worker.saw(BAD, BAD, BAD)
    worker.breakers.admit([a_job()])
    assert len(worker.started) == 1
