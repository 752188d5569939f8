"""Queued calls, slots, threads and the loop, in this process, with events and barriers."""

import asyncio
import random
import threading
from contextvars import ContextVar

import pytest

from holdfast.worker.child.context import Context
from holdfast.worker.child.runner import HandlerRunner
from holdfast.worker.outcomes import Retry
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    CallsEnded,
    CancelCall,
    ChildCalls,
    FromChild,
    GivenBack,
    NoteUpdate,
    Raised,
    Recall,
    Returned,
    ToChild,
)
from tests.worker.child_driver import TIMEOUT_S, given_job
from tests.worker.runner_driver import Driven, driven

STATE: ContextVar[int] = ContextVar("STATE", default=0)


async def test_both_kinds_run_and_answers_come_in_few_frames() -> None:
    def plain(x: int) -> int:
        return x

    async def awaited(x: int) -> int:
        return x

    async with driven(4, plain, awaited) as one:
        tasks = ["plain", "awaited"]
        one.runner.receive([one.call(n + 1, tasks[n % 2], [n]) for n in range(400)])
        for number in range(1, 401):
            assert await one.ending(number) == Returned(str(number - 1).encode())
        assert len(one.words) == 400


async def test_functions_that_block_run_as_many_at_once_as_there_are_slots() -> None:
    barrier = threading.Barrier(4)

    def meet() -> None:
        barrier.wait(TIMEOUT_S)

    async with driven(4, meet) as one:
        one.runner.receive([one.call(number, "meet") for number in range(1, 13)])
        for number in range(1, 13):
            assert await one.ending(number) == Returned()


def test_a_thread_may_wake_a_loop_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another wake-up collected its ending, and the runner finished before it came to its own."""
    waking, closed, woken = threading.Event(), threading.Event(), threading.Event()
    wake = HandlerRunner._wake_from_thread

    def wake_late(runner: HandlerRunner) -> None:
        waking.set()
        assert closed.wait(TIMEOUT_S)
        wake(runner)
        woken.set()

    def work() -> None:
        """Ends at once."""

    async def run() -> None:
        async with driven(1, work) as one:
            one.runner.receive([one.call(1, "work")])
            assert await asyncio.to_thread(waking.wait, TIMEOUT_S)
            one.runner._collect()
            assert await one.ending(1) == Returned()

    monkeypatch.setattr(HandlerRunner, "_wake_from_thread", wake_late)
    asyncio.run(run())
    closed.set()
    assert woken.wait(TIMEOUT_S)


async def test_slots_bound_both_kinds_together() -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def enter(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    def plain() -> None:
        enter(1)
        threading.Event().wait(0.001)
        enter(-1)

    async def awaited() -> None:
        enter(1)
        await asyncio.sleep(0.001)
        enter(-1)

    async with driven(3, plain, awaited) as one:
        calls: list[ToChild] = [
            one.call(n, ("plain", "awaited")[n % 3 == 0]) for n in range(1, 200)
        ]
        one.runner.receive(calls[:50])
        await one.ending(10)
        one.runner.receive(calls[50:])
        for number in range(1, 200):
            assert await one.ending(number) == Returned()
        assert 1 < most <= 3


@pytest.mark.parametrize("kind", ["plain", "awaited"])
async def test_calls_start_in_the_order_they_came(kind: str) -> None:
    order: list[int] = []

    def plain(x: int) -> None:
        order.append(x)

    async def awaited(x: int) -> None:
        order.append(x)

    async with driven(1, plain, awaited) as one:
        one.runner.receive([one.call(number, kind, [number]) for number in range(1, 300)])
        await one.ending(299)
    assert order == list(range(1, 300))


async def test_recall_gives_back_what_has_not_started() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(TIMEOUT_S)

    async with driven(1, wait) as one:
        one.runner.receive([one.call(number, "wait") for number in (1, 2, 3)])
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        one.runner.receive([Recall()])
        assert one.words == [GivenBack((2, 3))]
        assert list(one.board.running()) == [1]
        assert one.board.started == 1
        go.set()
        assert await one.ending(1) == Returned()
    assert len(one.words) == 2


async def test_cancel_of_one_that_waits_answers_at_once() -> None:
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    async with driven(1, wait) as one:
        one.runner.receive([one.call(1, "wait"), one.call(2, "wait")])
        one.runner.receive([CancelCall(2), CancelCall(77)])
        assert isinstance(await one.ending(2), AskedCancel)
        go.set()
        assert await one.ending(1) == Returned()
        one.runner.receive([CancelCall(1)])


async def test_cancel_interrupts_a_coroutine_and_tells_a_function() -> None:
    begun = threading.Event()

    async def awaited() -> None:
        await asyncio.Event().wait()

    def plain(ctx: Context) -> str:
        begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        return f"lost={ctx.lost}"

    async with driven(2, awaited, plain) as one:
        one.runner.receive([one.call(1, "awaited"), one.call(2, "plain")])
        one.runner.receive([CancelCall(1)])
        assert isinstance(await one.ending(1), AskedCancel)
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        one.runner.receive([CancelCall(2, lost=True)])
        assert await one.ending(2) == Returned(b'"lost=True"')


async def test_an_unknown_task_is_released_uncharged() -> None:
    async with driven(1) as one:
        one.runner.receive([ChildCalls(1, "mail", [(given_job(), given_job())])])
        (word,) = one.words
        assert isinstance(word, CallsEnded)
        assert len(word.endings) == 2
        # Not at once: it has only so many releases until another worker takes it.
        for ending in word.endings:
            assert isinstance(ending, AskedRelease)
            assert ending.delay_ms >= 1_000


async def test_a_handler_that_cancels_other_tasks_costs_no_slot() -> None:
    async def wreck() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await asyncio.sleep(0)

    async with driven(1, wreck) as one:
        one.runner.receive([one.call(1, "wreck"), one.call(2, "wreck")])
        for number in (1, 2):
            ending = await one.ending(number)
            assert isinstance(ending, Raised)
            assert "CancelledError" in ending.failure.type


@pytest.mark.parametrize("kinds", ["plain", "awaited", "plain awaited"])
async def test_context_variables_do_not_reach_the_next_call(kinds: str) -> None:
    def plain() -> int:
        before = STATE.get()
        STATE.set(before + 1)
        return before

    async def awaited() -> int:
        return plain()

    async with driven(1, plain, awaited) as one:
        tasks = kinds.split()
        one.runner.receive([one.call(n, tasks[n % len(tasks)]) for n in range(1, 9)])
        for number in range(1, 9):
            assert await one.ending(number) == Returned(b"0")


async def test_answers_are_sent_in_the_context_of_the_runner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker without child processes goes on from there, and must see nothing of its handlers."""
    seen: list[int] = []
    hear = Driven._hear

    def heard(self: Driven, words: list[FromChild]) -> None:
        seen.append(STATE.get())
        hear(self, words)

    async def awaited() -> None:
        STATE.set(7)

    def plain() -> None:
        STATE.set(8)

    monkeypatch.setattr(Driven, "_hear", heard)
    async with driven(1, awaited, plain) as one:
        for number in range(1, 400):
            one.runner.receive([one.call(number, "plain" if number % 50 == 0 else "awaited")])
        for number in range(1, 400):
            await one.ending(number)
    assert seen
    assert set(seen) == {0}


