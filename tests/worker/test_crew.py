"""Who gets which call, and what becomes of the calls of a dead child; children are doubles."""

import asyncio

import pytest

from holdfast.core.model import Failure, FailureKind, Note, Overrides
from holdfast.worker import crew as module
from holdfast.worker import deaths, processes
from holdfast.worker.nursery import Template
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Back,
    Broken,
    Cancel,
    Ended,
    Ending,
    Finish,
    Raised,
    Ready,
    Recall,
    Returned,
    TaskInfo,
    Told,
)
from tests.worker.doubles import FakeLink
from tests.worker.running import until
from tests.worker.staging import Stage, ids_of

pytestmark = pytest.mark.usefixtures("crew_doubles")


async def test_nothing_is_given_to_a_child_that_is_not_ready(stage: Stage) -> None:
    await stage.crew.start("w")
    stage.give("ab")
    (link,) = stage.crew._seats
    assert isinstance(link, FakeLink)
    assert link.calls == []
    link.ready()
    assert ids_of(link) == ["a", "b"]
    assert set(stage.ears.tasks) == {"work"}
    assert link.setup.worker == "w"


async def test_no_more_than_its_slots(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abc")
    assert ids_of(link) == ["a", "b"]
    link.speak(Ended(link.calls[0].number, (Returned(b"1"),)))
    assert ids_of(link) == ["a", "b", "c"]
    assert stage.ears.endings == {"a": Returned(b"1")}


async def test_calls_are_spread_over_children() -> None:
    stage = Stage(processes=2)
    links = await stage.start()
    stage.give("abcd")
    assert [len(link.calls) for link in links] == [2, 2]
    await stage.crew.stop("over")


async def test_a_batch_is_one_call(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abcd", "many")
    assert ids_of(link) == ["abc", "d"]
    endings = (Returned(b"1"), AskedRelease("x"), Returned())
    link.speak(Ended(link.calls[0].number, endings))
    assert stage.ears.endings == dict(zip("abc", endings, strict=True))


async def test_what_a_run_says_reaches_its_job(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abc", "many")
    number = link.calls[0].number
    link.speak(Told(number, 1, 0.5, b"1", b"out"), Told(number + 99, 0, 0.1))
    assert stage.ears.notes == [("b", Note(progress=0.5, checkpoint=b"1", output=b"out"))]


async def test_an_ending_counts_once(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("a")
    number = link.calls[0].number
    link.speak(Ended(number, (Returned(),)), Ended(number, (Returned(),)))
    link.die()
    assert stage.ears.endings == {"a": Returned()}


async def test_one_running_job_is_to_blame(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abc")
    link.run(link.calls[0].number)
    link.die(-11, b"Fatal Python error")
    ((failure, alone),) = stage.ears.crashes.values()
    assert (list(stage.ears.crashes), alone) == (["a"], True)
    assert (failure.signal, failure.type, failure.trace) == (11, "SIGSEGV", "Fatal Python error")
    another = await stage.newest(1)
    another.ready()
    # What had not started goes on in the next child, in its old order.
    assert ids_of(another) == ["b", "c"]
    assert stage.ears.endings == {}


async def test_of_several_nobody_is_to_blame(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("ab")
    link.run(*(call.number for call in link.calls))
    link.die(1)
    assert {id_: alone for id_, (_, alone) in stage.ears.crashes.items()} == {
        "a": False,
        "b": False,
    }
    assert stage.ears.crashes["a"][0].exit_code == 1


async def test_several_of_one_batch_are_several(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("ab", "many")
    link.run(link.calls[0].number)
    link.die()
    assert [alone for _, alone in stage.ears.crashes.values()] == [False, False]


async def test_a_run_that_ended_untold_is_released(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("ab")
    first, second = (call.number for call in link.calls)
    link.board.start(0, first)
    link.board.end(0)
    link.board.start(0, second)
    link.die()
    assert stage.ears.endings == {
        "a": AskedRelease("its process died before it could tell how the job ended")
    }
    assert stage.ears.crashes["b"][1] is True


async def test_a_dead_command_child_is_nobodys_fault() -> None:
    stage = Stage(commands=True)
    links = await stage.start()
    (commands,) = (link for link in links if link.setup.target is None)
    commands.ready(TaskInfo("command"))
    stage.give("a", "command", "command")
    commands.run(commands.calls[0].number)
    commands.die()
    assert stage.ears.endings == {"a": AskedRelease("its process was killed by SIGKILL")}
    await stage.crew.stop("over")


async def test_a_timeout_kills_the_child_and_spares_the_neighbours() -> None:
    stage = Stage(timeout_ms=1)
    (link,) = await stage.start()
    stage.give("a")
    stage.give("b", overrides=Overrides(timeout_ms=60_000))
    link.run(*(call.number for call in link.calls))

    def killed() -> bool:
        stage.crew.tick()
        return link.killed

    await until(killed, "the child to be killed")
    await link.dead()
    ending = stage.ears.endings["a"]
    assert isinstance(ending, Raised)
    assert ending.failure.type == "AttemptTimeout"
    assert stage.ears.endings["b"] == AskedRelease("a job beside it ran past its timeout")
    assert stage.ears.crashes == {}
    await stage.crew.stop("over")


async def test_a_gentle_task_gets_a_second_more() -> None:
    stage = Stage(timeout_ms=1)
    (link,) = await stage.start(TaskInfo("work", gentle=True))
    stage.give("a")
    link.run(link.calls[0].number)
    await asyncio.sleep(0.05)
    stage.crew.tick()
    assert not link.killed
    await stage.crew.stop("over")


async def test_a_call_that_has_not_started_has_no_timeout() -> None:
    stage = Stage(timeout_ms=1)
    (link,) = await stage.start()
    stage.give("a")
    await asyncio.sleep(0.01)
    stage.crew.tick()
    assert not link.killed
    await stage.crew.stop("over")


async def test_a_lost_run_is_told_and_then_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (link,) = await stage.start()
    (lost, _) = stage.give("ab")
    link.run(*(call.number for call in link.calls))
    stage.hand.lose(lost)
    stage.crew.cancel(lost, lost=True)
    assert link.said[-1] == Cancel(lost.call, True)
    stage.crew.tick()
    assert not link.killed
    monkeypatch.setattr(deaths, "_LOST_S", 0.0)
    stage.crew.tick()
    await link.dead()
    assert isinstance(stage.ears.endings["b"], AskedRelease)


async def test_a_lost_job_of_a_batch_ends_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "_LOST_S", 0.0)
    (link,) = await stage.start()
    (lost, *_) = stage.give("abc", "many")
    link.run(link.calls[0].number)
    stage.crew.cancel(lost, lost=True)
    stage.crew.tick()
    assert link.killed
    await link.dead()
    assert {id_: type(ending) for id_, ending in stage.ears.endings.items()} == dict.fromkeys(
        "abc", AskedRelease
    )


async def test_cancel_of_one_job_of_a_batch_does_not_cancel_the_others(stage: Stage) -> None:
    (link,) = await stage.start()
    (_, asked, _) = stage.give("abc", "many")
    asked.cancel_told = True
    stage.crew.cancel(asked)
    link.speak(Ended(link.calls[0].number, (AskedCancel("as told", b"out"),) * 3))
    other = AskedRelease("another job of its batch was stopped", output=b"out")
    assert stage.ears.endings == {"a": other, "b": AskedCancel("as told", b"out"), "c": other}


async def test_a_batch_that_cancels_itself_is_cancelled(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abc", "many")
    link.speak(Ended(link.calls[0].number, (AskedCancel("enough"),) * 3))
    assert set(stage.ears.endings.values()) == {AskedCancel("enough")}


async def test_a_lost_job_that_never_started_is_forgotten(stage: Stage) -> None:
    """Whether it waits here or in a child that dies."""
    (link,) = await stage.start()
    *_, waiting = stage.give("abc")
    stage.crew.cancel(waiting, lost=True)
    given = stage.hand.all()[1]
    stage.hand.lose(given)
    stage.crew.cancel(given, lost=True)
    link.run(link.calls[0].number)
    link.die()
    assert set(stage.ears.endings) == {"b"}
    assert len(stage.crew._lines) == 0


async def test_jobs_that_run_alone_get_a_child_of_their_own(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("a", kind="solo")
    solo = await stage.newest(2)
    assert (solo.solo, solo.setup.slots, link.calls) == (True, 1, [])
    solo.ready()
    assert ids_of(solo) == ["a"]
    solo.speak(Ended(solo.calls[0].number, (Returned(),)))
    stage.give("b", kind="solo")
    assert ids_of(solo) == ["a", "b"]


async def test_culprits_come_last_and_one_solo_child_is_kept_from_them(stage: Stage) -> None:
    await stage.start()
    stage.crew._lines.culprits.add("bane")
    stage.give("ABC", task="bane", kind="solo")
    stage.give("abc", kind="solo")
    await stage.newest(4)
    solos = [link for link in stage.crew._seats if isinstance(link, FakeLink) and link.solo]
    for solo in solos:
        solo.ready()
    assert [ids_of(solo) for solo in solos] == [["A"], ["a"], ["b"]]
    solos[1].speak(Ended(solos[1].calls[0].number, (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c"], ["b"]]
    solos[1].speak(Ended(solos[1].calls[1].number, (Returned(),)))
    solos[2].speak(Ended(solos[2].calls[0].number, (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b"]]
    stage.give("d", kind="solo")
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b", "d"]]


async def test_who_dies_alone_or_runs_out_of_time_is_a_culprit(stage: Stage) -> None:
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
        solo.speak(Ended(solo.calls[-1].number, (ending,)))
        assert stage.crew._lines.culprits == culprits
    stage.give("e", kind="solo")
    solo.run(solo.calls[-1].number)
    solo.die()
    assert stage.crew._lines.culprits == {"work"}


async def test_isolated_tasks_do_not_get_the_many_that_a_template_allows(stage: Stage) -> None:
    await stage.start(TaskInfo("heavy", isolated=True), TaskInfo("work"))
    stage.crew._alone_max = 7
    stage.give("ABCDE", task="heavy", kind="solo")
    stage.give("abcde", kind="solo")
    await stage.newest(9)
    solos = [link for link in stage.crew._seats if isinstance(link, FakeLink) and link.solo]
    for solo in solos:
        solo.speak(Ready((TaskInfo("heavy", isolated=True), TaskInfo("work"))))
    assert sorted(id_ for solo in solos for id_ in ids_of(solo)) == sorted("ABCabcde")
    solos[0].speak(Ended(solos[0].calls[0].number, (Returned(),)))
    assert ids_of(solos[0]) == ["A", "D"]


async def test_nobody_is_swept_away_while_a_child_is_being_born(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor has it as a child before it knows its number."""
    swept: list[list[int]] = []
    monkeypatch.setattr(processes, "sweep_strangers", swept.append)
    (link,) = await stage.start()
    template = stage.crew._template = Template(link.setup)
    template.busy = True
    link.die()
    stage.crew.tick()
    assert swept == []
    template.busy = False
    stage.crew.tick()
    stage.crew.tick()
    assert len(swept) == 1


async def test_an_idle_solo_child_is_let_go(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOLO_IDLE_S", 0.0)
    await stage.start()
    stage.give("a", kind="solo")
    solo = await stage.newest(2)
    solo.ready()
    solo.speak(Ended(solo.calls[0].number, (Returned(),)))
    stage.crew.tick()
    assert solo.said[-1] == Finish()
    solo.die(0)
    stage.give("b", kind="solo")
    assert (await stage.newest(2)) is not solo


async def test_closing_gives_back_what_has_not_started(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.give("abc")
    link.run(link.calls[0].number)
    assert [held.job.id for held in stage.crew.close()] == ["c"]
    assert link.said[-1] == Recall()
    link.speak(Back((link.calls[1].number,)))
    assert stage.ears.endings == {"b": AskedRelease("the worker is stopping")}
    await stage.crew.stop("no time left")
    assert stage.ears.endings["a"] == AskedRelease("no time left")


async def test_a_broken_application_is_told_and_tried_again(stage: Stage) -> None:
    await stage.crew.start("w")
    (link,) = stage.crew._seats
    assert isinstance(link, FakeLink)
    failure = Failure(type="SyntaxError", message="no")
    link.speak(Broken(failure))
    link.die(0)
    assert (stage.ears.failure, stage.crew.broken) == (failure, failure)
    again = await stage.newest(1)
    again.ready()
    assert stage.crew.broken is None


async def test_no_process_to_be_had(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is full: it is tried again, and a stop does not wait for what never was."""
    troubles = [BlockingIOError("no more processes"), BlockingIOError("no more processes")]

    class Scarce(FakeLink):
        async def start(self) -> None:
            if troubles:
                raise troubles.pop()

    monkeypatch.setattr(module, "Link", Scarce)
    stage.crew._make = Scarce
    await stage.crew.start("w")
    link = await stage.newest(1)
    assert troubles == []
    link.ready()
    stage.give("a")
    assert ids_of(link) == ["a"]
