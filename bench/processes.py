"""Child processes of a benchmark, which exchange lines of JSON with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.stores import Store

ROOT = Path(__file__).resolve().parent.parent
LINE_BYTES_MAX = 64 * 1024 * 1024
STOP_S_MAX = 10
LAST_S_MAX = 15
_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""


class Child:
    """A child process that reads and writes lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> Any:
        """Return the next line, decoded; raise RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise RuntimeError(f"a child process of the benchmark ended early with status {status}")
        return msgspec.json.decode(line)

    async def ask(self, value: Any) -> Any:
        """Write a value and return the reply."""
        self.write(value)
        return await self.read()

    def write(self, value: Any = None) -> None:
        """Write a value. Without one, the line only lets a waiting process continue."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")


@asynccontextmanager
async def child(role: str, store: Store, **arguments: object) -> AsyncIterator[Child]:
    """Run `python -m bench.roles ROLE` for the duration of the block."""
    order = msgspec.json.encode({"store": store, **arguments}).decode()
    process = await _start("-m", "bench.roles", role, order)
    try:
        yield Child(process)
        # It ends by itself after its last line; killing it at that moment would confuse asyncio.
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def background(*line: str, quiet: bool = False) -> AsyncIterator[Child]:
    """Run a program that does not end by itself, and terminate it after the block.

    `quiet` drops its standard error: a server logs much about growing queues.
    """
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


@asynccontextmanager
async def busy_loops(count: int) -> AsyncIterator[None]:
    """Keep this many processes computing for the duration of the block. They end with this one."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(background("-c", _BUSY, str(os.getpid())))
        yield


async def _start(*line: str, stderr: int | None = None) -> asyncio.subprocess.Process:
    """Start Python without the HOLDFAST_ variables of the caller."""
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


def cpu_ns(pid: int, *, ended: bool = False) -> int:
    """CPU time of the process, its threads and its descendants, and with `ended` also of those that
    have ended, to a hundredth of a second."""
    total = 0
    for process in _process_tree(pid):
        for task in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
        if ended:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[13]) + int(fields[14])
                total += ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return total


def _process_tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found
