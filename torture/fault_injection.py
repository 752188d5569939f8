"""Runs clients on one store while it kills, freezes and replaces them, and kills the server.

It forks before any engine is open, so no other thread may run in this process. Every client dies
with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import Journal, read_journals, to_file
from torture.client import Client
from torture.own_transactions import OwnTransactions
from torture.store_checks import check_slots, drain, is_drained, prepare, survey
from torture.stores import Killable, Store
from torture.workload import LEASE_MS

DRAIN_S_MAX = 120.0
DRAIN_ROUNDS_MAX = 5
CLOCK_STEP_NS = 3_000_000
OUTAGES = {"server_kill": "server_back", "broker_kill": "broker_back"}
"""The kills of servers, and what is noted when they accept connections again."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class FaultPlan(NamedTuple):
    """Number of faults, spread over `seconds`, and the seed that draws them."""

    processes: int
    kills: int
    seconds: float
    seed: int
    freezes: int
    server_kills: int
    broker_kills: int = 0


class FaultInjector:
    """One torture run: prepare, inject faults, heal, drain, check."""

    def __init__(self, store: Store, plan: FaultPlan, directory: Path) -> None:
        self._store = store
        self._plan = plan
        self._directory = directory
        self._rng = random.Random(plan.seed)
        self._journal = self._journal_of("nemesis")
        self._alive: dict[int, str] = {}
        self._started = 0
        self._frozen: dict[int, float] = {}
        self._wall_offset_ns = _wall_offset_ns()
        self._broker: Killable | None = None
        self.done = Counter({"kill": 0, "freeze": 0, "server_kill": 0})

    def run(self) -> Findings:
        """Run everything and check the history."""
        try:
            self._finish(self._fork("prepare", self._prepare))
            for _ in range(self._plan.processes):
                self._start(calm=False)
            self._inject_faults()
            self._kill_all()
            self._journal.note("heal")
            self._finish(self._fork("audit", self._check_slots))
            self._drain_store()
            self._note_deadlocks()
        finally:
            self._kill_all(count=False)
        _say("checking the history", end="\n")
        return check(read_journals(self._directory))

    def _drain_store(self) -> None:
        """Let calm clients finish every job, then record what the store contains. The clients are
        stopped first: a job that arrives later would be missing from the record. If one arrived
        before that, it is finished in another round."""
        for _ in range(DRAIN_ROUNDS_MAX):
            for _ in range(max(2, self._plan.processes // 2)):
                self._start(calm=True)
            is_drained = self._finish(self._fork("drain", self._drain))
            # These clients hold no jobs, so the kills are not counted.
            self._kill_all(count=False)
            if not is_drained or self._finish(self._fork("recheck", self._is_drained)):
                break
        self._finish(self._fork("survey", self._survey))

    def _inject_faults(self) -> None:
        """Inject all faults at random instants within the time."""
        seconds = self._plan.seconds
        faults = self._planned_faults()
        started = time.monotonic()
        for instant, fault in sorted(faults):
            self._wait_until(started + instant)
            injected_at = time.monotonic()
            self._inject(fault)
            if fault in OUTAGES:
                # It takes time; without this the other faults would pile up.
                started += time.monotonic() - injected_at
            self.done[fault] += 1
            took = time.monotonic() - started
            text = ", ".join(f"{count} {name}s" for name, count in self.done.items())
            _say(f"{self._store.name}: {took:.0f} of {seconds:.0f} s, {text}")
        self._wait_until(started + seconds)

    def _planned_faults(self) -> list[tuple[float, str]]:
        """The instants of all faults, in seconds from the start."""
        plan = self._plan
        names = ["kill"] * plan.kills + ["freeze"] * plan.freezes
        faults = [(self._rng.random() * plan.seconds, name) for name in names]
        kills = {"server_kill": plan.server_kills, "broker_kill": plan.broker_kills}
        if self._store.server is None:
            del kills["server_kill"]
        for name, count in kills.items():
            # Far enough apart for work in between: recovery takes time.
            share = plan.seconds / max(1, count)
            for number in range(count):
                faults.append(((number + 0.5 * self._rng.random()) * share, name))
        return faults

    def _wait_until(self, instant: float) -> None:
        while (left := instant - time.monotonic()) > 0:
            self._resume_frozen()
            self._check_alive()
            self._watch_clock()
            time.sleep(min(left, 0.05))

    def _inject(self, fault: str) -> None:
        if fault in OUTAGES:
            server = self._store.server if fault == "server_kill" else self._broker
            assert server is not None
            self._journal.note(fault)
            server.kill()
            server.restart()
            self._journal.note(OUTAGES[fault])
            return
        pid = self._rng.choice(list(self._alive))
        if fault == "freeze":
            self._journal.note("freeze", process=self._alive[pid])
            os.kill(pid, signal.SIGSTOP)
            frozen_s = LEASE_MS / 1000 * (1.1 + self._rng.random())
            self._frozen.setdefault(pid, time.monotonic() + frozen_s)
            return
        self._kill(pid)
        self._start(calm=False)

    def _resume_frozen(self) -> None:
        for pid, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                del self._frozen[pid]
                os.kill(pid, signal.SIGCONT)

    def _check_alive(self) -> None:
        """Fail if a client ended by itself: the engine or this test has a bug."""
        for pid in list(self._alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                name = self._alive.pop(pid)
                raise RuntimeError(f"client {name} ended without a fault; see its traceback above")

    def _watch_clock(self) -> None:
        """Record changes of the wall clock: they move due times, and on a server also leases."""
        offset_ns = _wall_offset_ns()
        if abs(offset_ns - self._wall_offset_ns) > CLOCK_STEP_NS:
            self._wall_offset_ns = offset_ns
            self._journal.note("jump")
            if self._store.server is not None and self._store.clock:
                self._journal.note("reboot")

    def _note_deadlocks(self) -> None:
        """Count deadlocks in the server's log; the server resolves them and the engine retries."""
        server = self._store.server
        if server is not None:
            (self._directory / "server.log").write_text(server.log)
            self._journal.note("deadlocks", count=server.log.count("deadlock detected"))

    def _start(self, *, calm: bool) -> None:
        self._started += 1
        name = f"p{self._started}"
        pid = self._fork(name, lambda: self._run_client(name, calm=calm))
        self._alive[pid] = name

    async def _run_client(self, name: str, *, calm: bool) -> bool:
        await self._client(name, calm=calm).run()
        return True

    def _client(self, name: str, *, calm: bool) -> Client:
        seed = f"{self._plan.seed}/{name}"
        own = partial(
            OwnTransactions,
            name=self._store.name,
            url=self._store.url,
            rng=random.Random(f"{seed}/own"),
        )
        return Client(self._store.make(), self._journal_of(name), seed, calm=calm, own=own)

    async def _prepare(self) -> bool:
        await prepare(self._store.make(), self._journal_of("prepare"))
        return True

    async def _check_slots(self) -> bool:
        await check_slots(self._store.make(), self._journal_of("audit"))
        return True

    async def _drain(self) -> bool:
        """Wait until every job is finished."""
        journal = self._journal_of(f"drain{self._started}")
        return await drain(self._store.make(), journal, DRAIN_S_MAX)

    async def _is_drained(self) -> bool:
        return await is_drained(self._store.make())

    async def _survey(self) -> bool:
        """Record the contents of the store, which nobody changes any more."""
        await survey(self._store.make(), self._journal_of("survey"))
        return True

    def _fork(self, name: str, main: Callable[[], Coroutine[Any, Any, bool]]) -> int:
        parent = os.getpid()
        # The hooks around a fork would swallow an interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            return pid
        status = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if os.getppid() == parent:
                status = 0 if asyncio.run(main()) else 2
        except BaseException:  # noqa: BLE001 - the child must never run the parent's code
            print(f"\nclient {name}:", file=sys.stderr)
            traceback.print_exc()
        finally:
            os._exit(status)

    def _finish(self, pid: int) -> bool:
        """Wait for a process of the test; returns its answer."""
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, 2):
            raise RuntimeError(f"a process of the test failed with status {status}")
        return status == 0

    def _kill(self, pid: int, *, count: bool = True) -> None:
        name = self._alive.pop(pid)
        self._frozen.pop(pid, None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if count:
            self._journal.note("kill", process=name)

    def _kill_all(self, *, count: bool = True) -> None:
        for pid in list(self._alive):
            self._kill(pid, count=count)

    def _journal_of(self, name: str) -> Journal:
        return journal_in(self._directory, name)


def journal_in(directory: Path, name: str) -> Journal:
    """A new journal of this process in a directory of histories."""
    return Journal(name, to_file(directory / f"{name}.jsonl"))


def _wall_offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def _say(text: str, end: str = "\r") -> None:
    if sys.stderr.isatty() or end == "\n":
        print(f"{text:100}", end=end, file=sys.stderr, flush=True)
