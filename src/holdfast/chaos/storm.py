"""The storm over workers: jobs of every kind are kept in flight while processes of the workers
are killed and frozen at random; then it is calm, everything drains, and the run is judged.

One seed draws the jobs and the blows; which process stands where is up to the machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.chaos import runs
from holdfast.chaos.fleet import Fleet
from holdfast.chaos.judge import Findings, judge
from holdfast.chaos.striking import Server, Striker, deck
from holdfast.core.model import Job, NewJob, Queue, QueueView, Status
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown

QUEUE = Queue(name="default", lease_ms=2_000, max_attempts=12, max_crashes=6)
TARGET = "holdfast.chaos.jobs:app"
SECONDS_MIN, SECONDS_MAX = 0.1, 5.0
DRAIN_S_MAX = 60.0
_KINDS = {"command": 30, "sync": 25, "async": 20, "cpu": 15, "isolated": 10}
_READY_MIN = 6
_EARLY = 0.1
"""So many of the blows may hit a process that is still starting; more would let none ever work."""
_AWAY = (EngineUnavailable, OutcomeUnknown)


class Weather(NamedTuple):
    """The blows are spread over `seconds`; `scale` makes every job shorter."""

    workers: int
    kills: int
    freezes: int
    seconds: float
    scale: float
    seed: int
    restarts: int = 0


class Storm:
    """`options` are more of `holdfast worker run`; `server` is what `restarts` hit. `tell` hears
    how far it is."""

    def __init__(
        self,
        url: str,
        weather: Weather,
        home: Path,
        *,
        queue: Queue = QUEUE,
        options: tuple[str, ...] = (),
        server: Server | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._url = url
        self._weather = weather
        self._home = home
        self._queue = queue
        self._tell = tell or _tell_terminal
        self._dice = random.Random(weather.seed)
        # By the environment, because anybody can read a command line, and a URL may hold a secret.
        self._fleet = Fleet(home, self._arguments(options), {"HOLDFAST_URL": url})
        self._striker = Striker(
            self._fleet,
            self._dice,
            lease_ms=queue.lease_ms,
            scale=weather.scale,
            one_writer="sqlite:" in url,
            server=server,
        )
        self._offered: list[NewJob] = []
        self._accepted: list[str] = []
        self.counts = self._striker.counts

    def _arguments(self, options: tuple[str, ...]) -> list[str]:
        given = ["--processes", "2", "--concurrency", "4", "--grace", "10s"]
        count = ["--count", str(self._weather.workers), "--queues", self._queue.name]
        return ["worker", "run", TARGET, *count, *given, *options]

    async def run(self) -> Findings:
        async with Holdfast(self._url) as app:
            await app.declare(
                self._queue.name,
                lease=f"{self._queue.lease_ms}ms",
                max_attempts=self._queue.max_attempts,
                max_crashes=self._queue.max_crashes,
                backoff="constant(100ms)",
            )
            try:
                with self._striker.noting_stalls():
                    self._fleet.start()
                    thawing = asyncio.create_task(self._striker.keep_thawing())
                    try:
                        await self._rage(app)
                    finally:
                        thawing.cancel()
                        await self._striker.calm()
                    self._keep_launcher()
                    store = await self._drain(app)
                violations = await asyncio.to_thread(
                    self._fleet.stop, outages=self._weather.restarts > 0
                )
            finally:
                self._fleet.kill()
        self._write_down()
        lines = read_lines(self._home / "runs.jsonl")
        findings = judge(lines, self._striker.blows, self._accepted, store, self._queue)
        findings.violations += violations
        return findings

    async def _rage(self, app: Holdfast) -> None:
        """Deal every blow, however long there is nobody to be hit."""
        weather = self._weather
        await self._feed(app)
        await self._first_run()
        blows = [
            *deck(weather.kills),
            *["freeze"] * weather.freezes,
            *["restart"] * weather.restarts,
        ]
        dice = self._dice.random
        schedule = sorted((dice() * weather.seconds, blow, dice() < _EARLY) for blow in blows)
        started = time.monotonic()
        for instant, blow, early in [*schedule, (weather.seconds, "", False)]:
            while (left := started + instant - time.monotonic()) > 0:
                await self._turn(app, time.monotonic() - started)
                await asyncio.sleep(min(left, 0.1))
            while blow and not self._striker.strike(blow, early=early):
                await self._turn(app, time.monotonic() - started)
                await asyncio.sleep(0.05)

    async def _first_run(self) -> None:
        """The storm begins when there is something to be hit."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while not read_lines(self._home / "runs.jsonl"):
            if time.monotonic() > deadline:
                said = self._fleet.log.read_text(errors="replace")[-2000:]
                raise EngineError(
                    f"no job ran within {DRAIN_S_MAX:.0f} s; the workers said: {said}"
                )
            await asyncio.sleep(0.05)

    async def _turn(self, app: Holdfast, took_s: float) -> None:
        self._keep_launcher()
        self._fleet.bury()
        await self._feed(app)
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        self._tell(f"{took_s:.0f} of {self._weather.seconds:.0f} s, {done or 'no blow yet'}")

    def _keep_launcher(self) -> None:
        if not self._fleet.is_running():
            self._fleet.start()

    async def _feed(self, app: Holdfast) -> None:
        """Keep a few jobs in line, so that what comes back does not have to wait for long."""
        try:
            if not self._offered:
                missing = _READY_MIN - (await self._view(app)).ready
                if missing > 0:
                    self._offered = [self._job(app) for _ in range(missing + _READY_MIN)]
            await self._offer(app)
        except _AWAY:
            return

    async def _offer(self, app: Holdfast) -> None:
        """Until it is answered, with the same ids: an answer may be lost on its way."""
        receipts = await app.enqueue_many(self._offered) if self._offered else []
        for receipt in receipts:
            if receipt.status is Status.REFUSED:
                raise EngineError(f"job {receipt.id} was refused: {receipt.code} {receipt.text}")
        self._accepted += [receipt.id for receipt in receipts]
        self._offered = []

    async def _view(self, app: Holdfast) -> QueueView:
        return next(view for view in await app.queues() if view.queue.name == self._queue.name)

    def _job(self, app: Holdfast) -> NewJob:
        [kind] = self._dice.choices(list(_KINDS), list(_KINDS.values()))
        # As many short as long ones, by their order of magnitude.
        share = self._dice.random()
        seconds = SECONDS_MIN * (SECONDS_MAX / SECONDS_MIN) ** share * self._weather.scale
        if kind != "command":
            return app.job(kind, {"seconds": seconds}, queue=self._queue.name)
        program = [sys.executable, "-I", "-S", runs.__file__, f"{seconds:.3f}"]
        if self._dice.random() < 0.3:
            program.append("daemon")
        payload = {"command": program, "env": {runs.HOME: str(self._home)}}
        return app.job("command", payload, queue=self._queue.name)

    async def _drain(self, app: Holdfast) -> dict[str, Job]:
        """Until every job is finished; what is there then."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < deadline:
            self._keep_launcher()
            self._fleet.bury()
            try:
                await self._offer(app)
                view = await self._view(app)
            except _AWAY:
                await asyncio.sleep(0.1)
                continue
            left = view.ready + view.delayed + view.blocked + view.leased
            self._tell(f"calm: {left} jobs to go")
            if not left:
                break
            await asyncio.sleep(0.1)
        return {each: job for each in self._accepted if (job := await app.get(each)) is not None}

    def _write_down(self) -> None:
        lines = [
            {"what": blow.what, "role": blow.role, "at_ns": blow.at_ns, "until_ns": blow.until_ns,
             "pids": blow.pids}
            for blow in self._striker.blows
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self._home / "blows.jsonl").write_text(text)


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _tell_terminal(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text:100}\r")
        sys.stderr.flush()
