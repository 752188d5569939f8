"""No call begins on a lease that may have lapsed, even while the supervisor is frozen: the board
has the latest instant."""

import asyncio
import itertools
import os
import signal
import threading
from itertools import pairwise
from pathlib import Path

from holdfast.core.model import State
from holdfast.process import boot_ns
from holdfast.worker.wire import (
    NO_DEADLINE_NS,
    AskedCancel,
    CallsEnded,
    CancelCall,
    GivenBack,
    Recall,
    Returned,
)
from tests.wait import wait_until
from tests.worker.child_driver import started, wait_for_pid
from tests.worker.live_workers import Place, until
from tests.worker.pool_driver import PoolDriver
from tests.worker.runner_driver import driven


async def test_calls_wait_for_the_supervisors_renewal() -> None:
    ran: list[int] = []

    def plain(number: int) -> None:
        ran.append(number)

    async def awaited(number: int) -> None:
        ran.append(number)

    async with driven(2, plain, awaited) as one:
        one.board.until_ns = boot_ns()
        tasks = ("plain", "awaited")
        one.runner.receive([one.call(n, tasks[n % 2], [n]) for n in range(1, 7)])
        # Some turns of the loop, in which everything else would have begun.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert (ran, one.board.started) == ([], 0)
        one.board.until_ns = NO_DEADLINE_NS
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
        one.runner.receive([one.call(1, "work", [1]), one.call(2, "work", [2])])
        await asyncio.to_thread(entered.wait)
        one.board.until_ns = boot_ns()
        leave.set()
        await one.ending(1)
        assert (ran, one.board.started) == ([1], 1)
        one.runner.receive([Recall()])
        await one.until(lambda: GivenBack((2,)) in one.words)


async def test_a_coroutine_that_the_loop_reaches_too_late_does_not_begin() -> None:
    """One handler holds the loop while the leases of the next calls lapse."""
    ran: list[int] = []

    async def block() -> None:
        one.board.until_ns = boot_ns()

    async def work(number: int) -> None:
        ran.append(number)

    async with driven(4, block, work) as one:
        one.runner.receive([one.call(1, "block"), *(one.call(n, "work", [n]) for n in (2, 3, 4))])
        assert await one.ending(1) == Returned()
        assert (ran, one.board.started) == ([], 1)
        one.runner.receive([CancelCall(3, lost=True)])
        assert isinstance(await one.ending(3), AskedCancel)
        one.board.until_ns = NO_DEADLINE_NS
        assert [await one.ending(n) for n in (2, 4)] == [Returned()] * 2
    assert ran == [2, 4]


async def test_a_cancelled_call_ends_though_the_supervisor_is_silent() -> None:
    async def block() -> None:
        one.board.until_ns = boot_ns()
        one.runner.receive([CancelCall(2, lost=True)])

    async def work() -> None:
        raise AssertionError("it must not run")

    async with driven(4, block, work) as one:
        one.runner.receive([one.call(1, "block"), one.call(2, "work")])
        assert isinstance(await one.ending(2), AskedCancel)


def test_commands_wait_for_the_supervisors_renewal(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with started(slots=1) as child:
        child.board.until_ns = boot_ns()
        number = child.command(["/bin/sh", "-c", f"echo $$ > {pid}"])
        child.write(Recall())
        child.wait_for(GivenBack, lambda word: word.numbers == (number,))
        again = child.command(["/bin/sh", "-c", f"echo $$ > {pid}"])
        assert (child.board.started, pid.exists()) == (0, False)
        child.board.until_ns = NO_DEADLINE_NS
        assert isinstance(child.ending(again), Returned)
        assert wait_for_pid(pid)
        wait_until(lambda: not child.board.running())


async def test_the_board_promises_no_more_than_the_shortest_lease(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    assert child.board.until_ns == NO_DEADLINE_NS
    (first, second) = driver.give("ab")
    assert child.board.until_ns == int(first.begin_before * 1e9)
    first.begin_before += 5
    driver.pool.update_boards()
    assert child.board.until_ns == int(second.begin_before * 1e9)
    # A running call has begun; its lease says nothing about those that wait.
    child.run(second.call)
    driver.pool.tick()
    assert child.board.until_ns == int(first.begin_before * 1e9)
    child.answer(*(CallsEnded([call.number], (Returned(),)) for call in child.calls))
    driver.pool.tick()
    assert child.board.until_ns == NO_DEADLINE_NS


async def test_a_lost_call_counts_until_the_child_gave_it_up(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    (lost, kept) = driver.give("ab")
    lost.begin_before -= 120
    driver.held.lose(lost)
    driver.pool.cancel(lost, lost=True)
    driver.pool.tick()
    assert not child.board.may_begin()
    child.answer(CallsEnded([lost.call], (AskedCancel(),)))
    driver.pool.tick()
    assert child.board.until_ns == int(kept.begin_before * 1e9)


async def freeze(place: Place, pid: int) -> None:
    """While it holds no lock of the store, which would block all others."""
    for number in itertools.count():
        os.kill(pid, signal.SIGSTOP)
        probe = asyncio.create_task(place.enqueue("unheard_of", f"probe-{number}"))
        done, _ = await asyncio.wait([probe], timeout=1)
        if done:
            return
        os.kill(pid, signal.SIGCONT)
        await probe


async def test_a_child_of_a_frozen_supervisor_begins_no_job_of_another_worker(place: Place) -> None:
    """Short jobs fill the child's queue, behind one that holds its only slot. The supervisor is
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
    await until(lambda: "no longer holds" in place.stderr(), "the sleeper to learn it")
    await place.enqueue("note", "last", to="sleeper")
    (job,) = await place.finished("last")
    assert (job.state, job.worker) == (State.DONE, "sleeper")
    runs = [[entry for entry in place.journal("start") if entry.id == id_] for id_ in behind]
    for one in runs:
        assert all(before.token < after.token for before, after in pairwise(one)), one
    assert {entry.pid for one in runs for entry in one}.isdisjoint({first.pid})
