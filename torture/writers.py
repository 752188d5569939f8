"""Measure how long and how fairly many processes wait that write to one SQLite file at once.

The processes are forked before any engine is open, and start together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine
from torture import results


class Shares(NamedTuple):
    """Waits of all commits of all processes; `least` and `most` commits by one process when the
    first one reached its number."""

    waits_ms: list[float]
    least: int
    most: int

    def wait_ms(self, percent: float) -> float:
        rank = math.ceil(len(self.waits_ms) * percent / 100) - 1
        return sorted(self.waits_ms)[max(rank, 0)]

    def outcome(self) -> dict[str, Any]:
        """Return the results as docs/torture.md lists them."""
        waits = {f"wait_ms_p{percent:g}": self.wait_ms(percent) for percent in (50, 99, 99.9)}
        return waits | {
            "commits": len(self.waits_ms),
            "wait_ms_worst": max(self.waits_ms),
            "least_by_one": self.least,
            "most_by_one": self.most,
        }

    def __str__(self) -> str:
        waits = ", ".join(f"p{percent:g} {self.wait_ms(percent):.1f}" for percent in (50, 99, 99.9))
        return (
            f"{len(self.waits_ms)} commits; waits in ms: {waits}, worst {max(self.waits_ms):.1f}; "
            f"commits by one process: {self.least} to {self.most}"
        )


def compete(path: Path, *, processes: int, commits: int) -> Shares:
    """Let all processes commit until one has made `commits`. It forks: no other thread may run."""
    asyncio.run(_create(path))
    counters = _CommitCounts(processes)
    with tempfile.TemporaryDirectory() as results:
        children = [
            _fork(path, counters, number, commits, Path(results, str(number)))
            for number in range(processes)
        ]
        try:
            statuses = [os.waitpid(child, 0)[1] for child in children]
        except BaseException:
            for child in children:
                os.kill(child, signal.SIGKILL)
            raise
        if any(statuses):
            raise RuntimeError(f"some of {processes} writers failed: statuses {statuses}")
        waits = [json.loads(file.read_text()) for file in Path(results).iterdir()]
    return Shares(
        [wait for part in waits for wait in part], min(counters.counts), max(counters.counts)
    )


class _CommitCounts:
    """Shared memory with the number of commits of each process, or -1 until it is open."""

    def __init__(self, processes: int) -> None:
        self._counts = struct.Struct(f"{processes}q")
        self._memory = mmap.mmap(-1, self._counts.size)
        self._counts.pack_into(self._memory, 0, *[-1] * processes)

    @property
    def counts(self) -> tuple[int, ...]:
        return self._counts.unpack_from(self._memory)

    def wait_for_all(self) -> None:
        while min(self.counts) < 0:
            time.sleep(0.001)

    def put(self, number: int, commits: int) -> None:
        struct.pack_into("q", self._memory, number * 8, commits)


def _fork(path: Path, counters: _CommitCounts, number: int, commits: int, result: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            waits_ms = asyncio.run(_write(path, counters, number, commits))
            result.write_text(json.dumps(waits_ms))
            status = 0
        except BaseException:  # noqa: BLE001 - the child must never run the parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


async def _create(path: Path) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.close()


async def _write(path: Path, counters: _CommitCounts, number: int, commits: int) -> list[float]:
    engine = SQLiteEngine(path)
    await engine.open()
    counters.put(number, 0)
    counters.wait_for_all()
    waits_ms: list[float] = []
    payload = bytes(256)
    while max(counters.counts) < commits:
        started = time.perf_counter()
        job = NewJob(id=f"{number}-{len(waits_ms)}", task="noop", payload=payload)
        await engine.enqueue([job])
        waits_ms.append(1000 * (time.perf_counter() - started))
        if max(counters.counts) < commits:
            counters.put(number, len(waits_ms))
    await engine.close()
    return waits_ms


def main(argv: list[str]) -> int:
    """`./hf torture writers`: return 1 if p99.9 exceeds its bound, or if one process made less than
    a tenth of the commits of another."""
    parser = argparse.ArgumentParser(prog="hf torture writers", description=__doc__)
    parser.add_argument(
        "--processes", type=int, default=32, metavar="N", help="writer processes [default: 32]"
    )
    parser.add_argument(
        "--commits",
        type=int,
        default=500,
        metavar="N",
        help="stop when one process has made N commits [default: 500]",
    )
    parser.add_argument(
        "--wait-ms-max",
        type=float,
        default=1000,
        metavar="MS",
        help="maximum p99.9 wait [default: 1000]",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="PATH",
        help="directory for the file [default: a temporary one]",
    )
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="holdfast-writers-", dir=given.directory) as home:
        shares = compete(Path(home, "jobs.db"), processes=given.processes, commits=given.commits)
    print(f"{given.processes} processes: {shares}")
    if given.record:
        results.record("writers", {"processes": given.processes} | shares.outcome())
    is_fair = shares.least * 10 >= shares.most
    return 0 if is_fair and shares.wait_ms(99.9) <= given.wait_ms_max else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
