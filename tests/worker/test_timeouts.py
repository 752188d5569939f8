"""A run past its timeout is interrupted or killed, and leaves nothing."""

from holdfast.core.model import EventKind, FailureKind, Reason, State
from holdfast.worker import processes
from tests.worker.live_workers import Place, until


async def test_a_function_is_killed_with_its_child_and_neighbours_go_on(place: Place) -> None:
    await place.worker(concurrency=3)
    await place.enqueue("hold", *"ab")
    await place.started(*"ab")
    await place.enqueue("leave_survivors", "late", timeout="300ms", max_attempts=1)
    (entry,) = await place.started("late")
    started = {entry.pid, *processes.children(entry.pid)}
    (late,) = await place.finished("late")
    assert (late.state, late.reason) == (State.DEAD, Reason.ATTEMPTS)
    failure = late.events[-1].failure
    assert failure is not None
    assert (failure.kind, failure.type) == (FailureKind.TIMEOUT, "AttemptTimeout")
    assert "timeout of 0.3 s" in failure.message
    await until(lambda: not started & set(place.alive()), "all that it had started to be gone")
    await place.started(*"aabb")
    place.go()
    for job in await place.finished(*"ab"):
        assert (job.state, job.attempt, job.crashes, job.alone) == (State.DONE, 1, 0, False)
        assert [event.kind for event in job.events] == [EventKind.RELEASED]
        assert job.events[0].text == "another job in its process ran past its timeout"


async def test_a_coroutine_is_interrupted(place: Place) -> None:
    """The child lives on, and its other calls do not notice."""
    await place.worker(concurrency=2)
    await place.enqueue("hold", "a")
    (neighbour,) = await place.started("a")
    await place.enqueue("hold_async", "late", timeout="100ms", max_attempts=1)
    (late,) = await place.finished("late")
    failure = late.events[-1].failure
    assert failure is not None
    assert (late.state, failure.kind) == (State.DEAD, FailureKind.TIMEOUT)
    assert [entry.pid for entry in place.journal("cancelled")] == [neighbour.pid]
    place.go()
    (job,) = await place.finished("a")
    assert (job.state, job.events) == (State.DONE, ())


async def test_a_coroutine_that_will_not_end_is_killed(place: Place) -> None:
    await place.worker()
    payload = {"folder": str(place.folder), "longer_s": 600}
    await place.enqueue("stubborn", "a", payload=payload, timeout="100ms", max_attempts=1)
    (job,) = await place.finished("a")
    failure = job.events[-1].failure
    assert failure is not None
    assert (job.state, failure.kind) == (State.DEAD, FailureKind.TIMEOUT)
    assert "and killed" in failure.message


async def test_the_timeout_of_the_queue_counts_too(place: Place) -> None:
    await place.app.declare("default", timeout="100ms", backoff="constant(1ms)", max_attempts=2)
    await place.worker()
    await place.enqueue("hold_async", "a")
    (job,) = await place.finished("a")
    assert [event.failure and event.failure.kind for event in job.events] == [
        FailureKind.TIMEOUT
    ] * 2
