"""The tasks that real workers run in tests. Each records its steps in a journal in `folder`,
and those that hold wait for the file `go` there.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Cancelled, Context, Holdfast, Release

app = Holdfast("memory:")


def write(folder: str, word: str, ctx: Context) -> None:
    """One line in one write, so that lines of two processes cannot mix."""
    entry = {"word": word, "id": ctx.id, "attempt": ctx.attempt, "token": ctx.token}
    line = json.dumps({**entry, "pid": os.getpid(), "at_ns": time.monotonic_ns()}) + "\n"
    descriptor = os.open(Path(folder) / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def may_go(folder: str) -> bool:
    return (Path(folder) / "go").exists()


async def until_may_go(folder: str) -> None:
    while not may_go(folder):  # noqa: ASYNC110 (another process says so)
        await asyncio.sleep(0.01)


@app.task(name="note")
def note(ctx: Context, folder: str) -> str:
    write(folder, "start", ctx)
    write(folder, "end", ctx)
    return ctx.id


@app.task(name="hold")
def hold(folder: str, *, ctx: Context) -> None:
    write(folder, "start", ctx)
    while not may_go(folder):
        time.sleep(0.01)
    write(folder, "end", ctx)


@app.task(name="hold_async")
async def hold_async(folder: str, *, ctx: Context) -> None:
    write(folder, "start", ctx)
    try:
        await until_may_go(folder)
    except asyncio.CancelledError:
        write(folder, "cancelled", ctx)
        raise
    write(folder, "end", ctx)


@app.task(name="heed")
def heed(folder: str, *, ctx: Context) -> None:
    """Stops when it is cancelled."""
    write(folder, "start", ctx)
    while not ctx.cancelled:
        time.sleep(0.01)
    raise Cancelled("as asked")


@app.task(name="hold_everything")
def hold_everything(folder: str, seconds: int, *, ctx: Context) -> None:
    """Holds the interpreter, as a long match of `re` does, without taking a core meanwhile."""
    write(folder, "start", ctx)
    left = ctypes.PyDLL(None).sleep(seconds)
    write(folder, "interrupted" if left else "end", ctx)


@app.task(name="die")
def die(folder: str, *, ctx: Context) -> None:
    """Killed by a signal, after some last output."""
    write(folder, "start", ctx)
    print("these were the last words", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@app.task(name="leave_survivors")
def leave_survivors(folder: str, *, ctx: Context) -> None:
    """Starts two processes that are hard to find, one of them in another session."""
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    hold.handler.function(folder, ctx=ctx)


@app.task(name="fail")
def fail() -> None:
    raise ValueError("it cannot be")


@app.task(name="resume_from")
def resume_from(folder: str, *, ctx: Context) -> list[int]:
    """Resumes where the attempt before it stopped."""
    done: list[int] = ctx.resume([])
    write(folder, f"resumed at {len(done)}", ctx)
    done = [*done, ctx.attempt]
    ctx.checkpoint(done)
    ctx.progress(len(done) / 3, f"step {len(done)}")
    if len(done) < 3:
        raise ConnectionError("try again")
    return done


@app.task(name="talk")
def talk(folder: str, *, ctx: Context) -> None:
    ctx.log("it is running")
    ctx.progress(0.5)
    hold.handler.function(folder, ctx=ctx)
    ctx.log("it is over")


@app.task(name="add_up", batch=10)
def add_up(numbers: list[int]) -> list[str]:
    return [f"{number} of {len(numbers)}" for number in numbers]


@app.task(name="gather", batch=10)
async def gather(folders: list[str], *, ctx: list[Context]) -> None:
    for each in ctx:
        write(folders[0], "start", each)
    await until_may_go(folders[0])
    for each in ctx:
        write(folders[0], "end", each)


@app.task(name="begin")
def begin(folder: str, follower: str, *, ctx: Context) -> None:
    ctx.then(note.using(id=follower).job(folder))


@app.task(name="apart", isolated=True)
def apart(folder: str, *, ctx: Context) -> int:
    write(folder, "start", ctx)
    return os.getpid()


@app.task(name="leave")
def leave(code: int) -> None:
    os._exit(code)


@app.task(name="stop_itself")
def stop_itself() -> None:
    raise Cancelled("not wanted any more")


@app.task(name="stubborn")
async def stubborn(folder: str, longer_s: float, *, ctx: Context) -> None:
    """A coroutine that blocks the loop it runs in."""
    write(folder, "start", ctx)
    time.sleep(longer_s)


@app.task(name="hold_then_fail")
def hold_then_fail(folder: str, *, ctx: Context) -> None:
    hold.handler.function(folder, ctx=ctx)
    raise ValueError("it cannot be")


@app.task(name="hold_then_cancel")
def hold_then_cancel(folder: str, *, ctx: Context) -> None:
    hold.handler.function(folder, ctx=ctx)
    raise Cancelled("not wanted any more")


@app.task(name="hold_interpreter")
def hold_interpreter(seconds: int) -> None:
    """Holds the interpreter: no other Python code runs in this process meanwhile."""
    ctypes.PyDLL(None).sleep(seconds)


@app.task(name="frail", breaker="3 failures, 300ms to 300ms")
def frail(folder: str, *, ctx: Context) -> None:
    """Fails until the file `go` exists."""
    write(folder, "start", ctx)
    if not may_go(folder):
        raise ConnectionError("nobody there")
    write(folder, "end", ctx)


@app.task(name="two_at_a_time", queue="narrow", concurrency=2)
def two_at_a_time(folder: str, *, ctx: Context) -> None:
    write(folder, "start", ctx)
    while not may_go(folder):
        time.sleep(0.01)
    write(folder, "end", ctx)


@app.task(name="fickle")
def fickle(folder: str, seed: int, *, ctx: Context) -> None:
    """Fails, releases itself or kills its process now and then; completes in the end."""
    write(folder, "start", ctx)
    dice = random.Random(f"{seed} {ctx.id} {ctx.token}").random()
    time.sleep(dice / 100)
    if dice < 0.15:
        raise ConnectionError("try again")
    if dice < 0.25:
        raise Release("not now")
    if dice < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, "end", ctx)


def come_after(folder: str, number: int) -> None:
    """Fails unless the one before has completed."""
    if number and not (Path(folder) / f"came-{number - 1}").exists():
        raise AssertionError(f"{number} came too early")
    (Path(folder) / f"came-{number}").touch()


@app.task(name="come")
def come(folder: str, number: int) -> None:
    come_after(folder, number)


@app.task(name="come_alone", isolated=True)
def come_alone(folder: str, number: int) -> None:
    come_after(folder, number)


@app.task(name="come_together", batch=10)
async def come_together(given: list[dict[str, Any]]) -> None:
    for each in given:
        come_after(**each)


@app.task(name="heirs")
def heirs(url: str, *, ctx: Context) -> list[str]:
    store = Holdfast(url)
    returned = store.task(name="note")(note.function)
    return [returned.handle(id_).result(timeout=0) for id_ in ctx.parents]
