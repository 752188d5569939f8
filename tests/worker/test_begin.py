"""Nothing begins on a lease that may have lapsed: a child heeds its supervisor's last word, also
while that is frozen and cannot speak."""

import asyncio
import itertools
import os
import signal
import threading
from itertools import pairwise
from pathlib import Path

from holdfast.core.model import State
from holdfast.worker.board import ALWAYS_NS
from holdfast.worker.clock import boot_ns
from holdfast.worker.wire import AskedCancel, Back, Cancel, Ended, Recall, Returned
from tests.patience import wait_until
from tests.worker.driven import driven
from tests.worker.driving import started, wait_for_pid
from tests.worker.running import Place, until
from tests.worker.staging import Stage


async def test_calls_wait_until_the_supervisor_has_spoken() -> None:
    ran: list[int] = []

    def plain(number: int) -> None:
        ran.append(number)

    async def awaited(number: int) -> None:
        ran.append(number)

    async with driven(2, plain, awaited) as one:
        one.board.until_ns = boot_ns()
        tasks = ("plain", "awaited")
        one.runner.take([one.call(n, tasks[n % 2], [n]) for n in range(1, 7)])
        # Some turns of the loop, in which everything else would have begun.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert (ran, one.board.started) == ([], 0)
        one.board.until_ns = ALWAYS_NS
        for number in range(1, 7):
            assert await one.ending(number) == Returned()
    assert sorted(ran) == list(range(1, 7))


async def test_a_thread_at_work_does_not_take_the_next_call_either() -> None:
    entered, leave = threading.Event(), threading.Event()
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        entered.set()
        leave.wait()

    async with driven(1, work) as one:
        one.runner.take([one.call(1, "work", [1]), one.call(2, "work", [2])])
        await asyncio.to_thread(entered.wait)
        one.board.until_ns = boot_ns()
        leave.set()
        await one.ending(1)
        assert (ran, one.board.started) == ([1], 1)
        one.runner.take([Recall()])
        await one.until(lambda: Back((2,)) in one.words)


async def test_a_coroutine_that_the_loop_comes_to_late_does_not_begin() -> None:
    """One handler holds the loop while the lease of those that were to begin next lapses."""
    ran: list[int] = []

    async def block() -> None:
        one.board.until_ns = boot_ns()

    async def work(number: int) -> None:
        ran.append(number)

    async with driven(4, block, work) as one:
        one.runner.take([one.call(1, "block"), *(one.call(n, "work", [n]) for n in (2, 3, 4))])
        assert await one.ending(1) == Returned()
        assert (ran, one.board.started) == ([], 1)
        one.runner.take([Cancel(3, lost=True)])
        assert isinstance(await one.ending(3), AskedCancel)
        one.board.until_ns = ALWAYS_NS
        assert [await one.ending(n) for n in (2, 4)] == [Returned()] * 2
    assert ran == [2, 4]


async def test_what_was_cancelled_ends_however_long_the_supervisor_is_silent() -> None:
    async def block() -> None:
        one.board.until_ns = boot_ns()
        one.runner.take([Cancel(2, lost=True)])

    async def work() -> None:
        raise AssertionError("it must not run")

    async with driven(4, block, work) as one:
        one.runner.take([one.call(1, "block"), one.call(2, "work")])
        assert isinstance(await one.ending(2), AskedCancel)


def test_commands_wait_until_the_supervisor_has_spoken(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with started(slots=1) as child:
        child.board.until_ns = boot_ns()
        number = child.command(["/bin/sh", "-c", f"echo $$ > {pid}"])
        child.say(Recall())
        child.hear(Back, lambda word: word.numbers == (number,))
        again = child.command(["/bin/sh", "-c", f"echo $$ > {pid}"])
        assert (child.board.started, pid.exists()) == (0, False)
        child.board.until_ns = ALWAYS_NS
        assert isinstance(child.ending(again), Returned)
        assert wait_for_pid(pid)
        wait_until(lambda: not child.board.running())


async def test_the_board_promises_no_more_than_the_shortest_lease(stage: Stage) -> None:
    (link,) = await stage.start()
    assert link.board.until_ns == ALWAYS_NS
    (first, second) = stage.give("ab")
    assert link.board.until_ns == int(first.begin_before() * 1e9)
    first.renewed_at += 5
    stage.crew.vouch()
    assert link.board.until_ns == int(second.begin_before() * 1e9)
    # What runs has begun; its lease says nothing about those that wait.
    link.run(second.call)
    stage.crew.tick()
    assert link.board.until_ns == int(first.begin_before() * 1e9)
    link.speak(*(Ended(call.number, (Returned(),)) for call in link.calls))
    stage.crew.tick()
    assert link.board.until_ns == ALWAYS_NS


async def test_a_lost_call_counts_until_the_child_has_let_go_of_it(stage: Stage) -> None:
    (link,) = await stage.start()
    (lost, kept) = stage.give("ab")
    lost.renewed_at -= 120
    stage.hand.lose(lost)
    stage.crew.cancel(lost, lost=True)
    stage.crew.tick()
    assert not link.board.may_begin()
    link.speak(Ended(lost.call, (AskedCancel(),)))
    stage.crew.tick()
    assert link.board.until_ns == int(kept.begin_before() * 1e9)


async def freeze(place: Place, pid: int) -> None:
    """At a moment when it holds no lock of the store, which it would keep from all others."""
    for number in itertools.count():
        os.kill(pid, signal.SIGSTOP)
        probe = asyncio.create_task(place.enqueue("unheard_of", f"probe-{number}"))
        done, _ = await asyncio.wait([probe], timeout=1)
        if done:
            return
        os.kill(pid, signal.SIGCONT)
        await probe


async def test_a_frozen_supervisors_child_begins_nothing_that_another_has(place: Place) -> None:
    """Short jobs fill the child's line, behind one that holds its only slot. The supervisor is
    frozen past the lease, another worker runs them all, and then the slot becomes free."""
    await place.app.declare("default", lease="2s")
    short, behind = [f"s{n}" for n in range(600)], [f"b{n}" for n in range(200)]
    await place.enqueue("note", *short)
    await place.enqueue("hold", "h")
    await place.enqueue("note", *behind)
    sleeper = await place.worker(name="sleeper", upkeep=False, concurrency=1, prefetch=1000)
    (first,) = await place.started("h")
    await freeze(place, sleeper.pid)
    await place.worker(name="other", concurrency=4)
    await place.started(*behind, "h", "h")
    place.go()
    await until(lambda: len(place.journal("end")) >= len(short) + len(behind) + 2, "both holders")
    os.kill(sleeper.pid, signal.SIGCONT)
    await until(lambda: "is lost" in place.stderr(), "the sleeper to learn it")
    await place.enqueue("note", "last", to="sleeper")
    (job,) = await place.finished("last")
    assert (job.state, job.worker) == (State.DONE, "sleeper")
    runs = [[entry for entry in place.journal("start") if entry.id == id_] for id_ in behind]
    for one in runs:
        assert all(before.token < after.token for before, after in pairwise(one)), one
    assert {entry.pid for one in runs for entry in one}.isdisjoint({first.pid})
