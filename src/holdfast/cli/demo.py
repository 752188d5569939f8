"""`holdfast demo`: a lively mixture of real jobs, run by real workers, to look at."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.running import running
from holdfast.cli.top import live, snapshot
from holdfast.core.model import NewJob, Queue
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.views.values import plain
from holdfast.worker.options import WorkerOptions

_TARGET = "holdfast.demo:app"
_QUEUES = ("mail", "media", "shop")


async def demo(
    *,
    seconds: Annotated[str, Parameter(name="--for", help="How long it goes on.")] = "60s",
    rate: Annotated[float, Parameter(help="New jobs a second, about.")] = 8.0,
    workers: Annotated[int, Parameter(help="How many workers.")] = 2,
    common: Common = COMMON,
) -> int:
    """Run a lively mixture of real jobs and watch it. Without --url on a file of its own."""
    duration_s = to_ms("for", seconds, UsageError) / 1000
    if not 0 < rate <= 1_000 or not 1 <= workers <= 16:
        raise UsageError("--rate is up to 1000 and --workers 1 to 16")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        url = common.url or f"sqlite:///{Path(folder) / 'demo.db'}"
        async with running(replace(common, url=url), create=True) as app:
            for queue in _QUEUES:
                await app.engine.declare(Queue(name=queue), instead_of=None)
            options = WorkerOptions(  # noqa: S604 (the demo's own commands)
                url=app.url or url,
                queues={"mail": 2, "media": 1, "shop": 3, "default": 1},
                target=_TARGET,
                processes=1,
                grace_ms=3_000,
                shell=True,
            )
            crew = _start([options] * workers)
            try:
                await _play(app, duration_s, rate, common)
            finally:
                _stop(crew)
            told = await snapshot(app)
    if common.json:
        print_json(plain(told))
    else:
        done = sum(queue.done for queue in told.queues)
        dead = sum(queue.dead for queue in told.queues)
        say(f"that was the demo; jobs done: {done}, dead letters: {dead}")
    return 0


async def _play(app: Holdfast, duration_s: float, rate: float, common: Common) -> None:
    """Jobs come as they do in life: in no rhythm, and some in a rush."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.call_later(duration_s, stop.set)
    shown = asyncio.create_task(live(app, stop, interval_s=0.5)) if not common.json else None
    while not stop.is_set():
        burst = 10 if random.random() < 0.03 else 1
        await app.enqueue_many([_job(app) for _ in range(burst)])
        with suppress(TimeoutError):
            async with asyncio.timeout(random.expovariate(rate)):
                await stop.wait()
    if shown is not None:
        await shown


def _job(app: Holdfast) -> NewJob:
    """One of the mixture, by weight."""
    kinds: list[tuple[int, Callable[[], tuple[str, Any, dict[str, Any]]]]] = [
        (30, lambda: ("mail", {"to": f"user{random.randrange(1000)}@example.org"}, _mail())),
        (15, lambda: ("resize", {"picture": "cat.png", "width": 640}, {"queue": "media"})),
        (8, lambda: ("primes", {"below": random.randint(10_000, 60_000)}, {"queue": "media"})),
        (6, lambda: ("import", {"rows": random.randint(20, 120)}, {"queue": "shop"})),
        (15, lambda: ("charge", {"cents": random.randrange(10_000)}, {"queue": "shop"})),
        (1, lambda: ("native", {}, {"queue": "media"})),
        (10, lambda: ("command", {"command": ["echo", "hello"]}, {})),
        (5, lambda: ("command", {"command": "sleep 1; date"}, {"delay": "2s"})),
        (3, lambda: ("command", {"command": "exit 3"}, {"max_attempts": 2})),
        (2, lambda: ("command", {"command": ["sleep", "60"]}, {"timeout": "2s"})),
    ]
    weights = [weight for weight, _ in kinds]
    [(_, make)] = random.choices(kinds, weights)
    task, payload, options = make()
    return app.job(task, payload, **options)


def _mail() -> dict[str, Any]:
    return {
        "queue": "mail",
        "tenant": random.choice(("acme", "globex", "initech")),
        "priority": random.choice((0, 0, 0, 5)),
    }


def _start(workers: list[WorkerOptions]) -> subprocess.Popen[bytes]:
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
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
