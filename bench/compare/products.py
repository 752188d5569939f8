"""The queues that are compared, and how their workers are started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.peers.install import NODE, PYTHON

StoreName = Literal["file", "postgres", "redis", "rabbitmq"]
_HERE = "bench.compare.programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A queue. `worker` is its own command for a number of slots. `set_up` is the command that it
    needs once before the first job. Without a `store`, it cannot be installed here."""

    name: str
    title: str
    package: str
    docs: str
    store: StoreName | None = None
    runs: Literal["holdfast", "python", "node"] = "python"
    worker: Callable[[int, float], Sequence[str]] = lambda _slots, _lease: ()
    set_up: Sequence[str] = ()

    def program(self, role: str, arguments: dict[str, object]) -> list[str]:
        """The line that runs a role of the product's program."""
        if self.runs == "node":
            return ["node", str(NODE / f"{self.name}.mjs"), role, json.dumps(arguments)]
        python = sys.executable if self.runs == "holdfast" else str(PYTHON)
        return [python, "-m", f"{_HERE}.program", self.name, role, json.dumps(arguments)]


def _python(*words: str) -> list[str]:
    return [str(PYTHON), "-m", *words]


def _rq(slots: int) -> list[str]:
    """A worker of RQ has one slot; a pool starts several."""
    if slots == 1:
        return _python("rq.cli", "worker", "--quiet")
    return _python("rq.cli", "worker-pool", "--num-workers", str(slots), "--quiet")


def _holdfast(slots: int) -> list[str]:
    program = str(Path(sys.executable).with_name("holdfast"))
    line = [program, "worker", "run", f"{_HERE}.holdfast:app", "--no-job-lines"]
    return [*line, "--processes", "1", "--concurrency", str(slots)]


HOLDFAST = Product(
    name="holdfast",
    title="Holdfast",
    package="holdfast",
    docs="workers.md",
    store="file",
    runs="holdfast",
    worker=lambda slots, _lease: _holdfast(slots),
)
PRODUCTS: tuple[Product, ...] = (
    HOLDFAST,
    Product(
        name="celery",
        title="Celery",
        package="celery",
        docs="https://docs.celeryq.dev/en/stable/",
        store="rabbitmq",
        worker=lambda slots, _lease: _python(
            "celery", "-A", f"{_HERE}.celery", "worker", "-l", "ERROR", "-c", str(slots)
        ),
    ),
    Product(
        name="rq",
        title="RQ",
        package="rq",
        docs="https://python-rq.org/docs/",
        store="redis",
        worker=lambda slots, _lease: _rq(slots),
    ),
    Product(
        name="huey",
        title="huey",
        package="huey",
        docs="https://huey.readthedocs.io/en/latest/",
        store="file",
        worker=lambda slots, _lease: _python(
            "huey.bin.huey_consumer", f"{_HERE}.huey.huey", "-w", str(slots), "-q"
        ),
    ),
    Product(
        name="dramatiq",
        title="Dramatiq",
        package="dramatiq",
        docs="https://dramatiq.io/",
        store="rabbitmq",
        worker=lambda slots, _lease: _python(
            "dramatiq", f"{_HERE}.dramatiq", "--processes", "1", "--threads", str(slots)
        ),
    ),
    Product(
        name="procrastinate",
        title="Procrastinate",
        package="procrastinate",
        docs="https://procrastinate.readthedocs.io/en/stable/",
        store="postgres",
        worker=lambda slots, _lease: _python(
            "procrastinate", f"--app={_HERE}.procrastinate.app", "worker", f"--concurrency={slots}"
        ),
        set_up=_python("procrastinate", f"--app={_HERE}.procrastinate.app", "schema", "--apply"),
    ),
    Product(
        name="river",
        title="River",
        package="github.com/riverqueue/river",
        docs="https://riverqueue.com/docs",
    ),
    Product(
        name="bullmq",
        title="BullMQ",
        package="bullmq",
        docs="https://docs.bullmq.io/",
        store="redis",
        runs="node",
        worker=lambda slots, lease: [
            *["node", str(NODE / "bullmq.mjs"), "work"],
            json.dumps({"slots": slots, "lease": lease}),
        ],
    ),
)
