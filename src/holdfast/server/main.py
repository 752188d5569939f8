"""Runs a server: `holdfast serve`, or `python -m holdfast.server.main` next to workers.

The second form reads its options as one line of JSON from standard input, because a URL may hold a
password. The pipe stays open: when it closes, the parent process has ended, and the server stops.
After the first signal, open requests are answered within the grace period, while streams and waits
end; the second signal stops the server at once. Upkeep and alert checks of every open namespace run
inside the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import tracing
from holdfast.alerts.alerter import Alerter
from holdfast.alerts.facts import FactReader
from holdfast.alerts.notify import Notifier
from holdfast.alerts.webhook import AlertWebhook
from holdfast.app.application import Holdfast
from holdfast.engines.registry import with_namespace
from holdfast.errors import ConfigError, EngineError, HoldfastError
from holdfast.ops.service import run_service
from holdfast.process import log_to_stderr, loop_runner
from holdfast.server.access.peers import local_users
from holdfast.server.application import AsgiApplication
from holdfast.server.http.uvicorn_server import UvicornServer
from holdfast.server.live.metrics import snapshot_reader
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs.endpoint import SqsEndpoint
from holdfast.server.state import DEFAULT_NAMESPACE, ServerState
from holdfast.telemetry import is_counted_elsewhere

_log = logging.getLogger("holdfast.server")

EXIT_FAILED, EXIT_USAGE = 1, 2
_GC_THRESHOLD = (5_000, 4, 400)
"""The second number bounds the pause when ten thousand streams open at once: a collection of as
many objects as the first two allow takes about 20 ms."""
_NAMESPACE = re.compile(r"[?&]namespace=([^&,]*)")


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the process. `descriptor` is a listening socket inherited from the parent."""

    url: str
    settings: ServerSettings
    descriptor: int


def main() -> None:
    """Run a server with options from standard input."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServeOptions)
    log_to_stderr("holdfast", options.settings.log_level or "info", options.settings.log_format)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        listening = socket.socket(fileno=options.descriptor)
        run(options.url, options.settings, listening, _report_to_parent)
    except HoldfastError as error:
        _log.error("%s (%s)", error, error.code)
        sys.exit(EXIT_FAILED if isinstance(error, EngineError) else EXIT_USAGE)


def run(
    url: str,
    settings: ServerSettings,
    listening: socket.socket,
    started: Callable[[str], None],
) -> None:
    """Serve all namespaces of a store until a signal stops the server."""
    if any(name != DEFAULT_NAMESPACE for name in _NAMESPACE.findall(url)):
        raise ConfigError(
            "a server serves every namespace: remove `namespace` from its URL; each caller's"
            " token determines the namespace"
        )
    tracing.start_exporter("holdfast-server")
    # Requests are many and short-lived and form no cycles: collect rarely, and never look at
    # imported modules again.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)

    async def open_and_serve() -> None:
        async with Holdfast(with_namespace(url, DEFAULT_NAMESPACE)) as app:
            await serve(app, settings, listening, started)

    try:
        loop_runner()(open_and_serve())
    except* HoldfastError as group:
        raise _first(group) from None


async def serve(
    app: Holdfast,
    settings: ServerSettings,
    listening: socket.socket,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve an open application until a signal stops it. `started` is called with the URL."""
    # The end of an alert is logged at INFO.
    logging.getLogger("holdfast.alerts").setLevel(logging.INFO)
    with local_users(settings, listening) as users:
        server = ServerState(app=app, settings=settings, local_users=users)
        await serve_state(server, listening, started, _signal_handlers)


async def serve_state(
    server: ServerState,
    listening: socket.socket,
    started: Callable[[str], None] | None,
    stoppable: Callable[[Callable[[], None]], contextlib.AbstractContextManager[None]],
) -> None:
    """Serve until stopped. `stoppable` gets the function that stops the server; a second call of
    it ends open requests at once."""
    application = AsgiApplication(server)
    web = UvicornServer(server, application)
    upkeep = NamespaceUpkeep(server, application.sqs)
    try:
        with stoppable(web.on_signal):
            try:
                server.namespaces.opened.append(upkeep.start)
                upkeep.start(DEFAULT_NAMESPACE, server.app)
                named = {*server.settings.namespaces, *await server.tokens.namespaces()}
                for name in sorted(named):
                    await server.namespaces.get(name)
                await web.run(listening, started)
            finally:
                if application.sqs is not None:
                    await application.sqs.close()
                await upkeep.stop(web.at_once)
    finally:
        await server.namespaces.close()


