"""One engine, one loop: the program's own, or one in a thread; never two, and none after a fork."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import BlockingHoldfast, Holdfast, Task
from holdfast.core.model import JobFilter
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineClosed, EngineUnavailable, UsageError
from holdfast.events import EngineCalled, ProcessEvent
from tests.engines.doubles import GatedEngine
from tests.wait import wait_until


def make(app: Holdfast) -> Task[..., None, Callable[..., None]]:
    @app.task
    def note(text: str) -> None: ...

    return note


def texts(app: Holdfast) -> list[bytes]:
    page = app.run(app.find(JobFilter()))
    return sorted(job.payload for job in page.jobs)


def test_making_one_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    before = threading.active_count()
    make(Holdfast()).job("a")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_the_engine_is_opened_once_by_many_callers(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/work.db")
    note = make(app)
    verbs: list[str] = []

    def tell(event: ProcessEvent) -> None:
        if isinstance(event, EngineCalled):
            verbs.append(event.verb)

    app.listeners.add(tell)
    ready = threading.Barrier(8)

    def produce() -> None:
        ready.wait()
        for _ in range(5):
            note.enqueue("a")

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(app)) == 40
    assert verbs.count("open") == 1
    asyncio.run(app.close())
    assert verbs.count("close") == 2, "in its thread, and again, idempotently, by close"


def test_an_engine_that_could_not_be_opened_is_tried_again() -> None:
    class Late(MemoryEngine):
        down = True

        async def open(self) -> None:
            if self.down:
                raise EngineUnavailable("not yet")
            await super().open()

    engine = Late()
    app = Holdfast(engine=engine)
    note = make(app)
    with pytest.raises(EngineUnavailable, match="not yet"):
        note.enqueue("a")
    engine.down = False
    note.enqueue("b")
    assert texts(app) == [b'{"text":"b"}']
    asyncio.run(app.close())


async def test_async_code_without_opening_goes_through_the_thread() -> None:
    app = Holdfast("memory:")
    note = make(app)
    await asyncio.gather(*(note.aenqueue(str(number)) for number in range(20)))
    # Another loop than the engine's may be blocked, though better not.
    note.enqueue("blocking")
    assert len(texts(app)) == 21
    await app.close()


def test_what_runs_on_its_own_loop_goes_straight_to_the_engine() -> None:
    app = Holdfast("memory:")
    note = make(app)

    async def three() -> int:
        await note.aenqueue("a")
        handles = await note.aenqueue_many([("b",), ("c",)])
        with pytest.raises(UsageError, match="Holdfast's own loop would deadlock: await"):
            note.enqueue("d")
        return 1 + len(handles)

    assert app.run(three()) == 3
    assert len(texts(app)) == 3
    asyncio.run(app.close())


async def test_opening_moves_it_from_its_thread_to_this_loop() -> None:
    app = Holdfast("memory:")
    note = make(app)
    await note.aenqueue("a")
    threads = loop_threads()
    async with app:
        assert len(threads - loop_threads()) == 1, "its own loop is gone"
        await note.aenqueue("b")
        with pytest.raises(
            UsageError, match=r"would block its own event loop: await task\.aenqueue"
        ):
            note.enqueue("c")
        # From another thread, and from another loop, it is handed over to this one.
        await asyncio.to_thread(note.enqueue, "d")
        await asyncio.to_thread(lambda: asyncio.run(note.aenqueue("e")))
        await asyncio.to_thread(wrong_open, app)
        jobs = [job.payload[9:10] async for job in app.jobs()]
        assert sorted(jobs) == [b"a", b"b", b"d", b"e"]
    await note.aenqueue("f")
    await app.close()


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-loop"}


def wrong_open(app: Holdfast) -> None:
    for wrong in (app.open, app.close):
        with pytest.raises(UsageError, match="open on another event loop: close it there"):
            asyncio.run(wrong())


def test_a_loop_that_ended_before_the_close_is_said_so() -> None:
    app = Holdfast("memory:")
    note = make(app)
    asyncio.run(app.open())
    with pytest.raises(UsageError, match="has stopped: close it before the loop ends"):
        note.enqueue("a")
    asyncio.run(app.close())
    note.enqueue("b")
    assert texts(app) == [b'{"text":"b"}']
    asyncio.run(app.close())


def check_shared(store: GatedEngine, app: Holdfast, enqueue: Callable[[str], Any]) -> None:
    """While one call is in flight, those of fifteen other threads wait to share the next."""
    enqueue("opens")  # the engine
    store.gate.clear()
    store.calls.clear()
    coalesced: Any = app.engine
    with ThreadPoolExecutor(16) as threads:
        calls = [threads.submit(enqueue, "first")]
        wait_until(lambda: store.calls)
        calls += [threads.submit(enqueue, str(n)) for n in range(15)]
        wait_until(lambda: len(coalesced._enqueues._arrived) == 15)
        store.loop.call_soon_threadsafe(store.gate.set)
        assert len({call.result().id for call in calls}) == 16
    assert store.calls == [("enqueue", 1), ("enqueue", 15)]


def test_threads_share_a_commit() -> None:
    store = GatedEngine()
    app = Holdfast(engine=store)
    check_shared(store, app, make(app).enqueue)
    asyncio.run(app.close())


async def test_threads_share_a_commit_on_the_loop_of_the_program() -> None:
    store = GatedEngine()
    async with Holdfast(engine=store) as app:
        await asyncio.to_thread(check_shared, store, app, make(app).enqueue)


def test_threads_share_a_commit_of_the_blocking_facade() -> None:
    store = GatedEngine()
    with BlockingHoldfast(engine=store) as app:
        check_shared(store, app._app, app.enqueue)


async def test_a_caller_that_goes_away_takes_its_call_along() -> None:
    app = Holdfast("memory:")

    async def wait() -> Any:
        return await app.arun(app.lease(wait="10m"))

    waiting = asyncio.create_task(wait())
    await make(app).aenqueue("first")
    assert (await waiting)[0].job.payload == b'{"text":"first"}'
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await app.close()


async def test_closing_answers_who_still_waits() -> None:
    app = Holdfast("memory:")
    asked = asyncio.Event()
    here = asyncio.get_running_loop()

    async def wait() -> None:
        here.call_soon_threadsafe(asked.set)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(app.arun(wait()))
    await asked.wait()
    await app.close()
    with pytest.raises(EngineClosed, match="closed before the call was answered"):
        await waiting


def test_an_interrupt_leaves_the_coroutine_to_its_loop() -> None:
    app = Holdfast("memory:")
    begun, ended = threading.Event(), threading.Event()
    where: list[str] = []

    async def wait() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            where.append(threading.current_thread().name)
            ended.set()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        app.run(wait())
    thread.join()
    assert ended.wait(60)
    assert where == ["holdfast-loop"]
    make(app).enqueue("a")
    asyncio.run(app.close())


async def test_a_coroutine_that_is_refused_leaves_no_warning() -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(UsageError, match="await it"):
            app.run(app.queues())


FORK = """
import os, sys, warnings
from holdfast import Holdfast
warnings.simplefilter("ignore")
app = Holdfast(sys.argv[1])

