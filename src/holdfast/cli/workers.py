"""`holdfast worker …` and `scaling`: start, list and control workers, and advise how many."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.cli.flags import (
    Archive,
    BrokerUrls,
    CloudWatch,
    LogFormatFlag,
    LogLevelFlag,
    Upkeep,
    archive_path,
    cloudwatch_namespace,
    option,
    switch,
    urls_of_brokers,
)
from holdfast.cli.help_pages import program
from holdfast.cli.jobs import unknown_worker
from holdfast.cli.output import COMMON, Common, Exit, print_json, print_table, say, show_age
from holdfast.cli.session import open_app, person
from holdfast.config import SETTINGS, Settings, queue_weights
from holdfast.core import bounds
from holdfast.core.explain import ABSENT_MS
from holdfast.core.scaling import Goal
from holdfast.core.text import counted, printable
from holdfast.core.workers import addressee
from holdfast.errors import ConfigError, NotFound, UsageError
from holdfast.notation.durations import Duration, to_ms
from holdfast.notation.policies import to_breaker
from holdfast.ops.doctor import examine
from holdfast.ops.scaling import Scaling, read_scaling, scaling_view
from holdfast.ops.settings import read_settings
from holdfast.ops.views import plain
from holdfast.ops.workers import Ordered, OrderName, Workers, worker_details
from holdfast.process import LogFormat, LogLevel, log_to_stderr
from holdfast.worker import launcher
from holdfast.worker.options import INHERITED, WorkerOptions, default_processes, numbered
from holdfast.worker.webhooks.webhook import webhook_setup

_log = logging.getLogger("holdfast.worker")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class WebhookFlags:
    """Whether a worker runs webhook jobs, and which hosts they may reach."""

    webhooks: Annotated[bool, switch("Run webhook jobs, which send HTTP requests.")] = False
    webhook_secrets: Annotated[
        Path | None, option("PATH", "File of the secrets that sign webhooks, one per line.")
    ] = None
    webhook_allow: Annotated[
        list[str] | None,
        option(
            "NETWORK...", "Allow webhooks to this private network, e.g. 10.0.0.0/8. Repeatable."
        ),
    ] = None
    webhook_ca: Annotated[
        Path | None, option("PATH", "CA bundle for webhook TLS, instead of the system's.")
    ] = None
    webhook_breaker: Annotated[
        str | None,
        option(
            "BREAKER",
            'Stop calling a failing host for a while, e.g. "3 failures, 10s"; or off.'
            " [default: 5 failures, 30s]",
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """Fields of `WorkerOptions`. Raises UsageError or ConfigError."""
        if not self.webhooks:
            if self != WebhookFlags():
                raise UsageError("--webhooks is missing: without it this worker sends no webhooks")
            return {}
        options: dict[str, Any] = {
            "webhooks": True,
            "webhook_secrets": _absolute(self.webhook_secrets),
            "webhook_allow": tuple(self.webhook_allow or ()),
            "webhook_ca": _absolute(self.webhook_ca),
        }
        if self.webhook_breaker is not None:
            off = self.webhook_breaker == "off"
            named = "--webhook-breaker"
            options["webhook_breaker"] = None if off else to_breaker(named, self.webhook_breaker)
        webhook_setup(WorkerOptions(url="", **options))
        return options


_NO_WEBHOOKS = WebhookFlags()


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """Settings of a worker."""

    queues: Annotated[
        str | None,
        option(
            "QUEUES",
            "Serve these queues by weight, e.g. mail:10,default. [default: default, and those that"
            " the tasks name]",
        ),
    ] = None
    name: Annotated[
        str | None, option("NAME", "Name of the worker. With --count N: NAME-1 to NAME-N.")
    ] = None
    processes: Annotated[
        int | None,
        option(
            "N",
            "Child processes for Python tasks. 0 runs tasks in the worker itself, where one that "
            "blocks the interpreter may lose its job to another worker. [default: one per core]",
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        option("N", "Jobs each process runs at the same time. [default: 16 tasks, 1 command]"),
    ] = None
    prefetch: Annotated[
        int | None,
        option("N", "Lease at most this many jobs ahead of those that run. [default: 4000]"),
    ] = None
    grace: Annotated[
        str | None,
        option("DURATION", "Let running jobs finish for this long when stopping. [default: 30s]"),
    ] = None
    label: Annotated[
        list[str] | None, option("NAME=VALUE...", "Give the worker this label. Repeatable.")
    ] = None
    shell: Annotated[
        bool | None,
        Parameter(help="Run a command given as one string in a shell. [default: on]"),
    ] = None
    commands: Annotated[bool, Parameter(help="Run command jobs.")] = True
    env: Annotated[
        list[str] | None,
        option("NAME...", "Pass this environment variable on to commands. Repeatable."),
    ] = None
    cwd: Annotated[
        Path | None, option("PATH", "Working directory of commands. [default: the current one]")
    ] = None
    hooks: WebhookFlags = _NO_WEBHOOKS
    output_max: Annotated[
        int | None, option("BYTES", "Store at most this much output of a job. [default: 65536]")
    ] = None
    log_format: LogFormatFlag = None
    log_level: LogLevelFlag = None
    job_lines: Annotated[
        bool,
        Parameter(help="Print a line when ready and for each job. [default: on, off with --json]"),
    ] = True
    upkeep: Upkeep = True
    archive: Archive = None
    broker: BrokerUrls = None
    cloudwatch: CloudWatch = None

    def options(self, url: str, stored: Settings, target: str | None) -> WorkerOptions:
        """The options of the worker: flags override stored settings. Raises UsageError."""

        def given(flag: int | None, name: str) -> int | None:
            if flag is not None:
                low, high = SETTINGS[name].low, SETTINGS[name].high
                if not low <= flag <= high:
                    shown = f"--{name.removeprefix('worker-')} {flag}"
                    raise UsageError(f"{shown} is out of range: expected {low:.0f} to {high:.0f}")
                return flag
            value = stored.value(name)
            return None if value is None else int(value)

        def first(flag: int | None, name: str) -> int:
            value = given(flag, name)
            return int(stored.value_or_default(name)) if value is None else value

        grace_ms = None if self.grace is None else to_ms("--grace", self.grace, UsageError)
        processes = given(self.processes, "worker-processes")
        weights = queue_weights(self.queues) if self.queues else stored.value("worker-queues")
        return WorkerOptions(
            url=url,
            name=self.name,
            queues=weights or {},
            target=target,
            commands=self.commands,
            processes=default_processes() if processes is None else processes,
            concurrency=given(self.concurrency, "worker-concurrency"),
            prefetch=first(self.prefetch, "worker-prefetch"),
            grace_ms=first(grace_ms, "worker-grace"),
            labels=dict(_label(each) for each in self.label or []),
            shell=stored.value_or_default("worker-shell") if self.shell is None else self.shell,
            environment=(*INHERITED, *(self.env or [])),
            cwd=_absolute(self.cwd),
            output_max=first(self.output_max, "worker-output-max"),
            **self.hooks.options(),
            log_format=self.log_format,
            log_level=self.log_level,
            job_lines=self.job_lines,
            upkeep=self.upkeep,
            archive=archive_path(self.archive),
            brokers=urls_of_brokers(self.broker, upkeep=self.upkeep),
            cloudwatch=cloudwatch_namespace(self.cloudwatch, upkeep=self.upkeep),
        )


WORKER_FLAGS = WorkerFlags()
Names = Annotated[list[str] | None, Parameter(help="Names of the workers.", negative=())]
AllWorkers = Annotated[bool, switch("Select all workers, on every host.")]
Count = Annotated[int, option("N", "Start this many workers, each in its own process.")]
Target = Annotated[
    str | None, option("APP", "Also run the tasks of module:app or path/to/file.py:app.")
]


def start(
    *,
    count: Count = 1,
    app: Target = None,
    flags: WorkerFlags = WORKER_FLAGS,
    common: Common = COMMON,
) -> int:
    """Start workers in the foreground."""
    common = with_store_of(app, common)
    workers, place = asyncio.run(prepare_workers(common, flags, app, count))
    note = start_notes(flags.log_format, flags.log_level)

    def started(names: list[str]) -> None:
        note(
            f"running on {place}: {', '.join(sorted(names))}; Ctrl-C finishes running jobs and"
            " stops; a second Ctrl-C stops at once"
        )

    return launcher.run(workers, started=started, asked=partial(note_stopping, note))


def run(
    app: Annotated[str, Parameter(help="Application: module:app or path/to/file.py:app.")],
    /,
    *,
    count: Count = 1,
    flags: WorkerFlags = WORKER_FLAGS,
    common: Common = COMMON,
) -> int:
    """Start workers for the tasks of your application."""
    return start(count=count, app=app, flags=flags, common=common)


async def show_all(*, common: Common = COMMON) -> None:
    """List workers and their health."""
    from holdfast.cli.status import print_workers, say_no_worker

    async with open_app(common) as app:
        workers = await Workers(app.engine).all()
    if common.json:
        print_json([plain(worker_details(each)) for each in workers])
    elif workers:
        print_workers(workers)
    else:
        say_no_worker()


async def stop(
    names: Names = None,
    /,
    *,
    all: AllWorkers = False,
    grace: Annotated[
        str | None,
        option("DURATION", "Let running jobs finish for this long. [default: the worker's own]"),
    ] = None,
    now: Annotated[bool, switch("Release running jobs at once; other workers run them.")] = False,
    common: Common = COMMON,
) -> int:
    """Stop workers gracefully, or at once with --now.

    Running jobs may finish within --grace; then they are released to other workers. Without names,
    it stops all workers on this host that use this store.
    """
    if now and grace is not None:
        raise UsageError("--now does not wait for running jobs: leave out --grace")
    if grace is not None:
        to_ms("--grace", grace, UsageError)
    wanted = await _wanted(common, names, every=all)
    done = "stopping at once" if now else "stopping; running jobs may finish"
    return await _order(common, wanted, done, "stop", grace=0 if now else grace)


async def drain(names: Names = None, /, *, all: AllWorkers = False, common: Common = COMMON) -> int:
    """Stop workers after they have finished their running jobs.

    It sets no time limit. Without names, it drains all workers on this host that use this store.
    """
    return await _order(common, await _wanted(common, names, every=all), "draining", "drain")


async def cordon(
    names: Names = None, /, *, all: AllWorkers = False, common: Common = COMMON
) -> int:
    """Stop giving jobs to workers, even after they restart.

    Running jobs continue.
    """
    return await _order(common, _named(names, every=all), "cordoned", "cordon")


async def uncordon(
    names: Names = None, /, *, all: AllWorkers = False, common: Common = COMMON
) -> int:
    """Give jobs to cordoned workers again."""
    return await _order(common, _named(names, every=all), "uncordoned", "uncordon")


async def scaling(
    *,
    queue: Annotated[str | None, option("NAME", "Only for this queue.")] = None,
    target_wait: Annotated[
        str, option("DURATION", "Advise enough workers to start each job within this time.")
    ] = "30s",
    slots: Annotated[
        int | None,
        option(
            "N",
            "Assume that one worker runs this many jobs at a time. [default: as workers do now]",
        ),
    ] = None,
    workers_min: Annotated[int, option("N", "Advise at least this many workers.", "--min")] = 0,
    workers_max: Annotated[int, option("N", "Advise at most this many workers.", "--max")] = 1_000,
    common: Common = COMMON,
) -> None:
    """Advise how many workers to run.

    The advice for each queue depends on how fast jobs arrive, how long they run, how many wait, and
    for how long.
    """
    goal = Goal(
        wait_ms=to_ms("--target-wait", target_wait, UsageError),
        workers_min=workers_min,
        workers_max=workers_max,
    )
    if not 1 <= goal.wait_ms <= bounds.DELAY_MS_MAX:
        raise UsageError(f'--target-wait "{target_wait[:40]}": expected a duration such as 30s')
    if not 0 <= workers_min <= workers_max <= bounds.SLOTS_MAX:
        raise UsageError(
            f"--min {workers_min} --max {workers_max}: expected 0 to {bounds.SLOTS_MAX} workers,"
            " and --min not above --max"
        )
    if slots is not None and not 1 <= slots <= bounds.SLOTS_MAX:
        raise UsageError(f"--slots {slots} is out of range: expected 1 to {bounds.SLOTS_MAX}")
    async with open_app(common) as app:
        now = (await examine(app.home.store)).now
        activity = None if app.engine.traits.inspect else app.telemetry.activity
        found = await read_scaling(
            app.engine, queue, goal, now=now, worker_slots=slots, activity=activity
        )
    if common.json:
        print_json([plain(scaling_view(each)) for each in found])
        return
    rows = [
        (
            each.queue,
            each.load.waiting,
            show_age(each.advice.wait_ms) if each.advice.wait_ms is not None else "?",
            each.load.workers,
            each.advice.workers,
            each.advice.slots,
            each.advice.reason,
        )
        for each in found
        if queue is not None or _is_visible(each)
    ]
    columns = ("queue", "waiting", "wait", "workers", "wanted", "slots", "because")
    print_table(columns, rows, prose=("because",))


def _is_visible(scaling: Scaling) -> bool:
    """A worker's own queue is hidden while it is empty."""
    return addressee(scaling.queue) is None or scaling.load.waiting > 0