async def test_notes_come_while_it_runs_and_before_the_ending() -> None:
    go = asyncio.Event()

    async def work(ctx: Context) -> None:
        ctx.log("begun")
        await go.wait()
        ctx.checkpoint(1)
        ctx.log("ended")

    async with driven(1, work) as one:
        one.runner.receive([one.call(1, "work")])
        await one.until(lambda: one.words)
        assert one.words == [NoteUpdate(1, output=b"begun\n")]
        go.set()
        assert await one.ending(1) == Returned(output=b"begun\nended\n")
    assert one.words[1] == NoteUpdate(1, checkpoint=b"1")
    assert len(one.words) == 3


async def test_stop_cancels_what_runs_and_starts_nothing_more() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async with driven(1, wait) as one:
        one.runner.receive([one.call(1, "wait"), one.call(2, "wait")])
        await asyncio.sleep(0)
        one.runner.stop()
        assert isinstance(await one.ending(1), AskedRelease)
    assert len(one.words) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_every_call_is_answered_once_whatever_is_cancelled_or_recalled(seed: int) -> None:
    rng = random.Random(seed)

    def plain(pause_s: float, ctx: Context) -> None:
        ctx.progress(0.5, "half")
        if pause_s:
            threading.Event().wait(pause_s)

    async def awaited(pause_s: float, ctx: Context) -> None:
        ctx.log("begun")
        await asyncio.sleep(pause_s)

    def quick() -> None:
        raise Retry("again")

    async with driven(rng.choice((1, 3, 8)), plain, awaited, quick) as one:
        number = 0
        while number < 600:
            words: list[ToChild] = []
            for _ in range(rng.randint(1, 60)):
                number += 1
                task = rng.choice(("plain", "awaited", "quick"))
                pause_s = 0.0 if rng.random() < 0.9 else rng.random() / 200
                words.append(one.call(number, task, None if task == "quick" else [pause_s]))
                if rng.random() < 0.05:
                    words.append(CancelCall(rng.randint(1, number)))
            if rng.random() < 0.2:
                words.append(Recall())
            one.runner.receive(words)
            await asyncio.sleep(rng.random() / 500)
    back = [each for word in one.words if isinstance(word, GivenBack) for each in word.numbers]
    ended = [
        number for word in one.words if isinstance(word, CallsEnded) for number in word.numbers
    ]
    assert sorted(back + ended) == list(range(1, number + 1))
    for word in one.words:
        if isinstance(word, NoteUpdate):
            # Nothing is told of a call after its ending.
            assert one.words.index(word) < one.words.index(_ended(one.words, word.number))


async def test_calls_that_return_nothing_share_an_answer() -> None:
    """Also with one call that raised between them, and all in one frame."""

    def quiet() -> None:
        pass

    def fails() -> None:
        raise ValueError

    async with driven(1, quiet, fails) as one:
        calls = [one.call(number, "fails" if number == 3 else "quiet") for number in range(1, 6)]
        one.runner.receive([*calls])
        await one.until(lambda: sum(map(_count, one.words)) == 5)
        ended = [word for word in one.words if isinstance(word, CallsEnded)]
        assert [number for word in ended for number in word.numbers] == [1, 2, 3, 4, 5]
        assert {number: type(word.endings[0]) for word in ended for number in word.numbers} == {
            number: Raised if number == 3 else Returned for number in range(1, 6)
        }
        assert any(len(word.numbers) > 1 for word in ended)


def _count(word: FromChild) -> int:
    return len(word.numbers) if isinstance(word, CallsEnded) else 0


def _ended(words: list[FromChild], number: int) -> CallsEnded:
    return next(word for word in words if isinstance(word, CallsEnded) and number in word.numbers)
