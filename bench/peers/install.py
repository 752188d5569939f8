"""Installs the peers when they are first needed, into a virtual environment and a folder of Node
packages below `.hf/peers`. It writes nothing outside that folder.
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
    """Peers cannot be installed; the text is one line with the reason."""


def install_python(log: Callable[[str], None]) -> None:
    """Install what requirements.txt pins; returns at once if that is done."""
    _install(HOME / "python", SOURCES / "requirements.txt", log)


def install_sqs_servers(log: Callable[[str], None]) -> Path:
    """Install the SQS servers that requirements-sqs.txt pins; return the folder of their programs.
    They are apart from the others, because they pin their own dependencies."""
    _install(HOME / "sqs", SOURCES / "requirements-sqs.txt", log)
    return HOME / "sqs" / "bin"


def _install(folder: Path, wanted: Path, log: Callable[[str], None]) -> None:
    stamp = folder / ".stamp"
    if _is_current(stamp, wanted, sys.version):
        return
    log(f"installing {wanted.name}")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    program = str(folder / "bin" / "python")
    _run([program, "-m", "pip", "install", "--quiet", "-r", str(wanted)])
    stamp.write_text(_digest(wanted, sys.version))


def install_node(log: Callable[[str], None]) -> None:
    """Install what package.json pins, and copy the programs beside it, where Node finds it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstalled("node and npm are not installed")
    wanted = SOURCES / "package.json"
    stamp = NODE / ".stamp"
    if not _is_current(stamp, wanted, ""):
        log("installing the Node peers")
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
