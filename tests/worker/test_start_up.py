"""The modules that a worker loads before its first job: each one delays every start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.app.blocking_app import BlockingHoldfast
from holdfast.cli import run
from holdfast.worker import managed_process, processes
from tests.cli.program import command, environment

# Before the first process starts the next one. The standard library is named without its private
# modules, and without those that every interpreter loads.
FIRST_STDLIB = """
    __future__ collections contextlib copyreg enum errno fcntl functools importlib itertools keyword
    locale math operator re reprlib select selectors signal socket subprocess threading token types
    typing warnings annotationlib array ast textwrap string
"""
FIRST_OF_THE_COMMAND_LINE = """
    holdfast holdfast.cli holdfast.cli.help_pages holdfast.worker holdfast.worker.managed_process
"""
FIRST_OF_A_SUPERVISOR = """
    holdfast holdfast.worker holdfast.worker.managed_process
    holdfast.worker.supervisor holdfast.worker.supervisor.template_process
"""
PATHLIB = "fnmatch ntpath pathlib urllib ipaddress glob"
"""The command line finds its help pages with it."""

# By all processes together, until the first job runs: packages, and parts of this one.
PACKAGES = """
    apsw attr attrs cronsim cyclopts holdfast msgspec rich typing_extensions uuid_utils uvloop
"""
PARTS = """
    app cli config core engines errors events notation ops process telemetry tracing worker
"""
ENGINES = """
    base broker clock coalesced extras lease observed registry selection sqlite sqs support wrapper
"""
OTHERS = {"shop", "sitecustomize", "usercustomize", "org"}
"""The application, the hooks of every interpreter, and a name that the module copy looks for."""

STOP_AT_THE_FIRST_START = """
import subprocess, sys
before = set(sys.modules)
def stop(*_args, **_named):
    print(*sorted(set(sys.modules) - before), flush=True)
    raise SystemExit(0)
subprocess.Popen = stop
"""
TASKS = """
from holdfast import Holdfast

app = Holdfast()

@app.task(name="first")
def first() -> None:
    print("the first job runs", flush=True)
"""


def modules_before_the_next_process(program: str) -> set[str]:
    """The modules that a program loads before it starts a process."""
    ran = subprocess.run(
        [sys.executable, "-c", STOP_AT_THE_FIRST_START + program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


def surplus(found: set[str], allowed: str) -> set[str]:
    plain = {name if name.startswith("holdfast") else name.partition(".")[0] for name in found}
    return {name for name in plain if not name.startswith("_")} - set(allowed.split())


def remedy(names: set[str], when: str) -> str:
    listed = ", ".join(sorted(names))
    return (
        f"{listed}: imported {when}, which delays every start of a worker. Import it in the"
        " function that needs it. If no start can do without it, add it to the list in"
        f" {Path(__file__).name} and record what it costs with ./hf bench start."
    )


@pytest.mark.parametrize("line", ["worker start", "worker run shop:app", "up --app shop:app"])
def test_the_command_line_starts_the_worker_before_it_loads_anything(line: str) -> None:
    program = f"from holdfast.cli import run; run({line.split()})"
    found = modules_before_the_next_process(program)
    assert "holdfast.worker.managed_process" in found
    wrong = surplus(found, FIRST_OF_THE_COMMAND_LINE + FIRST_STDLIB + PATHLIB)
    assert not wrong, remedy(wrong, "before the worker's process is started")


def test_a_supervisor_starts_its_template_before_it_loads_anything() -> None:
    program = "sys.argv = ['x', '--template']; from holdfast.worker.supervisor.__main__ import main"
    found = modules_before_the_next_process(f"{program}; main()") - {
        "holdfast.worker.supervisor.__main__"
    }
    assert "holdfast.worker.supervisor.template_process" in found
    wrong = surplus(found, FIRST_OF_A_SUPERVISOR + FIRST_STDLIB)
    assert not wrong, remedy(wrong, "before the template is started")


def test_only_what_is_needed_is_loaded_before_the_first_job(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TASKS)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with BlockingHoldfast(url) as app:
        app.enqueue("first")
    run = ["worker", "run", "shop:app", "--url", url, "--no-upkeep", "--no-commands"]
    with subprocess.Popen(
        command(*run),
        cwd=tmp_path,
        env=environment(PYTHONPROFILEIMPORTTIME="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        found: set[str] = set()
        for line in worker.stdout:
            imported = re.search(r"import time: .*\| +([\w.]+)$", line.rstrip())
            if imported:
                found.add(imported[1])
            if "the first job runs" in line:
                break
        worker.terminate()
        rest = worker.stdout.read()
    assert worker.returncode == 0, rest
    outside = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    wrong = outside - set(PACKAGES.split()) - OTHERS
    assert not wrong, remedy(wrong, "before the first job")
    assert {"apsw", "cyclopts", "msgspec"} <= outside
    parts = {name.split(".")[1] for name in found if name.startswith("holdfast.")}
    wrong = parts - set(PARTS.split())
    assert not wrong, remedy(wrong, "before the first job")
    engines = {name.split(".")[2] for name in found if name.startswith("holdfast.engines.")}
    wrong = engines - set(ENGINES.split())
    assert not wrong, remedy(wrong, "before the first job, although the store is a SQLite file")


def test_a_wrong_command_line_leaves_no_worker_behind(tmp_path: Path) -> None:
    """The worker's process was started before the flags were read."""
    ran = subprocess.run(
        command("worker", "run", "shop:app", "--nonsense"),
        cwd=tmp_path,
        env=environment(HOLDFAST_TEST=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    # Its output ended: every process that could write to it has ended too.
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert 'unknown option "--nonsense"' in line
    assert not list(processes.marked({b"HOLDFAST_TEST": str(tmp_path).encode()}))


def test_a_worker_that_was_not_needed_ends_with_its_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a program that runs several command lines, the next one would use it, with the environment
    of the first."""
    assert run(["worker", "start", "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err
    assert managed_process.ahead_pids() == []
