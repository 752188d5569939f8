"""Many processes that write to one SQLite file at once: how long each waits, and who gets how much.

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
    """`waits_ms` of every commit of every process; `least` and `most` commits by one process at
    the moment when the first of them had made its number."""

    waits_ms: list[float]
    least: int
    most: int

    def wait_ms(self, percent: float) -> float:
        place = math.ceil(len(self.waits_ms) * percent / 100) - 1
        return sorted(self.waits_ms)[max(place, 0)]

    def outcome(self) -> dict[str, Any]:
        """The figures as docs/torture.md keeps them."""
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
    """All commit until one of them has made `commits`. It forks: no other thread may run."""
    asyncio.run(_create(path))
    board = _Board(processes)
    with tempfile.TemporaryDirectory() as results:
        children = [
            _fork(path, board, number, commits, Path(results, str(number)))
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
    return Shares([wait for part in waits for wait in part], min(board.counts), max(board.counts))


class _Board:
    """Memory that the processes share: for each its commits, or -1 until it is open."""

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


def _fork(path: Path, board: _Board, number: int, commits: int, result: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            waits_ms = asyncio.run(_write(path, board, number, commits))
            result.write_text(json.dumps(waits_ms))
            status = 0
        except BaseException:  # noqa: BLE001 - the parent must never go on in the child
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


async def _create(path: Path) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.close()


async def _write(path: Path, board: _Board, number: int, commits: int) -> list[float]:
    engine = SQLiteEngine(path)
    await engine.open()
    board.put(number, 0)
    board.wait_for_all()
    waits_ms: list[float] = []
    payload = bytes(256)
    while max(board.counts) < commits:
        started = time.perf_counter()
        job = NewJob(id=f"{number}-{len(waits_ms)}", task="noop", payload=payload)
        await engine.enqueue([job])
        waits_ms.append(1000 * (time.perf_counter() - started))
        if max(board.counts) < commits:
            board.put(number, len(waits_ms))
    await engine.close()
    return waits_ms


def main(argv: list[str]) -> int:
    """`./hf torture writers`: prints the waits; 1 if p99.9 is beyond its bound, or if one process
    got less than a tenth of what another did."""
    parser = argparse.ArgumentParser(prog="hf torture writers", description=__doc__)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--commits", type=int, default=500, help="until one has made so many")
    parser.add_argument("--wait-ms-max", type=float, default=1000, help="the bound of p99.9")
    parser.add_argument("--directory", type=Path, help="where the file is, default a temporary one")
    parser.add_argument("--record", action="store_true", help="add the figures to docs/torture.md")
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
