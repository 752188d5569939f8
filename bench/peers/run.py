"""One contestant's programs, started, watched and ended; every wait has an end.

A drain is timed from the start of the first job to the moment at which every job has run and its
store says that none is waiting or in hand.
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
from dataclasses import dataclass
from typing import Any

import apsw
import asyncpg

from bench.peers import tally
from bench.peers.catalogue import Contestant
from bench.peers.install import NODE, PYTHON
from bench.peers.places import Place
from bench.processes import ROOT

ROLE_S_MAX = 180
DRAIN_S_MAX = 120
STOP_S_MAX = 5
LOOK_S = 0.002


class Failed(Exception):
    """A contestant did not do what it was started for; the text says what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """`start_up_s` is from starting the workers to the start of the first job."""

    jobs: int
    enqueue_s: float
    start_up_s: float
    drain_s: float


async def drain(who: Contestant, place: Place, *, jobs: int) -> Drain:
    """Fill its store, start its workers, and time them until all is done."""
    await _role(who, place, "prepare")
    enqueue_s = await _role(who, place, "enqueue", jobs=jobs)
    began = time.monotonic_ns()
    async with _workers(who, place, jobs=jobs), _Store.opened(who, place) as store:
        end = time.monotonic() + DRAIN_S_MAX
        ran, first = 0, 0
        while ran < jobs or await store.unfinished() > 0:
            if time.monotonic() > end:
                raise _too_late(place, f"ran {ran} of {jobs} jobs")
            await asyncio.sleep(LOOK_S)
            ran, first = tally.count(place.directory)
        finished = time.monotonic_ns()
    return Drain(
        jobs=jobs,
        enqueue_s=enqueue_s,
        start_up_s=(first - began) / 1e9,
        drain_s=(finished - first) / 1e9,
    )


async def delays_ms(who: Contestant, place: Place, *, jobs: int, rate: float) -> list[float]:
    """From enqueue to start, of jobs that come one by one while the workers have nothing to do."""
    await _role(who, place, "prepare")
    async with _workers(who, place, jobs=0):
        await _warm(who, place)
        await _role(who, place, "trickle", jobs=jobs, rate=rate)
        end = time.monotonic() + DRAIN_S_MAX
        while len(found := tally.delays_ms(place.directory)) < jobs:
            if time.monotonic() > end:
                raise _too_late(place, f"started {len(found)} of {jobs} jobs")
            await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def program(
    who: Contestant, place: Place, role: str, **more: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process in a group of its own, of which nothing is left after the block."""
    store = place.url if who.runs == "holdfast" else place.store
    arguments: dict[str, Any] = {"place": store, "settings": who.settings, **more}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    stdout = asyncio.subprocess.DEVNULL if role == "work" else asyncio.subprocess.PIPE
    with (place.directory / f"{role}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *_command(who),
            role,
            json.dumps(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            stderr=log if role == "work" else asyncio.subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                tally.DIRECTORY: str(place.directory),
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


async def _warm(who: Contestant, place: Place) -> None:
    """Until the workers have run a job, they may be starting."""
    await _role(who, place, "enqueue", jobs=1)
    end = time.monotonic() + DRAIN_S_MAX
    while tally.count(place.directory)[0] == 0:
        if time.monotonic() > end:
            raise _too_late(place, "its workers ran nothing")
        await asyncio.sleep(0.05)


def _too_late(place: Place, what: str) -> Failed:
    """With the last line that its workers wrote."""
    lines = (place.directory / "work.log").read_text(errors="replace").splitlines()
    return Failed(f"{what} in {DRAIN_S_MAX} s; {(lines or ['no word'])[-1][:200]}")


async def _role(who: Contestant, place: Place, role: str, **more: float) -> float:
    """Run a program to its end; what it printed."""
    async with program(who, place, role, **more) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            # Not `communicate`, which would close the pipe whose end ends the program.
            said, complaint = await asyncio.wait_for(
                asyncio.gather(process.stdout.read(), process.stderr.read()), ROLE_S_MAX
            )
            await asyncio.wait_for(process.wait(), STOP_S_MAX)
        except TimeoutError:
            raise Failed(f"{role} took over {ROLE_S_MAX} s") from None
    if process.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines() or ["no word"]
        raise Failed(f"{role} ended with status {process.returncode}: {lines[-1][:200]}")
    return float(json.loads(said.splitlines()[-1]) or 0)


@asynccontextmanager
async def _workers(who: Contestant, place: Place, *, jobs: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(who.processes):
            await stack.enter_async_context(program(who, place, "work", jobs=jobs))
        yield


def _command(who: Contestant) -> list[str]:
    match who.runs:
        case "holdfast":
            return [sys.executable, "-m", f"bench.peers.{who.program}"]
        case "python":
            return [str(PYTHON), "-m", f"bench.peers.{who.program}"]
        case "node":
            return ["node", str(NODE / f"{who.program}.mjs")]


class _Store:
    """A reader of a contestant's store, beside its workers."""

    def __init__(self, who: Contestant, connection: Any) -> None:
        self._sql = who.unfinished
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, who: Contestant, place: Place) -> AsyncIterator[_Store]:
        if who.engine == "sqlite":
            file = apsw.Connection(place.store, flags=apsw.SQLITE_OPEN_READONLY)
            file.set_busy_timeout(5_000)
            yield cls(who, file)
            file.close()
            return
        connection = await asyncpg.connect(place.store)
        yield cls(who, connection)
        await connection.close()

    async def unfinished(self) -> int:
        if isinstance(self._connection, apsw.Connection):
            return int(self._connection.execute(self._sql).get)
        return int(await self._connection.fetchval(self._sql))