@app.task(name="note")
def note(text: str): ...

if sys.argv[2] == "used":
    note.enqueue("parent")
child = os.fork()
if child == 0:
    note.enqueue("child")
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
note.enqueue("parent again")
print(sum(1 for _ in app.run(app.find(__import__("holdfast").JobFilter())).jobs))
"""


@pytest.mark.parametrize(("used", "count"), [("used", "3"), ("unused", "2")])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_forked_child_opens_an_engine_of_its_own(
    kind: str, used: str, count: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    if kind == "postgresql":
        url = request.getfixturevalue("pg_dsn")
    ran = subprocess.run(
        [sys.executable, "-c", FORK, url, used],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, count, "")


FORK_MEMORY = """
import os, sys, warnings
from holdfast import Holdfast
from holdfast.errors import EngineClosed
warnings.simplefilter("ignore")
app = Holdfast("memory:")

@app.task(name="note")
def note(text: str): ...

note.enqueue("parent")
child = os.fork()
if child == 0:
    try:
        note.enqueue("child")
    except EngineClosed as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_what_lives_in_memory_stays_with_the_parent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORK_MEMORY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "7", "")


FORGOTTEN = """
import sys
from holdfast import Holdfast
app = Holdfast(sys.argv[1])

@app.task
def note(text: str): ...

note.enqueue("a")
print(note.name)
app.listeners.add(lambda event: getattr(event, "verb", "") == "close" and print("closed"))
"""


def test_a_script_ends_cleanly_and_gives_its_tasks_its_own_name(tmp_path: Path) -> None:
    script = tmp_path / "mailing.py"
    script.write_text(FORGOTTEN)
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script), f"sqlite:///{tmp_path}/work.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["mailing:note", "closed"], "")
