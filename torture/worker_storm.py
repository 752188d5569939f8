"""The storm over workers: jobs of every kind are kept in flight while processes of the workers
are killed and frozen at random; then it is calm, everything drains, and the run is judged.

One seed draws the jobs and the blows; which process stands where is up to the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.core.model import Job, NewJob, Queue, Status
from holdfast.worker import processes
from torture import worker_runs
from torture.worker_fleet import Fleet, Tree, grown
from torture.worker_judge import Blow, Findings, judge

QUEUE = Queue(name="default", lease_ms=2_000, max_attempts=12, max_crashes=6)
SECONDS_MIN, SECONDS_MAX = 0.1, 5.0
DRAIN_S_MAX = 60.0
_KINDS = {"command": 30, "sync": 25, "async": 20, "cpu": 15, "isolated": 10}
_ROLES = {"child": 45, "command_child": 12, "command": 20, "supervisor": 20, "launcher": 3}
_READY_MIN = 6
_STALL_S = 0.5
_GROWN_S = 2.5
_APART_S = 1.5
"""Between the death of a launcher and any other. Who kills it together with a supervisor and the
process of its commands leaves nobody to end these, until a worker of that name starts again."""
_EARLY = 0.1
"""So many of the blows may hit a process that is still starting; more would let none ever work."""


class Weather(NamedTuple):
    """`kills` and `freezes` are spread over `seconds`; `scale` makes every job shorter."""

    workers: int
    kills: int
    freezes: int
    seconds: float
    scale: float
    seed: int


class Storm:
    def __init__(self, url: str, weather: Weather, home: Path) -> None:
        self._url = url
        self._weather = weather
        self._home = home
        self._dice = random.Random(weather.seed)
        self._fleet = Fleet(home, self._arguments())
        self._accepted: list[str] = []
        self._blows: list[Blow] = []
        self._frozen: dict[int, tuple[float, Blow]] = {}
        self._struck_at = {"launcher": 0.0}
        self.counts: Counter[str] = Counter()

    def _arguments(self) -> list[str]:
        options = ["--processes", "2", "--concurrency", "4", "--grace", "10s"]
        count = ["--count", str(self._weather.workers)]
        return ["worker", "run", "torture.worker_app:app", *count, *options, "--url", self._url]

    async def run(self) -> Findings:
        async with Holdfast(self._url) as app:
            await app.declare(
                QUEUE.name,
                lease=f"{QUEUE.lease_ms}ms",
                max_attempts=QUEUE.max_attempts,
                max_crashes=QUEUE.max_crashes,
                backoff="constant(100ms)",
            )
            try:
                with _stalls(self._blows):
                    self._fleet.start()
                    thawing = asyncio.create_task(self._keep_thawing())
                    await self._rage(app)
                    thawing.cancel()
                    self._thaw(everybody=True)
                    self._keep_launcher()
                    store = await self._drain(app)
                violations = self._fleet.stop()
            finally:
                self._thaw(everybody=True)
                self._fleet.kill()
        self._write_down()
        findings = judge(
            read_lines(self._home / "runs.jsonl"), self._blows, self._accepted, store, QUEUE
        )
        findings.violations += violations
        return findings

    async def _rage(self, app: Holdfast) -> None:
        """Deal every blow, however long there is nobody to be hit."""
        weather = self._weather
        await self._feed(app)
        await self._first_run()
        blows = [*deck(weather.kills), *["freeze"] * weather.freezes]
        dice = self._dice.random
        schedule = sorted((dice() * weather.seconds, blow, dice() < _EARLY) for blow in blows)
        started = time.monotonic()
        for instant, blow, early in schedule:
            while (left := started + instant - time.monotonic()) > 0:
                await self._turn(app)
                await asyncio.sleep(min(left, 0.1))
            while not self._strike(blow, early=early):
                await self._turn(app)
                await asyncio.sleep(0.05)
            took = time.monotonic() - started
            _say(f"{took:.0f} of {weather.seconds:.0f} s, {_text(self.counts)}")

    async def _first_run(self) -> None:
        """The storm begins when there is something to be hit."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while not read_lines(self._home / "runs.jsonl"):
            assert time.monotonic() < deadline, f"no job ran: {self._fleet.log.read_text()[-2000:]}"
            await asyncio.sleep(0.05)

    async def _keep_thawing(self) -> None:
        """Beside all else, which may be waiting for a lock that a frozen process holds."""
        while True:
            self._thaw()
            await asyncio.sleep(0.05)

    async def _turn(self, app: Holdfast) -> None:
        self._keep_launcher()
        self._fleet.bury()
        await self._feed(app)

    def _keep_launcher(self) -> None:
        if not self._fleet.is_running():
            self._fleet.start()

    async def _feed(self, app: Holdfast) -> None:
        """Keep a few jobs in line, so that what comes back does not have to wait for long."""
        views = {view.queue.name: view for view in await app.queues()}
        missing = _READY_MIN - views[QUEUE.name].ready
        if missing > 0:
            jobs = [self._job(app) for _ in range(missing + _READY_MIN)]
            receipts = await app.enqueue_many(jobs)
            assert all(receipt.status is Status.NEW for receipt in receipts)
            self._accepted += [receipt.id for receipt in receipts]

    def _job(self, app: Holdfast) -> NewJob:
        [kind] = self._dice.choices(list(_KINDS), list(_KINDS.values()))
        # As many short as long ones, by their order of magnitude.
        share = self._dice.random()
        seconds = SECONDS_MIN * (SECONDS_MAX / SECONDS_MIN) ** share * self._weather.scale
        if kind != "command":
            return app.job(kind, {"seconds": seconds})
        program = [sys.executable, "-I", "-S", worker_runs.__file__, f"{seconds:.3f}"]
        if self._dice.random() < 0.3:
            program.append("daemon")
        environment = {worker_runs.HOME: str(self._home)}
        return app.job("command", {"command": program, "env": environment})

    def _strike(self, blow: str, *, early: bool) -> bool:
        """False when there is nobody to be hit now."""
        now = time.monotonic()
        if now < self._struck_at["launcher"] + _APART_S:
            return False
        if blow == "launcher" and now < max(self._struck_at.values()) + _APART_S:
            return False
        tree = self._fleet.tree()
        if blow == "freeze":
            return self._freeze(tree)
        victims: list[int] = getattr(tree, blow)
        if blow != "command" and not early:
            victims = grown(victims, _GROWN_S * self._weather.scale)
        if not victims:
            return False
        victim = self._dice.choice(victims)
        pids = (victim, *processes.descendants(victim))
        at_ns = time.monotonic_ns()
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._blows.append(Blow("kill", blow, at_ns, pids))
        self._struck_at[blow] = now
        self.counts[blow] += 1
        self.counts["kills"] += 1
        return True

    def _freeze(self, tree: Tree) -> bool:
        """A supervisor's lapses its leases; a child's must change nothing at all."""
        role = "supervisor" if self._dice.random() < 0.7 else "child"
        old_enough = grown(getattr(tree, role), _GROWN_S * self._weather.scale)
        victims = [pid for pid in old_enough if pid not in self._frozen]
        if not victims:
            return False
        victim = self._dice.choice(victims)
        lasting_s = QUEUE.lease_ms / 1000 * (1.2 + self._dice.random())
        # One that holds the lock of the file keeps everybody from renewing.
        anybody = role == "supervisor" and self._url.startswith("sqlite")
        pids = () if anybody else (victim,)
        at_ns = time.monotonic_ns()
        processes.kill(victim, signal.SIGSTOP)
        until = time.monotonic() + lasting_s
        self._frozen[victim] = until, Blow("freeze", role, at_ns, pids)
        self.counts["freezes"] += 1
        return True

    def _thaw(self, *, everybody: bool = False) -> None:
        for pid, (until, blow) in list(self._frozen.items()):
            if everybody or time.monotonic() >= until or not processes.stat(pid):
                del self._frozen[pid]
                processes.kill(pid, signal.SIGCONT)
                over = Blow(blow.what, blow.role, blow.at_ns, blow.pids, time.monotonic_ns())
                self._blows.append(over)

    async def _drain(self, app: Holdfast) -> dict[str, Job]:
        """Until every job is finished; what is there then."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < deadline:
            self._keep_launcher()
            self._fleet.bury()
            views = await app.queues()
            if not any(view.ready + view.delayed + view.leased for view in views):
                break
            await asyncio.sleep(0.1)
        return {each: job for each in self._accepted if (job := await app.get(each)) is not None}

    def _write_down(self) -> None:
        lines = [
            {"what": blow.what, "role": blow.role, "at_ns": blow.at_ns, "until_ns": blow.until_ns,
             "pids": blow.pids}
            for blow in self._blows
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self._home / "blows.jsonl").write_text(text)


def deck(kills: int) -> list[str]:
    """Whom to kill, as often as `_ROLES` says, and each at least once."""
    most = "child"
    deck = [
        role
        for role, share in _ROLES.items()
        if role != most
        for _ in range(max(1, round(kills * share / 100)))
    ][:kills]
    return [*deck, *[most] * (kills - len(deck))]


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def _stalls(blows: list[Blow]) -> Iterator[None]:
    """Note when the whole machine stood still: then leases lapse through nobody's fault."""
    over = threading.Event()

    def watch() -> None:
        before = time.monotonic_ns()
        while not over.wait(0.02):
            now = time.monotonic_ns()
            if now - before > _STALL_S * 1e9:
                blows.append(Blow("stall", "machine", before, until_ns=now))
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text:100}", end="\r", file=sys.stderr, flush=True)
