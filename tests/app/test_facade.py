"""The blocking façade: the same methods, one loop, no fork, no hang."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import BlockingHoldfast, Holdfast
from holdfast.app.engine_host import LoopThread
from holdfast.core.model import State
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import (
    EngineClosed,
    EngineUnavailable,
    LeaseLost,
    UnknownQueue,
    UsageError,
)
from holdfast.events import ProcessEvent, Reaped
from holdfast.ops.redrives import Redrives
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.ops.workers import Workers


def test_one_job_from_end_to_end(url: str) -> None:
    with BlockingHoldfast(url) as app:
        receipt = app.enqueue("mail", {"to": "x"}, delay=0)
        assert app.enqueue_many([app.job("t", id="b")])[0].id == "b"
        leases = app.lease(limit=2, wait="1s")
        assert [lease.id for lease in leases] == [receipt.id, "b"]
        app.complete(leases[0], 1)
        app.release(leases[1])
        with pytest.raises(LeaseLost):
            app.renew(leases[0])
        with pytest.raises(UnknownQueue):
            app.enqueue("t", queue="nowhere")
        assert sorted(job.state for job in app.jobs()) == [State.DONE, State.WAITING]
        app.declare("other")
        assert [view.queue.name for view in app.queues()] == ["default", "other"]
        app.schedules.add(Schedule(name="s", job=app.job("t"), cron="@daily"))
        assert [each.name for each in app.schedules.all()] == ["s"]
        assert app.workers.all() == []

        @app.task(queue="other")
        def note(text: str) -> None: ...

        assert note.enqueue("a").id == app.lease("other")[0].id
        assert list(app.handlers) == [note.name]


@pytest.mark.parametrize(
    ("blocking", "original"),
    [
        (BlockingHoldfast, Holdfast),
        (type(BlockingHoldfast("memory:").schedules), Schedules),
        (type(BlockingHoldfast("memory:").workers), Workers),
        (type(BlockingHoldfast("memory:").redrives), Redrives),
    ],
)
def test_nothing_is_missing(blocking: type, original: type) -> None:
    # Upkeep runs in the background here, so it is started instead.
    instead = {"upkeep": "start_upkeep", "arun": "run"}
    for name, _ in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_"):
            assert hasattr(blocking, instead.get(name, name)), name


def test_more_jobs_than_a_page_are_walked() -> None:
    with BlockingHoldfast("memory:") as app:
        app.enqueue_many(app.job("t") for _ in range(2_345))
        assert sum(1 for _ in app.jobs()) == 2_345


def test_many_threads_share_one(url: str) -> None:
    with BlockingHoldfast(url) as app:

        def produce() -> None:
            for _ in range(10):
                app.enqueue("t")

        threads = [threading.Thread(target=produce) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(1 for _ in app.jobs()) == 80


def test_a_job_of_the_callers_own_transaction(pg_dsn: str) -> None:
    with BlockingHoldfast(pg_dsn) as app, psycopg.connect(pg_dsn) as connection:
        for id_, end in (("never", connection.rollback), ("kept", connection.commit)):
            connection.execute("SELECT 1")
            app.within(connection).enqueue([app.job("t", id=id_)])
            end()
        assert app.get("never") is None
        assert app.get("kept") is not None


def test_upkeep_in_the_background() -> None:
    reaped = threading.Event()

    def tell(event: ProcessEvent) -> None:
        if isinstance(event, Reaped):
            reaped.set()

    with BlockingHoldfast("memory:") as app:
        app.listeners.add(tell)
        app.enqueue("t")
        app.lease(lease=0.01)
        app.start_upkeep()
        assert reaped.wait(60)


def test_closed_and_opened_again() -> None:
    app = BlockingHoldfast("memory:")
    with pytest.raises(EngineClosed, match="not open"):
        app.queues()
    app.close()
    app.open()
    app.open()
    app.enqueue("t", id="a")
    app.close()
    app.close()
    with pytest.raises(EngineClosed, match="not open"):
        app.get("a")
    with app:
        assert app.get("a") is not None


def test_closing_ends_a_wait_in_another_thread(url: str) -> None:
    app = BlockingHoldfast(url)
    app.open()
    asked = threading.Event()
    ended: list[object] = []

    class Asking(list[str]):
        def __iter__(self) -> Any:
            asked.set()
            return super().__iter__()

    def wait() -> None:
        try:
            ended.append(app.lease(wait="10m", tasks=Asking(["t"])))
        except EngineClosed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    asked.wait()
    app.close()
    thread.join(60)
    assert ended == [[]] or isinstance(ended[0], EngineClosed)


def test_an_engine_that_cannot_be_opened_leaves_nothing_running() -> None:
    class Broken(MemoryEngine):
        async def open(self) -> None:
            raise EngineClosed("broken")

    before = threading.active_count()
    with pytest.raises(EngineClosed, match="broken"), BlockingHoldfast(engine=Broken()):
        pass
    assert threading.active_count() == before


def test_its_own_loop_is_no_place_to_block() -> None:
    with BlockingHoldfast("memory:") as app:

        async def wrong() -> Any:
            return app.queues()

        with pytest.raises(UsageError, match="own loop"):
            app.run(wrong())

        async def right() -> str:
            await asyncio.sleep(0)
            return "fine"

        assert app.run(right()) == "fine"


def test_an_interrupt_ends_a_long_wait_and_the_loop_goes_on() -> None:
    with BlockingHoldfast("memory:") as app:
        waiting = threading.Event()
        real = MemoryEngine.lease

        async def lease(self: MemoryEngine, request: Any) -> Any:
            waiting.set()
            return await real(self, request)

        def interrupt() -> None:
            waiting.wait()
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryEngine, "lease", lease)
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                app.lease(wait="10m")
            thread.join()
        app.enqueue("t", id="a")
        [lease_] = app.lease()
        assert lease_.id == "a", "the wait that was given up did not take it"


FORK = """
import os, sys, warnings
from holdfast import BlockingHoldfast
from holdfast.errors import EngineClosed
warnings.simplefilter("ignore")
app = BlockingHoldfast(sys.argv[1])
app.open()
app.enqueue("t", id="parent")
child = os.fork()
if child == 0:
    try:
        app.enqueue("t", id="child")
    except EngineClosed as error:
        assert "forked" in str(error), error
        try:
            app.open()
        except EngineClosed:
            app.close()
            sys.exit(7)
    sys.exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert app.get("child") is None and app.get("parent") is not None
