"""`holdfast up` and `holdfast worker …`: start workers, see them, and ask things of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast import __version__
from holdfast.cli.alertflags import AlertFlags
from holdfast.cli.exits import Exit, NotFound
from holdfast.cli.guards import All, archive_at
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.cli.serve import beside_workers, listening_else_free
from holdfast.cli.status import print_workers
from holdfast.cli.webhookflags import WebhookFlags
from holdfast.config import SETTINGS, Settings, queue_weights, settings
from holdfast.core.text import printable
from holdfast.durations import to_ms
from holdfast.errors import ConfigError, UsageError
from holdfast.views.values import plain
from holdfast.views.workers import Ordered, worker_view
from holdfast.worker import launcher
from holdfast.worker.options import INHERITED, WorkerOptions, default_processes, numbered
from holdfast.worker.registry import OrderName, Workers

_ALERTS = AlertFlags()
_HOOKS = WebhookFlags()
_TRY_NEXT = """\
running: {running}; Ctrl-C drains and stops them
in another terminal:
  {program} enqueue --wait -- echo hello
  {program} status
  {program} top"""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """How a worker is to be."""

    queues: Annotated[
        str | None, Parameter(help="Queues by weight: mail:10,default. The default is default.")
    ] = None
    name: Annotated[
        str | None, Parameter(help="A name that stays; with --count, NAME-1, NAME-2, …")
    ] = None
    processes: Annotated[
        int | None,
        Parameter(
            help="Child processes for Python tasks; one a core. 0 runs them in the worker itself, "
            "where one that holds the interpreter lets leases lapse."
        ),
    ] = None
    concurrency: Annotated[int | None, Parameter(help="Jobs at once in each of them; 16.")] = None
    prefetch: Annotated[int | None, Parameter(help="Jobs leased ahead, at most; 1000.")] = None
    grace: Annotated[
        str | None, Parameter(help="How long a stop waits for what is running; 30s.")
    ] = None
    label: Annotated[
        list[str] | None, Parameter(help="KEY=VALUE; may be given several times.", negative=())
    ] = None
    shell: Annotated[
        bool | None,
        Parameter(help="Run a command that is one text by the shell; on for a local file alone."),
    ] = None
    commands: Annotated[bool, Parameter(help="Run command jobs at all.")] = True
    env: Annotated[
        list[str] | None,
        Parameter(help="One more variable that commands see of the environment.", negative=()),
    ] = None
    cwd: Annotated[Path | None, Parameter(help="Where commands run; here.")] = None
    hooks: WebhookFlags = _HOOKS
    output_max: Annotated[int | None, Parameter(help="Bytes of output kept of a job.")] = None
    upkeep: Annotated[bool, Parameter(help="Also bring lapsed leases back, and so on.")] = True
    archive: Annotated[
        Path | None, Parameter(help="Keep finished jobs in this file before they are deleted.")
    ] = None

    def options(self, url: str, stored: Settings, target: str | None) -> WorkerOptions:
        def first(flag: int | None, name: str, default: int) -> int:
            if flag is not None:
                low, high = SETTINGS[name].low, SETTINGS[name].high
                if not low <= flag <= high:
                    shown = f"--{name.removeprefix('worker-')} {flag}"
                    raise UsageError(f"{shown} is not {low:.0f} to {high:.0f}")
                return flag
            said = stored.value(name)
            return default if said is None else int(said)

        grace_ms = None if self.grace is None else to_ms("grace", self.grace, UsageError)
        shell = self.shell if self.shell is not None else stored.value("worker-shell")
        weights = queue_weights(self.queues) if self.queues else stored.value("worker-queues")
        return WorkerOptions(
            url=url,
            name=self.name,
            queues=weights or {},
            target=target,
            commands=self.commands,
            processes=first(self.processes, "worker-processes", default_processes()),
            concurrency=first(self.concurrency, "worker-concurrency", 16),
            prefetch=first(self.prefetch, "worker-prefetch", 1000),
            grace_ms=first(grace_ms, "worker-grace", 30_000),
            labels=dict(_pair(each) for each in self.label or []),
            shell=shell,
            environment=(*INHERITED, *(self.env or [])),
            cwd=None if self.cwd is None else str(self.cwd.absolute()),
            output_max=first(self.output_max, "worker-output-max", 64 * 1024),
            **self.hooks.options(),
            upkeep=self.upkeep,
            archive=archive_at(self.archive),
        )


_FLAGS = WorkerFlags()
Names = Annotated[list[str] | None, Parameter(help="The workers' names.", negative=())]
Count = Annotated[int, Parameter(help="How many workers, each a process of its own.")]
Target = Annotated[
    str | None, Parameter(help="Your application too: module:app or path/to/file.py:app.")
]


def up(
    *,
    count: Count = 2,
    app: Target = None,
    serve: Annotated[bool, Parameter(help="Serve HTTP too, to this machine alone.")] = True,
    port: Annotated[
        int | None, Parameter(help="The server's port; 7433, or a free one if that is taken.")
    ] = None,
    alerts: AlertFlags = _ALERTS,
    flags: WorkerFlags = _FLAGS,
    common: Common = COMMON,
) -> int:
    """Start workers, upkeep and a server on one file, and say what to try next."""
    told = alerts.settings()
    if told and not serve:
        raise UsageError("alerts are sent by the server: leave out --no-serve")
    with contextlib.ExitStack() as stack:
        listening = listening_else_free(port) if serve else None
        if listening is not None:
            stack.enter_context(listening)
        workers, place = asyncio.run(_prepare(common, flags, app, count))
        if not common.json:
            print(f"holdfast {__version__} on {printable(place, one_line=True)}")
        beside = [] if listening is None else [beside_workers(workers[0].url, listening, told)]
        code = launcher.run(
            workers,
            beside=beside,
            started=lambda names: _tell_started(names[:count], names[count:], common),
            asked=_tell_ending,
        )
    if not common.json and code == 0:
        print("stopped", flush=True)
    return code


def start(
    *, count: Count = 1, app: Target = None, flags: WorkerFlags = _FLAGS, common: Common = COMMON
) -> int:
    """Start workers here, in the foreground."""
    workers, place = asyncio.run(_prepare(common, flags, app, count))

    def started(names: list[str]) -> None:
        say(f"running on {place}: {', '.join(sorted(names))}; Ctrl-C drains, twice stops")

    return launcher.run(workers, started=started, asked=_tell_ending)


def run(
    app: Annotated[str, Parameter(help="module:app or path/to/file.py:app.")],
    /,
    *,
    count: Count = 1,
    flags: WorkerFlags = _FLAGS,
    common: Common = COMMON,
) -> int:
    """Start workers for the tasks of your application."""
    return start(count=count, app=app, flags=flags, common=common)


async def show_all(*, common: Common = COMMON) -> None:
    """List the workers and how well they are."""
    async with running(common) as app:
        workers = await Workers(app.engine).all()
    if common.json:
        print_json([plain(worker_view(each)) for each in workers])
    elif workers:
        print_workers(workers)
    else:
        say(f"there is no worker: start one with {program()} worker start")


async def stop(names: Names = None, /, *, all: All = False, common: Common = COMMON) -> int:
    """Ask workers to release what they have and end at once."""
    return await _order(common, names, all, "stopping", "stop")


async def drain(names: Names = None, /, *, all: All = False, common: Common = COMMON) -> int:
    """Ask workers to finish what they have, lease nothing more and end."""
    return await _order(common, names, all, "draining", "drain")


async def cordon(names: Names = None, /, *, all: All = False, common: Common = COMMON) -> int:
    """Let workers lease nothing more, over restarts too; what runs goes on."""
    return await _order(common, names, all, "cordoned", "cordon")


async def uncordon(names: Names = None, /, *, all: All = False, common: Common = COMMON) -> int:
    """Let workers lease again."""
    return await _order(common, names, all, "uncordoned", "uncordon")


def _tell_started(workers: list[str], served: list[str], common: Common) -> None:
    if common.json:
        server = next(iter(served), None)
        print_json({"event": "started", "workers": sorted(workers), "server": server})
    else:
        told = ", ".join([*sorted(workers), *served])
        print(_TRY_NEXT.format(running=told, program=program()), flush=True)


def _tell_ending(times: int) -> None:
    if times == 1:
        say("draining: what runs may finish; Ctrl-C again stops at once")
    elif times == 2:
        say("stopping: what runs is released")


async def _prepare(
    common: Common, flags: WorkerFlags, target: str | None, count: int
) -> tuple[list[WorkerOptions], str]:
    if not 1 <= count <= 256:
        raise UsageError(f"--count {count} is not 1 to 256")
    if flags.cwd is not None and not flags.cwd.is_dir():
        raise UsageError(f"--cwd {flags.cwd} is no folder: commands could not be run there")
    async with running(common, create=True) as app:
        if not app.engine.traits.shared:
            raise ConfigError(
                f"workers are processes of their own, and {app.place} is within one: use a file"
            )
        options = flags.options(app.url or "", await settings(app.engine), target)
        known = {view.queue.name for view in await app.queues(counts=False)}
        missing = sorted(set(options.queues) - known)
        if missing:
            raise NotFound(
                f"there is no queue {', '.join(missing)}: make it with {program()} queue create "
                f"{missing[0]}"
            )
    return numbered(options, count), app.place


async def _order(
    common: Common,
    names: list[str] | None,
    every: bool,
    done: str,
    order: OrderName,
) -> int:
    if bool(names) == every:
        raise UsageError("name the workers, or say --all for all of them")
    async with running(common) as app:
        wanted = None if every else names
        asked, missing = await Workers(app.engine).order(order, wanted, by=person())
    if common.json:
        print_json(plain(Ordered(workers=asked, missing=missing)))
    else:
        for name in asked:
            print(f"{printable(name, one_line=True)}: {done}")
        if every and not asked:
            say("there is no worker")
    if missing:
        raise NotFound(f"no worker is called {', '.join(missing)}; see {program()} worker list")
    return Exit.DONE


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"the label {text[:80]!r} is not KEY=VALUE")
    return key, value
