"""The findings of a type checker about a wrong argument and about the result of a job.

Each program has a line that ends with `# wrong` and one that reveals the type of a result.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import HOME, NODE, PYTHON

_PYTHON = {
    "holdfast": """
        from holdfast import Holdfast
        app = Holdfast("memory:")
        @app.task
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        step.enqueue(1)  # wrong
        reveal_type(step.enqueue("one").result())
        """,
    "celery": """
        from celery import Celery
        app = Celery("typed")
        @app.task
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        step.delay(1)  # wrong
        reveal_type(step.delay("one").get())
        """,
    "rq": """
        from redis import Redis
        from rq import Queue
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        queue = Queue(connection=Redis())
        queue.enqueue(step, 1)  # wrong
        reveal_type(queue.enqueue(step, "one").return_value())
        """,
    "huey": """
        from huey import SqliteHuey
        app = SqliteHuey()
        @app.task()
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        step(1)  # wrong
        reveal_type(step("one").get(blocking=True))
        """,
    "dramatiq": """
        import dramatiq
        @dramatiq.actor
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        step.send(1)  # wrong
        reveal_type(step.send("one").get_result(block=True))
        """,
    "procrastinate": """
        from procrastinate import App, PsycopgConnector
        app = App(connector=PsycopgConnector())
        @app.task
        def step(label: str, seconds: float = 0.0) -> str:
            return label
        step.defer(label=1)  # wrong
        reveal_type(step.defer(label="one"))
        """,
}
_TYPESCRIPT = """
import { Queue, QueueEvents } from "bullmq";
const connection = { host: "127.0.0.1" };
const queue = new Queue<{ label: string }, string, "step">("typed", { connection });
const events = new QueueEvents("typed", { connection });
await queue.add("step", { label: 1 }); // wrong
const job = await queue.add("step", { label: "one" });
const result: string = await job.waitUntilFinished(events);
const other: number = await job.waitUntilFinished(events); // result
"""


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether the wrong argument was found, and whether the result has its type."""

    argument: bool
    argument_text: str
    result: bool
    result_text: str


def check(name: str, directory: Path) -> Checked:
    """Check the program of a product in a temporary directory."""
    return _typescript(directory) if name == "bullmq" else _mypy(name, directory)


def _mypy(name: str, directory: Path) -> Checked:
    source = "\n".join(line[8:] for line in _PYTHON[name].strip("\n").splitlines())
    path = directory / "typed.py"
    path.write_text(f"{source}\n")
    python = sys.executable if name == "holdfast" else str(PYTHON)
    cache = HOME / "mypy" / ("ours" if name == "holdfast" else "peers")
    options = ["--python-executable", python, "--cache-dir", str(cache), "--no-error-summary"]
    line = [sys.executable, "-m", "mypy", *options, "--config-file", "", str(path)]
    run = subprocess.run(line, cwd=directory, capture_output=True, text=True, check=False)
    number = _line_of(path, "# wrong")
    errors = re.findall(rf"typed\.py:{number}: error: (.+?)  \[", run.stdout)
    revealed = re.findall(r'Revealed type is "(.+?)"', run.stdout)
    kind = revealed[0].removeprefix("builtins.") if revealed else "unknown"
    return Checked(
        bool(errors),
        f"mypy: {errors[0]}" if errors else "mypy accepts a wrong argument",
        kind == "str",
        f"mypy: the result of a task that returns str is {kind}",
    )


def _typescript(directory: Path) -> Checked:
    path = NODE / "typed.mts"
    path.write_text(_TYPESCRIPT)
    options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--target",
        "es2022",
        "--module",
        "nodenext",
    ]
    line = [str(NODE / "node_modules/.bin/tsc"), *options, path.name]
    run = subprocess.run(line, cwd=NODE, capture_output=True, text=True, check=False)
    found = {
        int(number): text
        for number, text in re.findall(r"typed\.mts\((\d+),\d+\): error \w+: (.+)", run.stdout)
    }
    argument, result = _line_of(path, "// wrong"), _line_of(path, "// result")
    others = sorted(set(found) - {argument, result})
    assert not others, f"tsc: {found[others[0]]}"
    return Checked(
        argument in found,
        f"tsc: {found.get(argument, 'accepts a wrong argument')}",
        result in found,
        f"tsc: {found.get(result, 'the result has no type')}",
    )


def _line_of(path: Path, mark: str) -> int:
    lines = path.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))