def start_notes(log_format: LogFormat | None, log_level: LogLevel | None) -> Callable[[str], None]:
    """Set up the log of this process as the flags say. The result writes a note for people to
    standard error: a line of the log if that is JSON, so that every line there is.
    """
    if log_format is not None or log_level is not None:
        log_to_stderr(program(), log_level or "info", log_format or "text", again=True)
    return partial(_log.info, "%s") if log_format == "json" else say


def note_stopping(note: Callable[[str], None], times: int) -> None:
    """Tell what the first or second signal does."""
    if times == 1:
        note("stopping: running jobs may finish; Ctrl-C again stops at once")
    elif times == 2:
        note("stopping at once: running jobs go back to their queues")


def with_store_of(target: str | None, common: Common) -> Common:
    """The flags with the URL of the application's own store, unless a flag or the environment
    names one. Raises ConfigError."""
    if target is None or common.url is not None or os.environ.get("HOLDFAST_URL"):
        return common
    return replace(common, url=launcher.store_of(target))


async def prepare_workers(
    common: Common, flags: WorkerFlags, target: str | None, count: int
) -> tuple[list[WorkerOptions], str]:
    """The options of the workers, checked against the store, and the store for people to see."""
    if not 1 <= count <= 256:
        raise UsageError(f"--count {count} is out of range: expected 1 to 256")
    if flags.cwd is not None and not flags.cwd.is_dir():
        raise UsageError(f"--cwd {flags.cwd} is not a folder: create it, or give another one")
    async with open_app(common, create=True) as app:
        if not app.engine.traits.shared:
            raise ConfigError(
                f"workers run in separate processes and cannot share {app.place}: use a file"
            )
        settings = await read_settings(app.engine)
        options = flags.options(app.url or "", settings, target)
        if common.json:
            options = msgspec.structs.replace(options, job_lines=False)
        views = await app.queues(names=options.queues, counts=False)
        known = {view.queue.name for view in views}
        missing = sorted(set(options.queues) - known)
        # With the setting, the worker creates them when it starts.
        if missing and not settings.value("create-queues"):
            create = f"{program()} queue create {missing[0]}"
            raise NotFound(f'queue {", ".join(missing)} does not exist: create it with "{create}"')
    return numbered(options, count), app.place


