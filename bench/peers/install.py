"""Installs the peers when they are first needed: a virtual environment and a folder of Node
packages below `.hf/peers`. Nothing outside is written, and nothing of the product changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.processes import ROOT

HOME = ROOT / ".hf" / "peers"
PYTHON = HOME / "python" / "bin" / "python"
NODE = HOME / "node"
SOURCES = Path(__file__).resolve().parent
INSTALL_S_MAX = 300


class NotInstalled(Exception):
    """The text is one line: which, and why."""


def install_python(tell: Callable[[str], None]) -> None:
    """What requirements.txt pins; instant when it is there already."""
    wanted = SOURCES / "requirements.txt"
    stamp = HOME / "python" / ".stamp"
    if _is_current(stamp, wanted, sys.version):
        return
    tell("installing the Python peers")
    shutil.rmtree(HOME / "python", ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(HOME / "python")])
    _run([str(PYTHON), "-m", "pip", "install", "--quiet", "-r", str(wanted)])
    stamp.write_text(_digest(wanted, sys.version))


def install_node(tell: Callable[[str], None]) -> None:
    """What package.json pins, and the programs beside it: that is where they find it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstalled("node and npm are not there")
    wanted = SOURCES / "package.json"
    stamp = NODE / ".stamp"
    if not _is_current(stamp, wanted, ""):
        tell("installing the Node peers")
        shutil.rmtree(NODE, ignore_errors=True)
        NODE.mkdir(parents=True)
        shutil.copy(wanted, NODE)
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        _run(["npm", "install", *options], cwd=NODE)
        stamp.write_text(_digest(wanted, ""))
    for program in SOURCES.glob("*.mjs"):
        shutil.copy(program, NODE)


def _run(command: list[str], *, cwd: Path | None = None) -> None:
    try:
        subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=INSTALL_S_MAX,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stdout.splitlines() if "error" in line.lower()]
        raise NotInstalled(f"{command[0]}: {(lines or ['failed'])[-1][:200]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from None


def _is_current(stamp: Path, wanted: Path, more: str) -> bool:
    return stamp.exists() and stamp.read_text() == _digest(wanted, more)


def _digest(wanted: Path, more: str) -> str:
    return hashlib.sha256(wanted.read_bytes() + more.encode()).hexdigest()
