"""Starts, watches and ends the programs of one contestant; every wait is bounded.

A drain is timed from the start of the first job to the moment when every job has run and the store
says that none is waiting or leased.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import apsw
import asyncpg

from bench.peers import tally
from bench.peers.catalogue import Contestant
from bench.peers.install import NODE, PYTHON
from bench.peers.workspace import SQS_KEYS, Workspace
from bench.processes import ROOT, cpu_ns

ROLE_S_MAX = 180
DRAIN_S_MAX = 120
STOP_S_MAX = 5
POLL_S = 0.002
_LOG = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),
       (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')
"""


class Failed(Exception):
    """A contestant failed; the text has its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Times of one drain; `start_up_s` is from starting the workers to the first job."""

    jobs: int
    enqueue_s: float
    start_up_s: float
    drain_s: float
    costs: Costs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one drained job, from the first job on: CPU time of the workers and of the
    database server, bytes and syncs of the log of PostgreSQL. None is not known."""

    workers_us: float
    server_us: float
    log_bytes: float | None = None
    syncs: float | None = None


async def drain(contestant: Contestant, workspace: Workspace, *, jobs: int) -> Drain:
    """Fill its store, start its workers, and time them until all jobs are done."""
    await _role(contestant, workspace, "prepare")
    enqueue_s = await _role(contestant, workspace, "enqueue", jobs=jobs)
    began = time.monotonic_ns()
    async with _Store.opened(contestant, workspace) as store:
        log_before = await store.log()
        async with _workers(contestant, workspace, jobs=jobs) as pids:
            meter = _Meter(pids, workspace.server_pid)
            end = time.monotonic() + DRAIN_S_MAX
            ran, first = 0, 0
            finished = 0
            while ran < jobs or await store.unfinished() > 0:
                if time.monotonic() > end:
                    raise too_late(workspace, f"ran {ran} of {jobs} jobs")
                await asyncio.sleep(POLL_S)
                ran, first = tally.count(workspace.directory)
                # Before the store is asked: asking RabbitMQ takes a while.
                finished = time.monotonic_ns()
                meter.begin(ran)
            used = meter.read(jobs)
        # The server has counted the syncs of a process at the latest when that has ended.
        log = await store.log()
    return Drain(
        jobs=jobs,
        enqueue_s=enqueue_s,
        start_up_s=(first - began) / 1e9,
        drain_s=(finished - first) / 1e9,
        costs=used and _with_log(used, log_before, log, jobs),
    )


class _Meter:
    """Reads the CPU time of the workers and of the database server, from the first jobs on."""

    def __init__(self, workers: list[int], server: int | None) -> None:
        self._workers = workers
        self._server = server
        self._first: tuple[int, int, int] | None = None

    def begin(self, ran: int) -> None:
        """Called after each look at the jobs that ran; the first that has some counts."""
        if ran and self._first is None:
            self._first = (ran, *self._used_ns())

    def read(self, jobs: int) -> Costs | None:
        """The costs of a job; None if all had run before the first look."""
        if self._first is None or self._first[0] >= jobs:
            return None
        ran, workers_ns, server_ns = self._first
        now_workers_ns, now_server_ns = self._used_ns()
        rest_us = 1_000 * (jobs - ran)
        return Costs(
            workers_us=(now_workers_ns - workers_ns) / rest_us,
            server_us=(now_server_ns - server_ns) / rest_us,
        )

    def _used_ns(self) -> tuple[int, int]:
        return sum(map(cpu_ns, self._workers)), server_ns(self._server)


def _with_log(
    costs: Costs, before: tuple[int, int] | None, after: tuple[int, int] | None, jobs: int
) -> Costs:
    if before is None or after is None:
        return costs
    written, syncs = (now - then for now, then in zip(after, before, strict=True))
    return replace(costs, log_bytes=written / jobs, syncs=syncs / jobs)


async def delays_ms(
    contestant: Contestant, workspace: Workspace, *, jobs: int, rate: float
) -> list[float]:
    """Times from enqueue to start of single jobs on idle workers."""
    await _role(contestant, workspace, "prepare")
    async with _workers(contestant, workspace, jobs=0):
        await _warm(contestant, workspace)
        await _role(contestant, workspace, "trickle", jobs=jobs, rate=rate)
        end = time.monotonic() + DRAIN_S_MAX
        while len(found := tally.delays_ms(workspace.directory)) < jobs:
            if time.monotonic() > end:
                raise too_late(workspace, f"started {len(found)} of {jobs} jobs")
            await asyncio.sleep(0.05)
    return found


async def single(contestant: Contestant, workspace: Workspace, *, jobs: int) -> SingleCalls:
    """Enqueue jobs one by one as fast as it can, without workers."""
    await _role(contestant, workspace, "prepare")
    before_ns = server_ns(workspace.server_pid)
    cpu_s = await _role(contestant, workspace, "trickle", jobs=jobs, rate=1e9)
    used_ns = server_ns(workspace.server_pid) - before_ns
    return SingleCalls(client_us=cpu_s * 1e6 / jobs, server_us=used_ns / 1e3 / jobs)


def server_ns(pid: int | None) -> int:
    """CPU time of a database server so far. The processes of closed connections count too."""
    return 0 if pid is None else cpu_ns(pid, ended=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleCalls:
    """The CPU time of one call, in the client and in the database server."""

    client_us: float
    server_us: float

    @property
    def both_us(self) -> float:
        return self.client_us + self.server_us


@asynccontextmanager
async def program(
    contestant: Contestant, workspace: Workspace, role: str, **more: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in its own process group, which is killed after the block."""
    store = workspace.url if contestant.runs == "holdfast" else workspace.store
    arguments: dict[str, Any] = {"place": store, "settings": contestant.settings, **more}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    stdout = asyncio.subprocess.DEVNULL if role == "work" else asyncio.subprocess.PIPE
    with (workspace.directory / f"{role}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *_command(contestant),
            role,
            json.dumps(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            stderr=log if role == "work" else asyncio.subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                **(SQS_KEYS if workspace.endpoint else {}),
                "PYTHONPATH": os.pathsep.join(path),
                tally.DIRECTORY: str(workspace.directory),
            },
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S_MAX)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _warm(contestant: Contestant, workspace: Workspace) -> None:
    """Wait until the workers have run a first job, so that start-up is not measured."""
    await _role(contestant, workspace, "enqueue", jobs=1)
    end = time.monotonic() + DRAIN_S_MAX
    while tally.count(workspace.directory)[0] == 0:
        if time.monotonic() > end:
            raise too_late(workspace, "its workers ran no job")
        await asyncio.sleep(0.05)


