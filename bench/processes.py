"""Other processes that take part in a measurement: they get one JSON text and speak in lines."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.stores import Store

ROOT = Path(__file__).resolve().parent.parent
LINE_BYTES_MAX = 64 * 1024 * 1024
STOP_S_MAX = 10
LAST_S_MAX = 15


class Child:
    """Another process, which speaks in lines of JSON and may be spoken to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self) -> Any:
        """The next line it says, decoded; an error when it ended instead."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise RuntimeError(f"a process of the benchmark ended early with status {status}")
        return msgspec.json.decode(line)

    async def ask(self, value: Any) -> Any:
        self.tell(value)
        return await self.read()

    def tell(self, value: Any = None) -> None:
        """Without anything to say: let it go on, where it waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")


@asynccontextmanager
async def child(role: str, store: Store, **arguments: object) -> AsyncIterator[Child]:
    """`python -m bench.roles ROLE`, ended with the block, whatever happens in it."""
    order = msgspec.json.encode({"store": store, **arguments}).decode()
    process = await _start("-m", "bench.roles", role, order)
    try:
        yield Child(process)
        # It has said its last and ends by itself; killing it just then would confuse asyncio.
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def lasting(*line: str, quiet: bool = False) -> AsyncIterator[Child]:
    """A program that would go on for ever, told to end with the block and given time for it.
    `quiet`: a server that sees queues grow and grow has much to say about it."""
    process = await _start(*line, stderr=asyncio.subprocess.DEVNULL if quiet else None)
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), LAST_S_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _start(*line: str, stderr: int | None = None) -> asyncio.subprocess.Process:
    """Under nobody's settings."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *line,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**kept, "PYTHONPATH": os.pathsep.join(path)},
        limit=LINE_BYTES_MAX,
    )
