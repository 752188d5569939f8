"""The storm over one store: processes are forked, killed, frozen and replaced; so is the server.

It forks before any engine is open, so no other thread may run here. Every process dies with this
one, whatever ends it.
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
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.testing.checker import Findings, check
from holdfast.testing.history import Journal, read_journals, to_file
from torture.player import Player
from torture.queues import LEASE_MS
from torture.stores import Store
from torture.survey import audit, prepare, survey

DRAIN_S_MAX = 120.0
CLOCK_STEP_NS = 3_000_000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Weather(NamedTuple):
    """`kills` are spread over `seconds`; of these, some are freezes and some hit the server."""

    processes: int
    kills: int
    seconds: float
    seed: int
    freezes: int
    server_kills: int


class Storm:
    def __init__(self, store: Store, weather: Weather, directory: Path) -> None:
        self._store = store
        self._weather = weather
        self._directory = directory
        self._dice = random.Random(weather.seed)
        self._journal = self._journal_of("nemesis")
        self._alive: dict[int, str] = {}
        self._lives = 0
        self._frozen: dict[int, float] = {}
        self._wall_offset_ns = _wall_offset_ns()
        self.done = {"kill": 0, "freeze": 0, "server_kill": 0}

    def run(self) -> Findings:
        try:
            self._finish(self._fork("prepare", self._prepare))
            for _ in range(self._weather.processes):
                self._start(calm=False)
            self._rage()
            self._kill_all()
            self._journal.note("heal")
            self._finish(self._fork("audit", self._audit))
            for _ in range(max(2, self._weather.processes // 2)):
                self._start(calm=True)
            self._finish(self._fork("survey", self._survey))
            self._note_deadlocks()
        finally:
            # What is left has nothing in hand: these are not counted.
            self._kill_all(count=False)
        _say("checking the history", end="\n")
        return check(read_journals(self._directory))

    def _rage(self) -> None:
        """Strike at random instants until the time is over and every blow was dealt."""
        weather = self._weather
        seconds = weather.seconds
        names = ["kill"] * weather.kills + ["freeze"] * weather.freezes
        blows = [(self._dice.random() * seconds, name) for name in names]
        if self._store.server is not None:
            # Far enough apart that work is done in between: a crash recovery takes its time.
            share = seconds / max(1, weather.server_kills)
            for number in range(weather.server_kills):
                blows.append(((number + 0.5 * self._dice.random()) * share, "server_kill"))
        started = time.monotonic()
        for instant, blow in sorted(blows):
            self._wait_until(started + instant)
            struck = time.monotonic()
            self._strike(blow)
            if blow == "server_kill":
                # Nobody can work meanwhile; without this the other blows would all come at once.
                started += time.monotonic() - struck
            self.done[blow] += 1
            took = time.monotonic() - started
            text = ", ".join(f"{count} {name}s" for name, count in self.done.items())
            _say(f"{self._store.name}: {took:.0f} of {seconds:.0f} s, {text}")
        self._wait_until(started + seconds)

    def _wait_until(self, instant: float) -> None:
        while (left := instant - time.monotonic()) > 0:
            self._thaw()
            self._replace_fallen()
            self._watch_clock()
            time.sleep(min(left, 0.05))

    def _strike(self, blow: str) -> None:
        if blow == "server_kill":
            server = self._store.server
            assert server is not None
            self._journal.note("server_kill")
            server.kill()
            server.restart()
            self._journal.note("server_back")
            return
        pid = self._dice.choice(list(self._alive))
        if blow == "freeze":
            self._journal.note("freeze", process=self._alive[pid])
            os.kill(pid, signal.SIGSTOP)
            lasting_s = LEASE_MS / 1000 * (1.1 + self._dice.random())
            self._frozen.setdefault(pid, time.monotonic() + lasting_s)
            return
        self._kill(pid)
        self._start(calm=False)

    def _thaw(self) -> None:
        for pid, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                del self._frozen[pid]
                os.kill(pid, signal.SIGCONT)

    def _replace_fallen(self) -> None:
        """A process that ended by itself has met a fault of the engine, or of this test."""
        for pid in list(self._alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                name = self._alive.pop(pid)
                raise RuntimeError(f"process {name} ended by itself; see its trace above")

    def _watch_clock(self) -> None:
        """A wall clock that somebody sets moves due times, and on a server the leases too."""
        offset_ns = _wall_offset_ns()
        if abs(offset_ns - self._wall_offset_ns) > CLOCK_STEP_NS:
            self._wall_offset_ns = offset_ns
            self._journal.note("jump")
            if self._store.server is not None and self._store.clock:
                self._journal.note("reboot")

    def _note_deadlocks(self) -> None:
        """A server breaks them by itself, and the engine tries again: only its log tells."""
        server = self._store.server
        if server is not None:
            (self._directory / "server.log").write_text(server.log)
            self._journal.note("deadlocks", count=server.log.count("deadlock detected"))

    def _start(self, *, calm: bool) -> None:
        self._lives += 1
        name = f"p{self._lives}"
        pid = self._fork(name, lambda: self._play(name, calm=calm))
        self._alive[pid] = name

    async def _play(self, name: str, *, calm: bool) -> bool:
        await self._player(name, calm=calm).play()
        return True

    def _player(self, name: str, *, calm: bool) -> Player:
        seed = f"{self._weather.seed}/{name}"
        return Player(self._store.make(), self._journal_of(name), seed, calm=calm)

    async def _prepare(self) -> bool:
        await prepare(self._store.make(), self._journal_of("prepare"))
        return True

    async def _audit(self) -> bool:
        await audit(self._store.make(), self._journal_of("audit"))
        return True

    async def _survey(self) -> bool:
        return await survey(self._store.make(), self._journal_of("survey"), DRAIN_S_MAX)

    def _fork(self, name: str, main: Callable[[], Coroutine[Any, Any, bool]]) -> int:
        parent = os.getpid()
        # An interrupt inside the hooks that run around a fork would be swallowed there.
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
        except BaseException:  # noqa: BLE001 - the parent's code must never go on in the child
            print(f"\nprocess {name}:", file=sys.stderr)
            traceback.print_exc()
        finally:
            os._exit(status)

    def _finish(self, pid: int) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, 2):
            raise RuntimeError(f"a process of the test itself failed with status {status}")

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
        return Journal(name, to_file(self._directory / f"{name}.jsonl"))


def _wall_offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def _say(text: str, end: str = "\r") -> None:
    if sys.stderr.isatty() or end == "\n":
        print(f"{text:100}", end=end, file=sys.stderr, flush=True)
