"""The child process: its start, what it survives, and its end with the supervisor."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import codec
from holdfast.core.model import FailureKind
from holdfast.worker.wire import (
    AskedCancel,
    CallsEnded,
    CancelCall,
    ChildBroken,
    ChildCalls,
    ChildReady,
    Finish,
    Raised,
    Returned,
    TaskInfo,
)
from tests.sources import ROOT
from tests.wait import wait_until
from tests.worker.child_driver import Child, given_job, is_alive, started, wait_for_pid

TARGET = f"{Path(__file__).parents[1]}/sample_app.py:app"

PARENT = """
import os, sys, time
from pathlib import Path
from tests.worker.child_driver import Child, setup
target = sys.argv[3] or None
child = Child(setup(worker_id=sys.argv[2], target=target))
os.set_inheritable(child.socket.fileno(), True)
if os.fork() == 0:
    # The socket stays open here, so that only the parent's death can be noticed.
    Path(sys.argv[1] + ".holder").write_text(f"{os.getpid()}\\n")
    time.sleep(600)
if target:
    child.call("start_sleeper", [sys.argv[1] + ".command"])
else:
    child.command(["sh", "-c", f"echo $$ > {sys.argv[1]}.command; exec sleep 600"])
Path(sys.argv[1]).write_text(f"{child.process.pid}\\n")
time.sleep(600)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    with started(cwd=ROOT, target=TARGET) as child:
        yield child


def test_it_reports_its_tasks(child: Child) -> None:
    tasks = {info.name: info for info in child.wait_for(ChildReady).tasks}
    assert tasks["echo"] == TaskInfo("echo")
    assert tasks["aecho"] == TaskInfo("aecho", gentle=True)
    assert tasks["total"] == TaskInfo("total", batch=5)


def test_calls_of_every_kind(child: Child) -> None:
    assert child.ending(child.call("echo", ["é"])) == Returned('"é"'.encode())
    assert child.ending(child.call("aecho", {"value": 5})) == Returned(b"5")
    number = child.call("report", None, attempt=3, token=9, checkpoint=b'{"at":1}')
    assert child.ending(number) == Returned(b'[3,9,{"at":1}]', output=b"from j3\n")
    child.write(ChildCalls(50, "total", [(given_job(1), given_job(2), given_job(3))]))
    ended = child.wait_for(CallsEnded, lambda word: 50 in word.numbers)
    assert ended.endings == (Returned(b"6"),) * 3


def test_exits_in_a_handler_end_only_the_job(child: Child) -> None:
    for number in (child.call("leave", [3]), child.call("interrupt")):
        ending = child.ending(number)
        assert isinstance(ending, Raised)
        assert ending.failure.kind is FailureKind.ERROR
        assert not ending.fatal
    assert child.ending(child.call("echo", [1])) == Returned(b"1")


def test_signals_to_the_whole_service_do_not_end_it(child: Child) -> None:
    child.wait_for(ChildReady)
    child.process.send_signal(signal.SIGTERM)
    child.process.send_signal(signal.SIGINT)
    assert child.ending(child.call("echo", [1])) == Returned(b"1")


def test_processes_it_starts_do_not_get_its_secrets(child: Child) -> None:
    assert child.ending(child.call("variables")) == Returned(b"[]")
    assert child.ending(child.call("descriptors")) == Returned(b'"0\\n1\\n2\\n3\\n"')


def test_a_forked_process_is_an_ordinary_one(child: Child) -> None:
    assert child.ending(child.call("fork_and_terminate")) == Returned(
        codec.encode([-signal.SIGTERM] * 20)
    )
    assert child.ending(child.call("echo", [1])) == Returned(b"1")


def test_a_timeout_ends_a_coroutine(child: Child) -> None:
    ending = child.ending(child.call("wait", None, timeout_ms=50))
    assert isinstance(ending, Raised)
    assert ending.failure.kind is FailureKind.TIMEOUT


def test_the_board_shows_what_runs_and_outlives_the_child(child: Child, tmp_path: Path) -> None:
    number = child.call("block", [str(tmp_path / "pid")])
    wait_for_pid(tmp_path / "pid")
    assert list(child.board.running()) == [number]
    child.process.kill()
    child.process.wait()
    assert list(child.board.running()) == [number]


def test_a_crash_shows_on_the_board_and_in_the_status(child: Child) -> None:
    number = child.call("crash")
    assert child.process.wait(60) == -signal.SIGSEGV
    assert list(child.board.running()) == [number]


def test_finish_waits_for_what_runs(child: Child) -> None:
    number = child.call("wait")
    child.write(Finish())
    child.write(CancelCall(number))
    assert isinstance(child.ending(number), AskedCancel)
    assert child.process.wait(60) == 0


def test_everything_ends_when_the_supervisor_closes_the_connection(
    child: Child, tmp_path: Path
) -> None:
    child.call("block", [str(tmp_path / "blocked")])
    wait_for_pid(tmp_path / "blocked")
    assert child.ending(child.call("start_sleeper", [str(tmp_path / "sleeper")])) == Returned()
    sleeper = wait_for_pid(tmp_path / "sleeper")
    child.socket.close()
    assert child.process.wait(60) == 0
    wait_until(lambda: not is_alive(sleeper))


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("import no_such_dependency", "ModuleNotFoundError", "no_such_dependency"),
        ("def broken(:", "SyntaxError", "invalid syntax"),
        ("raise SystemExit(3)", "SystemExit", "3"),
        ("app = 5", "ConfigError", "not a Holdfast application"),
    ],
)
def test_an_application_that_cannot_be_imported(
    tmp_path: Path, source: str, kind: str, text: str
) -> None:
    (tmp_path / "broken_app.py").write_text(source)
    with started(cwd=tmp_path, target="broken_app:app") as child:
        failure = child.wait_for(ChildBroken).failure
        assert failure.type == kind
        assert text in failure.message
        assert "Traceback" in failure.trace or kind == "SyntaxError"
        assert child.process.wait(60) == 0


@pytest.mark.parametrize("target", [TARGET, ""])
def test_it_ends_with_its_parent_though_the_socket_stays_open(tmp_path: Path, target: str) -> None:
    path = tmp_path / "pid"
    mark = f"orphan-{os.getpid()}-{bool(target)}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, path, mark, target], cwd=ROOT, start_new_session=True
    ) as parent:
        holder, pid = wait_for_pid(Path(f"{path}.holder")), wait_for_pid(path)
        command = wait_for_pid(Path(f"{path}.command"))
        assert is_alive(pid)
        parent.kill()
    try:
        wait_until(lambda: not is_alive(pid))
        if not target:
            # A child that runs commands takes them along.
            wait_until(lambda: not is_alive(command))
    finally:
        for each in (holder, pid, command):
            if is_alive(each):
                os.kill(each, signal.SIGKILL)
