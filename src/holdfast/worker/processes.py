"""Process trees, as the kernel reports them: find, mark and kill processes. Linux only. A worker's
processes are subreapers: a process that a command leaves behind becomes their child, and is found
here. This module knows nothing about jobs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this signal when the thread that started this process ends.

    Raises ProcessLookupError if the parent has already ended: then no signal would ever arrive.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent process {parent} is gone")


def become_subreaper() -> None:
    """Make this process, instead of init, the parent of orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The direct children, including zombies. A child that starts or ends during the read may be
    missed, and all are missed if no file descriptor is left: look again later.
    """
    found: list[int] = []
    with suppress(OSError):
        # Without pathlib: this runs after each command.
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb", 0) as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on; parents before their children."""
    found = children(pid)
    for each in found:
        found += [child for child in children(each) if child not in found]
    return found


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat."""

    state: str
    parent: int
    group: int
    session: int


def stat(pid: int) -> Stat | None:
    """State and parents of a process; None if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name is in brackets and may contain brackets itself.
    state, parent, group, session = text[text.rindex(b")") + 2 :].split(maxsplit=4)[:4]
    return Stat(state.decode(), int(parent), int(group), int(session))


def environment(pid: int) -> dict[bytes, bytes]:
    """The environment that the process was started with; empty if it cannot be read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def marked(marker: dict[bytes, bytes]) -> Iterator[int]:
    """Every other process on the machine that was started with these variables."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            has = environment(int(entry.name))
            if all(has.get(name) == value for name, value in marker.items()):
                yield int(entry.name)


def kill_marked(marker: dict[bytes, bytes]) -> int:
    """Kill every process that was started with these variables; returns how many there were."""
    found = list(marked(marker))
    for pid in found:
        kill(pid)
    return len(found)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group that may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_descendants(pid: int) -> int:
    """Kill all descendants of a process; returns how many there were."""
    found = descendants(pid)
    for each in found:
        kill(each)
    return len(found)


def sweep_strangers(known: Collection[int]) -> int:
    """Kill the orphans that this subreaper inherited, with their descendants, and reap dead ones.

    `known` are its own children, which are left alone. Returns how many were alive: sweep again
    until none are, because the children of killed orphans become children of this process.
    """
    living = 0
    for pid in children(os.getpid()):
        if pid in known:
            continue
        if reap(pid):
            continue
        living += 1
        for each in (pid, *descendants(pid)):
            kill(each)
    return living


def reap(pid: int) -> bool:
    """Collect the status of a dead child; False while it lives."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def end_at_once(status: int = 0) -> NoReturn:
    """Kill every process that this one started, and exit."""
    for _ in range(500):
        sweep_strangers(())
        if not kill_descendants(os.getpid()):
            break
        time.sleep(0.002)
    os._exit(status)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