def too_late(workspace: Workspace, what: str) -> Failed:
    """Create an error with the last line of the workers' log."""
    lines = (workspace.directory / "work.log").read_text(errors="replace").splitlines()
    return Failed(f"{what} in {DRAIN_S_MAX} s; {(lines or ['no output'])[-1][:200]}")


async def _role(contestant: Contestant, workspace: Workspace, role: str, **more: float) -> float:
    """Run a program to its end, and return the number it printed."""
    async with program(contestant, workspace, role, **more) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            # `communicate` would close standard input, which ends the program.
            output, errors = await asyncio.wait_for(
                asyncio.gather(process.stdout.read(), process.stderr.read()), ROLE_S_MAX
            )
            await asyncio.wait_for(process.wait(), STOP_S_MAX)
        except TimeoutError:
            raise Failed(f"{role} took over {ROLE_S_MAX} s") from None
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no output"]
        raise Failed(f"{role} ended with status {process.returncode}: {lines[-1][:200]}")
    return float(json.loads(output.splitlines()[-1]) or 0)


@asynccontextmanager
async def _workers(
    contestant: Contestant, workspace: Workspace, *, jobs: int
) -> AsyncIterator[list[int]]:
    """Run its workers; gives their process ids."""
    async with AsyncExitStack() as stack:
        work = [
            await stack.enter_async_context(program(contestant, workspace, "work", jobs=jobs))
            for _ in range(contestant.processes)
        ]
        yield [each.pid for each in work]


def _command(contestant: Contestant) -> list[str]:
    match contestant.runs:
        case "holdfast":
            return [sys.executable, "-m", f"bench.peers.{contestant.program}"]
        case "python":
            return [str(PYTHON), "-m", f"bench.peers.{contestant.program}"]
        case "node":
            return ["node", str(NODE / f"{contestant.program}.mjs")]


class _Store:
    """Reads the store of a contestant while its workers run."""

    def __init__(self, contestant: Contestant, connection: Any) -> None:
        self._unfinished = contestant.unfinished
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, contestant: Contestant, workspace: Workspace) -> AsyncIterator[_Store]:
        if contestant.engine == "sqlite":
            file = apsw.Connection(workspace.store, flags=apsw.SQLITE_OPEN_READONLY)
            file.set_busy_timeout(5_000)
            yield cls(contestant, file)
            file.close()
            return
        if contestant.engine in ("rabbitmq", "sqs"):
            yield cls(contestant, workspace)
            return
        connection = await asyncpg.connect(workspace.database or workspace.store)
        yield cls(contestant, connection)
        await connection.close()

    async def unfinished(self) -> int:
        if isinstance(self._connection, apsw.Connection):
            return int(self._connection.execute(self._unfinished).get)
        if isinstance(self._connection, Workspace):
            return await asyncio.to_thread(self._connection.depth, self._unfinished)
        return int(await self._connection.fetchval(self._unfinished))

    async def log(self) -> tuple[int, int] | None:
        """Bytes and syncs of the log of the PostgreSQL server so far."""
        if isinstance(self._connection, apsw.Connection | Workspace):
            return None
        row = await self._connection.fetchrow(_LOG)
        return int(row[0]), int(row[1])
