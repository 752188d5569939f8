"""All options of a worker, as one frozen value."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.core.breaker import Breaker
from holdfast.errors import UsageError

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME")
"""Environment variables of the worker that commands inherit by default."""
_WORKERS_MAX = 256
_SLOTS = 16


def default_processes() -> int:
    """One child process for each CPU, at most four."""
    return max(1, min(os.cpu_count() or 1, 4))


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`queues` maps a queue to its weight; if it is empty, the worker serves `default` and the
    queues that its tasks name.

    `target` names the application, `module:attribute`. Its handlers run in `processes` children
    with `concurrency` calls each, by default 16; 0 runs them in the supervisor itself, where a
    handler that blocks the interpreter lets leases expire. A worker runs `concurrency` commands at
    the same time, by default only one. `prefetch` bounds how many jobs are leased ahead of free
    slots. `shell` runs commands that are one string in a shell. `webhooks` runs the task `webhook`,
    which sends requests signed with the secrets of a file; each host has a circuit breaker.
    """

    url: str
    name: str | None = None
    queues: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    target: str | None = None
    commands: bool = True
    processes: Annotated[int, msgspec.Meta(ge=0, le=256)] = msgspec.field(
        default_factory=default_processes
    )
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    prefetch: Annotated[int, msgspec.Meta(ge=0)] = 1000
    grace_ms: Annotated[int, msgspec.Meta(ge=0)] = 30_000
    labels: dict[str, str] = {}
    shell: bool = True
    environment: tuple[str, ...] = INHERITED
    cwd: str | None = None
    output_max: Annotated[int, msgspec.Meta(ge=1024)] = 64 * 1024
    webhooks: bool = False
    webhook_secrets: str | None = None
    webhook_allow: tuple[str, ...] = ()
    webhook_ca: str | None = None
    webhook_breaker: Breaker | None = Breaker()
    job_lines: bool = False
    """Print a banner when it is ready, and a line for each job."""
    upkeep: bool = True
    archive: str | None = None
    brokers: dict[str, str] = {}
    """URLs of brokers by name, for gates. They may contain passwords, and are never shown."""
    cloudwatch: str | None = None
    """The CloudWatch namespace in which upkeep publishes metrics of queues."""
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    version: str = ""

    @property
    def slots(self) -> int:
        """Calls that a child process runs at the same time, unless it runs commands."""
        return _SLOTS if self.concurrency is None else self.concurrency

    @property
    def command_slots(self) -> int:
        """Commands that the worker runs at the same time."""
        return 1 if self.concurrency is None else self.concurrency


def numbered(options: WorkerOptions, count: int) -> list[WorkerOptions]:
    """The options of `count` equal workers, with numbered names."""
    if not 1 <= count <= _WORKERS_MAX:
        raise UsageError(f"{count} workers: start 1 to {_WORKERS_MAX}")
    if count == 1 or options.name is None:
        return [options] * count
    return [replace(options, name=f"{options.name}-{n + 1}") for n in range(count)]