def _named(names: list[str] | None, *, every: bool) -> list[str] | None:
    """The given names; None for all workers."""
    if bool(names) == every:
        raise UsageError("give the names of workers, or --all for all of them")
    return names


async def _wanted(common: Common, names: list[str] | None, *, every: bool) -> list[str] | None:
    """The given names, or else those of the workers on this host; None for all workers."""
    if names or every:
        return _named(names, every=every)
    async with open_app(common) as app:
        workers = await Workers(app.engine).all()
    host = socket.gethostname()
    here = [each.name for each in workers if each.record.host == host and each.age_ms <= ABSENT_MS]
    others = sum(each.age_ms <= ABSENT_MS for each in workers) - len(here)
    if others and not common.json:
        say(f"{counted(others, 'worker')} on other hosts: give their names, or --all")
    return here


async def _order(
    common: Common,
    names: list[str] | None,
    done: str,
    order: OrderName,
    grace: Duration | None = None,
) -> int:
    """Send an order to these workers; None for all."""
    async with open_app(common) as app:
        ordered, missing = await Workers(app.engine).order(order, names, grace=grace, by=person())
    if common.json:
        print_json(plain(Ordered(workers=ordered, missing=missing)))
    else:
        for name in ordered:
            print(f"{printable(name, one_line=True)}: {done}")
        if not ordered and not missing:
            say("there are no workers" if names is None else "no worker runs on this host")
    if missing:
        raise unknown_worker(", ".join(missing))
    return Exit.DONE


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f'--label "{text[:80]}": expected NAME=VALUE')
    return name, value


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
