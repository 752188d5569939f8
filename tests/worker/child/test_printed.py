"""The text that a handler prints becomes the output of its job."""

import asyncio
import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from holdfast.worker.child.attempt import Attempt
from holdfast.worker.child.context import Context
from holdfast.worker.child.printed import CURRENT, copy_printed
from holdfast.worker.wire import NoteUpdate, Raised, Returned
from tests.sources import ROOT
from tests.worker.child_driver import given_job, started
from tests.worker.runner_driver import driven
from tests.worker.sample_handlers import handler, one_argument

TARGET = f"{Path(__file__).parents[1]}/sample_app.py:app"


@contextmanager
def terminal() -> Iterator[Callable[[], bytes]]:
    """Copies what is printed from here on; yields what reached the process's own output."""
    before = sys.stdout, sys.stderr
    sink = io.BytesIO()
    sys.stdout = io.TextIOWrapper(sink, "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(sink, "utf-8", write_through=True)
    copy_printed()
    try:
        yield sink.getvalue
    finally:
        sys.stdout, sys.stderr = before


def speak(word: str) -> None:
    print("blocking", word)
    sys.stderr.write("an error\n")


async def aspeak(word: str) -> None:
    print("async", word)
    await asyncio.sleep(0)
    print("async", word)


def fail() -> None:
    print("before")
    raise ValueError("no")


def speak_both(word: str, ctx: Context) -> None:
    ctx.log("logged")
    print(word)


async def test_each_job_gets_its_own_words() -> None:
    with terminal() as written:
        async with driven(4, speak, aspeak, fail) as one:
            one.runner.receive(
                [
                    one.call(1, "speak", ["a"]),
                    one.call(2, "aspeak", ["b"]),
                    one.call(3, "aspeak", ["c"]),
                    one.call(4, "fail"),
                ]
            )
            endings = [await one.ending(number) for number in (1, 2, 3, 4)]
        assert [ending.output for ending in endings] == [
            b"blocking a\nan error\n",
            b"async b\nasync b\n",
            b"async c\nasync c\n",
            b"before\n",
        ]
        assert isinstance(endings[0], Returned)
        assert isinstance(endings[3], Raised)
        # The worker's terminal shows it, too.
        assert sorted(written().split(b"\n"))[-2:] == [b"before", b"blocking a"]
        print("nobody's")
        assert written().endswith(b"nobody's\n")


async def test_a_running_job_shows_its_words() -> None:
    with terminal():
        go = Event()

        def wait() -> None:
            print("waiting")
            go.wait()

        async with driven(1, wait) as one:
            one.runner.receive([one.call(1, "wait")])
            await one.until(lambda: any(isinstance(word, NoteUpdate) for word in one.words))
            note = next(word for word in one.words if isinstance(word, NoteUpdate))
            assert (note.number, note.output) == (1, b"waiting\n")
            go.set()
            # Its ending repeats nothing.
            assert (await one.ending(1)).output is None


def run(attempt: Attempt) -> bytes | None:
    token = CURRENT.set(attempt)
    try:
        return attempt.run()[0].output
    finally:
        CURRENT.reset(token)


def test_words_and_log_lines_are_in_order() -> None:
    with terminal():
        attempt = Attempt(handler(speak_both, context="ctx"), (given_job(["printed"]),))
        assert run(attempt) == b"logged\nprinted\n"


def test_output_is_bounded() -> None:
    with terminal():
        attempt = Attempt(handler(speak), (given_job(["x" * 10_000]),), output_max=1_000)
        output = run(attempt)
        assert output is not None
        assert len(output) <= 1_000
        assert b"bytes left out" in output


def test_the_jobs_of_a_batch_share_their_words() -> None:
    with terminal():

        def many(values: list[int]) -> None:
            print("together")

        batch = handler(many, batch=3, arguments=one_argument)
        attempt = Attempt(batch, (given_job(1), given_job(2)))
        CURRENT.set(attempt)
        assert [ending.output for ending in attempt.run()] == [b"together\n"] * 2
        CURRENT.set(None)


def test_the_threads_of_a_handler_do_not_disturb_it() -> None:
    """Their context is not the handler's, so their words only reach the terminal."""
    with terminal() as written:

        def start() -> None:
            thread = Thread(target=print, args=("from a thread",))
            thread.start()
            thread.join()

        assert run(Attempt(handler(start), (given_job(),))) is None
        assert b"from a thread\n" in written()


def test_a_log_handler_writes_to_the_output() -> None:
    with terminal():
        handler_ = logging.StreamHandler()
        log = logging.getLogger("tests.printed")
        log.addHandler(handler_)
        try:
            assert (
                run(Attempt(handler(lambda: log.warning("careful")), (given_job(),)))
                == b"careful\n"
            )
        finally:
            log.removeHandler(handler_)


def test_a_process_copies_what_its_handlers_print() -> None:
    with started(cwd=ROOT, target=TARGET) as child:
        assert child.output(child.call("speak", ["there"])) == b"hello there\n"
