"""A job for one worker waits in that worker's own queue, and runs there or expires."""

import pytest

from holdfast.core.model import (
    EventKind,
    FailureKind,
    JobFilter,
    LeaseRequest,
    Reason,
    Reroute,
    State,
)
from holdfast.core.verdict import Complete, Edit, Outcome, Settlement
from holdfast.core.workers import ADDRESSED_EXPIRES_MS, worker_queue
from tests.worker.live_workers import Place, until


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
    await place.enqueue("note", "later", to="away", delay="1h")
    later = await place.job("later")
    assert later.expires_at == later.due_at + ADDRESSED_EXPIRES_MS, "not before it is due"


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
    """The reaper's view may be old: it buries only jobs that still wait."""
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


async def test_a_task_has_a_time_of_its_own(place: Place) -> None:
    """`using` wins over the task, the task over the default; all can be changed while it waits."""
    await place.app.declare(worker_queue("away"))

    @place.app.task(name="own", expires="1h")
    def own() -> None: ...

    @place.app.task(name="none")
    def none() -> None: ...

    async def ttl_ms(id: str) -> int:
        job = await place.job(id)
        assert job.expires_at is not None
        return job.expires_at - job.created_at

    assert await ttl_ms((await own.using(to="away").aenqueue()).id) == 3_600_000
    said = await own.using(to="away", expires="10m").aenqueue()
    assert await ttl_ms(said.id) == 600_000
    assert await ttl_ms((await none.using(to="away").aenqueue()).id) == ADDRESSED_EXPIRES_MS
    assert await place.app.amend(JobFilter(ids=(said.id,)), Edit(expires_ms=7_200_000)) == 1
    assert await ttl_ms(said.id) >= 7_200_000


async def test_it_goes_on_to_another_worker_when_it_may(place: Place) -> None:
    await place.app.declare(worker_queue("away"))
    policy = Reroute(labels={"zone": "eu"}, ttl_ms=3_600_000)
    await place.enqueue("note", "a", to="away", expires="50ms", reroute=policy)
    await place.worker(name="us", labels={"zone": "us"}, upkeep=False)
    await place.worker(name="eu", labels={"zone": "eu"}, upkeep=False)
    await place.app.upkeep().services[0].once()
    (job,) = await place.finished("a")
    assert (job.state, job.worker, job.origin) == (State.DONE, "eu", worker_queue("away"))
    assert [event.kind for event in job.events] == [EventKind.MOVED]
