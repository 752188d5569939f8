"""Children forked from the template, or executed where that is not possible. This process is their
supervisor."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import codec
from holdfast.core.model import Queue
from holdfast.worker import processes
from holdfast.worker.child.template import NAME
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor import child_process
from holdfast.worker.supervisor.child_pool import ChildPool
from holdfast.worker.supervisor.child_process import ChildProcess, ForkedProcess, ForkTemplate
from holdfast.worker.supervisor.main import make_child_pool
from holdfast.worker.wire import (
    CallsEnded,
    ChildBroken,
    ChildCalls,
    ChildReady,
    ChildSetup,
    Finish,
    FromChild,
    Returned,
)
from tests.sources import ROOT
from tests.worker.child_driver import given_job, is_alive, setup
from tests.worker.live_workers import until
from tests.worker.pool_driver import Recorder

SAMPLE = f"{Path(__file__).parents[1]}/sample_app.py:app"
HEAD = """
import os, random, socket, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
import uuid_utils
from tests.worker.sample_handlers import handler
uuid_utils.uuid4()
def draw() -> list[str]:
    return [str(random.random()), str(uuid_utils.uuid4()), str(uuid_utils.uuid7())]
app = SimpleNamespace(handlers={"draw": handler(draw)})
"""


class MessageLog:
    """Records the answers of children."""

    def __init__(self) -> None:
        self.answers: list[FromChild] = []
        self.deaths = 0

    def received(self, process: ChildProcess, answers: list[FromChild]) -> None:
        self.answers += answers

    def died(self, process: ChildProcess) -> None:
        self.deaths += 1


class ChildStarter:
    """Starts children with or without a template, and leaves none."""

    def __init__(self, target: str, *, forks: bool = True) -> None:
        self.setup: ChildSetup = setup(target=target)
        self.template = ForkTemplate(self.setup)
        self._forks = forks
        self._started: list[ChildProcess] = []

    async def child(self) -> tuple[ChildProcess, MessageLog]:
        listener = MessageLog()
        child = ChildProcess(self.setup, listener, False)
        child.template = self.template if self._forks else None
        await child.start()
        self._started.append(child)
        await until(lambda: listener.answers or listener.deaths, "the child's first word")
        return child, listener

    async def end(self) -> None:
        for child in self._started:
            child.kill()
            await child.wait_dead()
        self.template.end()


@pytest.fixture(autouse=True)
def subreaper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    processes.become_subreaper()
    yield
    processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[str], ChildStarter]]:
    made: list[ChildStarter] = []

    def make(text: str) -> ChildStarter:
        (tmp_path / "made.py").write_text(HEAD + text)
        made.append(ChildStarter(f"{tmp_path}/made.py:app"))
        return made[-1]

    yield make
    for each in made:
        await each.end()


@pytest.fixture(params=[True, False], ids=["forked", "executed"])
async def any_way(request: pytest.FixtureRequest) -> AsyncIterator[ChildStarter]:
    made = ChildStarter(SAMPLE, forks=request.param)
    yield made
    await made.end()


async def call(
    child: ChildProcess, listener: MessageLog, task: str, payload: object = None
) -> FromChild:
    """The answer to a call: its ending."""
    child.write([ChildCalls(1, task, [(given_job(payload),)])])
    await until(
        lambda: any(isinstance(word, CallsEnded) for word in listener.answers), f"the end of {task}"
    )
    return listener.answers[-1]


async def test_it_runs_calls_in_a_session_of_its_own(any_way: ChildStarter) -> None:
    child, listener = await any_way.child()
    assert isinstance(listener.answers[0], ChildReady)
    assert await call(child, listener, "echo", [1]) == CallsEnded([1], (Returned(b"1"),))
    stat = processes.stat(child.pid)
    assert stat is not None
    assert (stat.parent, stat.group, stat.session) == (os.getpid(), child.pid, child.pid)
    child.write([Finish()])
    await child.wait_dead()
    assert listener.deaths == 1


async def test_its_death_is_seen_with_signal_and_last_output(any_way: ChildStarter) -> None:
    child, listener = await any_way.child()
    child.write([ChildCalls(1, "crash", [(given_job(),)])])
    await child.wait_dead()
    assert (child.status, listener.deaths) == (-signal.SIGSEGV, 1)
    assert b"Fatal Python error: Segmentation fault" in child.tail
    other, _ = await any_way.child()
    other.kill()
    await other.wait_dead()
    assert other.status == -signal.SIGKILL


async def test_processes_it_starts_inherit_no_descriptors(any_way: ChildStarter) -> None:
    child, listener = await any_way.child()
    ended = await call(child, listener, "descriptors")
    assert ended == CallsEnded([1], (Returned(codec.encode("0\n1\n2\n3\n")),))


async def test_the_template_keeps_nothing_of_its_children(
    make: Callable[[str], ChildStarter],
) -> None:
    made = make("")
    first, _ = await made.child()
    before = open_files(made.template.pid)
    second, _ = await made.child()
    assert open_files(made.template.pid) == before
    assert all("memfd" not in name and "pipe" not in name for name in before[3:])
    assert isinstance(first._process, ForkedProcess)
    assert (first.pid, second.pid) != (second.pid, first.pid)
    assert Path(f"/proc/{first.pid}/comm").read_text().strip() == NAME


async def test_each_child_has_its_own_random_seed(make: Callable[[str], ChildStarter]) -> None:
    made = make("")
    drawn: set[str] = set()
    for _ in range(3):
        child, listener = await made.child()
        ended = await call(child, listener, "draw")
        assert isinstance(ended, CallsEnded)
        assert isinstance(ended.endings[0], Returned)
        drawn |= set(codec.decode(ended.endings[0].result or b""))
    assert len(drawn) == 9


@pytest.mark.parametrize(
    "text",
    [
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "kept = socket.socketpair()",
        "kept = open(__file__, 'r+b')",
    ],
    ids=["thread", "socket", "database"],
)
async def test_an_application_that_must_not_be_forked_is_executed(
    make: Callable[[str], ChildStarter], text: str
) -> None:
    made = make(text)
    for _ in range(2):
        child, listener = await made.child()
        assert isinstance(child._process, subprocess.Popen)
        assert isinstance(listener.answers[0], ChildReady)
    assert made.template.pid == 0


async def test_files_that_are_read_or_logged_to_are_no_hindrance(
    make: Callable[[str], ChildStarter], tmp_path: Path
) -> None:
    made = make(f"kept = open({str(tmp_path / 'log')!r}, 'a'), open({str(tmp_path / 'log')!r})")
    child, _ = await made.child()
    assert isinstance(child._process, ForkedProcess)


async def test_a_broken_application_is_reported_until_it_is_mended(
    make: Callable[[str], ChildStarter],
) -> None:
    made = make("raise RuntimeError('not today')")
    for _ in range(2):
        child, listener = await made.child()
        (word,) = listener.answers
        assert isinstance(word, ChildBroken)
        assert word.failure.message == "not today"
        await child.wait_dead()
    make("")
    _, listener = await made.child()
    assert isinstance(listener.answers[0], ChildReady)


async def test_an_import_that_ends_the_process(make: Callable[[str], ChildStarter]) -> None:
    made = make("os._exit(3)")
    child, listener = await made.child()
    await child.wait_dead()
    assert (child.status, listener.answers, made.template.pid) == (3, [], 0)


async def test_a_template_that_was_killed_is_started_again(
    make: Callable[[str], ChildStarter],
) -> None:
    made = make("")
    first, _ = await made.child()
    killed = made.template.pid
    os.kill(killed, signal.SIGKILL)
    second, _ = await made.child()
    assert isinstance(second._process, ForkedProcess)
    assert made.template.pid != killed
    assert is_alive(first.pid)


async def test_without_an_answer_of_the_template_children_are_executed(
    make: Callable[[str], ChildStarter], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("")
    await made.child()
    frozen = made.template.pid
    os.kill(frozen, signal.SIGSTOP)
    monkeypatch.setattr(child_process, "_ANSWER_S", 0.05)
    with pytest.raises(TimeoutError):
        await made.child()
    assert not is_alive(frozen)
    child, listener = await made.child()
    assert isinstance(child._process, subprocess.Popen)
    assert isinstance(listener.answers[0], ChildReady)
    assert not made.template.busy


async def test_a_cancelled_start_leaves_no_process(
    make: Callable[[str], ChildStarter], tmp_path: Path
) -> None:
    made = make(f"Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)")
    child = ChildProcess(made.setup, MessageLog(), False)
    child.template = made.template
    starting = asyncio.create_task(child.start())
    await until((tmp_path / "begun").exists, "the import")
    assert not made.template.busy
    importing = made.template.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (child.pid, made.template.pid, is_alive(importing)) == (0, 0, False)
    child.board.close()


async def test_a_pool_can_stop_while_the_application_is_imported(
    make: Callable[[str], ChildStarter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    made = make(f"Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)")
    pool = ChildPool(
        Recorder(),
        lambda name: Queue(name=name),
        python=made.setup,
        processes=2,
        template=made.template,
    )
    await pool.start("w")
    await until((tmp_path / "begun").exists, "the import")
    importing = made.template.pid
    await pool.stop("the test is over")
    assert (is_alive(importing), made.template.pid, pool.running()) == (False, 0, 0)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_template(**given: Any) -> bool:
        options = WorkerOptions(url="memory:", **given)
        return make_child_pool(options, "1", Recorder(), queue_of)._template is not None

    def queue_of(name: str) -> Queue:
        return Queue(name=name)

    assert has_template(target="a:app")
    assert not has_template(target=None)
    assert not has_template(target="a:app", processes=0)
    monkeypatch.setenv("HOLDFAST_TEMPLATE", "0")
    assert not has_template(target="a:app")


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [
        str(each.readlink()) for each in sorted(folder.iterdir(), key=lambda one: int(one.name))
    ]
