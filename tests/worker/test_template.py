"""Children that are forked from the template, or executed where that cannot be: the same to their
supervisor, which is this process here."""

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
from holdfast.worker import nursery, processes
from holdfast.worker.crew import Crew
from holdfast.worker.link import Link
from holdfast.worker.main import make_crew
from holdfast.worker.nursery import Forked, Template
from holdfast.worker.options import WorkerOptions
from holdfast.worker.template import NAME
from holdfast.worker.wire import Broken, Call, ChildSetup, Ended, Finish, Ready, Returned, Up
from tests.sources import ROOT
from tests.worker.driving import given_job, is_alive, setup
from tests.worker.running import until
from tests.worker.staging import Listening

SAMPLE = f"{Path(__file__).parent}/sample_app.py:app"
HEAD = """
import os, random, socket, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
import uuid_utils
from tests.worker.handling import handler
uuid_utils.uuid4()
def draw() -> list[str]:
    return [str(random.random()), str(uuid_utils.uuid4()), str(uuid_utils.uuid7())]
app = SimpleNamespace(handlers={"draw": handler(draw)})
"""


class Ears:
    """Keeps what the children say."""

    def __init__(self) -> None:
        self.words: list[Up] = []
        self.deaths = 0

    def heard(self, link: Link, words: list[Up]) -> None:
        self.words += words

    def died(self, link: Link) -> None:
        self.deaths += 1


class Nursery:
    """Starts children with or without a template, and leaves none."""

    def __init__(self, target: str, *, forks: bool = True) -> None:
        self.setup: ChildSetup = setup(target=target)
        self.template = Template(self.setup)
        self._forks = forks
        self._links: list[Link] = []

    async def child(self) -> tuple[Link, Ears]:
        ears = Ears()
        link = Link(self.setup, ears, False)
        link.template = self.template if self._forks else None
        await link.start()
        self._links.append(link)
        await until(lambda: ears.words or ears.deaths, "the child's first word")
        return link, ears

    async def end(self) -> None:
        for link in self._links:
            link.kill()
            await link.dead()
        self.template.end()


@pytest.fixture(autouse=True)
def subreaper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    processes.become_subreaper()
    yield
    processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[str], Nursery]]:
    made: list[Nursery] = []

    def make(text: str) -> Nursery:
        (tmp_path / "made.py").write_text(HEAD + text)
        made.append(Nursery(f"{tmp_path}/made.py:app"))
        return made[-1]

    yield make
    for each in made:
        await each.end()


@pytest.fixture(params=[True, False], ids=["forked", "executed"])
async def any_way(request: pytest.FixtureRequest) -> AsyncIterator[Nursery]:
    made = Nursery(SAMPLE, forks=request.param)
    yield made
    await made.end()


async def call(link: Link, ears: Ears, task: str, payload: object = None) -> Up:
    """What came of it: its ending."""
    link.say([Call(1, task, (given_job(payload),))])
    await until(lambda: any(isinstance(word, Ended) for word in ears.words), f"the end of {task}")
    return ears.words[-1]


async def test_it_runs_calls_in_a_session_of_its_own(any_way: Nursery) -> None:
    link, ears = await any_way.child()
    assert isinstance(ears.words[0], Ready)
    assert await call(link, ears, "echo", [1]) == Ended(1, (Returned(b"1"),))
    stat = processes.stat(link.pid)
    assert stat is not None
    assert (stat.parent, stat.group, stat.session) == (os.getpid(), link.pid, link.pid)
    link.say([Finish()])
    await link.dead()
    assert ears.deaths == 1


async def test_its_death_is_seen_with_signal_and_last_words(any_way: Nursery) -> None:
    link, ears = await any_way.child()
    link.say([Call(1, "crash", (given_job(),))])
    await link.dead()
    assert (link.status, ears.deaths) == (-signal.SIGSEGV, 1)
    assert b"Fatal Python error: Segmentation fault" in link.tail
    other, _ = await any_way.child()
    other.kill()
    await other.dead()
    assert other.status == -signal.SIGKILL


async def test_what_it_starts_inherits_nothing(any_way: Nursery) -> None:
    link, ears = await any_way.child()
    ended = await call(link, ears, "descriptors")
    assert ended == Ended(1, (Returned(codec.encode("0\n1\n2\n3\n")),))


