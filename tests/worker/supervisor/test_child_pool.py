"""Dispatch of calls to children, and the calls of dead children; children are doubles."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core.model import Failure, FailureKind, Note, Overrides
from holdfast.worker import processes
from holdfast.worker.supervisor import child_pool as module
from holdfast.worker.supervisor import dispatch
from holdfast.worker.supervisor.child_process import ForkTemplate
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    CallsEnded,
    CancelCall,
    ChildBroken,
    ChildCalls,
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
from tests.worker.pool_driver import PoolDriver, ids_of

DONE = Returned()

pytestmark = pytest.mark.usefixtures("pool_doubles")


async def test_nothing_is_given_to_a_child_that_is_not_ready(driver: PoolDriver) -> None:
    await driver.pool.start("w")
    driver.give("ab")
    (child,) = driver.pool._children
    assert isinstance(child, FakeChild)
    assert child.calls == []
    child.ready()
    assert ids_of(child) == ["a", "b"]
    assert set(driver.listener.tasks) == {"work"}
    assert child.setup.worker == "w"


async def test_no_more_than_its_slots(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("abc")
    assert ids_of(child) == ["a", "b"]
    child.answer(CallsEnded([child.calls[0].number], (Returned(b"1"),)))
    assert ids_of(child) == ["a", "b", "c"]
    assert driver.listener.endings == {"a": Returned(b"1")}


async def test_calls_of_a_task_travel_together(driver: PoolDriver) -> None:
    """Only those that follow each other and have the same timeout, so that they start in order."""
    (child,) = await driver.start()
    child.setup = replace(child.setup, slots=9)
    driver.pool._children[child].slots = 9
    hurried = Overrides(timeout_ms=500)
    leased = [
        *driver.hold("ab"),
        *driver.hold("c", overrides=hurried),
        *driver.hold("de", "many"),
        *driver.hold("fg"),
    ]
    driver.pool.add(leased)
    sent = [message for message in child.sent if isinstance(message, ChildCalls)]
    together = [
        (
            message.first,
            message.task,
            ["".join(job.id for job in jobs) for jobs in message.calls],
            message.timeout_ms,
        )
        for message in sent
    ]
    assert together == [
        (1, "work", ["a", "b"], None),
        (3, "work", ["c"], 500),
        (4, "many", ["de"], None),
        (5, "work", ["f", "g"], None),
    ]
    child.answer(CallsEnded([call.number for call in child.calls if call.number != 4], (DONE,)))
    child.answer(CallsEnded([4], (DONE, DONE)))
    assert driver.listener.endings == dict.fromkeys("abcdefg", DONE)


async def test_calls_are_spread_over_children() -> None:
    driver = PoolDriver(processes=2)
    children = await driver.start()
    driver.give("abcd")
    assert [len(child.calls) for child in children] == [2, 2]
    await driver.pool.stop("over")


async def test_a_batch_is_one_call(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("abcd", "many")
    assert ids_of(child) == ["abc", "d"]
    endings = (Returned(b"1"), AskedRelease("x"), Returned())
    child.answer(CallsEnded([child.calls[0].number], endings))
    assert driver.listener.endings == dict(zip("abc", endings, strict=True))


async def test_a_note_reaches_its_job(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    helds = driver.give("abc", "many")
    number = child.calls[0].number
    child.answer(NoteUpdate(number, 1, 0.5, b"1", b"out"), NoteUpdate(number + 99, 0, 0.1))
    note = Note(progress=0.5, checkpoint=b"1", output=b"out")
    assert [held.note for held in helds] == [None, note, None]


async def test_an_ending_counts_once(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("a")
    number = child.calls[0].number
    child.answer(CallsEnded([number], (Returned(),)), CallsEnded([number], (Returned(),)))
    child.die()
    assert driver.listener.endings == {"a": Returned()}


async def test_calls_that_ended_alike_share_an_answer(driver: PoolDriver) -> None:
    """Each job of a call gets its own ending; a call that is not known any more gets none."""
    (child,) = await driver.start()
    driver.give("ab")
    child.answer(CallsEnded([call.number for call in child.calls], (Returned(b"1"),)))
    assert driver.listener.endings == {"a": Returned(b"1"), "b": Returned(b"1")}
    child.answer(CallsEnded([child.calls[0].number, 99], (Returned(b"2"),)))
    assert driver.listener.endings.keys() == set("ab")
    driver.give("cdefgh", "many")
    endings = (Returned(b"1"), AskedRelease("x"), Returned())
    child.answer(CallsEnded([call.number for call in child.calls[2:]], endings))
    for ids in ("cde", "fgh"):
        assert tuple(driver.listener.endings[id_] for id_ in ids) == endings


async def test_a_cancelled_call_shares_an_answer_with_others(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    asked, other = driver.give("ab")
    driver.pool.cancel(asked)
    child.answer(CallsEnded([asked.call, other.call], (AskedCancel("enough"),)))
    release = AskedRelease("another job of its batch was stopped")
    assert driver.listener.endings == {"a": release, "b": AskedCancel("enough")}


async def test_a_single_running_job_is_the_culprit(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("abc")
    child.run(child.calls[0].number)
    child.die(-11, b"Fatal Python error")
    ((failure, alone),) = driver.listener.crashes.values()
    assert (list(driver.listener.crashes), alone) == (["a"], True)
    assert (failure.signal, failure.type, failure.trace) == (11, "SIGSEGV", "Fatal Python error")
    another = await driver.newest(1)
    another.ready()
    # Calls that had not started continue in the next child, in their old order.
    assert ids_of(another) == ["b", "c"]
    assert driver.listener.endings == {}


async def test_of_several_running_jobs_none_is_the_culprit(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("ab")
    child.run(*(call.number for call in child.calls))
    child.die(1)
    assert {id_: alone for id_, (_, alone) in driver.listener.crashes.items()} == {
        "a": False,
        "b": False,
    }
    assert driver.listener.crashes["a"][0].exit_code == 1


async def test_jobs_of_one_batch_count_separately(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("ab", "many")
    child.run(child.calls[0].number)
    child.die()
    assert [alone for _, alone in driver.listener.crashes.values()] == [False, False]


async def test_a_call_whose_ending_was_never_received_is_released(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("ab")
    first, second = (call.number for call in child.calls)
    child.board.start(0, first)
    child.board.end(0)
    child.board.start(0, second)
    child.die()
    assert driver.listener.endings == {
        "a": AskedRelease("its process died before it could report how the job ended")
    }
    assert driver.listener.crashes["b"][1] is True


async def test_a_dead_command_child_is_no_jobs_fault() -> None:
    driver = PoolDriver(commands=True)
    children = await driver.start()
    (commands,) = (child for child in children if child.setup.target is None)
    commands.ready(TaskInfo("command"))
    driver.give("a", "command", "command")
    commands.run(commands.calls[0].number)
    commands.die()
    assert driver.listener.endings == {"a": AskedRelease("its process was killed by SIGKILL")}
    await driver.pool.stop("over")


async def test_a_timeout_kills_the_child_and_spares_the_neighbours() -> None:
    driver = PoolDriver(timeout_ms=1)
    (child,) = await driver.start()
    driver.give("a")
    driver.give("b", overrides=Overrides(timeout_ms=60_000))
    child.run(*(call.number for call in child.calls))

    def killed() -> bool:
        driver.pool.tick()
        return child.killed

    await until(killed, "the child to be killed")
    await child.wait_dead()
    ending = driver.listener.endings["a"]
    assert isinstance(ending, Raised)
    assert ending.failure.type == "AttemptTimeout"
    assert driver.listener.endings["b"] == AskedRelease(
        "another job in its process ran past its timeout"
    )
    assert driver.listener.crashes == {}
    await driver.pool.stop("over")


async def test_a_gentle_task_gets_a_second_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PoolDriver(timeout_ms=1)
    (child,) = await driver.start(TaskInfo("work", gentle=True))
    driver.give("a")
    child.run(child.calls[0].number)
    (started_ns,) = child.board.running().values()

    def killed_after(ns: int) -> bool:
        monkeypatch.setattr(dispatch, "monotonic_ns", lambda: started_ns + ns)
        driver.pool.tick()
        return child.killed

    assert [killed_after(1_001_000_000), killed_after(1_001_000_001)] == [False, True]
    await driver.pool.stop("over")


async def test_a_call_that_has_not_started_has_no_timeout() -> None:
    driver = PoolDriver(timeout_ms=1)
    (child,) = await driver.start()
    driver.give("a")
    await asyncio.sleep(0.01)
    driver.pool.tick()
    assert not child.killed
    await driver.pool.stop("over")


async def test_a_lost_call_is_cancelled_and_then_killed(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (child,) = await driver.start()
    (lost, _) = driver.give("ab")
    child.run(*(call.number for call in child.calls))
    driver.held.lose(lost)
    driver.pool.cancel(lost, lost=True)
    assert child.sent[-1] == CancelCall(lost.call, True)
    driver.pool.tick()
    assert not child.killed
    monkeypatch.setattr(dispatch, "_LOST_S", 0.0)
    driver.pool.tick()
    await child.wait_dead()
    assert isinstance(driver.listener.endings["b"], AskedRelease)


async def test_a_call_that_must_end_at_once_is_cancelled_and_then_killed(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (child,) = await driver.start()
    (ended, _) = driver.give("ab")
    child.run(*(call.number for call in child.calls))
    ended.cancel_known = ended.forced = True
    driver.pool.cancel(ended)
    assert child.sent[-1] == CancelCall(ended.call, force=True)
    driver.pool.tick()
    assert not child.killed, "it may end by itself"
    monkeypatch.setattr(dispatch, "_FORCED_S", 0.0)
    driver.pool.tick()
    await child.wait_dead()
    by_force = AskedCancel("it was cancelled by force while it ran")
    released = AskedRelease("another job in its process was cancelled by force")
    assert driver.listener.endings == {"a": by_force, "b": released}


async def test_only_the_cancelled_job_of_a_batch_ends_by_force(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_FORCED_S", 0.0)
    (child,) = await driver.start()
    (_, ended, _) = driver.give("abc", "many")
    child.run(child.calls[0].number)
    ended.cancel_known = ended.forced = True
    driver.pool.cancel(ended)
    driver.pool.tick()
    await child.wait_dead()
    assert {id_: type(ending) for id_, ending in driver.listener.endings.items()} == {
        "a": AskedRelease,
        "b": AskedCancel,
        "c": AskedRelease,
    }


async def test_a_lost_job_of_a_batch_ends_the_run(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_LOST_S", 0.0)
    (child,) = await driver.start()
    (lost, *_) = driver.give("abc", "many")
    child.run(child.calls[0].number)
    driver.pool.cancel(lost, lost=True)
    driver.pool.tick()
    assert child.killed
    await child.wait_dead()
    assert {id_: type(ending) for id_, ending in driver.listener.endings.items()} == dict.fromkeys(
        "abc", AskedRelease
    )


async def test_cancel_of_one_job_of_a_batch_does_not_cancel_the_others(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    (_, asked, _) = driver.give("abc", "many")
    asked.cancel_known = True
    driver.pool.cancel(asked)
    child.answer(CallsEnded([child.calls[0].number], (AskedCancel("as told", b"out"),) * 3))
    other = AskedRelease("another job of its batch was stopped", output=b"out")
    assert driver.listener.endings == {"a": other, "b": AskedCancel("as told", b"out"), "c": other}


async def test_a_batch_that_cancels_itself_is_cancelled(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("abc", "many")
    child.answer(CallsEnded([child.calls[0].number], (AskedCancel("enough"),) * 3))
    assert set(driver.listener.endings.values()) == {AskedCancel("enough")}


async def test_a_lost_job_that_never_started_is_forgotten(driver: PoolDriver) -> None:
    """Both in the queue and in a child that dies."""
    (child,) = await driver.start()
    *_, waiting = driver.give("abc")
    driver.pool.cancel(waiting, lost=True)
    given = driver.held.all()[1]
    driver.held.lose(given)
    driver.pool.cancel(given, lost=True)
    child.run(child.calls[0].number)
    child.die()
    assert set(driver.listener.endings) == {"b"}
    assert len(driver.pool.queue) == 0


async def test_jobs_that_run_alone_get_a_child_of_their_own(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("a", kind="solo")
    solo = await driver.newest(2)
    assert (solo.solo, solo.setup.slots, child.calls) == (True, 1, [])
    solo.ready()
    assert ids_of(solo) == ["a"]
    solo.answer(CallsEnded([solo.calls[0].number], (Returned(),)))
    driver.give("b", kind="solo")
    assert ids_of(solo) == ["a", "b"]


async def test_culprits_come_last_and_one_solo_child_is_kept_from_them(driver: PoolDriver) -> None:
    await driver.start()
    driver.pool.queue.culprits.add("bane")
    driver.give("ABC", task="bane", kind="solo")
    driver.give("abc", kind="solo")
    await driver.newest(4)
    solos = [
        child for child in driver.pool._children if isinstance(child, FakeChild) and child.solo
    ]
    for solo in solos:
        solo.ready()
    assert [ids_of(solo) for solo in solos] == [["A"], ["a"], ["b"]]
    solos[1].answer(CallsEnded([solos[1].calls[0].number], (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c"], ["b"]]
    solos[1].answer(CallsEnded([solos[1].calls[1].number], (Returned(),)))
    solos[2].answer(CallsEnded([solos[2].calls[0].number], (Returned(),)))
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b"]]
    driver.give("d", kind="solo")
    assert [ids_of(solo) for solo in solos] == [["A"], ["a", "c", "B"], ["b", "d"]]


async def test_a_job_that_crashes_or_times_out_alone_is_a_culprit(driver: PoolDriver) -> None:
    await driver.start()
    timeout = Raised(Failure(kind=FailureKind.TIMEOUT))
    endings: list[tuple[Ending, set[str]]] = [
        *((timeout, {"work"}), (Returned(), set()), (timeout, {"work"})),
        (Raised(Failure(kind=FailureKind.ERROR)), set()),
    ]
    for id_, (ending, culprits) in zip("abcd", endings, strict=True):
        driver.give(id_, kind="solo")
        solo = await driver.newest(2)
        if not solo.calls:
            solo.ready()
        solo.answer(CallsEnded([solo.calls[-1].number], (ending,)))
        assert driver.pool.queue.culprits == culprits
    driver.give("e", kind="solo")
    solo.run(solo.calls[-1].number)
    solo.die()
    assert driver.pool.queue.culprits == {"work"}


async def test_isolated_tasks_have_a_lower_bound_than_forked_children(driver: PoolDriver) -> None:
    await driver.start(TaskInfo("heavy", isolated=True), TaskInfo("work"))
    driver.pool._alone_max = 7
    driver.give("ABCDE", task="heavy", kind="solo")
    driver.give("abcde", kind="solo")
    await driver.newest(9)
    solos = [
        child for child in driver.pool._children if isinstance(child, FakeChild) and child.solo
    ]
    for solo in solos:
        solo.answer(ChildReady((TaskInfo("heavy", isolated=True), TaskInfo("work"))))
    assert sorted(id_ for solo in solos for id_ in ids_of(solo)) == sorted("ABCabcde")
    solos[0].answer(CallsEnded([solos[0].calls[0].number], (Returned(),)))
    assert ids_of(solos[0]) == ["A", "D"]


async def test_nothing_is_swept_while_a_child_is_being_forked(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the supervisor's child before the supervisor knows its process id."""
    swept: list[list[int]] = []
    monkeypatch.setattr(processes, "sweep_strangers", swept.append)
    (child,) = await driver.start()
    template = driver.pool._template = ForkTemplate(child.setup)
    template.busy = True
    child.die()
    driver.pool.tick()
    assert swept == []
    template.busy = False
    driver.pool.tick()
    driver.pool.tick()
    assert len(swept) == 1


