"""Measurements of Holdfast without peers: an idle worker, commands compared with bare process
spawns, and `enqueue` from a pipe.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from dataclasses import replace

from bench.peers.catalogue import HOLDFAST, RUN, Contestant
from bench.peers.holdfast import COMMAND
from bench.peers.run import Failed, program, too_late
from bench.peers.tally import payload
from bench.peers.workspace import Workspace
from bench.processes import cpu_ns
from holdfast import Holdfast, JobFilter

TRUE = ["/bin/true"]
SPAWNS_AT_ONCE = 4
WAIT_S_MAX = 120
SETTLE_S = 5.0
POLL_S = 0.02


async def idle_share(workspace: Workspace, *, seconds: float) -> float:
    """Share of a core that an idle default worker with an application uses, children included."""
    async with program(_worker(), workspace, "work") as worker:
        await _wait_for_worker(workspace)
        await asyncio.sleep(min(SETTLE_S, seconds))
        before, started = cpu_ns(worker.pid), time.monotonic_ns()
        await asyncio.sleep(seconds)
        return (cpu_ns(worker.pid) - before) / (time.monotonic_ns() - started)


async def command_rate(workspace: Workspace, *, jobs: int) -> float:
    """Command jobs settled per second, timed from the last check that saw none done."""
    async with Holdfast(workspace.url) as app:
        await app.enqueue_many(app.job("command", {"command": TRUE}) for _ in range(jobs))
        async with program(_worker(["start", "--concurrency", "16"]), workspace, "work"):
            done, first = 0, time.monotonic()
            end = first + WAIT_S_MAX
            while done < jobs:
                if time.monotonic() > end:
                    raise Failed(f"only {done} of {jobs} commands were done in {WAIT_S_MAX} s")
                await asyncio.sleep(POLL_S)
                done = sum(view.done for view in await app.queues())
                if done == 0:
                    first = time.monotonic()
            return jobs / (time.monotonic() - first)


def spawn_rate(*, spawns: int) -> float:
    """Processes per second that a plain loop starts and waits for, several at once."""
    started = time.monotonic()
    running = 0
    for _ in range(spawns):
        if running == SPAWNS_AT_ONCE:
            os.wait()
            running -= 1
        os.posix_spawn(TRUE[0], TRUE, os.environ)
        running += 1
    for _ in range(running):
        os.wait()
    return spawns / (time.monotonic() - started)


async def pipe_rate(workspace: Workspace, *, lines: int) -> float:
    """Jobs per second of one `enqueue -` that reads a pipe, including its start and end."""
    line = json.dumps({"task": "noop", "payload": {"text": payload()}}) + "\n"
    source = workspace.directory / "lines"
    source.write_text(line * lines)
    async with Holdfast(workspace.url):
        pass
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as cat:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            "enqueue",
            "-",
            "--url",
            workspace.url,
            stdin=cat.stdout,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), WAIT_S_MAX)
        took = time.monotonic() - started
    if process.returncode != 0:
        raise Failed(f"enqueue ended with status {process.returncode}: {errors[-200:]!r}")
    async with Holdfast(workspace.url) as app:
        # A queue's own counts are exact only up to ten thousand, so use the tally.
        stored = sum([each.count for each in await app.tally(JobFilter(), "task")])
    if stored != lines:
        raise Failed(f"only {stored} of {lines} lines became jobs")
    return lines / took


def _worker(words: list[str] = RUN) -> Contestant:
    default = HOLDFAST[0]
    return replace(default, settings={**default.settings, "words": words})


async def _wait_for_worker(workspace: Workspace) -> None:
    end = time.monotonic() + WAIT_S_MAX
    async with Holdfast(workspace.url) as app:
        while not await app.workers.all():
            if time.monotonic() > end:
                raise too_late(workspace, "no worker registered")
            await asyncio.sleep(POLL_S)
