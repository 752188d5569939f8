"""What Holdfast's worker and command line do alone, beside what this machine can do at best:
an idle worker, commands beside bare spawns, and `enqueue` from a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from bench.peers.catalogue import HOLDFAST, RUN, Contestant
from bench.peers.holdfast import COMMAND
from bench.peers.places import Place
from bench.peers.run import Failed, program
from bench.peers.tally import payload
from holdfast import Holdfast, JobFilter

TRUE = ["/bin/true"]
BARE_AT_ONCE = 4
WAIT_S_MAX = 120
SETTLE_S = 2.0
LOOK_S = 0.02


async def idle_share(place: Place, *, seconds: float) -> float:
    """The part of a core that a default worker with an application uses, children and all."""
    async with program(_worker(), place, "work") as worker:
        await _until_listed(place)
        await asyncio.sleep(min(SETTLE_S, seconds))
        before, started = _cpu_ns(worker.pid), time.monotonic_ns()
        await asyncio.sleep(seconds)
        return (_cpu_ns(worker.pid) - before) / (time.monotonic_ns() - started)


async def command_rate(place: Place, *, jobs: int) -> float:
    """Command jobs a second that start, run and are settled, from the last look that saw none."""
    async with Holdfast(place.url) as app:
        await app.enqueue_many(app.job("command", {"command": TRUE}) for _ in range(jobs))
        async with program(_worker(["start"]), place, "work"):
            done, first = 0, time.monotonic()
            end = first + WAIT_S_MAX
            while done < jobs:
                if time.monotonic() > end:
                    raise Failed(f"{done} of {jobs} commands were done in {WAIT_S_MAX} s")
                await asyncio.sleep(LOOK_S)
                done = sum(view.done for view in await app.queues())
                if done == 0:
                    first = time.monotonic()
            return jobs / (time.monotonic() - first)


def spawn_rate(*, spawns: int) -> float:
    """Processes a second that a bare loop starts and buries, several at once."""
    started = time.monotonic()
    running = 0
    for _ in range(spawns):
        if running == BARE_AT_ONCE:
            os.wait()
            running -= 1
        os.posix_spawn(TRUE[0], TRUE, os.environ)
        running += 1
    for _ in range(running):
        os.wait()
    return spawns / (time.monotonic() - started)


async def pipe_rate(place: Place, *, lines: int) -> float:
    """Jobs a second of one `enqueue -` that reads a pipe, its start and end included."""
    line = json.dumps({"task": "noop", "payload": {"text": payload()}}) + "\n"
    source = place.directory / "lines"
    source.write_text(line * lines)
    async with Holdfast(place.url):
        pass
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as cat:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            "enqueue",
            "-",
            "--url",
            place.url,
            stdin=cat.stdout,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await asyncio.wait_for(process.communicate(), WAIT_S_MAX)
        took = time.monotonic() - started
    if process.returncode != 0:
        raise Failed(f"enqueue ended with status {process.returncode}: {complaint[-200:]!r}")
    async with Holdfast(place.url) as app:
        # Counted by walking a tally: a queue's own counts end at ten thousand.
        stored = sum([each.count for each in await app.tally(JobFilter(), "task")])
    if stored != lines:
        raise Failed(f"{stored} of {lines} lines became jobs")
    return lines / took


def _worker(words: list[str] = RUN) -> Contestant:
    default = HOLDFAST[0]
    return replace(default, settings={**default.settings, "words": words})


async def _until_listed(place: Place) -> None:
    end = time.monotonic() + WAIT_S_MAX
    async with Holdfast(place.url) as app:
        while not await app.workers.all():
            if time.monotonic() > end:
                raise Failed(f"no worker was there after {WAIT_S_MAX} s")
            await asyncio.sleep(LOOK_S)


def _cpu_ns(pid: int) -> int:
    """Of the process, its threads and all below it. One that ends meanwhile is left out."""
    total = 0
    for process in _family(pid):
        for task in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
    return total


def _family(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found
