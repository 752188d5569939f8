"""Commands that do not end or leave processes behind: no process survives its job."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.model import FailureKind
from holdfast.worker.wire import AskedCancel, CancelCall, ChildReady, NoteUpdate, Raised, Returned
from tests.wait import wait_until
from tests.worker.child_driver import Child, is_alive, started, wait_for_pid

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.05; done"
DAEMON = """
import os, sys, time, signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
SPAWNS_DAEMON = [
    "sh",
    "-c",
    '"$0" -c "$1" "$2"; until test -s "$2"; do sleep 0.01; done; eval "$3"',
    sys.executable,
    DAEMON,
]


@pytest.fixture
def child() -> Iterator[Child]:
    with started() as child:
        child.wait_for(ChildReady)
        yield child


def assert_timeout(child: Child, number: int) -> Raised:
    ending = child.ending(number)
    assert isinstance(ending, Raised), ending
    assert ending.failure.kind is FailureKind.TIMEOUT
    assert "timeout of" in ending.failure.message
    assert not child.survivors()
    return ending


def test_timeout_lets_a_command_end_by_itself(child: Child) -> None:
    script = "trap 'echo tidied up; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    number = child.command(["sh", "-c", script], timeout_ms=500)
    assert_timeout(child, number)
    assert child.output(number).endswith(b"tidied up\n")


def test_timeout_kills_a_command_that_ignores_sigterm(child: Child) -> None:
    assert_timeout(child, child.command(["sh", "-c", STUBBORN], timeout_ms=300))


def test_timeout_kills_the_whole_group(child: Child) -> None:
    script = f"({STUBBORN}) & ({STUBBORN}) & wait"
    assert_timeout(child, child.command(["sh", "-c", script], timeout_ms=300))


def test_each_process_is_asked_once_and_has_its_grace(child: Child) -> None:
    inner = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
    script = 'sh -c "$0" & setsid sh -c "$0" & wait'
    number = child.command(["sh", "-c", script, inner], timeout_ms=2_000)
    assert_timeout(child, number)
    assert child.output(number).count(b"ready") == child.output(number).count(b"asked") == 2


def test_timeout_kills_a_stopped_command(child: Child) -> None:
    assert_timeout(child, child.command(["sh", "-c", "kill -STOP $$"], timeout_ms=300))


def test_timeout_finds_processes_that_left_the_session(child: Child, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    number = child.command([*SPAWNS_DAEMON, str(path), "sleep 600"], timeout_ms=3_000)
    pid = wait_for_pid(path)
    assert_timeout(child, number)
    assert not is_alive(pid)


def test_timeout_of_one_does_not_affect_others(child: Child, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    beside = child.command([*SPAWNS_DAEMON, str(path), "sleep 600"])
    pid = wait_for_pid(path)
    number = child.command(["sh", "-c", STUBBORN], timeout_ms=300)
    assert isinstance(child.ending(number), Raised)
    assert is_alive(pid)
    assert list(child.board.running()) == [beside]
    child.write(CancelCall(beside))
    child.ending(beside)
    assert not is_alive(pid)


def test_a_daemon_is_killed_when_its_job_is_done(child: Child, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    ending = child.run([*SPAWNS_DAEMON, str(path), "exit 0"])
    assert isinstance(ending, Returned), ending
    assert not is_alive(wait_for_pid(path))


def test_a_daemon_that_cleared_its_environment_is_killed_too(child: Child, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    bare = ["env", "-i", f"PATH={os.environ['PATH']}", *SPAWNS_DAEMON, str(path), "exit 0"]
    beside = child.command(["sh", "-c", "echo ready; sleep 600"])
    child.wait_for(NoteUpdate)
    child.ending(child.command(bare))
    pid = wait_for_pid(path)
    # It may be the neighbour's for all that can be known, and goes with the last who may own it.
    assert is_alive(pid)
    child.write(CancelCall(beside))
    child.ending(beside)
    assert not is_alive(pid)
    second = tmp_path / "second"
    bare[-2] = str(second)
    assert isinstance(child.ending(child.command(bare)), Returned)
    assert not is_alive(wait_for_pid(second))


def test_a_background_process_holding_the_output_open_hangs_nothing(child: Child) -> None:
    number = child.command(["sh", "-c", "sleep 600 & echo done"])
    assert isinstance(child.ending(number), Returned)
    assert child.output(number) == b"done\n"
    assert not child.survivors()


def test_processes_that_keep_forking_are_all_killed(child: Child) -> None:
    brood = "setsid sh -c 'while :; do setsid sleep 600 & sleep 0.02; done' & sleep 600"
    number = child.command(["sh", "-c", brood], timeout_ms=1_000)
    assert_timeout(child, number)


def test_cancel_terminates_and_then_kills(child: Child) -> None:
    number = child.command(["sh", "-c", STUBBORN])
    child.wait_for(NoteUpdate)
    child.write(CancelCall(number))
    assert isinstance(child.ending(number), AskedCancel)
    assert not child.survivors()


@pytest.mark.parametrize("how", ["lost", "force"])
def test_a_lost_or_forced_command_is_killed_without_grace(how: str) -> None:
    with started(grace_ms=600_000) as child:
        number = child.command(["sh", "-c", STUBBORN])
        child.wait_for(NoteUpdate)
        child.write(CancelCall(number, **{how: True}))
        assert isinstance(child.ending(number), AskedCancel)
        assert not child.survivors()


def test_a_cancelled_command_that_is_lost_has_no_more_grace() -> None:
    with started(grace_ms=600_000) as child:
        number = child.command(["sh", "-c", STUBBORN])
        child.wait_for(NoteUpdate)
        child.write(CancelCall(number))
        child.write(CancelCall(number, lost=True))
        assert isinstance(child.ending(number), AskedCancel)


def test_cancel_of_a_waiting_and_of_an_ended_command(child: Child) -> None:
    running = [child.command(["sleep", "600"]) for _ in range(4)]
    waiting = child.command(["sleep", "600"])
    child.write(CancelCall(waiting), CancelCall(12345))
    assert isinstance(child.ending(waiting), AskedCancel)
    for number in running:
        child.write(CancelCall(number), CancelCall(number))
        assert isinstance(child.ending(number), AskedCancel)
    child.write(CancelCall(running[0]))
    assert isinstance(child.run(["true"]), Returned)


def test_everything_ends_when_the_supervisor_closes_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with started() as child:
        child.command([*SPAWNS_DAEMON, str(path), STUBBORN])
        pid = wait_for_pid(path)
        child.socket.close()
        assert child.process.wait(60) == 0
        assert not child.survivors()
        assert not is_alive(pid)


def test_signals_to_the_whole_service_do_not_end_it(child: Child) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        child.process.send_signal(number)
    assert isinstance(child.run(["true"]), Returned)


def test_killed_outright_the_child_leaves_marked_processes_to_be_found(child: Child) -> None:
    number = child.command(["sh", "-c", "echo ready; sleep 600"])
    child.wait_for(NoteUpdate)
    child.process.kill()
    child.process.wait()
    wait_until(child.survivors)
    assert number in child.board.running()
    for pid in child.survivors():
        os.kill(pid, signal.SIGKILL)
