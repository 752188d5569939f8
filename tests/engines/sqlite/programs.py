"""Programs on one file in other processes, which answer each line they read with a line."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Start = Callable[[], Awaitable[Process]]


@asynccontextmanager
async def programs(code: str, path: Path) -> AsyncIterator[Start]:
    """Starts as many as wanted; each has opened the file, and is killed at the end."""
    started: list[Process] = []

    async def start_one() -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(path), stdin=PIPE, stdout=PIPE
        )
        started.append(process)
        assert await read_line(process) == "open"
        return process

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def send(process: Process, line: str) -> str:
    """Send a line, and return the answer."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    return await read_line(process)
