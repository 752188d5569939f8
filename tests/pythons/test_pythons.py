"""The smoke test: a producer, a worker and the command line on every supported version of Python
that this machine has. The others are skipped by name.

Pythons are looked for on PATH, among those of pyenv and among those of uv. Each gets its own
environment with the pinned packages, which later runs reuse.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

APPLICATION = Path(__file__).with_name("application.py")
MINORS = (11, 12, 13, 14)
STATE = ROOT / ".hf"
ENVIRONMENTS = STATE / "pythons"
VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


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


def equipped(version: str, program: Path) -> Path:
    """The Python of an environment with the pinned packages that Holdfast needs."""
    if program == Path(sys.executable):
        return program
    wanted = [(ROOT / name).read_bytes() for name in ("lock.txt", "pyproject.toml")]
    digest = hashlib.sha256(b"".join(wanted)).hexdigest()[:16]
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = ENVIRONMENTS / version
        stamp = environment / "stamp"
        if not (stamp.exists() and stamp.read_text() == digest):
            shutil.rmtree(environment, ignore_errors=True)
            uv = _uv()
            _install([uv, "venv", "--python", str(program), str(environment)])
            command = [uv, "pip", "install", "--python", str(environment / "bin" / "python")]
            _install([*command, "-r", "pyproject.toml", "-c", "lock.txt"])
            stamp.write_text(digest)
    return environment / "bin" / "python"


def _uv() -> str:
    for uv in (os.environ.get("UV"), shutil.which("uv"), STATE / "tools" / "bin" / "uv"):
        if uv and os.access(uv, os.X_OK):
            return str(uv)
    pytest.skip("other versions of Python need uv to get their packages")


def _install(command: list[str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"the packages cannot be installed here: {done.stderr.strip()[-300:]}")


class Programs:
    """Runs programs of one Python on one file; whatever they print on standard error is an error,
    and so is any warning."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "HOLDFAST_URL": f"sqlite:///{folder / 'q.db'}",
        }

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._python, "-W", "error", *arguments],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments
        return done.stdout.strip()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._python, "-W", "error", *arguments],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.parametrize("minor", MINORS, ids=lambda minor: f"3.{minor}")
def test_smoke(minor: int, tmp_path: Path) -> None:
    found = pythons(minor)
    if not found:
        pytest.skip(f"no Python 3.{minor} on PATH, in pyenv or in uv")
    for version, program in found.items():
        print(f"Python {version}: {program}")
        folder = tmp_path / version
        folder.mkdir()
        check_smoke(Programs(equipped(version, program), folder), version)


def check_smoke(programs: Programs, version: str) -> None:
    """A program that does not close what it uses exits without a word, and its jobs run."""
    assert programs.run("-c", VERSION) == version
    assert programs.run(str(APPLICATION)) == ""
    worker = programs.start("-m", "holdfast", "worker", "run", f"{APPLICATION}:app")
    try:
        assert programs.run(str(APPLICATION), "--wait") == "42"
    finally:
        worker.send_signal(signal.SIGTERM)
        output, _ = worker.communicate()
    assert worker.returncode == 0, output
    assert "Traceback" not in output
    queues = json.loads(programs.run("-m", "holdfast", "status", "--json"))["queues"]
    assert any(queue["done"] for queue in queues if queue["name"] == "default")
