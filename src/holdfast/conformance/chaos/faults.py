"""Injects faults: kills and freezes the processes of workers, and restarts their database server
and broker.

It records the targets and the end of each fault for `verify`. It knows nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from holdfast.conformance.chaos.process_tree import LaunchedWorkers, ProcessTree, grown
from holdfast.conformance.chaos.verify import Fault
from holdfast.worker import processes

ROLES = {"child": 45, "command_child": 12, "command": 20, "supervisor": 20, "launcher": 3}
_STALL_S = 0.5
_LATE_S = 2.0
_GROWN_S = 2.5
_APART_S = 1.5
"""The pause between the kill of a launcher and any other. If a supervisor and its command process
were killed with it, nothing would end their commands until a worker of that name starts again."""
_THAW = ("/bin/sh", "-c", 'sleep "$1"; kill -CONT "$2"', "thaw")


class _Frozen(NamedTuple):
    until: float
    fault: Fault
    thaw: subprocess.Popen[bytes]


class Server(Protocol):
    """A database server or broker that may be killed, because this program started it."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...


class Servers(NamedTuple):
    """The servers of a run: of its store, and its broker; None if there is none to kill."""

    store: Server | None = None
    broker: Server | None = None


class FaultInjector:
    """`lease_ms` is what a freeze must outlast; `scale` shortens the jobs. `one_writer`: a frozen
    worker may hold the write lock and block all others."""

    def __init__(
        self,
        workers: LaunchedWorkers,
        dice: random.Random,
        *,
        lease_ms: int,
        scale: float,
        one_writer: bool,
        servers: Servers | None = None,
    ) -> None:
        self._workers = workers
        self._dice = dice
        self._lease_ms = lease_ms
        self._grown_s = _GROWN_S * scale
        self._one_writer = one_writer
        self._servers = servers or Servers()
        self._restarting: dict[str, asyncio.Task[None]] = {}
        self._frozen: dict[int, _Frozen] = {}
        self._struck_at = {"launcher": 0.0}
        self.faults: list[Fault] = []
        self.counts: Counter[str] = Counter()

    def inject(self, kind: str, *, early: bool) -> bool:
        """Inject one fault; False if there is no target now. An `early` one may hit a starting
        process."""
        now = time.monotonic()
        if now < self._struck_at["launcher"] + _APART_S:
            return False
        if kind == "launcher" and now < max(self._struck_at.values()) + _APART_S:
            return False
        if kind == "restart":
            return self._restart(kind, self._servers.store)
        if kind == "broker_restart":
            return self._restart(kind, self._servers.broker)
        tree = self._workers.tree()
        if kind == "freeze":
            return self._freeze(tree)
        victims: list[int] = getattr(tree, kind)
        if kind != "command" and not early:
            victims = grown(victims, self._grown_s)
        if not victims:
            return False
        victim = self._dice.choice(victims)
        pids = (victim, *processes.descendants(victim))
        at_ns = time.monotonic_ns()
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.faults.append(Fault("kill", kind, at_ns, pids))
        self._struck_at[kind] = now
        self.counts[kind] += 1
        self.counts["kills"] += 1
        return True

    async def keep_thawing(self) -> None:
        """Thaw in the background: the main loop may wait for a lock that a frozen process holds."""
        while True:
            self.thaw()
            await asyncio.sleep(0.05)

    def thaw(self, *, everybody: bool = False) -> None:
        for pid, frozen in list(self._frozen.items()):
            if everybody or time.monotonic() >= frozen.until or not processes.stat(pid):
                del self._frozen[pid]
                processes.kill(pid, signal.SIGCONT)
                self.faults.append(replace(frozen.fault, until_ns=time.monotonic_ns()))
                processes.kill_group(frozen.thaw.pid)
                frozen.thaw.wait()

    async def end_all(self) -> None:
        """End all faults: thaw every process and wait for the servers."""
        self.thaw(everybody=True)
        await asyncio.gather(*self._restarting.values())

    @contextlib.contextmanager
    def noting_stalls(self) -> Iterator[None]:
        """Record stalls of the whole machine, in which leases lapse through no worker's fault."""
        over = threading.Event()

        def watch() -> None:
            before = time.monotonic_ns()
            while not over.wait(0.02):
                now = time.monotonic_ns()
                if now - before > _STALL_S * 1e9:
                    self.faults.append(Fault("stall", "machine", before, until_ns=now))
                before = now

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _freeze(self, tree: ProcessTree) -> bool:
        """Freeze a supervisor, whose leases then lapse, or a child, which must have no effect."""
        role = "supervisor" if self._dice.random() < 0.7 else "child"
        old_enough = grown(getattr(tree, role), self._grown_s)
        victims = [pid for pid in old_enough if pid not in self._frozen]
        if not victims:
            return False
        victim = self._dice.choice(victims)
        lasting_s = self._lease_ms / 1000 * (1.2 + self._dice.random())
        # A process that holds the lock of the file prevents all others from renewing.
        pids = () if role == "supervisor" and self._one_writer else (victim,)
        # If this process ends meanwhile, nothing may stay frozen.
        thaw = subprocess.Popen(
            [*_THAW, f"{lasting_s + _LATE_S:.1f}", str(victim)], start_new_session=True
        )
        fault = Fault("freeze", role, time.monotonic_ns(), pids)
        processes.kill(victim, signal.SIGSTOP)
        self._frozen[victim] = _Frozen(time.monotonic() + lasting_s, fault, thaw)
        self.counts["freezes"] += 1
        return True

    def _restart(self, kind: str, server: Server | None) -> bool:
        assert server is not None
        restarting = self._restarting.get(kind)
        if restarting is not None and not restarting.done():
            return False
        outage = self._outage(kind, server, self._dice.random())
        self._restarting[kind] = asyncio.create_task(outage)
        self.counts[f"{kind}s"] += 1
        return True

    async def _outage(self, kind: str, server: Server, lasting_s: float) -> None:
        at_ns = time.monotonic_ns()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(lasting_s)
        await asyncio.to_thread(server.restart)
        if kind == "restart":
            # Clients reconnect at their own pace. No lease may lapse because of the broker.
            self.faults.append(Fault("outage", "server", at_ns, until_ns=time.monotonic_ns()))


def kill_roles(kills: int) -> list[str]:
    """The roles to kill, in the proportions of `ROLES`, each at least once."""
    most = "child"
    roles = [
        role
        for role, share in ROLES.items()
        if role != most
        for _ in range(max(1, round(kills * share / 100)))
    ][:kills]
    return [*roles, *[most] * (kills - len(roles))]
