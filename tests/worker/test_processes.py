"""Process trees, death with the parent, and subreapers, with real processes."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from holdfast.worker import processes
from tests.wait import wait_until
from tests.worker.child_driver import is_alive, wait_for_pid

FAMILY = "sleep 600 & sleep 600 & wait"

DIES_WITH_PARENT = """
import os, subprocess, sys, time
inner = '''
import os, sys, time
from holdfast.worker import processes
processes.die_with_parent(os.getppid())
with open(sys.argv[1], "w") as file: file.write(f"{os.getpid()}\\\\n")
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", inner, sys.argv[1]], start_new_session=True)
time.sleep(600)
"""

SUBREAPER = """
import os, subprocess, sys, time
from holdfast.worker import processes
processes.become_subreaper()
own = subprocess.Popen(["sleep", "600"])
script = 'setsid setsid -f sh -c "sleep 600 & echo \\\\$\\\\$ > %s; sleep 600"' % sys.argv[1]
subprocess.run(["sh", "-c", script], check=True)
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read().endswith("\\n")):
    time.sleep(0.01)
orphan = int(open(sys.argv[1]).read())
assert processes.stat(orphan).parent == os.getpid(), "it was not inherited"
rounds = 0
while processes.sweep_strangers({own.pid}):
    time.sleep(0.01)
assert processes.children(os.getpid()) == [own.pid]
assert own.poll() is None
own.kill()
"""


def test_children_and_descendants() -> None:
    with subprocess.Popen(["sh", "-c", f"({FAMILY}) & wait"], start_new_session=True) as top:
        wait_until(lambda: len(processes.descendants(top.pid)) == 3)
        (middle,) = processes.children(top.pid)
        assert processes.descendants(top.pid)[0] == middle
        assert sorted(processes.descendants(top.pid)[1:]) == sorted(processes.children(middle))
        assert processes.kill_descendants(top.pid) == 3
        top.kill()


def test_stat_of_a_process_with_a_hostile_name(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "600"], start_new_session=True) as process:
        stat = processes.stat(process.pid)
        assert stat is not None
        assert (stat.parent, stat.group, stat.session) == (os.getpid(), process.pid, process.pid)
        process.kill()


def test_a_process_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.stat(process.pid) is None
    assert processes.children(process.pid) == []
    assert processes.environment(process.pid) == {}
    assert processes.reap(process.pid)
    processes.kill(process.pid)
    processes.kill_group(process.pid)


def test_marked_processes_are_found() -> None:
    mark = uuid.uuid4().hex
    environment = {"PATH": os.environ["PATH"], "MARK": mark, "OTHER": "1"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        assert list(processes.marked({b"MARK": mark.encode()})) == [process.pid]
        assert not list(processes.marked({b"MARK": mark.encode(), b"OTHER": b"2"}))
        assert not processes.reap(process.pid)
        process.kill()


def test_a_process_dies_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", DIES_WITH_PARENT, path]) as parent:
        pid = wait_for_pid(path)
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))


def test_a_parent_that_is_gone_already_is_an_error(tmp_path: Path) -> None:
    script = "from holdfast.worker import processes; processes.die_with_parent(1 << 30)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "ProcessLookupError" in done.stderr


def test_a_subreaper_sweeps_strangers_and_spares_its_own(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    done = subprocess.run(
        [sys.executable, "-c", SUBREAPER, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not is_alive(int(path.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_whole_group(number: int) -> None:
    with subprocess.Popen(["sh", "-c", FAMILY], start_new_session=True) as top:
        wait_until(lambda: len(processes.children(top.pid)) == 2)
        family = processes.children(top.pid)
        processes.kill_group(top.pid, number)
    wait_until(lambda: not any(map(is_alive, family)))
