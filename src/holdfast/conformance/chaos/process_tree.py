"""The processes under test as the kernel sees them: launcher, supervisors, children, commands.

It starts them with the command line that users type, and finds processes they leave behind.
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

from holdfast.conformance.chaos.run_log import HOME
from holdfast.worker import processes
from holdfast.worker.wire import ChildSetup

_STOP_S_MAX = 60.0
_PROGRAM = """
import signal, sys
from holdfast.conformance.chaos.run_log import HOME
from holdfast.worker import processes
processes.die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from holdfast.cli import main
sys.exit(main())
"""
"""`holdfast`, which drains and exits when this process ends in any way."""
_SETTLE_S_MAX = 5.0
_AWAY = ("(unavailable)", "(outcome_unknown)")


class ProcessTree(NamedTuple):
    """Process ids by role. `commands` are the processes of command jobs."""

    launcher: list[int]
    supervisor: list[int]
    child: list[int]
    command_child: list[int]
    command: list[int]


class LaunchedWorkers:
    """One launcher with its workers; their output goes to a file in `home`."""

    def __init__(
        self, home: Path, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._home = home
        self._arguments = arguments
        self._environment = {**(environment or {}), HOME: str(home)}
        self._launcher: subprocess.Popen[bytes] | None = None
        # This process becomes the parent of orphans, so that it finds and reaps them.
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

    def tree(self) -> ProcessTree:
        tree = ProcessTree([], [], [], [], [])
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

    def reap_orphans(self) -> None:
        """Reap dead orphans; living ones are left for `survivors` to find."""
        for pid in processes.children(os.getpid()):
            if pid not in self._before and not self._is_launcher(pid):
                processes.reap(pid)

    def stop(self, *, outages: bool = False) -> list[str]:
        """Stop the workers when no job runs any more; returns what went wrong. No process may be
        left, neither beside running workers nor after they have exited."""
        wrong = [f"a process does not belong to any worker: {each}" for each in self._settled()]
        wrong += self.breakdowns(outages=outages)
        assert self._launcher is not None
        self._launcher.send_signal(signal.SIGTERM)
        try:
            code = self._launcher.wait(_STOP_S_MAX)
            if code != 0:
                wrong.append(f"the workers ended with exit code {code} after SIGTERM")
        except subprocess.TimeoutExpired:
            wrong.append(f"the workers did not end within {_STOP_S_MAX:.0f} s of SIGTERM")
        return wrong + [f"a process was left behind: {each}" for each in self.survivors()]

    def breakdowns(self, *, outages: bool = False) -> list[str]:
        """Workers that exited on their own; faults end them by a signal. With `outages`, a worker
        that starts while the store is unreachable may exit with an error and be restarted.
        """
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        found = [
            f"without a fault: {line} (before that: {lines[at - 1] if at else 'nothing'})"
            for at, line in enumerate(lines)
            if "worker ended by exit code" in line
        ]
        excused = sum(line.endswith(_AWAY) for line in lines) if outages else 0
        return found[excused:]

    def survivors(self) -> list[str]:
        """The command lines of all living processes of this run."""
        self.reap_orphans()
        marker = {HOME.encode(): str(self._home).encode()}
        return [f"{pid} {_command_line(pid)}" for pid in processes.marked(marker)]

    def strays(self) -> list[str]:
        """Processes that belong to no worker, while workers run and no job does."""
        self.reap_orphans()
        tree = self.tree()
        known = {*tree.launcher, *tree.supervisor, *tree.child, *tree.command_child}
        marker = {HOME.encode(): str(self._home).encode()}
        return [
            f"{pid} {_command_line(pid)}"
            for pid in processes.marked(marker)
            # A starting process has its parent's command line until it has its own.
            if pid not in known and (stat := processes.stat(pid)) and stat.parent not in known
        ]

    def _settled(self) -> list[str]:
        """Strays that stay: a process may just be starting or ending, so look more than once."""
        deadline = time.monotonic() + _SETTLE_S_MAX
        while (found := self.strays()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def kill(self) -> None:
        """Kill every process of this run that is left."""
        for _ in range(100):
            if not processes.kill_marked({HOME.encode(): str(self._home).encode()}):
                break
            if self._launcher is not None:
                self._launcher.poll()
            self.reap_orphans()
        if self._launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(5)

    def _popen(self, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
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
    """The role of a process; not cached, because a starting process looks like its parent."""
    line = _command_line(pid)
    if "holdfast.worker.supervisor" in line:
        return "supervisor"
    if "holdfast.worker.child.template" in line:
        # Its forked children have its command line; killing one must be harmless too.
        return "child"
    if "holdfast.worker.child.main" not in line:
        return ""
    setup = processes.environment(pid).get(b"HOLDFAST_CHILD_SETUP")
    if setup is None:
        return ""
    target = msgspec.json.decode(setup, type=ChildSetup).target
    return "command_child" if target is None else "child"


def grown(pids: list[int], age_s: float) -> list[int]:
    """The processes that are old enough to have finished starting."""
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
