"""A lease is kept as long as its run goes on, and two runs of one job never overlap."""

import os
import signal
from itertools import pairwise

from holdfast.core.model import EventKind, FailureKind, State
from tests.worker.live_workers import Place, until


async def test_a_handler_that_holds_the_interpreter_keeps_its_lease(place: Place) -> None:
    """The call takes longer than the lease, and blocks the whole child."""
    await place.worker()
    payload = {"folder": str(place.folder), "seconds": 3}
    await place.enqueue("hold_everything", "a", payload=payload, lease="2s")
    await place.enqueue("note", "b")
    (job, _) = await place.finished("a", "b")
    assert (job.state, job.attempt, job.events) == (State.DONE, 1, ())
    assert [entry.word for entry in place.journal() if entry.id == "a"] == ["start", "end"]


async def test_jobs_leased_ahead_keep_their_leases(place: Place) -> None:
    """They wait in the worker, behind a call that holds the slot for longer than a lease."""
    await place.app.declare("default", lease="2s")
    await place.worker(concurrency=1)
    await place.enqueue("gather", "a", payload=str(place.folder))
    await place.started("a")
    await place.enqueue("gather", *"bcd", payload=str(place.folder))
    first = [(await place.in_state(id_, State.LEASED)).token for id_ in "bcd"]
    deadline_at = (await place.job("b")).deadline_at or 0

    async def renewed() -> bool:
        return ((await place.job("b")).deadline_at or 0) > deadline_at + 2_000

    await until(renewed, "a job that has not started to be kept for longer than a lease")
    assert [(await place.job(id_)).token for id_ in "bcd"] == first
    place.go()
    jobs = await place.finished(*"abcd")
    assert [(job.state, job.attempt, job.events) for job in jobs] == [(State.DONE, 1, ())] * 4


async def test_a_lost_lease_ends_the_first_run(place: Place) -> None:
    """The supervisor sleeps past its lease while its child works on. Another worker takes the job;
    the first run is killed when the sleeper wakes, and only one verdict counts."""
    await place.app.declare("default", lease="2s")
    sleeper = await place.worker(name="sleeper", upkeep=False)
    await place.enqueue("hold", "a")
    (first,) = await place.started("a")
    os.kill(sleeper.pid, signal.SIGSTOP)
    await place.worker(name="other")
    (_, second) = await place.started("a", "a")
    assert first.pid in place.alive()
    os.kill(sleeper.pid, signal.SIGCONT)
    await until(lambda: first.pid not in place.alive(), "the first run to be killed")
    place.go()
    (job,) = await place.finished("a")
    assert (job.state, job.attempt, job.worker) == (State.DONE, 2, "other")
    (event,) = job.failures
    assert event.failure is not None
    assert (event.kind, event.failure.kind) == (EventKind.RETRIED, FailureKind.OVERDUE)
    assert [entry.token for entry in place.journal("end")] == [second.token]


async def test_attempts_of_one_job_follow_each_other(place: Place) -> None:
    """Two workers and jobs that fail until their third attempt."""
    await place.app.declare("default", backoff="constant(1ms)")
    await place.worker(name="a")
    await place.worker(name="b")
    ids = [f"j{number}" for number in range(40)]
    await place.enqueue("resume_from", *ids)
    jobs = await place.finished(*ids)
    assert {(job.state, job.attempt) for job in jobs} == {(State.DONE, 3)}
    for id_ in ids:
        runs = [entry for entry in place.journal() if entry.id == id_]
        assert [entry.word for entry in runs] == [f"resumed at {count}" for count in range(3)]
        assert all(one.token < next_.token for one, next_ in pairwise(runs))
