"""The workers under blows as the kernel sees them: who is launcher, supervisor, child, command.

It starts them by the command line that people use, and finds what they leave behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from holdfast.chaos.runs import HOME
from holdfast.worker import processes
from holdfast.worker.wire import ChildSetup

_STOP_S_MAX = 60.0
_PROGRAM = """
import signal, sys
from holdfast.chaos.runs import HOME
from holdfast.worker import processes
processes.die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from holdfast.cli import main
sys.exit(main())
"""
"""`holdfast`, which drains and ends when this process does, whatever ends that."""
_SETTLE_S_MAX = 5.0
_AWAY = ("(unavailable)", "(outcome_unknown)")


class Tree(NamedTuple):
    """Process ids by what they are. `commands` are what the jobs asked for."""

    launcher: list[int]
    supervisor: list[int]
    child: list[int]
    command_child: list[int]
    command: list[int]


class Fleet:
    """One launcher with its workers; what they print goes to a file in `home`."""

    def __init__(
        self, home: Path, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._home = home
        self._arguments = arguments
        self._environment = {**(environment or {}), HOME: str(home)}
        self._launcher: subprocess.Popen[bytes] | None = None
        # A process whose parent was killed comes here, where it is found and buried.
        processes.become_subreaper()
        self._before = set(processes.children(os.getpid()))

    @property
    def log(self) -> Path:
        return self._home / "workers.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._launcher = self._popen({**os.environ, **self._environment}, log)

    def is_running(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is None

    def tree(self) -> Tree:
        tree = Tree([], [], [], [], [])
        if self._launcher is None or not self.is_running():
            return tree
        tree.launcher.append(self._launcher.pid)
        for supervisor in processes.children(self._launcher.pid):
            if _role(supervisor) != "supervisor":
                continue
            tree.supervisor.append(supervisor)
            for child in processes.children(supervisor):
                role = _role(child)
                if role == "child":
                    tree.child.append(child)
                elif role == "command_child":
                    tree.command_child.append(child)
                    tree.command.extend(processes.children(child))
        return tree

    def bury(self) -> None:
        """The dead that came here; the living are left, for `survivors` to find."""
        for pid in processes.children(os.getpid()):
            if pid not in self._before and not self._is_launcher(pid):
                processes.bury(pid)

    def stop(self, *, outages: bool = False) -> list[str]:
        """When no job runs any more, ask the workers to end; what is wrong with that. Nobody may
        be left: neither beside workers that go on, nor when they have ended."""
        wrong = [f"a process was left beside the workers: {each}" for each in self._settled()]
        wrong += self.breakdowns(outages=outages)
        assert self._launcher is not None
        self._launcher.send_signal(signal.SIGTERM)
        try:
            code = self._launcher.wait(_STOP_S_MAX)
            if code != 0:
                wrong.append(f"the workers ended with exit code {code} when they were asked to")
        except subprocess.TimeoutExpired:
            wrong.append(f"the workers did not end within {_STOP_S_MAX:.0f} s of being asked to")
        return wrong + [f"a process was left behind: {each}" for each in self.survivors()]

    def breakdowns(self, *, outages: bool = False) -> list[str]:
        """Workers that ended by themselves: a blow ends them by a signal. One that is started
        while the store is away says so, ends, and is started again."""
        said = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        found = [
            f"by itself {line} (before that: {said[at - 1] if at else 'nothing'})"
            for at, line in enumerate(said)
            if "worker ended by exit code" in line
        ]
        excused = sum(line.endswith(_AWAY) for line in said) if outages else 0
        return found[excused:]

    def survivors(self) -> list[str]:
        """Every process of this run that lives, by its command line."""
        self.bury()
        marker = {HOME.encode(): str(self._home).encode()}
        return [f"{pid} {_command_line(pid)}" for pid in processes.marked(marker)]

    def strays(self) -> list[str]:
        """While the workers run and no job does: what belongs to none of them."""
        self.bury()
        tree = self.tree()
        known = {*tree.launcher, *tree.supervisor, *tree.child, *tree.command_child}
        marker = {HOME.encode(): str(self._home).encode()}
        return [
            f"{pid} {_command_line(pid)}"
            for pid in processes.marked(marker)
            # One that is just being started bears its parent's name until it has its own.
            if pid not in known and (stat := processes.stat(pid)) and stat.parent not in known
        ]

    def _settled(self) -> list[str]:
        """What is just ending, or just being started, is no stray: so look more than once."""
        deadline = time.monotonic() + _SETTLE_S_MAX
        while (found := self.strays()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def kill(self) -> None:
        """Whatever is left, by whatever name."""
        for _ in range(100):
            if not processes.kill_marked({HOME.encode(): str(self._home).encode()}):
                break
            if self._launcher is not None:
                self._launcher.poll()
            self.bury()
        if self._launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(5)

    def _popen(self, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 (this very program)
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), *self._arguments],
            cwd=self._home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _is_launcher(self, pid: int) -> bool:
        return self._launcher is not None and self._launcher.pid == pid


def _role(pid: int) -> str:
    """Not to be remembered: until it has its program, a process looks like its parent."""
    line = _command_line(pid)
    if "holdfast.worker.main" in line:
        return "supervisor"
    if "holdfast.worker.template" in line:
        # Its children have its command line; to kill it must harm nobody either.
        return "child"
    if "holdfast.worker.child" not in line:
        return ""
    setup = processes.environment(pid).get(b"HOLDFAST_CHILD_SETUP")
    if setup is None:
        return ""
    target = msgspec.json.decode(setup, type=ChildSetup).target
    return "command_child" if target is None else "child"


def grown(pids: list[int], age_s: float) -> list[int]:
    """Those that had the time to start, and so have something to lose."""
    return [pid for pid in pids if _age_s(pid) >= age_s]


def _age_s(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    started_ticks = int(text[text.rindex(")") + 2 :].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def _command_line(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return line.replace(b"\0", b" ").decode(errors="replace").strip()
