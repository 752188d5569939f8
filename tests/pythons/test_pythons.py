"""The path of a new user, on every supported version of Python that this machine has: build the
wheel, install it into an empty environment, do what README shows first, and follow the tutorial.
The versions that are missing are skipped by name.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.conformance.private_server import ServiceUnavailable
from tests.cli.program import environment
from tests.docs.player import Player
from tests.services import fresh_database, needed
from tests.sources import ROOT

README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
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


def new_environment(python: Path, folder: Path) -> Path:
    """The programs of an empty environment."""
    uv = _uv()
    with needed("The package index", "package-index"):
        _install([uv, "venv", "--python", python, folder] if uv else [python, "-m", "venv", folder])
    return folder / "bin"


def install(programs: Path, *packages: str) -> None:
    """Install packages and what they need, in pinned versions."""
    python, uv = programs / "python", _uv()
    pip = (
        [uv, "pip", "install", f"--python={python}"]
        if uv
        else [str(python), "-m", "pip", "install"]
    )
    with needed("The package index", "package-index"):
        _install([*pip, "-c", ROOT / "lock.txt", *packages])


def _uv() -> str | None:
    private = ROOT / ".hf" / "tools" / "bin" / "uv"
    for uv in (os.environ.get("UV"), shutil.which("uv"), private):
        if uv and os.access(uv, os.X_OK):
            return str(uv)
    return None


def _install(command: Sequence[str | Path]) -> None:
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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("minor", MINORS, ids=lambda minor: f"3.{minor}")
def test_the_path_of_a_new_user(minor: int, tmp_path: Path, pg_server_dsn: str) -> None:
    found = pythons(minor)
    if not found:
        pytest.skip(f"no Python 3.{minor} on PATH, in pyenv or in uv")
    wheel = built_wheel(tmp_path)
    for version, python in found.items():
        print(f"Python {version}: {python}")
        home = tmp_path / version
        folder, shop = home / "work", home / "shop"
        folder.mkdir(parents=True)
        shop.mkdir()
        installed = new_environment(python, home / "env")
        install(installed, str(wheel))
        programs = Programs(installed, folder)
        assert programs.run("python", "-c", VERSION) == version
        imported = programs.run("python", "-c", IMPORTED)
        assert imported.count(f"{home / 'env'}") == 2, imported
        follow_readme(programs, folder)
        assert "pip install '.[server,postgres]' pytest\n" in TUTORIAL
        install(installed, f"{wheel}[server,postgres]", "pytest")
        with fresh_database(pg_server_dsn) as dsn:
            replaced = {"postgresql://localhost/shop": dsn}
            Player(shop, installed, replaced).play(TUTORIAL)
        assert (shop / "outbox" / "order-300.txt").exists(), "the last step did not run"


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