class NamespaceUpkeep:
    """Starts the background loops of each namespace, and stops them before its store is closed."""

    def __init__(self, server: ServerState, sqs: SqsEndpoint | None = None) -> None:
        self._server = server
        self._sqs = sqs
        self._settings = settings = server.settings
        self._webhook: AlertWebhook | None = None
        if settings.alert_webhook is not None:
            self._webhook = AlertWebhook(
                settings.alert_webhook,
                secrets_file=settings.alert_webhook_secrets,
                allow=settings.alert_webhook_allow,
                ca_file=settings.alert_webhook_ca,
            )
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, app: Holdfast) -> None:
        """Start the loops of a namespace. Counters are flushed and alerts checked even with upkeep
        off."""
        app.telemetry.role = "server"
        if not self._stop.is_set():
            # Callers of another namespace could move the messages of any broker.
            brokers = self._settings.brokers if name == DEFAULT_NAMESPACE else None
            upkeep = app.upkeep(
                archive=self._archive_of(name),
                brokers=brokers,
                cloudwatch=self._settings.cloudwatch,
            )
            run_all = upkeep.run if self._settings.upkeep else app.telemetry.run
            self._start_task(run_all(self._stop), f"upkeep of {name}")
            if self._sqs is not None and self._settings.upkeep:
                for service in self._sqs.services(name, app):
                    run = run_service(service, self._stop, app.listeners)
                    self._start_task(run, f"{service.name} of {name}")
            if not is_counted_elsewhere(app.engine):
                self._server.alerters[name] = alerter = self._alerter(name, app)
                self._start_task(alerter.run(self._stop, app.listeners), f"alert check of {name}")

    async def stop(self, at_once: asyncio.Event) -> None:
        """Stop all loops. Steps in progress are finished, within the grace period."""
        self._stop.set()
        all_tasks = asyncio.gather(*self._tasks, return_exceptions=True)
        hurry = asyncio.create_task(at_once.wait())
        grace_s = self._settings.grace_ms / 1000
        await asyncio.wait((all_tasks, hurry), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for task in list(self._tasks):
            task.cancel()
        await all_tasks

    def _start_task(self, run: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(run, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _alerter(self, name: str, app: Holdfast) -> Alerter:
        """Alerts about the whole store are raised once, by the namespace `default`."""
        snapshots = snapshot_reader(app)
        reader = FactReader(
            app.engine,
            app.home.store,
            whole=name == DEFAULT_NAMESPACE,
            views=snapshots.views,
            fleet=snapshots.fleet,
        )
        deliver = None if self._webhook is None else self._webhook.deliver
        return Alerter(app.engine, reader, Notifier(app.engine, name, deliver))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the %s failed", task.get_name(), exc_info=task.exception())

    def _archive_of(self, name: str) -> Path | None:
        """The archive file of a namespace; each has its own."""
        if self._settings.archive is None:
            return None
        path = Path(self._settings.archive)
        return (
            path
            if name == DEFAULT_NAMESPACE
            else path.with_name(f"{path.stem}-{name}{path.suffix}")
        )


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _report_to_parent(url: str) -> None:
    """Write the URL to the parent's pipe, and stop when the parent closes standard input."""
    descriptor = int(os.environ.pop("HOLDFAST_READY", "-1"))
    if descriptor >= 0:
        with suppress(OSError):
            os.write(descriptor, url.encode())
        os.close(descriptor)
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            # Two signals stop at once: there is no parent left to wait for a graceful stop.
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)

    os.set_blocking(0, False)
    loop.add_reader(0, on_input)


def _first(group: BaseExceptionGroup[HoldfastError]) -> HoldfastError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()
