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


class Child:
    """A running `python -m bench.roles ROLE`."""

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

    def tell(self) -> None:
        """Let it go on, where it waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")


@asynccontextmanager
async def child(role: str, store: Store, **arguments: object) -> AsyncIterator[Child]:
    """A process that is ended with the block, whatever happens in it."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.roles",
        role,
        msgspec.json.encode({"store": store, **arguments}).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        limit=LINE_BYTES_MAX,
    )
    try:
        yield Child(process)
        # It has said its last and ends by itself; killing it just then would confuse asyncio.
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
