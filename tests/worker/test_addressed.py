"""A job for one worker runs there or nowhere: it waits in that worker's own queue for its time."""

import pytest

from holdfast.core.model import EventKind, FailureKind, JobFilter, LeaseRequest, Reason, State
from holdfast.core.verdict import Complete, Edit, Outcome, Settlement
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from tests.worker.running import Place, until


async def test_it_runs_on_that_worker_only(place: Place) -> None:
    await place.worker(name="here")
    await place.worker(name="there")
    await place.enqueue("note", *(f"h{number}" for number in range(10)), to="here")
    await place.enqueue("note", *(f"t{number}" for number in range(10)), to="there")
    jobs = await place.finished(*(f"{where}{number}" for where in "ht" for number in range(10)))
    assert [job.worker for job in jobs] == ["here"] * 10 + ["there"] * 10
    assert {job.state for job in jobs} == {State.DONE}


async def test_it_expires_when_its_worker_does_not_come(place: Place) -> None:
    """Another worker's upkeep finds it; the text names the worker and how long it waited."""
    await place.app.declare(worker_queue("away"))
    await place.enqueue("note", "a", to="away", expires="50ms")
    await place.worker(name="here")
    (job,) = await place.finished("a")
    assert (job.state, job.reason, job.attempt) == (State.DEAD, Reason.EXPIRED, 0)
    (event,) = job.events
    assert event.failure is not None
    assert (event.kind, event.failure.kind) == (EventKind.BURIED, FailureKind.EXPIRED)
    assert "away" in event.failure.message
    assert "50" in event.failure.message
    assert place.journal() == []


async def test_it_waits_five_minutes_by_default(place: Place) -> None:
    await place.app.declare(worker_queue("away"))
    await place.enqueue("note", "a", to="away")
    job = await place.job("a")
    assert job.expires_at == job.created_at + ADDRESSED_EXPIRES_MS


async def test_its_time_can_be_changed_while_it_waits(place: Place) -> None:
    await place.app.declare(worker_queue("late"))
    await place.enqueue("note", "short", "long", to="late")
    assert await place.app.amend(JobFilter(ids=("short",)), Edit(expires_ms=1)) == 1
    assert await place.app.amend(JobFilter(ids=("long",)), Edit(expires_ms=3_600_000)) == 1
    await place.worker(name="other")
    (short,) = await place.finished("short")
    assert (short.state, short.reason) == (State.DEAD, Reason.EXPIRED)
    await place.worker(name="late")
    (long,) = await place.finished("long")
    assert (long.state, long.worker) == (State.DONE, "late")


async def test_once_taken_it_does_not_expire(place: Place) -> None:
    await place.app.declare(worker_queue("here"), lease="2s")
    await place.worker(name="here")
    await place.enqueue("hold", "a", to="here", expires="500ms")
    await place.started("a")

    async def past() -> bool:
        job = await place.job("a")
        # Its renewals show the engine's own clock.
        return (job.deadline_at or 0) > (job.expires_at or 0) + 2_000

    await until(past, "its time to be over")
    place.go()
    (job,) = await place.finished("a")
    assert (job.state, job.attempt, job.events) == (State.DONE, 1, ())


@pytest.mark.parametrize("finished", [True, False])
async def test_expiry_of_a_finished_or_missing_job_changes_nothing(
    place: Place, finished: bool
) -> None:
    """The reaper's view may be old: what it buries must still wait."""
    await place.app.declare(worker_queue("w"))
    await place.enqueue("note", "a", to="w", expires="1h")
    (lease,) = await place.app.engine.lease(LeaseRequest(queues=(worker_queue("w"),)))
    await place.app.engine.settle([Settlement(lease=lease, verdict=Complete(b"1"))])
    if not finished:
        assert await place.app.delete("a") == 1
    assert await place.app.amend(JobFilter(ids=("a",)), Edit(expires_ms=1)) == 0
    assert (await place.app.engine.expired(10)).jobs == ()
    again = await place.app.engine.settle([Settlement(lease=lease, verdict=Complete(b"1"))])
    assert again == [Outcome.SETTLED if finished else Outcome.LOST]
