"""The main program of a supervisor, after its process has started.

The launcher starts the process and sends its options as one line of JSON on standard input, because
a URL may hold a password. The pipe stays open: when it closes, the launcher has ended, and this
process ends too.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast import __version__, tracing
from holdfast.app.application import Holdfast
from holdfast.core.model import Queue
from holdfast.errors import EngineError, HoldfastError
from holdfast.process import log_to_stderr, loop_runner
from holdfast.worker import processes
from holdfast.worker.child.printed import copy_printed
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.child_pool import ChildPool, ChildPoolListener
from holdfast.worker.supervisor.child_process import (
    ChildProcess,
    ForkTemplate,
    line_writer,
    make_child,
)
from holdfast.worker.supervisor.supervisor import Supervisor
from holdfast.worker.supervisor.template_process import TemplateProcess
from holdfast.worker.webhooks.webhook import webhook_setup
from holdfast.worker.wire import ChildSetup

_log = logging.getLogger("holdfast.worker")

EXIT_USAGE = 2
"""Exit code that tells the launcher not to restart: it would fail again."""
_GARBAGE_MIN = 20_000


def run(worker_id: str, template: TemplateProcess | None) -> None:
    """Run the worker whose options come on standard input."""
    processes.become_subreaper()
    # Jobs arrive by the thousand, are short-lived and form no cycles: collect less often, and never
    # scan imported objects again.
    gc.freeze()
    gc.set_threshold(_GARBAGE_MIN, 20, 20)
    line = sys.stdin.buffer.readline()
    if not line:
        # The launcher ended before it knew the options: its command line was wrong.
        sys.exit()
    options = msgspec.json.decode(line, type=WorkerOptions)
    log_to_stderr("holdfast", options.log_level or "info", options.log_format or "text")
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    if options.target and options.processes == 0:
        copy_printed()
    # Handlers enqueue into the store that the worker leases from.
    os.environ["HOLDFAST_URL"] = options.url
    try:
        tracing.start_exporter("holdfast-worker")
        loop_runner()(supervise(options, worker_id, template))
    except* HoldfastError as group:
        for error in _leaves(group):
            _log.error("%s (%s)", error, error.code)
        usage = not any(isinstance(error, EngineError) for error in _leaves(group))
        sys.exit(EXIT_USAGE if usage else 1)


async def supervise(
    options: WorkerOptions, worker_id: str, template: TemplateProcess | None
) -> None:
    """Run one worker from start to end."""
    options = msgspec.structs.replace(options, version=__version__)
    async with Holdfast(options.url) as app:
        stop_upkeep = asyncio.Event()

        def make_pool(listener: Supervisor, queue_of: Callable[[str], Queue]) -> ChildPool:
            pool = make_child_pool(options, worker_id, listener, queue_of, template)
            pool.on_sqs = app.engine.traits.name == "sqs"
            return pool

        def banner() -> None:
            if options.job_lines:
                write = line_writer(options.log_format)
                write(f"{supervisor.banner}, on {app.place}", {})

        supervisor = Supervisor(app.engine, options, worker_id, make_pool)
        app.telemetry.role = "worker"
        async with asyncio.TaskGroup() as group:
            group.create_task(app.telemetry.run(stop_upkeep))
            if options.upkeep:
                upkeep = app.upkeep(
                    archive=options.archive,
                    brokers=options.brokers,
                    cloudwatch=options.cloudwatch,
                )
                group.create_task(upkeep.run(stop_upkeep))
            await supervisor.run(lambda started: _connect_launcher(started, banner))
            stop_upkeep.set()


def make_child_pool(
    options: WorkerOptions,
    worker_id: str,
    listener: ChildPoolListener,
    queue_of: Callable[[str], Queue],
    template: TemplateProcess | None = None,
) -> ChildPool:
    """The child pool for these options, not started yet. `template` is a process that was started
    ahead."""
    common = ChildSetup(
        worker=options.name or "",
        worker_id=worker_id,
        slots=options.slots,
        shell=options.shell,
        environment=options.environment,
        cwd=options.cwd,
        output_max=options.output_max,
        log_format=options.log_format,
        log_level=options.log_level,
    )
    python = msgspec.structs.replace(common, target=options.target) if options.target else None
    commands = msgspec.structs.replace(common, slots=options.command_slots)
    built_in = [commands] if options.commands else []
    if options.webhooks:
        built_in.append(msgspec.structs.replace(common, webhook=webhook_setup(options)))
    fork_template = None
    if python is not None and options.has_template:
        fork_template = ForkTemplate(python, template)
    elif template is not None:
        template.end()
    return ChildPool(
        listener,
        queue_of,
        python=python,
        processes=max(1, options.processes),
        built_in=tuple(built_in),
        make=make_child if options.processes == 0 else ChildProcess,
        template=fork_template,
    )


def _connect_launcher(supervisor: Supervisor, banner: Callable[[], None]) -> None:
    """Report to the launcher, follow its signals, and end when it ends. `banner` is called when the
    worker is ready."""
    ready = int(os.environ.pop("HOLDFAST_READY", "-1"))

    def tell_ready(name: str) -> None:
        """Only once: afterwards the descriptor's number may belong to another file."""
        nonlocal ready
        descriptor, ready = ready, -1
        if descriptor >= 0:
            banner()
            with suppress(OSError):
                os.write(descriptor, name.encode())
            os.close(descriptor)

    supervisor.tell_ready = tell_ready
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            supervisor.drain()
        else:
            supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    def on_stdin() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            supervisor.stop()

    os.set_blocking(0, False)
    loop.add_reader(0, on_stdin)


def _leaves(group: BaseExceptionGroup[HoldfastError]) -> list[HoldfastError]:
    leaves: list[HoldfastError] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
