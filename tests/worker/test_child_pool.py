"""Dispatch of calls to children, and the calls of dead children; children are doubles."""

import asyncio

import pytest

from holdfast.core.model import Failure, FailureKind, Note, Overrides
from holdfast.worker import processes
from holdfast.worker.supervisor import child_pool as module
from holdfast.worker.supervisor import dispatch
from holdfast.worker.supervisor.child_process import ForkTemplate
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    CallEnded,
    CancelCall,
    ChildBroken,
    ChildReady,
    Ending,
    Finish,
    GivenBack,
    NoteUpdate,
    Raised,
    Recall,
    Returned,
    TaskInfo,
)
from tests.worker.doubles import FakeChild
from tests.worker.live_workers import until
from tests.worker.pool_stage import Stage, ids_of

pytestmark = pytest.mark.usefixtures("pool_doubles")


async def test_nothing_is_given_to_a_child_that_is_not_ready(stage: Stage) -> None:
    await stage.pool.start("w")
    stage.give("ab")
    (child,) = stage.pool._children
    assert isinstance(child, FakeChild)
    assert child.calls == []
    child.ready()
    assert ids_of(child) == ["a", "b"]
    assert set(stage.listener.tasks) == {"work"}
    assert child.setup.worker == "w"


async def test_no_more_than_its_slots(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("abc")
    assert ids_of(child) == ["a", "b"]
    child.answer(CallEnded(child.calls[0].number, (Returned(b"1"),)))
    assert ids_of(child) == ["a", "b", "c"]
    assert stage.listener.endings == {"a": Returned(b"1")}


async def test_calls_are_spread_over_children() -> None:
    stage = Stage(processes=2)
    children = await stage.start()
    stage.give("abcd")
    assert [len(child.calls) for child in children] == [2, 2]
    await stage.pool.stop("over")


async def test_a_batch_is_one_call(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("abcd", "many")
    assert ids_of(child) == ["abc", "d"]
    endings = (Returned(b"1"), AskedRelease("x"), Returned())
    child.answer(CallEnded(child.calls[0].number, endings))
    assert stage.listener.endings == dict(zip("abc", endings, strict=True))


async def test_a_note_reaches_its_job(stage: Stage) -> None:
    (child,) = await stage.start()
    helds = stage.give("abc", "many")
    number = child.calls[0].number
    child.answer(NoteUpdate(number, 1, 0.5, b"1", b"out"), NoteUpdate(number + 99, 0, 0.1))
    note = Note(progress=0.5, checkpoint=b"1", output=b"out")
    assert [held.note for held in helds] == [None, note, None]


async def test_an_ending_counts_once(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("a")
    number = child.calls[0].number
    child.answer(CallEnded(number, (Returned(),)), CallEnded(number, (Returned(),)))
    child.die()
    assert stage.listener.endings == {"a": Returned()}


async def test_a_single_running_job_is_the_culprit(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("abc")
    child.run(child.calls[0].number)
    child.die(-11, b"Fatal Python error")
    ((failure, alone),) = stage.listener.crashes.values()
    assert (list(stage.listener.crashes), alone) == (["a"], True)
    assert (failure.signal, failure.type, failure.trace) == (11, "SIGSEGV", "Fatal Python error")
    another = await stage.newest(1)
    another.ready()
    # What had not started goes on in the next child, in its old order.
    assert ids_of(another) == ["b", "c"]
    assert stage.listener.endings == {}


async def test_of_several_running_jobs_none_is_the_culprit(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("ab")
    child.run(*(call.number for call in child.calls))
    child.die(1)
    assert {id_: alone for id_, (_, alone) in stage.listener.crashes.items()} == {
        "a": False,
        "b": False,
    }
    assert stage.listener.crashes["a"][0].exit_code == 1


async def test_jobs_of_one_batch_count_separately(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("ab", "many")
    child.run(child.calls[0].number)
    child.die()
    assert [alone for _, alone in stage.listener.crashes.values()] == [False, False]


async def test_a_call_whose_ending_was_never_received_is_released(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("ab")
    first, second = (call.number for call in child.calls)
    child.board.start(0, first)
    child.board.end(0)
    child.board.start(0, second)
    child.die()
    assert stage.listener.endings == {
        "a": AskedRelease("its process died before it could tell how the job ended")
    }
    assert stage.listener.crashes["b"][1] is True


async def test_a_dead_command_child_is_no_jobs_fault() -> None:
    stage = Stage(commands=True)
    children = await stage.start()
    (commands,) = (child for child in children if child.setup.target is None)
    commands.ready(TaskInfo("command"))
    stage.give("a", "command", "command")
    commands.run(commands.calls[0].number)
    commands.die()
    assert stage.listener.endings == {"a": AskedRelease("its process was killed by SIGKILL")}
    await stage.pool.stop("over")


async def test_a_timeout_kills_the_child_and_spares_the_neighbours() -> None:
    stage = Stage(timeout_ms=1)
    (child,) = await stage.start()
    stage.give("a")
    stage.give("b", overrides=Overrides(timeout_ms=60_000))
    child.run(*(call.number for call in child.calls))

    def killed() -> bool:
        stage.pool.tick()
        return child.killed

    await until(killed, "the child to be killed")
    await child.wait_dead()
    ending = stage.listener.endings["a"]
    assert isinstance(ending, Raised)
    assert ending.failure.type == "AttemptTimeout"
    assert stage.listener.endings["b"] == AskedRelease("a job beside it ran past its timeout")
    assert stage.listener.crashes == {}
    await stage.pool.stop("over")


async def test_a_gentle_task_gets_a_second_more() -> None:
    stage = Stage(timeout_ms=1)
    (child,) = await stage.start(TaskInfo("work", gentle=True))
    stage.give("a")
    child.run(child.calls[0].number)
    await asyncio.sleep(0.05)
    stage.pool.tick()
    assert not child.killed
    await stage.pool.stop("over")


async def test_a_call_that_has_not_started_has_no_timeout() -> None:
    stage = Stage(timeout_ms=1)
    (child,) = await stage.start()
    stage.give("a")
    await asyncio.sleep(0.01)
    stage.pool.tick()
    assert not child.killed
    await stage.pool.stop("over")


async def test_a_lost_call_is_cancelled_and_then_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (child,) = await stage.start()
    (lost, _) = stage.give("ab")
    child.run(*(call.number for call in child.calls))
    stage.held.lose(lost)
    stage.pool.cancel(lost, lost=True)
    assert child.sent[-1] == CancelCall(lost.call, True)
    stage.pool.tick()
    assert not child.killed
    monkeypatch.setattr(dispatch, "_LOST_S", 0.0)
    stage.pool.tick()
    await child.wait_dead()
    assert isinstance(stage.listener.endings["b"], AskedRelease)


async def test_a_lost_job_of_a_batch_ends_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_LOST_S", 0.0)
    (child,) = await stage.start()
    (lost, *_) = stage.give("abc", "many")
    child.run(child.calls[0].number)
    stage.pool.cancel(lost, lost=True)
    stage.pool.tick()
    assert child.killed
    await child.wait_dead()
    assert {id_: type(ending) for id_, ending in stage.listener.endings.items()} == dict.fromkeys(
        "abc", AskedRelease
    )


async def test_cancel_of_one_job_of_a_batch_does_not_cancel_the_others(stage: Stage) -> None:
    (child,) = await stage.start()
    (_, asked, _) = stage.give("abc", "many")
    asked.cancel_reported = True
    stage.pool.cancel(asked)
    child.answer(CallEnded(child.calls[0].number, (AskedCancel("as told", b"out"),) * 3))
    other = AskedRelease("another job of its batch was stopped", output=b"out")
    assert stage.listener.endings == {"a": other, "b": AskedCancel("as told", b"out"), "c": other}


async def test_a_batch_that_cancels_itself_is_cancelled(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("abc", "many")
    child.answer(CallEnded(child.calls[0].number, (AskedCancel("enough"),) * 3))
    assert set(stage.listener.endings.values()) == {AskedCancel("enough")}


async def test_a_lost_job_that_never_started_is_forgotten(stage: Stage) -> None:
    """Both in the queue and in a child that dies."""
    (child,) = await stage.start()
    *_, waiting = stage.give("abc")
    stage.pool.cancel(waiting, lost=True)
    given = stage.held.all()[1]
    stage.held.lose(given)
    stage.pool.cancel(given, lost=True)
    child.run(child.calls[0].number)
    child.die()
    assert set(stage.listener.endings) == {"b"}
    assert len(stage.pool.queue) == 0


async def test_jobs_that_run_alone_get_a_child_of_their_own(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("a", kind="solo")
    solo = await stage.newest(2)
    assert (solo.solo, solo.setup.slots, child.calls) == (True, 1, [])
    solo.ready()
    assert ids_of(solo) == ["a"]
    solo.answer(CallEnded(solo.calls[0].number, (Returned(),)))
    stage.give("b", kind="solo")
    assert ids_of(solo) == ["a", "b"]


async def test_culprits_come_last_and_one_solo_child_is_kept_from_them(stage: Stage) -> None:
    await stage.start()
    stage.pool.queue.culprits.add("bane")
    stage.give("ABC", task="bane", kind="solo")
    stage.give("abc", kind="solo")
    await stage.newest(4)
    solos = [child for child in stage.pool._children if isinstance(child, FakeChild) and child.solo]
    for solo in solos:
        solo.ready()
    assert [ids_of(solo) for solo in solos] == [["A"], ["a"], ["b"]]
    solos[1].answer(CallEnded(solos[1].calls[0].number, (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c"], ["b"]]
    solos[1].answer(CallEnded(solos[1].calls[1].number, (Returned(),)))
    solos[2].answer(CallEnded(solos[2].calls[0].number, (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b"]]
    stage.give("d", kind="solo")
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b", "d"]]


async def test_a_job_that_crashes_or_times_out_alone_is_a_culprit(stage: Stage) -> None:
    await stage.start()
    timeout = Raised(Failure(kind=FailureKind.TIMEOUT))
    endings: list[tuple[Ending, set[str]]] = [
        *((timeout, {"work"}), (Returned(), set()), (timeout, {"work"})),
        (Raised(Failure(kind=FailureKind.ERROR)), set()),
    ]
    for id_, (ending, culprits) in zip("abcd", endings, strict=True):
        stage.give(id_, kind="solo")
        solo = await stage.newest(2)
        if not solo.calls:
            solo.ready()
        solo.answer(CallEnded(solo.calls[-1].number, (ending,)))
        assert stage.pool.queue.culprits == culprits
    stage.give("e", kind="solo")
    solo.run(solo.calls[-1].number)
    solo.die()
    assert stage.pool.queue.culprits == {"work"}


async def test_isolated_tasks_have_a_lower_bound_than_forked_children(stage: Stage) -> None:
    await stage.start(TaskInfo("heavy", isolated=True), TaskInfo("work"))
    stage.pool._alone_max = 7
    stage.give("ABCDE", task="heavy", kind="solo")
    stage.give("abcde", kind="solo")
    await stage.newest(9)
    solos = [child for child in stage.pool._children if isinstance(child, FakeChild) and child.solo]
    for solo in solos:
        solo.answer(ChildReady((TaskInfo("heavy", isolated=True), TaskInfo("work"))))
    assert sorted(id_ for solo in solos for id_ in ids_of(solo)) == sorted("ABCabcde")
    solos[0].answer(CallEnded(solos[0].calls[0].number, (Returned(),)))
    assert ids_of(solos[0]) == ["A", "D"]


async def test_nothing_is_swept_while_a_child_is_being_forked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the supervisor's child before the supervisor knows its process id."""
    swept: list[list[int]] = []
    monkeypatch.setattr(processes, "sweep_strangers", swept.append)
    (child,) = await stage.start()
    template = stage.pool._template = ForkTemplate(child.setup)
    template.busy = True
    child.die()
    stage.pool.tick()
    assert swept == []
    template.busy = False
    stage.pool.tick()
    stage.pool.tick()
    assert len(swept) == 1


async def test_an_idle_solo_child_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOLO_IDLE_S", 0.0)
    await stage.start()
    stage.give("a", kind="solo")
    solo = await stage.newest(2)
    solo.ready()
    solo.answer(CallEnded(solo.calls[0].number, (Returned(),)))
    stage.pool.tick()
    assert solo.sent[-1] == Finish()
    solo.die(0)
    stage.give("b", kind="solo")
    assert (await stage.newest(2)) is not solo


async def test_closing_gives_back_what_has_not_started(stage: Stage) -> None:
    (child,) = await stage.start()
    stage.give("abc")
    child.run(child.calls[0].number)
    assert [held.job.id for held in stage.pool.close()] == ["c"]
    assert child.sent[-1] == Recall()
    child.answer(GivenBack((child.calls[1].number,)))
    assert stage.listener.endings == {"b": AskedRelease("the worker is stopping")}
    await stage.pool.stop("no time left")
    assert stage.listener.endings["a"] == AskedRelease("no time left")


async def test_a_broken_application_is_reported_and_tried_again(stage: Stage) -> None:
    await stage.pool.start("w")
    (child,) = stage.pool._children
    assert isinstance(child, FakeChild)
    failure = Failure(type="SyntaxError", message="no")
    child.answer(ChildBroken(failure))
    child.die(0)
    assert (stage.listener.failure, stage.pool.broken) == (failure, failure)
    again = await stage.newest(1)
    again.ready()
    assert stage.pool.broken is None


async def test_a_child_that_cannot_be_started_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does not wait for a child that was never started."""
    troubles = [BlockingIOError("no more processes"), BlockingIOError("no more processes")]

    class Scarce(FakeChild):
        async def start(self) -> None:
            if troubles:
                raise troubles.pop()

    monkeypatch.setattr(module, "ChildProcess", Scarce)
    stage.pool._make = Scarce
    await stage.pool.start("w")
    child = await stage.newest(1)
    assert troubles == []
    child.ready()
    stage.give("a")
    assert ids_of(child) == ["a"]
