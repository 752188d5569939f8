"""One chaos run: keeps jobs in flight while processes are killed and frozen at random, then drains
and verifies.

One seed determines the jobs and the faults; which process they hit depends on the machine. The
store is a private one that is removed, or a queue in a user's store, from which the queue and the
workers' records are removed however the run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.app.application import Holdfast
from holdfast.conformance.chaos import run_log
from holdfast.conformance.chaos.faults import FaultInjector, Servers, kill_roles
from holdfast.conformance.chaos.process_tree import LaunchedWorkers
from holdfast.conformance.chaos.verify import ChaosFindings, verify
from holdfast.conformance.private_server import PrivateServer, ServiceUnavailable
from holdfast.core.model import Job, NewJob, Queue, QueueView, Status
from holdfast.core.text import counted
from holdfast.core.workers import worker_queue
from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    UnknownQueue,
    UsageError,
)
from holdfast.events import ignore_event
from holdfast.ops.service import run_service
from holdfast.ops.workers import Workers
from holdfast.upkeep import Reaper

QUEUE = Queue(name="default", lease_ms=2_000, max_attempts=12, max_crashes=6)
TARGET = "holdfast.conformance.chaos.application:app"
SECONDS_MIN, SECONDS_MAX = 0.1, 5.0
DRAIN_S_MAX = 60.0
_KINDS = {"command": 30, "sync": 25, "async": 20, "cpu": 15, "isolated": 10}
_READY_MIN = 6
_EARLY = 0.1
"""Maximum number of faults that may hit starting processes; with more, none would ever start."""
_AWAY = (EngineUnavailable, OutcomeUnknown)
StartedServer = TypeVar("StartedServer", bound=PrivateServer)


class ChaosPlan(NamedTuple):
    """The faults are spread over `seconds`; `scale` shortens every job."""

    workers: int
    kills: int
    freezes: int
    seconds: float
    scale: float
    seed: int
    restarts: int = 0
    broker_restarts: int = 0


class ChaosRun:
    """`options` are further options of `holdfast worker run`; `servers` are the targets of
    restarts. `tell` receives progress messages."""

    def __init__(
        self,
        url: str,
        plan: ChaosPlan,
        home: Path,
        *,
        queue: Queue = QUEUE,
        options: tuple[str, ...] = (),
        servers: Servers | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._url = url
        self._plan = plan
        self._home = home
        self._queue = queue
        self._tell = tell or _tell_terminal
        self._dice = random.Random(plan.seed)
        # In the environment: every user can read a command line, and a URL may contain a password.
        self._workers = LaunchedWorkers(home, self._arguments(options), {"HOLDFAST_URL": url})
        self._injector = FaultInjector(
            self._workers,
            self._dice,
            lease_ms=queue.lease_ms,
            scale=plan.scale,
            one_writer="sqlite:" in url,
            servers=servers,
        )
        self._offered: list[NewJob] = []
        self._accepted: list[str] = []
        self.counts: Final = self._injector.counts

    def _arguments(self, options: tuple[str, ...]) -> list[str]:
        given = ["--processes", "2", "--concurrency", "4", "--grace", "10s"]
        count = ["--count", str(self._plan.workers), "--queues", self._queue.name]
        return ["worker", "run", TARGET, *count, *given, *options]

    async def run(self) -> ChaosFindings:
        async with Holdfast(self._url) as app:
            await app.declare(
                self._queue.name,
                lease=f"{self._queue.lease_ms}ms",
                max_attempts=self._queue.max_attempts,
                max_crashes=self._queue.max_crashes,
                backoff="constant(100ms)",
            )
            try:
                with self._injector.noting_stalls():
                    self._workers.start()
                    thawing = asyncio.create_task(self._injector.keep_thawing())
                    try:
                        await self._inject_faults(app)
                    finally:
                        thawing.cancel()
                        await self._injector.end_all()
                    self._keep_launcher()
                    store = await self._drain(app)
                violations = await asyncio.to_thread(
                    self._workers.stop, outages=self._plan.restarts > 0
                )
            finally:
                self._workers.kill()
        self._write_down()
        lines = read_lines(self._home / "runs.jsonl")
        findings = verify(lines, self._injector.faults, self._accepted, store, self._queue)
        findings.violations += violations
        return findings

    async def _inject_faults(self, app: Holdfast) -> None:
        """Inject every fault, waiting as long as there is no target."""
        plan = self._plan
        await self._feed(app)
        await self._first_run()
        kinds = [
            *kill_roles(plan.kills),
            *["freeze"] * plan.freezes,
            *["restart"] * plan.restarts,
            *["broker_restart"] * plan.broker_restarts,
        ]
        dice = self._dice.random
        schedule = sorted((dice() * plan.seconds, kind, dice() < _EARLY) for kind in kinds)
        started = time.monotonic()
        for instant, kind, early in [*schedule, (plan.seconds, "", False)]:
            while (left := started + instant - time.monotonic()) > 0:
                await self._turn(app, time.monotonic() - started)
                await asyncio.sleep(min(left, 0.1))
            while kind and not self._injector.inject(kind, early=early):
                await self._turn(app, time.monotonic() - started)
                await asyncio.sleep(0.05)

    async def _first_run(self) -> None:
        """Wait until the first job runs."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while not read_lines(self._home / "runs.jsonl"):
            if time.monotonic() > deadline:
                output = self._workers.log.read_text(errors="replace")[-2000:]
                raise EngineError(
                    f"no job ran within {DRAIN_S_MAX:.0f} s; output of the workers: {output}"
                )
            await asyncio.sleep(0.05)

    async def _turn(self, app: Holdfast, took_s: float) -> None:
        self._keep_launcher()
        self._workers.reap_orphans()
        await self._feed(app)
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        self._tell(f"{took_s:.0f} of {self._plan.seconds:.0f} s, {done or 'no fault yet'}")

    def _keep_launcher(self) -> None:
        if not self._workers.is_running():
            self._workers.start()

    async def _feed(self, app: Holdfast) -> None:
        """Keep a few jobs waiting, so that recovered jobs do not wait long."""
        try:
            if not self._offered:
                missing = _READY_MIN - (await self._view(app)).ready
                if missing > 0:
                    self._offered = [self._job(app) for _ in range(missing + _READY_MIN)]
            await self._offer(app)
        except _AWAY:
            return

    async def _offer(self, app: Holdfast) -> None:
        """Enqueue with the same ids until it is answered: an answer may be lost."""
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
        # Run times are spread evenly on a logarithmic scale.
        share = self._dice.random()
        seconds = SECONDS_MIN * (SECONDS_MAX / SECONDS_MIN) ** share * self._plan.scale
        if kind != "command":
            return app.job(kind, {"seconds": seconds}, queue=self._queue.name)
        program = [sys.executable, "-I", "-S", run_log.__file__, f"{seconds:.3f}"]
        if self._dice.random() < 0.3:
            program.append("daemon")
        payload = {"command": program, "env": {run_log.HOME: str(self._home)}}
        return app.job("command", payload, queue=self._queue.name)

    async def _drain(self, app: Holdfast) -> dict[str, Job]:
        """Wait until every job has ended; returns the stored jobs."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < deadline:
            self._keep_launcher()
            self._workers.reap_orphans()
            try:
                await self._offer(app)
                view = await self._view(app)
            except _AWAY:
                await asyncio.sleep(0.1)
                continue
            left = view.ready + view.delayed + view.blocked + view.leased
            self._tell(f"no more faults: {left} jobs left")
            if not left:
                break
            await asyncio.sleep(0.1)
        return {each: job for each in self._accepted if (job := await app.get(each)) is not None}

    def _write_down(self) -> None:
        lines = [
            {
                "what": fault.what,
                "role": fault.role,
                "at_ns": fault.at_ns,
                "until_ns": fault.until_ns,
                "pids": fault.pids,
            }
            for fault in self._injector.faults
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self._home / "faults.jsonl").write_text(text)


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _tell_terminal(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text:100}\r")
        sys.stderr.flush()


class ChaosStore(NamedTuple):
    """The store of a run. `label` names it to people; `options` are for the workers; `servers` are
    those that the run started."""

    url: str
    label: str
    queue: str
    options: tuple[str, ...] = ()
    servers: Servers = Servers()


@contextlib.asynccontextmanager
async def private_store(
    home: Path, queue: str, *, postgres: bool, rabbitmq: bool
) -> AsyncIterator[ChaosStore]:
    """A new, empty store; with a broker, it is the ledger."""
    store = ChaosStore(f"sqlite:///{home / 'jobs.db'}", "a private SQLite file", queue)
    async with contextlib.AsyncExitStack() as stack:
        if postgres:
            from holdfast.conformance.postgres_server import PrivatePostgres

            # With syncs: acknowledged jobs must survive the kill of the server.
            server = await _started(stack, lambda: PrivatePostgres(fsync=True))
            servers = Servers(server)
            store = store._replace(url=server.dsn, label="a private PostgreSQL", servers=servers)
        if rabbitmq:
            from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ

            broker = await _started(stack, PrivateRabbitMQ)
            store = store._replace(
                url=f"brokered:{broker.url},{store.url}",
                label=f"a private RabbitMQ and {store.label}",
                servers=store.servers._replace(broker=broker),
            )
        yield store


async def _started(
    stack: contextlib.AsyncExitStack, make: Callable[[], StartedServer]
) -> StartedServer:
    """A running server, stopped with the stack."""
    try:
        server = make()
        await asyncio.to_thread(server.start)
    except ServiceUnavailable as error:
        raise ConfigError(str(error)) from None
    stack.callback(server.stop)
    return server


@contextlib.asynccontextmanager
async def store_within(app: Holdfast, queue: str, *, named: bool) -> AsyncIterator[ChaosStore]:
    """A queue in the store of an open application; `named` if the user chose its name."""
    if app.url is None or not app.engine.traits.shared:
        raise ConfigError(
            f"workers are separate processes and cannot use {app.place}: give a shared --url"
        )
    before = {view.queue.name for view in await _allowed(app, queue, named=named)}
    stop = asyncio.Event()
    # The reaper only: pruning and schedules are left to the user's own upkeep.
    reaper = Reaper(app.engine)
    reaping = asyncio.create_task(run_service(reaper, stop, ignore_event))
    try:
        options = ("--no-upkeep", "--name", queue, "--label", f"chaos={queue}")
        yield ChaosStore(app.url, app.place, queue, options)
    finally:
        stop.set()
        await reaping
        await _tidy(app, queue, before)


async def _allowed(app: Holdfast, queue: str, *, named: bool) -> list[QueueView]:
    views = await app.queues()
    if any(view.queue.name == queue for view in views):
        raise UsageError(
            f"queue {queue} exists, and chaos drops its queue afterwards: name a new one with "
            "--queue"
        )
    for view in views:
        jobs = view.ready + view.delayed + view.blocked + view.leased
        jobs += view.done + view.dead + view.cancelled
        if jobs and not named:
            raise UsageError(
                f"{app.place} has other jobs, such as {counted(jobs, 'job')} in queue "
                f"{view.queue.name}, which chaos would slow down: name a new queue with --queue"
                " to continue, or leave out --url for a private store"
            )
    return views


async def _tidy(app: Holdfast, queue: str, before: set[str]) -> None:
    """Remove the queue with its jobs, the records of the workers, and their queues."""
    workers = Workers(app.engine)
    ours = {view.name for view in await workers.all() if view.record.labels.get("chaos") == queue}
    for name in ours:
        await workers.forget(name)
    queues = {view.queue.name for view in await app.queues(counts=False)}
    theirs = {worker_queue(name) for name in ours}
    # A worker that was killed early has no record. Another's name may have the same prefix.
    named = re.compile(re.escape(worker_queue(queue)) + r"(-\d+)?\Z")
    theirs |= {name for name in queues if named.match(name)}
    for name in {queue, *theirs} - before:
        with contextlib.suppress(UnknownQueue):
            await app.drop(name)