print("fine")
"""

FORK_IN_A_CALL = """
import os, signal, sys, threading, warnings
from holdfast import BlockingHoldfast
from holdfast.errors import EngineClosed
warnings.simplefilter("ignore")
app = BlockingHoldfast(sys.argv[1])
app.open()
held, leave = threading.Event(), threading.Event()
def hold():
    with app._loop_thread._guard:
        held.set()
        leave.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        app.enqueue("t")
    except EngineClosed:
        app.close()
        os._exit(7)
leave.set()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
app.close()
print("fine")
"""

FORGOTTEN = """
import sys
from holdfast import BlockingHoldfast
app = BlockingHoldfast(sys.argv[1])
app.open()
app.start_upkeep()
app.enqueue("t", id="a")
app.listeners.add(lambda event: getattr(event, "verb", "") == "close" and print("closed"))
"""


@pytest.mark.parametrize(
    ("code", "says"), [(FORK, "fine"), (FORK_IN_A_CALL, "fine"), (FORGOTTEN, "closed")]
)
def test_forks_are_refused_and_exits_are_clean(code: str, says: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path}/work.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, says, "")


NO_FILES = """
import resource, warnings
from holdfast import BlockingHoldfast
from holdfast.errors import EngineUnavailable
warnings.simplefilter("ignore")
app = BlockingHoldfast("memory:")
files = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
try:
    app.open()
except EngineUnavailable as error:
    assert "Too many open files" in str(error), error
for file in files:
    file.close()
with app:
    print(app.enqueue("t").status)
"""


def test_a_loop_that_cannot_start_is_an_error_and_no_hang() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_FILES],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "new"), ran.stderr


def test_a_failing_end_is_raised_by_close() -> None:
    class Stuck(MemoryEngine):
        async def close(self) -> None:
            raise EngineUnavailable("cannot be closed")

    app = BlockingHoldfast(engine=Stuck())
    app.open()
    with pytest.raises(EngineUnavailable, match="cannot be closed"):
        app.close()
    app.close()


def test_an_interrupt_before_the_wait_has_begun_gives_the_call_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = asyncio.run_coroutine_threadsafe

    def interrupted(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    with BlockingHoldfast("memory:") as app:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            app.lease(wait="10m")
        monkeypatch.undo()
        app.enqueue("t", id="a")
        [lease] = app.lease()
        assert lease.id == "a", "the call that was given up did not take it"


def test_a_signal_handler_may_close_in_the_middle_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = asyncio.run_coroutine_threadsafe
    usable = LoopThread._usable_loop
    app = BlockingHoldfast("memory:")
    app.open()

    def closing(*args: Any) -> Any:
        monkeypatch.undo()
        app.close()
        return real(*args)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", closing)
    with pytest.raises(EngineClosed, match="closed"):
        app.queues()
    app.open()

    def closing_too(thread: LoopThread) -> Any:
        loop = usable(thread)
        monkeypatch.undo()
        app.close()
        return loop

    monkeypatch.setattr(LoopThread, "_usable_loop", closing_too)
    with pytest.raises(EngineClosed, match="closed"):
        app.enqueue("t")
