"""The application of the poison test: good tasks, and tasks for every kind of failure."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from typing import Any, NamedTuple

from holdfast import Bury, Holdfast
from holdfast.core.model import FailureKind, Reason

app = Holdfast("memory:")
HANG_S = 3600


class Poison(NamedTuple):
    """A task, its payload, and the expected end of its jobs. `share` is a percentage."""

    task: str
    payload: Any
    share: int
    reason: Reason
    kind: FailureKind | None = FailureKind.ERROR
    timeout: str | None = None


def command(*arguments: str) -> dict[str, list[str]]:
    return {"command": list(arguments)}


POISON = (
    Poison("raising", None, 34, Reason.ATTEMPTS),
    Poison("raising_async", None, 22, Reason.ATTEMPTS),
    Poison("hanging", None, 2, Reason.ATTEMPTS, FailureKind.TIMEOUT, "300ms"),
    Poison("hanging_async", None, 6, Reason.ATTEMPTS, FailureKind.TIMEOUT, "300ms"),
    Poison("exiting", None, 1, Reason.CRASHED, FailureKind.CRASH),
    Poison("faulting", None, 1, Reason.CRASHED, FailureKind.CRASH),
    Poison("aborting", None, 1, Reason.CRASHED, FailureKind.CRASH),
    Poison("burying", None, 8, Reason.EXPLICIT),
    Poison("raising", {"no": "such argument"}, 5, Reason.REJECTED),
    Poison("command", command("false"), 10, Reason.ATTEMPTS),
    Poison("command", command("no-such-command"), 2, Reason.ATTEMPTS),
    Poison("command", {"commend": "?"}, 2, Reason.REJECTED),
    Poison(
        "command",
        command("sleep", str(HANG_S)),
        6,
        Reason.ATTEMPTS,
        FailureKind.TIMEOUT,
        "300ms",
    ),
)
GOOD = (("good", None), ("good_async", None), ("command", command("true")))


@app.task(name="good")
def good() -> int:
    time.sleep(0.005)
    return 1


@app.task(name="good_async")
async def good_async() -> int:
    await asyncio.sleep(0.005)
    return 1


@app.task(name="raising")
def raising() -> None:
    raise RuntimeError("x" * 10_000)


@app.task(name="raising_async")
async def raising_async() -> None:
    raise ValueError("it never works")


@app.task(name="hanging")
def hanging() -> None:
    time.sleep(HANG_S)


@app.task(name="hanging_async")
async def hanging_async() -> None:
    await asyncio.sleep(HANG_S)


@app.task(name="exiting")
def exiting() -> None:
    os._exit(3)


@app.task(name="faulting")
def faulting() -> None:
    ctypes.string_at(0)


@app.task(name="aborting")
def aborting() -> None:
    print("these are my last words", file=sys.stderr)
    os.abort()


@app.task(name="burying")
def burying() -> None:
    raise Bury("not with me")
