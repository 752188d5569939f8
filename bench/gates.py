"""Measures gates: messages per second of an inlet and an outlet beside bare loops, and the memory
of an inlet. A gate runs as `holdfast gate run` starts it, on PostgreSQL with full durability.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg

from bench import raw_rabbitmq
from bench.peers.program import batches
from bench.peers.run import Failed
from bench.peers.workspace import Workspace
from bench.processes import Child, background
from bench.raw_rabbitmq import SOURCE, TARGET
from bench.subject import TASK, HoldfastSubject
from holdfast.core.model import Queue
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine
from holdfast.ops.gates import Gate, Gates

BROKER = "bench"
WAIT_S_MAX = 300
POLL_S = 0.05
WARM_MAX = 2_000
ROOM_MAX = 5_000
"""The depth of the inlet's queue while memory is measured: more than one batch."""
_RUN = "from holdfast.cli import main; main()"
_INLET = Gate(name="in", direction="inlet", broker=BROKER, queue="in", source=SOURCE, task=TASK)
_OUTLET = Gate(name="out", direction="outlet", broker=BROKER, queue="out", routing_key=TARGET)
_STORED = "SELECT count(*) FROM holdfast.bodies"
_FINISHED = """
SELECT (SELECT count(*) FROM holdfast.done)
    + (SELECT count(*) FROM holdfast.jobs WHERE state NOT IN (0, 1))
"""

Step = Callable[[], Awaitable[float]]


class Rates(NamedTuple):
    """Messages per second."""

    gate: float
    bare: float


async def inlet(workspace: Workspace, *, messages: int, bare_first: bool) -> Rates:
    """Compare an inlet with a loop that receives and acknowledges."""

    async def gate() -> float:
        await _loop("fill", workspace, messages)
        async with _opened(workspace) as engine:
            await engine.declare(Queue(name=_INLET.queue))
            await Gates(engine).add(_INLET)
        return await _timed(workspace, _STORED, messages)

    async def bare() -> float:
        await _loop("fill", workspace, messages)
        return await _loop("consume", workspace, messages)

    await raw_rabbitmq.declare(workspace.amqp)
    return await _both(gate, bare, bare_first=bare_first)


async def outlet(workspace: Workspace, *, messages: int, bare_first: bool) -> Rates:
    """Compare an outlet with a loop of confirmed publishes."""

    async def gate() -> float:
        async with _opened(workspace) as engine:
            await engine.declare(Queue(name=_OUTLET.queue))
            subject = HoldfastSubject(engine, queue=_OUTLET.queue)
            for size in batches(messages):
                await subject.enqueue(subject.make(size))
            await Gates(engine).add(_OUTLET)
        return await _timed(workspace, _FINISHED, messages)

    async def bare() -> float:
        return await _loop("publish", workspace, messages)

    await raw_rabbitmq.declare(workspace.amqp)
    rates = await _both(gate, bare, bare_first=bare_first)
    if (found := await raw_rabbitmq.depth(workspace.amqp, TARGET)) < 2 * messages:
        raise Failed(f"only {found} of {2 * messages} messages arrived")
    return rates


async def inlet_growth_mb(workspace: Workspace, *, waiting: int, seconds: float) -> float:
    """Growth of the memory of an inlet that has moved some messages, until many more wait at its
    source and its queue has been full for some seconds."""
    warm, room = min(WARM_MAX, waiting // 4), min(ROOM_MAX, waiting // 2)
    await raw_rabbitmq.declare(workspace.amqp)
    async with _opened(workspace) as engine:
        await engine.declare(Queue(name=_INLET.queue, max_depth=room))
        await Gates(engine).add(_INLET)
    async with _running(workspace) as process:
        await _loop("fill", workspace, warm)
        await _until(workspace, _STORED, warm)
        before = _memory_mb(process.pid, "VmRSS")
        await _loop("fill", workspace, waiting, first=warm)
        await _until(workspace, _STORED, room)
        await asyncio.sleep(seconds)
        after = _memory_mb(process.pid, "VmHWM")
    if (found := await raw_rabbitmq.depth(workspace.amqp, SOURCE)) < waiting - room:
        raise Failed(f"only {found} of {waiting} messages waited")
    return max(after - before, 0.0)


async def _both(gate: Step, bare: Step, *, bare_first: bool) -> Rates:
    if bare_first:
        reference = await bare()
        return Rates(await gate(), reference)
    return Rates(await gate(), await bare())


async def _timed(workspace: Workspace, moved: str, messages: int) -> float:
    """Run the gate until all messages are moved; the rate from the first that are seen to the last.
    The start of the process is not timed."""
    async with _running(workspace):
        before = await _until(workspace, moved, 1)
        began = time.perf_counter()
        await _until(workspace, moved, messages)
        return max(messages - before, 1) / (time.perf_counter() - began)


@asynccontextmanager
async def _running(workspace: Workspace) -> AsyncIterator[Child]:
    line = ("gate", "run", "--broker", f"{BROKER}={workspace.amqp}", "--url", workspace.database)
    async with background("-c", _RUN, *line, quiet=True) as process:
        yield process


@asynccontextmanager
async def _opened(workspace: Workspace) -> AsyncIterator[Engine]:
    engine = open_engine(workspace.database)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def _until(workspace: Workspace, sql: str, count: int) -> int:
    """Wait until the database counts as many; returns the count."""
    connection = await asyncpg.connect(workspace.database)
    end = time.monotonic() + WAIT_S_MAX
    try:
        while (found := int(await connection.fetchval(sql))) < count:
            if time.monotonic() > end:
                raise Failed(f"the gate moved {found} of {count} messages in {WAIT_S_MAX} s")
            await asyncio.sleep(POLL_S)
    finally:
        await connection.close()
    return found


async def _loop(role: str, workspace: Workspace, count: int, *, first: int = 0) -> float:
    """Run a bare loop in a process of its own; its rate."""
    line = ("-m", "bench.raw_rabbitmq", role, workspace.amqp, str(count), str(first))
    async with background(*line) as process:
        return float(await process.read())


def _memory_mb(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None, f"memory is unknown: /proc has no {field}"
    return int(found[1]) / 1024
