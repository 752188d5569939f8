"""Killed children, supervisors and launchers: which jobs are charged, and which processes end."""

import os
import signal

import pytest

from holdfast.core.model import EventKind, FailureKind, Reason, State
from holdfast.worker import processes
from tests.worker.live_workers import Place, until


async def test_a_death_alone_is_a_crash_and_buried_after_too_many(place: Place) -> None:
    await place.app.declare("default", backoff="constant(1ms)", max_attempts=9)
    await place.worker()
    await place.enqueue("die", "a", max_crashes=2)
    (job,) = await place.finished("a")
    await place.enqueue("note", "b")
    (next_one,) = await place.finished("b")
    assert (job.state, job.reason, job.attempt, job.crashes) == (
        *(State.DEAD, Reason.CRASHED),
        *(2, 2),
    )
    assert [event.kind for event in job.events] == [EventKind.RETRIED, EventKind.BURIED]
    for event in job.events:
        assert event.failure is not None
        assert (event.failure.kind, event.failure.signal) == (FailureKind.CRASH, signal.SIGKILL)
        assert event.failure.message == "its process was killed by SIGKILL"
        assert "these were the last words" in event.failure.trace
    assert next_one.state is State.DONE


async def test_an_exit_is_a_crash_with_its_code(place: Place) -> None:
    await place.worker()
    await place.enqueue("leave", "a", payload={"code": 3}, max_crashes=1)
    (job,) = await place.finished("a")
    assert job.events[-1].failure is not None
    assert (job.reason, job.events[-1].failure.exit_code) == (Reason.CRASHED, 3)


async def test_jobs_that_shared_a_dead_child_run_alone_next(place: Place) -> None:
    """The culprit is unknown, so no job is charged; jobs that had not started go on."""
    await place.worker(concurrency=3)
    await place.enqueue("hold", *"abc")
    (child, *_) = {entry.pid for entry in await place.started(*"abc")}
    os.kill(child, signal.SIGKILL)
    await until(lambda: len(place.journal("start")) > 3, "one of them to run again")
    place.go()
    jobs = await place.finished(*"abc")
    assert [(job.state, job.attempt, job.crashes, job.alone) for job in jobs] == [
        (State.DONE, 1, 0, True)
    ] * 3
    for job in jobs:
        (event,) = job.events
        assert event.kind is EventKind.RELEASED
        assert "killed by SIGKILL; its next attempt runs alone" in event.text
    second = [entry for entry in place.journal("start") if entry.pid != child]
    ends = {entry.id: entry.at_ns for entry in place.journal("end")}
    for one in second:
        beside = [
            other
            for other in second
            if other.pid == one.pid and other.id != one.id and other.at_ns < one.at_ns
        ]
        assert all(ends[other.id] < one.at_ns for other in beside), "two ran in one solo child"


async def test_prefetched_jobs_of_a_dead_child_go_on_uncharged(place: Place) -> None:
    """Four batch jobs are leased while one slot is held: they never started, and lose nothing."""
    await place.worker(concurrency=1)
    await place.enqueue("hold", "a", max_crashes=1)
    ((_, _, _, _, child, _),) = await place.started("a")
    await place.enqueue("add_up", *"bcde", payload=1)
    for id_ in "bcde":
        await place.in_state(id_, State.LEASED)
    os.kill(child, signal.SIGKILL)
    (guilty, *others) = await place.finished(*"abcde")
    assert (guilty.state, guilty.reason) == (State.DEAD, Reason.CRASHED)
    assert [(job.state, job.attempt, job.events) for job in others] == [(State.DONE, 1, ())] * 4
    assert {job.result for job in others} == {b'"1 of 4"'}


async def test_a_killed_supervisor_leaves_nothing_and_its_jobs_come_back(place: Place) -> None:
    await place.app.declare("default", lease="2s")
    launcher = await place.launcher(place.options(name="steady"))
    (view,) = await place.workers()
    await place.enqueue("leave_survivors", "a")
    (first,) = await place.started("a")
    before = set(place.alive()) - {launcher.pid}
    assert {view.record.pid, first.pid} < before
    os.kill(view.record.pid, signal.SIGKILL)
    await until(lambda: not before & set(place.alive()), "all that it had started to be gone")
    await place.started("a", "a")
    place.go()
    (job,) = await place.finished("a")
    assert (job.state, job.attempt, job.worker) == (State.DONE, 2, "steady")
    (now,) = await place.workers()
    assert (now.name, now.record.host) == (view.name, view.record.host)
    assert now.record.id != view.record.id


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_the_workers_of_a_killed_launcher_end(place: Place, number: int) -> None:
    launcher = await place.launcher(place.options(name="w-1"), place.options(name="w-2"))
    await place.enqueue("hold", *"ab")
    await place.started(*"ab")
    launcher.send_signal(number)
    launcher.wait()
    await place.nobody_left()
    for id_ in "ab":
        job = await place.in_state(id_, State.WAITING)
        assert (job.attempt, job.events[-1].kind) == (0, EventKind.RELEASED)


@pytest.mark.parametrize("outright", [False, True])
async def test_all_processes_killed_at_once(place: Place, outright: bool) -> None:
    """The child that runs commands ends them when it is alone; killed as well, it leaves them to
    the next worker on this host, whatever its name."""
    await place.app.declare("default", lease="2s")
    launcher = await place.launcher(place.options(name="first", commands=True))
    (view,) = await place.workers()
    command = ["/bin/sh", "-c", f"echo $$ > {place.folder}/pid; sleep 600"]
    await place.enqueue("command", "a", payload={"command": command}, max_attempts=1)
    await place.enqueue("hold", "b")
    await place.started("b")
    await until(lambda: (place.folder / "pid").exists() and (place.folder / "pid").read_text())
    pid = int((place.folder / "pid").read_text())
    marker = {b"HOLDFAST_WORKER_ID": view.record.id.encode()}
    assert pid in set(processes.marked(marker))
    doomed = [launcher.pid, view.record.pid]
    if outright:
        doomed += processes.children(view.record.pid)
    for each in doomed:
        # Some end with their supervisor, before it is their turn.
        processes.kill(each)
    launcher.wait()
    await place.nobody_left()
    place.go()
    if outright:
        await place.worker(name="second")
        await until(lambda: not list(processes.marked(marker)), "the command to be gone")
    else:
        await until(lambda: not list(processes.marked(marker)), "the command to be gone")
        await place.worker(name="second")
    (job,) = await place.finished("b")
    # The supervisor may have had the time to release it.
    assert (job.state, job.worker) == (State.DONE, "second")
    assert job.attempt in (1, 2)
