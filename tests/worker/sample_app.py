"""An application for the tests of the child: `path/to/sample_app.py:app`."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.worker.child.context import Context
from tests.worker.sample_handlers import handler


def echo(value: Any) -> Any:
    return value


async def aecho(value: Any) -> Any:
    return value


def speak(word: str) -> None:
    print("hello", word)


def log_line(word: str) -> None:
    logging.getLogger("sample").debug(word)


def block(path: str) -> None:
    Path(path).write_text(f"{os.getpid()}\n")
    time.sleep(600)


async def wait() -> None:
    await asyncio.Event().wait()


def leave(code: int) -> None:
    sys.exit(code)


async def interrupt() -> None:
    raise KeyboardInterrupt


def variables() -> list[str]:
    return [name for name in os.environ if name.startswith("HOLDFAST_CHILD")]


def descriptors() -> str:
    """The open descriptors of a process that a handler starts."""
    return subprocess.check_output(["ls", "/proc/self/fd"], text=True)


def start_sleeper(path: str) -> None:
    process = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{process.pid}\n")


def fork_and_terminate() -> list[int | None]:
    """A forked process obeys SIGTERM, however early it comes."""
    statuses = []
    for _ in range(20):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join()
        statuses.append(process.exitcode)
    return statuses


def crash() -> None:
    ctypes.string_at(0)


def report(ctx: Context) -> list[Any]:
    ctx.log("from", ctx.id)
    return [ctx.attempt, ctx.token, ctx.resume()]


def total(values: list[int], contexts: list[Context]) -> list[int]:
    return [sum(values)] * len(contexts)


_ALL = [
    handler(function)
    for function in (
        echo,
        aecho,
        block,
        wait,
        leave,
        interrupt,
        variables,
        descriptors,
        start_sleeper,
        fork_and_terminate,
        crash,
        report,
        speak,
        log_line,
    )
]
app = SimpleNamespace(handlers={one.name: one for one in [*_ALL, handler(total, batch=5)]})
