"""`holdfast demo`: real workers run a mix of real jobs, shown in the dashboard and the terminal."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.demo_data import SERVED, furnish, next_job
from holdfast.cli.flags import option
from holdfast.cli.output import COMMON, Common, print_either, print_json, say
from holdfast.cli.serve import listener_for_up, server_program
from holdfast.cli.session import open_app
from holdfast.cli.status import draw_live, snapshot
from holdfast.errors import ConfigError, UsageError
from holdfast.notation.durations import to_ms
from holdfast.ops.views import plain
from holdfast.worker.managed_process import Program
from holdfast.worker.options import WorkerOptions

_TARGET = "holdfast.cli.demo_tasks:app"


async def demo(
    *,
    seconds: Annotated[
        str | None, option("DURATION", "Stop after this long. [default: at Ctrl-C]", "--for")
    ] = None,
    rate: Annotated[float, option("N", "Enqueue about this many jobs per second.")] = 8.0,
    workers: Annotated[int, option("N", "Start this many workers.")] = 2,
    serve: Annotated[
        bool, Parameter(help="Also serve the dashboard, on this machine only.")
    ] = True,
    port: Annotated[
        int | None,
        option("PORT", "Port of the dashboard. [default: 7433, or a free one if it is taken]"),
    ] = None,
    common: Common = COMMON,
) -> int:
    """Run a mix of real jobs, to watch live in the dashboard or in this terminal.

    Without --url, it uses a temporary file.
    """
    duration_s = None if seconds is None else to_ms("--for", seconds, UsageError) / 1000
    if not 0 < rate <= 1_000 or not 1 <= workers <= 16:
        raise UsageError("--rate must be at most 1000, and --workers 1 to 16")
    if port is not None and not serve:
        raise UsageError("--port needs the server: leave out --no-serve")
    # A server over HTTP has a dashboard of its own.
    remote = (common.url or "").startswith(("http://", "https://"))
    listening = listener_for_up(port) if serve and not remote else None
    with (
        listening or nullcontext(),
        tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder,
    ):
        url = common.url or f"sqlite:///{Path(folder) / 'demo.db'}"
        async with open_app(replace(common, url=url), create=True) as app:
            options = WorkerOptions(  # noqa: S604 (the demo's own commands)
                url=app.url or url,
                queues=SERVED,
                target=_TARGET,
                processes=1,
                concurrency=16,
                grace_ms=3_000,
                shell=True,
            )
            with _server(options.url, listening, Path(folder)) as link:
                if link is not None:
                    _print_link(link, common)
                with _workers([options] * workers):
                    await furnish(app)
                    await _enqueue_and_draw(app, duration_s, rate, link, common)
            view = await snapshot(app)
    if common.json:
        print_json(plain(view))
    else:
        done = sum(queue.done for queue in view.queues)
        dead = sum(queue.dead for queue in view.queues)
        say(f"the demo is over; jobs done: {done}, dead letters: {dead}")
    return 0


def _print_link(link: str, common: Common) -> None:
    print_either({"event": "started", "server": link}, f"dashboard: {link}", common)
    if not common.json:
        say("Ctrl-C stops the demo")


async def _enqueue_and_draw(
    app: Holdfast, duration_s: float | None, rate: float, link: str | None, common: Common
) -> None:
    """Jobs arrive at random, and sometimes in bursts."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if duration_s is not None:
        loop.call_later(duration_s, stop.set)
    drawing = None
    if not common.json:
        place = app.place if link is None else f"{app.place}; dashboard: {link}"
        drawing = asyncio.create_task(draw_live(app, stop, interval_s=0.5, place=place))
    while not stop.is_set():
        burst = 10 if random.random() < 0.03 else 1
        await app.enqueue_many([next_job(app) for _ in range(burst)])
        with suppress(TimeoutError):
            async with asyncio.timeout(random.expovariate(rate)):
                await stop.wait()
    if drawing is not None:
        await drawing


@contextmanager
def _workers(workers: list[WorkerOptions]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.worker.launcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(workers) + b"\n")
    process.stdin.close()
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _server(url: str, listening: socket.socket | None, folder: Path) -> Iterator[str | None]:
    """The URL of a server in a process of its own; None without a socket to listen on. It ends with
    this process, because its standard input does."""
    if listening is None:
        yield None
        return
    with (folder / "server.log").open("wb") as log:
        program = server_program(url, listening, {})
        ready, theirs = os.pipe()
        process = _start(program, theirs, log.fileno())
        os.close(theirs)
        try:
            with open(ready) as answer:  # noqa: PTH123 (a descriptor)
                link = answer.read()
            if not link:
                said = (folder / "server.log").read_text(errors="replace").strip()
                raise ConfigError(f"the server did not start: {said[-500:] or 'no message'}")
            yield f"{link}/"
        finally:
            process.terminate()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(program: Program, ready: int, log: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 (a module of our own)
        [sys.executable, "-m", program.module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=(ready, *program.descriptors),
        env={**os.environ, "HOLDFAST_READY": str(ready)},
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(program.options + b"\n")
    process.stdin.flush()
    return process
