"""The services of deploy/compose/compose.yaml that run Holdfast: their commands and health checks.

They run here as processes, on a SQLite file instead of the composed store, with another port, and
on loopback, where the server needs no token.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cli.program import command, environment, run_program
from tests.sources import ROOT
from tests.wait import wait_until

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
TASKS = str(COMPOSE.with_name("tasks.py"))
_STOP_S = 60


def service(name: str) -> Any:
    return yaml.safe_load(COMPOSE.read_text())["services"][name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(folder: Path, line: list[str], **variables: str) -> Iterator[None]:
    """A service, which must end with exit code 0 when it is stopped."""
    with (
        (folder / f"{line[0]}.log").open("wb") as log,
        subprocess.Popen(
            command(*line),
            cwd=folder,
            env=environment(**variables),
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            code = process.wait(_STOP_S)
    assert code == 0, (folder / f"{line[0]}.log").read_text()


def test_the_commands_of_the_services_run(tmp_path: Path) -> None:
    port = free_port()
    store = f"sqlite:///{tmp_path}/jobs.db"
    url = f"http://127.0.0.1:{port}"
    serve = [word.replace("0.0.0.0", "127.0.0.1") for word in service("server")["command"]]
    given = service("server")["healthcheck"]["test"]
    assert given[:2] == ["CMD", "python"]
    check = [sys.executable, *(word.replace("7433", str(port)) for word in given[2:])]
    work = [word.replace("/app/tasks.py", TASKS) for word in service("worker")["command"]]

    def is_healthy() -> bool:
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    with (
        running(tmp_path, serve, HOLDFAST_URL=store, HOLDFAST_SERVE_PORT=str(port)),
        running(tmp_path, work, HOLDFAST_URL=store),
    ):
        wait_until(is_healthy)
        # The job of docs/deploying.md.
        greet = ["--to", "eu-1", "--task", "tasks:greet", "--payload", '{"name": "Ada"}']
        wait_until(lambda: "eu-1" in workers(tmp_path, url))
        ran = run_program(tmp_path, "enqueue", "--wait", *greet, HOLDFAST_URL=url)
    assert (ran.code, ran.out) == (0, "attempt 1\nhello Ada\n"), ran


def workers(folder: Path, url: str) -> str:
    return run_program(folder, "worker", "list", HOLDFAST_URL=url).out
