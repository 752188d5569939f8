"""Everything a worker can be told, as one frozen value."""

from __future__ import annotations

import os

import msgspec

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME")
"""What a command sees of the worker's environment, beside what its job adds."""


def default_processes() -> int:
    return max(1, min(os.cpu_count() or 1, 4))


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`queues` maps a queue to its weight; empty, it is `default` and those the tasks name.

    `target` names the application, `module:attribute`; its handlers run in `processes` children,
    `concurrency` calls at once in each. 0 runs them in the supervisor itself, where a handler that
    holds the interpreter lets leases lapse. `prefetch` bounds how many jobs are leased ahead of
    free slots. `shell` None allows shells on the embedded file alone.
    """

    url: str
    name: str | None = None
    queues: dict[str, int] = {}
    target: str | None = None
    commands: bool = True
    processes: int = msgspec.field(default_factory=default_processes)
    concurrency: int = 16
    prefetch: int = 1000
    grace_ms: int = 30_000
    labels: dict[str, str] = {}
    shell: bool | None = None
    environment: tuple[str, ...] = INHERITED
    cwd: str | None = None
    output_max: int = 64 * 1024
    upkeep: bool = True
    archive: str | None = None
    heartbeat_ms: int = 10_000
    version: str = ""
