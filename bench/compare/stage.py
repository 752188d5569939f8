"""The stage of one experiment: a product on an empty store, its programs and its workers.

Worker processes are those below the one that was started, so that a kill reaches all of them and
their CPU time can be added up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.compare.products import Product
from bench.compare.programs import journal
from bench.compare.programs.journal import Line
from bench.compare.redis_server import PrivateRedis
from bench.processes import ROOT
from bench.store_factory import SETTINGS
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.conformance.private_server import PrivateServer
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ

ROLE_S_MAX = 120
STOP_S_MAX = 15
POLL_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A program of a product failed; the text is its last line."""


@dataclass(slots=True)
class Servers:
    """The servers of a run, each started when it is first needed."""

    stack: ExitStack
    postgres: PrivatePostgres | None = None
    rabbitmq: PrivateRabbitMQ | None = None
    count: int = 0

    @contextmanager
    def store(
        self, product: Product, directory: Path
    ) -> Iterator[tuple[str, PrivateServer | None]]:
        """The URL of an empty store, and its server if it has one."""
        self.count += 1
        match product.store:
            case "file":
                path = directory / "queue.db"
                yield (f"sqlite:///{path}" if product.runs == "holdfast" else str(path)), None
            case "redis":
                with PrivateRedis() as redis:
                    yield redis.url, redis
            case "postgres":
                self.postgres = self.postgres or self.stack.enter_context(
                    PrivatePostgres(fsync=True, settings=SETTINGS)
                )
                name = f"compare{self.count}"
                asyncio.run(_execute(self.postgres.dsn, f"CREATE DATABASE {name}"))
                yield f"{self.postgres.dsn.rpartition('/')[0]}/{name}", self.postgres
            case "rabbitmq":
                self.rabbitmq = self.rabbitmq or self.stack.enter_context(PrivateRabbitMQ())
                node = self.rabbitmq.node
                yield node.add_vhost(f"compare{self.count}"), self.rabbitmq
            case None:
                raise Failed(f"{product.title} cannot be installed here")


async def _execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(sql)
    await connection.close()


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker, with all of its child processes."""

    process: subprocess.Popen[bytes]

    def tree(self) -> list[int]:
        return tree(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL all of its processes at once."""
        self.send(signal.SIGSTOP)
        self.send(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not end."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        left = self.tree()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)


@dataclass(slots=True)
class Stage:
    """A product on an empty store in a directory of its own."""

    product: Product
    directory: Path
    store: str
    server: PrivateServer | None
    more: dict[str, str] = field(default_factory=dict)

    def call(self, role: str, **arguments: object) -> Any:
        """Run a role of the product's program; return its answer."""
        return self.run(self.product.program(role, arguments))

    def run(self, line: list[str], *, prefix: tuple[str, ...] = ()) -> Any:
        run = subprocess.run(
            [*prefix, *line],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ROLE_S_MAX,
        )
        if run.returncode != 0:
            raise Failed((run.stderr.strip().splitlines() or ["no output"])[-1][:300])
        lines = run.stdout.strip().splitlines()
        return json.loads(lines[-1]) if lines and lines[-1][:1] in '[{"ntf' else None

    def set_up(self) -> None:
        if self.product.set_up:
            self.run(list(self.product.set_up))

    @contextmanager
    def worker(self, *, slots: int = 4, lease: float = 0) -> Iterator[WorkerProcess]:
        """Run a worker for the duration of the block."""
        with (self.directory / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                list(self.product.worker(slots, lease)),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        worker = WorkerProcess(process)
        try:
            yield worker
        finally:
            worker.stop()

    def lines(self, what: str, label: str | None = None) -> list[Line]:
        """The lines of the journal of this kind, of one job or of all."""
        return [
            line
            for line in journal.read(self.directory)
            if line.what == what and label in (None, line.label)
        ]

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until the condition holds; return whether it does."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def counted(self) -> int:
        path = self.directory / "count"
        return path.stat().st_size if path.exists() else 0

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "RQ_REDIS_URL": self.store,
            journal.STORE: self.store,
            journal.DIRECTORY: str(self.directory),
            **self.more,
        }


@contextmanager
def stage(product: Product, servers: Servers, *, bare: bool = False) -> Iterator[Stage]:
    """A new stage, removed after the block; a bare one has no store, or a file."""
    with tempfile.TemporaryDirectory(prefix="holdfast-compare-") as name:
        directory = Path(name)
        if bare and product.store != "file":
            yield Stage(product, directory, "", None)
            return
        with servers.store(product, directory) as (store, server):
            opened = Stage(product, directory, store, server)
            if not bare:
                opened.set_up()
            yield opened


def tree(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, those that have ended included."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11:15])
    return total / _TICKS


def missing_strace() -> bool:
    return shutil.which("strace") is None
