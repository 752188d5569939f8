"""Jobs in a real worker: batches, follow-up jobs, cancels, checkpoints, output."""

import pytest

from holdfast.core.model import EventKind, State
from holdfast.core.verdict import Cancel
from holdfast.ops.jobs.amend import cancel_job
from tests.worker.live_workers import Place, until


async def test_only_known_tasks_are_leased(place: Place) -> None:
    await place.enqueue("unheard_of", "a")
    await place.worker()
    await place.enqueue("note", "b")
    await place.finished("b")
    job = await place.job("a")
    assert (job.state, job.attempt, job.leased_at) == (State.WAITING, 0, None)


async def test_never_more_leased_than_slots_and_prefetch(place: Place) -> None:
    """Without prefetch only the slots; a batch task may lease one batch more."""
    ids = [f"j{number}" for number in range(40)]
    await place.enqueue("hold", *ids)
    await place.worker(concurrency=3)
    await until(lambda: len(place.journal("start")) == 3, "every slot to be taken")
    (view,) = [each for each in await place.app.queues() if each.queue.name == "default"]
    # The slots of one child, and at most nine more of a batch of ten.
    assert view.leased <= 3 + 9
    place.go()
    await place.finished(*ids)


async def test_a_batch_task_gets_its_jobs_together(place: Place) -> None:
    for number in range(20):
        await place.enqueue("add_up", f"j{number}", payload=number)
    await place.worker(concurrency=1)
    jobs = await place.finished(*(f"j{number}" for number in range(20)))
    assert {job.state for job in jobs} == {State.DONE}
    results = [job.result.decode() for job in jobs if job.result]
    assert sum(result.endswith('of 10"') for result in results) >= 10


async def test_a_follow_up_is_enqueued_with_the_completion(place: Place) -> None:
    await place.worker()
    payload = {"folder": str(place.folder), "follower": "next"}
    await place.enqueue("begin", "first", payload=payload)
    await place.finished("first")
    (job,) = await place.finished("next")
    assert (job.state, job.result) == (State.DONE, b'"next"')


@pytest.mark.parametrize("task", ["heed", "hold_async"])
async def test_cancel_of_a_running_job(place: Place, task: str) -> None:
    await place.worker(name="w")
    await place.enqueue(task, "a")
    await place.started("a")
    assert await place.app.cancel("a", by="me", text="wrong one") == 1
    await place.app.workers.nudge("w")
    (job,) = await place.finished("a")
    assert (job.state, job.attempt) == (State.CANCELLED, 1)
    assert [event.kind for event in job.events] == [
        *(EventKind.CANCEL_REQUESTED, EventKind.CANCELLED)
    ]


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_cancel_by_force_ends_a_handler_that_does_not_listen(
    place: Place, asked_before: bool
) -> None:
    """Its worker settles it, and the job beside it runs again, uncharged."""
    await place.worker(name="w", processes=1)
    await place.enqueue("hold", *"ab")
    await place.started(*"ab")
    if asked_before:
        await cancel_job(place.app.engine, "a", Cancel(by="me"))
    await cancel_job(place.app.engine, "a", Cancel(by="me"), force=True)
    (job,) = await place.finished("a")
    assert (job.state, job.attempt, job.worker) == (State.CANCELLED, 1, "w")
    place.go()
    (other,) = await place.finished("b")
    assert (other.state, other.attempt) == (State.DONE, 1)


async def test_cancel_of_one_job_of_a_batch(place: Place) -> None:
    """The call is stopped; its other jobs are released and run again, uncharged."""
    await place.enqueue("gather", *"abc", payload=str(place.folder))
    await place.worker(name="w", concurrency=1)
    await place.started(*"abc")
    await place.app.cancel("b", by="me")
    await place.app.workers.nudge("w")
    await place.finished("b")
    place.go()
    jobs = await place.finished(*"abc")
    assert [job.state for job in jobs] == [State.DONE, State.CANCELLED, State.DONE]
    assert [job.attempt for job in jobs] == [1, 1, 1]