async def test_the_template_keeps_nothing_of_its_children(make: Callable[[str], Nursery]) -> None:
    made = make("")
    first, _ = await made.child()
    before = open_files(made.template.pid)
    second, _ = await made.child()
    assert open_files(made.template.pid) == before
    assert all("memfd" not in name and "pipe" not in name for name in before[3:])
    assert isinstance(first._process, Forked)
    assert (first.pid, second.pid) != (second.pid, first.pid)
    assert Path(f"/proc/{first.pid}/comm").read_text().strip() == NAME


async def test_chance_is_each_childs_own(make: Callable[[str], Nursery]) -> None:
    made = make("")
    drawn: set[str] = set()
    for _ in range(3):
        link, ears = await made.child()
        ended = await call(link, ears, "draw")
        assert isinstance(ended, Ended)
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
async def test_what_must_not_be_forked_is_executed(
    make: Callable[[str], Nursery], text: str
) -> None:
    made = make(text)
    for _ in range(2):
        link, ears = await made.child()
        assert isinstance(link._process, subprocess.Popen)
        assert isinstance(ears.words[0], Ready)
    assert made.template.pid == 0


async def test_files_that_are_read_or_logged_to_are_no_hindrance(
    make: Callable[[str], Nursery], tmp_path: Path
) -> None:
    made = make(f"kept = open({str(tmp_path / 'log')!r}, 'a'), open({str(tmp_path / 'log')!r})")
    link, _ = await made.child()
    assert isinstance(link._process, Forked)


async def test_a_broken_application_is_told_until_it_is_mended(
    make: Callable[[str], Nursery],
) -> None:
    made = make("raise RuntimeError('not today')")
    for _ in range(2):
        link, ears = await made.child()
        (word,) = ears.words
        assert isinstance(word, Broken)
        assert word.failure.message == "not today"
        await link.dead()
    make("")
    _, ears = await made.child()
    assert isinstance(ears.words[0], Ready)


async def test_an_import_that_ends_the_process(make: Callable[[str], Nursery]) -> None:
    made = make("os._exit(3)")
    link, ears = await made.child()
    await link.dead()
    assert (link.status, ears.words, made.template.pid) == (3, [], 0)


async def test_a_template_that_was_killed_is_started_again(make: Callable[[str], Nursery]) -> None:
    made = make("")
    first, _ = await made.child()
    killed = made.template.pid
    os.kill(killed, signal.SIGKILL)
    second, _ = await made.child()
    assert isinstance(second._process, Forked)
    assert made.template.pid != killed
    assert is_alive(first.pid)


async def test_a_template_that_does_not_answer_is_done_without(
    make: Callable[[str], Nursery], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("")
    await made.child()
    frozen = made.template.pid
    os.kill(frozen, signal.SIGSTOP)
    monkeypatch.setattr(nursery, "_ANSWER_S", 0.05)
    with pytest.raises(TimeoutError):
        await made.child()
    assert not is_alive(frozen)
    link, ears = await made.child()
    assert isinstance(link._process, subprocess.Popen)
    assert isinstance(ears.words[0], Ready)
    assert not made.template.busy


async def test_nobody_is_left_of_a_start_that_was_cancelled(
    make: Callable[[str], Nursery], tmp_path: Path
) -> None:
    made = make(f"Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)")
    link = Link(made.setup, Ears(), False)
    link.template = made.template
    starting = asyncio.create_task(link.start())
    await until((tmp_path / "begun").exists, "the import")
    assert not made.template.busy
    importing = made.template.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (link.pid, made.template.pid, is_alive(importing)) == (0, 0, False)
    link.board.close()


async def test_a_crew_can_stop_while_the_application_is_imported(
    make: Callable[[str], Nursery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    made = make(f"Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)")
    crew = Crew(
        Listening(),
        lambda name: Queue(name=name),
        python=made.setup,
        processes=2,
        commands=None,
        template=made.template,
    )
    await crew.start("w")
    await until((tmp_path / "begun").exists, "the import")
    importing = made.template.pid
    await crew.stop("the test is over")
    assert (is_alive(importing), made.template.pid, crew.running()) == (False, 0, 0)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_template(**given: Any) -> bool:
        options = WorkerOptions(url="memory:", **given)
        return make_crew(options, "1", Listening(), queue_of)._template is not None

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
