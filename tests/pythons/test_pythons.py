"""The path of a new user, on every supported version of Python that this machine has: build the
wheel, install it into an empty environment, and do what README shows first. The versions that are
missing are skipped by name.

Pythons are looked for on PATH, among those of pyenv and among those of uv.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.conformance.private_server import ServiceUnavailable
from tests.cli.program import environment
from tests.services import needed
from tests.sources import ROOT

README = (ROOT / "README.md").read_text()
MINORS = (11, 12, 13, 14)
VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
BUILD = "import sys, uv_build; print(uv_build.build_wheel(sys.argv[1]))"
IMPORTED = "import holdfast, holdfast_fleet; print(holdfast.__file__, holdfast_fleet.__file__)"
ASK = "from shop import charge; print(charge.enqueue(43, cents=500).result(timeout='1m'))"
UNREACHABLE = ("Could not find a version", "Connection", "error sending request", "dns error")


def candidates(minor: int) -> Iterator[Path]:
    """Programs that may be this version of Python; some do not run."""
    if sys.version_info[1] == minor:
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder, f"python3.{minor}")
    for home in (Path(os.environ.get("PYENV_ROOT", "~/.pyenv")), Path("~/.local/share/uv/python")):
        for version in (f"3.{minor}.*", f"versions/3.{minor}.*", f"cpython-3.{minor}.*"):
            yield from sorted(home.expanduser().glob(f"{version}/bin/python3.{minor}"))


def pythons(minor: int) -> dict[str, Path]:
    """One program for each patch version."""
    found: dict[str, Path] = {}
    for program in dict.fromkeys(candidates(minor)):
        if not os.access(program, os.X_OK):
            continue
        answer = subprocess.run(
            [program, "-c", VERSION], capture_output=True, text=True, check=False
        )
        # A shim of pyenv for a version that is not selected fails.
        if answer.returncode == 0:
            found.setdefault(answer.stdout.strip(), program)
    return found


def built_wheel(folder: Path) -> Path:
    """The wheel of this repository."""
    # The build backend runs a program that is installed beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


def installed(wheel: Path, python: Path, folder: Path) -> Path:
    """The programs of a new environment with the wheel and what it needs, in pinned versions."""
    uv = _uv()
    if uv is None:
        _install([str(python), "-m", "venv", str(folder)])
        command = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    else:
        _install([uv, "venv", "--python", str(python), str(folder)])
        command = [uv, "pip", "install", "--python", str(folder / "bin" / "python")]
    _install([*command, "-c", str(ROOT / "lock.txt"), str(wheel)])
    return folder / "bin"


def _uv() -> str | None:
    private = ROOT / ".hf" / "tools" / "bin" / "uv"
    for uv in (os.environ.get("UV"), shutil.which("uv"), private):
        if uv and os.access(uv, os.X_OK):
            return str(uv)
    return None


def _install(command: list[str]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and any(each in done.stderr for each in UNREACHABLE):
        raise ServiceUnavailable(f"the package index cannot be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


class Programs:
    """Runs programs of an environment in a folder; whatever they print on standard error is an
    error, and so is any warning."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._folder = folder
        self._programs = programs
        kept = environment(PYTHONWARNINGS="error", PATH=f"{programs}{os.pathsep}{os.defpath}")
        # Bytecode stays in the environment, which is deleted; nothing else is on its path.
        for name in ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV"):
            kept.pop(name, None)
        self._environment = kept

    def run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._programs / program, *arguments],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments
        return done.stdout.strip()

    @contextmanager
    def running(self, program: str, *arguments: str) -> Iterator[None]:
        """A worker, which ends well and complains about nothing."""
        with subprocess.Popen(
            [self._programs / program, *arguments],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as worker:
            try:
                yield
            finally:
                worker.send_signal(signal.SIGTERM)
                printed, _ = worker.communicate()
        assert worker.returncode == 0, printed
        assert "Traceback" not in printed


@pytest.mark.parametrize("minor", MINORS, ids=lambda minor: f"3.{minor}")
def test_the_path_of_a_new_user(minor: int, tmp_path: Path) -> None:
    found = pythons(minor)
    if not found:
        pytest.skip(f"no Python 3.{minor} on PATH, in pyenv or in uv")
    wheel = built_wheel(tmp_path)
    for version, python in found.items():
        print(f"Python {version}: {python}")
        folder = tmp_path / version
        folder.mkdir()
        with needed("The package index", "package-index"):
            programs = Programs(installed(wheel, python, tmp_path / f"env-{version}"), folder)
        assert programs.run("python", "-c", VERSION) == version
        imported = programs.run("python", "-c", IMPORTED)
        assert imported.count(f"{tmp_path / f'env-{version}'}") == 2, imported
        follow_readme(programs, folder)


def follow_readme(programs: Programs, folder: Path) -> None:
    """Write the first program of README, and type its commands in their order."""
    program = re.search(r"```python\n(# (\w+\.py)\n.*?)```", README, re.DOTALL)
    assert program is not None, "README has no program that names its file"
    (folder / program[2]).write_text(program[1])
    lines = [
        shlex.split(line, comments=True)
        for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
    ]
    [install], commands = lines[:1], [line for line in lines[1:] if line]
    assert install[:2] == ["pip", "install"], "README installs first"
    workers = [line for line in commands if line[:2] == ["holdfast", "worker"]]
    others = [line for line in commands if line not in workers]
    assert workers
    assert ["python", program[2]] in others
    [worker] = workers
    with programs.running(*worker):
        printed = [programs.run(*line) for line in others]
        # These programs close nothing: they exit without a word.
        assert programs.run("python", "-c", ASK) == "receipt-43"
    name, enqueued = printed[0].split()
    assert name == "enqueued"
    shown = json.loads(programs.run("holdfast", "job", "show", enqueued, "--json"))
    assert (shown["state"], shown["result"]) == ("done", "receipt-42")
    assert shown["output"] == "attempt 1: charging 1999 cents for order 42\n"
