"""All options of a worker, as one frozen value."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.core.breaker import Breaker
from holdfast.errors import UsageError
from holdfast.process import LogFormat, LogLevel

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME")
"""Environment variables of the worker that commands inherit by default."""
_WORKERS_MAX = 256
_SLOTS = 16


def default_processes() -> int:
    """One child process for each CPU, at most four."""
    return max(1, min(os.cpu_count() or 1, 4))


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker. `queues` maps a queue to its weight; if it is empty, the worker
    serves `default` and the queues that its tasks name.

    `target` names the application, `module:attribute`. Its handlers run in `processes` children
    with `concurrency` calls each, by default 16; 0 runs them in the supervisor itself, where a
    handler that blocks the interpreter lets leases expire. A worker runs `concurrency` commands at
    the same time, by default only one. `prefetch` bounds how many jobs are leased ahead of free
    slots. `shell` runs commands that are one string in a shell. `webhooks` runs the task `webhook`,
    which sends requests signed with the secrets of a file; each host has a circuit breaker.
    """

    url: str
    """URL of the store; `run_worker` gives that of its application."""
    name: str | None = None
    """Name of the worker; by default that of the host, with a number."""
    queues: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Queues and their weights."""
    target: str | None = None
    """The application, as `module:attribute`; `run_worker` gives its own."""
    commands: bool = True
    """Run jobs that are commands, too."""
    processes: Annotated[int, msgspec.Meta(ge=0, le=256)] = msgspec.field(
        default_factory=default_processes
    )
    """Child processes; by default one for each core."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """Jobs that each child runs at the same time; by default 16, and one command."""
    prefetch: Annotated[int, msgspec.Meta(ge=0)] = 4000
    """Jobs leased ahead of free slots, at most."""
    grace_ms: Annotated[int, msgspec.Meta(ge=0)] = 30_000
    """How long a stop waits for running jobs."""
    labels: dict[str, str] = {}
    """Labels of the worker, for addressed jobs and for lists."""
    shell: bool = True
    """Run a command that is one string in a shell."""
    environment: tuple[str, ...] = INHERITED
    """Variables of the environment that commands see."""
    cwd: str | None = None
    """Directory in which commands run."""
    output_max: Annotated[int, msgspec.Meta(ge=1024)] = 64 * 1024
    """Bytes of output stored for a job."""
    webhooks: bool = False
    """Run jobs that are webhooks, too."""
    webhook_secrets: str | None = None
    """File with the secrets that sign webhooks."""
    webhook_allow: tuple[str, ...] = ()
    """Private networks that webhooks may reach, e.g. 10.0.0.0/8."""
    webhook_ca: str | None = None
    """CA bundle for webhooks, instead of the system's."""
    webhook_breaker: Breaker | None = Breaker()
    """Breaker of each host that webhooks reach."""
    log_format: LogFormat | None = None
    """Log as text or as JSON."""
    log_level: LogLevel | None = None
    """With neither, handlers log as the application set it up, or else as text from `info` on."""
    job_lines: bool = False
    """Print a banner when it is ready, and a line for each job."""
    upkeep: bool = True
    """Run upkeep in the worker, too."""
    archive: str | None = None
    """File to which upkeep writes finished jobs before it deletes them."""
    brokers: dict[str, str] = {}
    """URLs of brokers by name, for gates. They may contain passwords, and are never shown."""
    cloudwatch: str | None = None
    """The CloudWatch namespace in which upkeep publishes metrics of queues."""
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Time between two reports of the worker to the store."""
    version: str = ""
    """Version of the application, for lists."""

    @property
    def slots(self) -> int:
        """Calls that a child process runs at the same time, unless it runs commands."""
        return _SLOTS if self.concurrency is None else self.concurrency

    @property
    def has_template(self) -> bool:
        """Whether children are forked from a template. HOLDFAST_TEMPLATE=0 is for applications that
        every process must import itself."""
        switched_on = os.environ.get("HOLDFAST_TEMPLATE") != "0"
        return self.target is not None and self.processes > 0 and switched_on

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