async def test_a_handler_that_cancels_its_own_job(place: Place) -> None:
    await place.worker(name="w")
    await place.enqueue("stop_itself", "a", payload=None)
    (job,) = await place.finished("a")
    assert (job.state, job.attempt) == (State.CANCELLED, 1)
    assert (job.events[0].by, job.events[0].text) == ("w", "by its handler")


async def test_an_attempt_goes_on_where_the_last_one_stopped(place: Place) -> None:
    await place.app.declare("default", backoff="constant(1ms)")
    await place.worker()
    await place.enqueue("resume_from", "a")
    (job,) = await place.finished("a")
    assert (job.state, job.attempt, job.result) == (State.DONE, 3, b"[1,2,3]")
    assert job.progress == 1.0
    assert job.output == b"step 3\n"


async def test_notes_can_be_read_while_it_runs(place: Place) -> None:
    await place.worker()
    await place.enqueue("talk", "a")
    await place.started("a")

    async def heard() -> bool:
        job = await place.job("a")
        return (job.state, job.output, job.progress) == (State.LEASED, b"it is running\n", 0.5)

    await until(heard, "its words")
    place.go()
    (job,) = await place.finished("a")
    assert job.output == b"it is running\nit is over\n"


async def test_an_isolated_task_has_its_process_to_itself(place: Place) -> None:
    await place.worker(concurrency=2)
    await place.enqueue("hold", "beside")
    (beside,) = await place.started("beside")
    await place.enqueue("apart", *"abc")
    jobs = await place.finished(*"abc")
    assert {job.state for job in jobs} == {State.DONE}
    assert str(beside.pid).encode() not in {job.result for job in jobs}
    place.go()


async def test_long_jobs_of_one_kind_do_not_block_another(place: Place) -> None:
    ids = [f"j{number}" for number in range(30)]
    await place.enqueue("hold", *ids)
    await place.worker(concurrency=2, commands=True)
    await until(lambda: len(place.journal("start")) == 2)
    await place.enqueue("command", "c", payload={"command": ["true"]})
    await place.enqueue("apart", "s")
    jobs = await place.finished("c", "s")
    assert [job.state for job in jobs] == [State.DONE] * 2
    place.go()


async def test_without_child_processes(place: Place) -> None:
    """Handlers run in the supervisor itself; commands keep their own child."""
    process = await place.worker(processes=0, commands=True)
    await place.enqueue("note", "a")
    await place.enqueue("hold_async", "b")
    await place.enqueue("command", "c", payload={"command": ["true"]})
    started = await place.started("a", "b")
    assert {entry.pid for entry in started} == {process.pid}
    (done, command) = await place.finished("a", "c")
    assert (done.state, command.state) == (State.DONE, State.DONE)
    process.terminate()
    place.go()
    await until(lambda: process.poll() is not None, "its end")
    assert (process.returncode, (await place.job("b")).state) == (0, State.DONE)


async def test_on_postgresql(pg_place: Place) -> None:
    """A run, a crash, a retry, a cancel and a drain on the other engine."""
    place = pg_place
    await place.app.declare("default", backoff="constant(1ms)", max_attempts=2, lease="2s")
    process = await place.worker(name="w")
    await place.enqueue("note", "ok", to="w")
    await place.enqueue("die", "dies", max_crashes=1)
    await place.enqueue("fail", "fails", payload=None)
    await place.enqueue("heed", "asked")
    await place.enqueue("hold_interpreter", "busy", payload={"seconds": 3})
    await place.started("asked")
    await place.app.cancel("asked")
    jobs = await place.finished("ok", "dies", "fails", "asked", "busy")
    done, dead = State.DONE, State.DEAD
    assert [job.state for job in jobs] == [done, dead, dead, State.CANCELLED, done]
    busy = await place.job("busy")
    assert all(event.kind is EventKind.RELEASED for event in busy.events)
    await place.enqueue("hold", "last")
    await place.started("last")
    await place.app.workers.stop("w", grace=0)
    await until(lambda: process.poll() is not None)
    last = await place.job("last")
    assert (process.returncode, last.state, last.attempt) == (0, State.WAITING, 0)