async def test_a_job_does_not_end_before_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a dead child run until they are swept, which waits for a fork."""
    driver = PoolDriver(commands=True)
    monkeypatch.setattr(
        processes, "sweep_strangers", lambda _known: swept.append(dict(driver.listener.endings))
    )
    swept: list[dict[str, Ending]] = []
    commands = next(child for child in await driver.start() if child.setup.target is None)
    driver.give("a", task="command", kind="command")
    commands.run(commands.calls[0].number)
    template = driver.pool._template = ForkTemplate(commands.setup)
    template.busy = True
    commands.die()
    driver.pool.tick()
    assert driver.listener.endings == {}
    template.busy = False
    driver.pool.tick()
    assert swept == [{}]
    assert list(driver.listener.endings) == ["a"]


async def test_an_idle_solo_child_is_ended(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SOLO_IDLE_S", 0.0)
    await driver.start()
    driver.give("a", kind="solo")
    solo = await driver.newest(2)
    solo.ready()
    solo.answer(CallsEnded([solo.calls[0].number], (Returned(),)))
    driver.pool.tick()
    assert solo.sent[-1] == Finish()
    solo.die(0)
    driver.give("b", kind="solo")
    assert (await driver.newest(2)) is not solo


async def test_closing_gives_back_what_has_not_started(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.give("abc")
    child.run(child.calls[0].number)
    assert [held.job.id for held in driver.pool.close()] == ["c"]
    assert child.sent[-1] == Recall()
    child.answer(GivenBack((child.calls[1].number,)))
    assert driver.listener.endings == {"b": AskedRelease("the worker is stopping")}
    await driver.pool.stop("no time left")
    assert driver.listener.endings["a"] == AskedRelease("no time left")


async def test_a_broken_application_is_reported_and_tried_again(driver: PoolDriver) -> None:
    await driver.pool.start("w")
    (child,) = driver.pool._children
    assert isinstance(child, FakeChild)
    failure = Failure(type="SyntaxError", message="no")
    child.answer(ChildBroken(failure))
    child.die(0)
    assert (driver.listener.failure, driver.pool.broken) == (failure, failure)
    again = await driver.newest(1)
    again.ready()
    assert driver.pool.broken is None


async def test_a_child_that_cannot_be_started_is_tried_again(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does not wait for a child that was never started."""
    troubles = [BlockingIOError("no more processes"), BlockingIOError("no more processes")]

    class Scarce(FakeChild):
        async def start(self) -> None:
            if troubles:
                raise troubles.pop()

    monkeypatch.setattr(module, "ChildProcess", Scarce)
    driver.pool._make = Scarce
    await driver.pool.start("w")
    child = await driver.newest(1)
    assert troubles == []
    child.ready()
    driver.give("a")
    assert ids_of(child) == ["a"]
