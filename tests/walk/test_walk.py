"""The walk of one job through the files of the package: enqueue, supervisor, child, settle.

It prints the walk, which `docs/architecture.md` shows, and bounds its length: a reader who follows
one job opens these files.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources import ROOT

HERE = Path(__file__).parent
APPLICATION = HERE / "application.py"
FILES_MAX = 35
JOBS = 8
IDLE_S = 2.5
"""Long enough for everything that runs several times a second."""


Place = tuple[str, str]
"""A file and a function in it."""


class Call(NamedTuple):
    at_ns: int
    process: int
    place: Place


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join((str(HERE / "hook"), os.environ.get("PYTHONPATH", "")))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "HOLDFAST_URL": f"sqlite:///{tmp_path}/walk.db",
        "HOLDFAST_WALK": str(tmp_path / "walk"),
    }


@pytest.fixture
def worker(environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "holdfast", "worker", "run", f"{APPLICATION}:app"]
    process = subprocess.Popen([*command, "--processes", "1"], env=environment)
    yield
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.usefixtures("worker")
def test_a_job_passes_few_files(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(APPLICATION), str(JOBS), str(IDLE_S)]
    producer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    output, _ = producer.communicate(timeout=150)
    assert producer.returncode == 0
    recorded = json.loads(output)
    calls = [read(line) for line in (tmp_path / "walk").read_text().splitlines()]
    periodic = periodic_places(recorded["idle"], calls)
    # The worker may print the line of a job after its result was read: a job lasts until the next.
    jobs = [{**job, "end": following["begin"]} for job, following in pairwise(recorded["jobs"])]
    walk = common_walk([walk_of(job, calls, producer.pid) for job in jobs], periodic)
    shown = "\n".join(walk)
    print(f"\n{len(walk)} files:\n{shown}")
    assert len(walk) <= FILES_MAX, shown
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert sorted(re.findall(r"(?m)^\| `([\w/]+\.py)` \|", page)) == walk


def read(line: str) -> Call:
    at_ns, process, file, function = line.split()
    return Call(int(at_ns), int(process), (file, function))


def during(span: dict[str, int], calls: list[Call]) -> list[Call]:
    return [call for call in calls if span["begin"] <= call.at_ns <= span["end"]]


def periodic_places(idle: dict[str, int], calls: list[Call]) -> set[Place]:
    """The functions that run several times a second without a job: in both halves of the idle time.
    A heartbeat, which comes every ten seconds, is in one of them at most."""
    middle = (idle["begin"] + idle["end"]) // 2
    halves = ({**idle, "end": middle}, {**idle, "begin": middle})
    first, second = ({call.place for call in during(half, calls)} for half in halves)
    return first & second


def walk_of(job: dict[str, int], calls: list[Call], producer: int) -> list[Place]:
    """The functions in the order of their first call. The producer's own waiting does not count."""
    found = [
        call.place
        for call in sorted(during(job, calls))
        if call.process != producer or call.at_ns <= job["enqueued"]
    ]
    return list(dict.fromkeys(found))


def common_walk(walks: list[list[Place]], periodic: set[Place]) -> list[str]:
    """The files of the functions that nearly every job calls, by name. One job may lack a call that
    was late. Functions that also run while there is no job are left out."""
    counts = Counter(place for walk in walks for place in walk)
    shared = {place for place, count in counts.items() if count >= len(walks) - 1}
    return sorted({file for file, _ in shared - periodic})
