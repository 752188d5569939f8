"""The workers of a test run: what pytest reports of their tests, and how they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel import chunks
from tests.sources import ROOT
from tests.wait import wait_until

ALL = """
import os, signal, time, warnings
import pytest

FOLDER = os.path.dirname(__file__)

@pytest.fixture(scope="session", autouse=True)
def torn_down():
    yield
    open(f"{FOLDER}/torn-down-{os.getpid()}", "w").close()
"""


def start(folder: Path, tests: str, *words: str) -> subprocess.Popen[str]:
    (folder / "test_sample.py").write_text(ALL + tests)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--workers", "2", *words]
    return subprocess.Popen(
        [*command, "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-q", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Its workers are in groups of their own, and a signal to this one must not reach others.
        process_group=0,
    )


def outcome(folder: Path, tests: str, *words: str) -> tuple[int, str]:
    with start(folder, tests, *words) as process:
        output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_reports_of_workers_are_those_of_pytest(tmp_path: Path) -> None:
    tests = """
def test_passed(tmp_path): print("unseen")
def test_failed(): print("printed"); assert 1 + 1 == 3
def test_skipped(): pytest.skip("no reason")
def test_warned(): warnings.warn("a warning")
@pytest.fixture
def broken(): raise ValueError("in a fixture")
def test_error(broken): pass
"""
    code, output = outcome(tmp_path, tests)
    assert code == 1
    assert "1 failed, 2 passed, 1 skipped, 1 warning, 1 error" in output
    assert "assert (1 + 1) == 3" in output
    assert "printed" in output
    assert "unseen" not in output
    assert "UserWarning: a warning" in output
    # Only one worker has a chunk: all tests are of one module.
    assert len(list(tmp_path.glob("torn-down-*"))) == 1


def test_a_test_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    tests = """
def test_first(): pass
def test_killed():
    with open(f"{FOLDER}/draft", "w") as file: file.write(str(os.getpid()))
    os.rename(f"{FOLDER}/draft", f"{FOLDER}/pid")
    os.kill(os.getpid(), signal.SIGKILL)
@pytest.mark.parametrize("number", range(5))
def test_rest(number): pass
"""
    # Two chunks: the worker that takes the first one is there when the other one has ended.
    others = """
import os, pathlib, time
import pytest
PID = pathlib.Path(__file__).parent / "pid"

@pytest.mark.parametrize("number", range(60))
def test_other(number):
    while not PID.exists() or os.path.exists(f"/proc/{PID.read_text()}"): time.sleep(0.01)
"""
    (tmp_path / "test_zz.py").write_text(others)
    code, output = outcome(tmp_path, tests)
    assert code == 1
    assert "1 failed, 66 passed" in output
    assert "ended with status -9 during this test" in output


def test_no_worker_is_left(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("number", range(3))
def test_killed(number): os.kill(os.getpid(), signal.SIGKILL)
"""
    code, output = outcome(tmp_path, tests)
    assert code == 1
    assert "2 tests did not run: no worker is left" in output


def test_a_worker_of_its_own_for_the_browser_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "dashboard"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").touch()
    tests = """
def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_rest(): pass
"""
    code, output = outcome(folder, tests)
    assert code == 1
    assert "1 test did not run: no worker is left" in output


@pytest.mark.parametrize(
    ("statement", "words", "code", "said"),
    [
        ("assert False", ["-x"], pytest.ExitCode.TESTS_FAILED, "1 failed"),
        ('pytest.exit("enough")', [], pytest.ExitCode.INTERRUPTED, "enough"),
    ],
)
def test_the_run_ends_at_once(
    tmp_path: Path, statement: str, words: list[str], code: int, said: str
) -> None:
    tests = f"""
def test_last():
    while not os.path.exists(FOLDER + "/begun"): time.sleep(0.01)
    {statement}
def test_not_run(): open(FOLDER + "/run", "w").close()
"""
    others = (
        ALL
        + """
def test_endless():
    open(f"{FOLDER}/begun", "w").close()
    time.sleep(60)
"""
    )
    (tmp_path / "test_zz.py").write_text(others)
    found = outcome(tmp_path, tests, *words)
    assert found[0] == code
    assert said in found[1]
    assert not (tmp_path / "run").exists()
    assert len(list(tmp_path.glob("torn-down-*"))) == 2


@pytest.mark.parametrize(
    ("statement", "said"),
    [("time.sleep(60)", "Timeout (>1.0s)"), ("breakpoint()", "BdbQuit")],
)
def test_a_test_that_would_never_end_fails(tmp_path: Path, statement: str, said: str) -> None:
    code, output = outcome(tmp_path, f"def test_one(): {statement}\n", "--timeout", "1")
    assert code == 1
    assert said in output
    assert "1 failed" in output


@pytest.mark.parametrize("to_all", [False, True])
def test_an_interrupt_tears_down_fixtures(tmp_path: Path, to_all: bool) -> None:
    """As of `./hf`, which sends it to pytest alone, and of Ctrl-C, which reaches the group."""
    tests = """
def test_endless():
    open(f"{FOLDER}/begun", "w").close()
    time.sleep(60)
"""
    process = start(tmp_path, tests)
    wait_until((tmp_path / "begun").exists)
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert len(list(tmp_path.glob("torn-down-*"))) == 1


def test_workers_end_with_the_process_that_forked_them(tmp_path: Path) -> None:
    tests = """
def test_slow():
    open(f"{FOLDER}/begun", "w").close()
    while os.getppid() == PARENT: time.sleep(0.01)
def test_not_run(): open(f"{FOLDER}/run", "w").close()
"""
    process = start(tmp_path, "PARENT = os.getpid()\n" + tests)
    wait_until((tmp_path / "begun").exists)
    process.kill()
    process.communicate(timeout=60)
    [torn_down] = tmp_path.glob("torn-down-*")
    assert torn_down.exists()
    assert not (tmp_path / "run").exists()


def test_long_tests_come_first_and_those_in_a_browser_apart() -> None:
    names = [
        "tests/app/test_a.py::test_1",
        *(f"tests/app/test_b.py::test_{number}" for number in range(60)),
        "tests/crash/test_c.py::test_1",
        "tests/dashboard/test_d.py::test_1",
        "tests/engines/test_contract.py::test_1",
        "tests/dashboard/test_e.py::test_1",
    ]
    ordered, browser = chunks(names)
    assert ordered == [[61], [0], [*range(1, 51)], [*range(51, 61)], [63]]
    assert browser == [62, 64]
