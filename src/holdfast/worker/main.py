"""The process of one supervisor: `python -m holdfast.worker.main`, started by the launcher.

Its options come as one line of JSON on its standard input, because a URL may hold a password. The
pipe stays open: when it closes, the launcher is gone and so must this be.
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
from urllib.parse import urlsplit

import msgspec
import uuid_utils

from holdfast import __version__, tracing
from holdfast.app import Holdfast
from holdfast.core.model import Queue
from holdfast.errors import EngineError, HoldfastError
from holdfast.logs import log_to_stderr
from holdfast.loops import loop_run
from holdfast.worker import processes
from holdfast.worker.crew import Crew
from holdfast.worker.ears import Ears
from holdfast.worker.link import Link
from holdfast.worker.local import make_link
from holdfast.worker.nursery import Template
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.webhook import webhook_setup
from holdfast.worker.wire import ChildSetup

_log = logging.getLogger("holdfast.worker")

EXIT_USAGE = 2
"""The launcher does not start again what would fail again."""
_GARBAGE_MIN = 20_000


def main() -> None:
    log_to_stderr("holdfast", logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    processes.become_subreaper()
    # Jobs come by the thousand, live for a moment and are in no cycle: look less often, and never
    # again at what was imported.
    gc.freeze()
    gc.set_threshold(_GARBAGE_MIN, 20, 20)
    line = sys.stdin.buffer.readline()
    options = msgspec.json.decode(line, type=WorkerOptions)
    # What its handlers enqueue goes where the worker leases.
    os.environ["HOLDFAST_URL"] = options.url
    try:
        tracing.begin("holdfast-worker")
        loop_run()(supervise(options))
    except* HoldfastError as group:
        for error in _leaves(group):
            _log.error("%s (%s)", error, error.code)
        usage = not any(isinstance(error, EngineError) for error in _leaves(group))
        sys.exit(EXIT_USAGE if usage else 1)


async def supervise(options: WorkerOptions) -> None:
    """One worker from its start to its end."""
    options = msgspec.structs.replace(options, version=__version__)
    worker_id = str(uuid_utils.uuid7())
    async with Holdfast(options.url) as app:
        stop_upkeep = asyncio.Event()

        def crew(ears: Supervisor, queue_of: Callable[[str], Queue]) -> Crew:
            return make_crew(options, worker_id, ears, queue_of)

        supervisor = Supervisor(app.engine, options, worker_id, crew)
        app.telemetry.role = "worker"
        async with asyncio.TaskGroup() as group:
            group.create_task(app.telemetry.run(stop_upkeep))
            if options.upkeep:
                group.create_task(app.upkeep(archive=options.archive).run(stop_upkeep))
            await supervisor.run(_listen)
            stop_upkeep.set()


def make_crew(
    options: WorkerOptions, worker_id: str, ears: Ears, queue_of: Callable[[str], Queue]
) -> Crew:
    shell, why_not = may_use_shell(options)
    common = ChildSetup(
        worker=options.name or "",
        worker_id=worker_id,
        slots=options.concurrency,
        shell=shell,
        shell_off=why_not,
        environment=options.environment,
        cwd=options.cwd,
        output_max=options.output_max,
    )
    python = msgspec.structs.replace(common, target=options.target) if options.target else None
    crew = Crew(
        ears,
        queue_of,
        python=python,
        processes=max(1, options.processes),
        commands=common if options.commands else None,
        make=make_link if options.processes == 0 else Link,
        template=Template(python) if python and options.processes and _may_fork() else None,
    )
    if options.webhooks:
        crew.webhooks = msgspec.structs.replace(common, webhook=webhook_setup(options))
    return crew


def _may_fork() -> bool:
    """For applications that must be imported in each process anew."""
    return os.environ.get("HOLDFAST_TEMPLATE") != "0"


def may_use_shell(options: WorkerOptions) -> tuple[bool, str]:
    """On the embedded file, whoever can write it can run commands anyway; elsewhere not."""
    if options.shell is not None:
        return options.shell, "" if options.shell else "this worker was started with --no-shell"
    scheme = urlsplit(options.url).scheme or "sqlite"
    if scheme == "sqlite":
        return True, ""
    return False, (
        f"shells are off on {scheme} unless the worker is started with --shell; give the command "
        "as a list of arguments, which needs no shell"
    )


def _listen(supervisor: Supervisor) -> None:
    ready = int(os.environ.pop("HOLDFAST_READY", "-1"))

    def tell_ready(name: str) -> None:
        """To the launcher, once: its number may belong to any other file afterwards."""
        nonlocal ready
        descriptor, ready = ready, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.write(descriptor, name.encode())
            os.close(descriptor)

    supervisor.tell_ready = tell_ready
    loop = asyncio.get_running_loop()
    heard = 0

    def hear() -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            supervisor.drain()
        else:
            supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            supervisor.stop()

    os.set_blocking(0, False)
    loop.add_reader(0, look)


def _leaves(group: BaseExceptionGroup[HoldfastError]) -> list[HoldfastError]:
    leaves: list[HoldfastError] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


if __name__ == "__main__":
    main()
