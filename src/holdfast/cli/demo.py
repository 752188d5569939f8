"""`holdfast demo`: real workers run a mix of real jobs, shown live."""

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

from holdfast.app.application import Holdfast
from holdfast.cli.flags import option
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.session import open_app
from holdfast.cli.status import draw_live, snapshot
from holdfast.core.model import NewJob, Queue
from holdfast.errors import UsageError
from holdfast.notation.durations import to_ms
from holdfast.ops.views import plain
from holdfast.worker.options import WorkerOptions

_TARGET = "holdfast.cli.demo_tasks:app"
_QUEUES = ("mail", "media", "shop")


async def demo(
    *,
    seconds: Annotated[str, option("DURATION", "Run for this long.", "--for")] = "60s",
    rate: Annotated[float, option("N", "Enqueue about this many jobs per second.")] = 8.0,
    workers: Annotated[int, option("N", "Start this many workers.")] = 2,
    common: Common = COMMON,
) -> int:
    """Run a mix of real jobs and watch them live.

    Without --url it uses a temporary file.
    """
    duration_s = to_ms("--for", seconds, UsageError) / 1000
    if not 0 < rate <= 1_000 or not 1 <= workers <= 16:
        raise UsageError("--rate must be at most 1000, and --workers 1 to 16")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        url = common.url or f"sqlite:///{Path(folder) / 'demo.db'}"
        async with open_app(replace(common, url=url), create=True) as app:
            for queue in _QUEUES:
                await app.engine.declare(Queue(name=queue), instead_of=None)
            options = WorkerOptions(  # noqa: S604 (the demo's own commands)
                url=app.url or url,
                queues={"mail": 2, "media": 1, "shop": 3, "default": 1},
                target=_TARGET,
                processes=1,
                concurrency=16,
                grace_ms=3_000,
                shell=True,
            )
            process = _start_workers([options] * workers)
            try:
                await _enqueue_and_draw(app, duration_s, rate, common)
            finally:
                process.terminate()
                process.wait()
            view = await snapshot(app)
    if common.json:
        print_json(plain(view))
    else:
        done = sum(queue.done for queue in view.queues)
        dead = sum(queue.dead for queue in view.queues)
        say(f"the demo is over; jobs done: {done}, dead letters: {dead}")
    return 0


async def _enqueue_and_draw(app: Holdfast, duration_s: float, rate: float, common: Common) -> None:
    """Jobs arrive at random, and sometimes in bursts."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.call_later(duration_s, stop.set)
    drawing = asyncio.create_task(draw_live(app, stop, interval_s=0.5)) if not common.json else None
    while not stop.is_set():
        burst = 10 if random.random() < 0.03 else 1
        await app.enqueue_many([_job(app) for _ in range(burst)])
        with suppress(TimeoutError):
            async with asyncio.timeout(random.expovariate(rate)):
                await stop.wait()
    if drawing is not None:
        await drawing


def _job(app: Holdfast) -> NewJob:
    """One job of the mix, chosen by weight."""
    mixture: list[tuple[int, Callable[[], tuple[str, Any, dict[str, Any]]]]] = [
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
    weights = [weight for weight, _ in mixture]
    [(_, make)] = random.choices(mixture, weights)
    task, payload, options = make()
    return app.job(task, payload, **options)


def _mail() -> dict[str, Any]:
    return {
        "queue": "mail",
        "tenant": random.choice(("acme", "globex", "initech")),
        "priority": random.choice((0, 0, 0, 5)),
    }


def _start_workers(workers: list[WorkerOptions]) -> subprocess.Popen[bytes]:
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
