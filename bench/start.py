"""The benchmark `start`: what a command costs, and how soon a new worker runs its first job.

Every command runs as a program of its own on a SQLite file, with bytecode written before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.report import Report
from holdfast.app.blocking_app import BlockingHoldfast
from holdfast.process import boot_s

HELP_S, STATUS_S, FIRST_JOB_S = 0.05, 0.25, 0.5
"""The bounds: CPU time of the commands, and time until the first job."""
TASKS = """
import time
from pathlib import Path

from holdfast import Holdfast

app = Holdfast()

@app.task(name="first")
def first(path: str) -> None:
    file = Path(path)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    file.with_suffix(".new").write_text(str(now))
    file.with_suffix(".new").rename(file)
"""
WORKERS = {
    "worker run, a task": ["run", "shop:app"],
    "worker start, a command": ["start"],
}

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    repeats: int = 7


QUICK = Sizes(repeats=1)


async def run(sizes: Sizes, log: Log) -> Report:
    """Measure the commands and the workers, in turns; the medians count."""
    return await asyncio.to_thread(_run, sizes, log)


def _run(sizes: Sizes, log: Log) -> Report:
    report = Report("start")
    with tempfile.TemporaryDirectory() as folder:
        place = _Place(Path(folder))
        place.command("status")  # writes bytecode
        log("the commands")
        report.section("sqlite, CPU time of a command; the reference is the bound")
        for line, bound in (("--help", HELP_S), ("status", STATUS_S)):
            spent = statistics.median(place.command(line) for _ in range(sizes.repeats))
            report.cost("sqlite", line, spent, unit="s", reference=bound, goal=1)
        log("the workers")
        times: dict[str, list[float]] = {name: [] for name in WORKERS}
        for _ in range(sizes.repeats):
            for name, words in WORKERS.items():
                times[name].append(place.first_job(words))
        report.section("sqlite, from the start of a worker to its first job")
        for name, measured in times.items():
            value = statistics.median(measured)
            report.cost("sqlite", name, value, unit="s", reference=FIRST_JOB_S, goal=1)
    return report


class _Place:
    """A folder with a store and an application."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = f"sqlite:///{folder}/jobs.db"
        self._mark = folder / "started"
        (folder / "shop.py").write_text(TASKS)
        with BlockingHoldfast(self._url):
            pass

    def command(self, line: str) -> float:
        """The CPU time of a command in seconds."""
        with self._start(line) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"holdfast {line} ended with {process.returncode}"
        return usage.ru_utime + usage.ru_stime

    def first_job(self, words: list[str]) -> float:
        """Seconds from the start of a worker to the start of the job that waits for it."""
        self._mark.unlink(missing_ok=True)
        with BlockingHoldfast(self._url) as app:
            if "start" in words:
                # The seconds since boot, without the start of another program.
                line = f"read now _ < /proc/uptime; echo $now > {self._mark}.new"
                app.enqueue("command", {"command": f"{line}; mv {self._mark}.new {self._mark}"})
            else:
                app.enqueue("first", {"path": str(self._mark)})
        started = boot_s()
        with self._start("worker", *words) as process:
            while not self._mark.exists():
                assert process.poll() is None, f"the worker ended with {process.returncode}"
                time.sleep(0.005)
            process.send_signal(signal.SIGTERM)
        return float(self._mark.read_text()) - started

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [Path(sys.executable).with_name("holdfast"), *words],
            cwd=self._folder,
            env={**os.environ, "HOLDFAST_URL": self._url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
