"""Upkeep and alerts inside a server: of every namespace, from when it is opened to the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path

from holdfast.alerts import Alerter, Reader, Teller
from holdfast.alerts.webhook import Hook
from holdfast.app import Holdfast
from holdfast.server.namespaces import DEFAULT
from holdfast.server.seeing import seen_of
from holdfast.server.state import Server
from holdfast.telemetry import is_counted_elsewhere

_log = logging.getLogger("holdfast.server")


class Keeping:
    """What was begun is ended before its store is closed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = settings = server.settings
        self._hook: Hook | None = None
        if settings.alert_webhook is not None:
            self._hook = Hook(
                settings.alert_webhook,
                secrets_file=settings.alert_webhook_secrets,
                allow=settings.alert_webhook_allow,
                ca_file=settings.alert_webhook_ca,
            )
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, name: str, app: Holdfast) -> None:
        """Without waiting; it goes on whatever its store does. What is done is counted, and looked
        at for alerts, in any case."""
        app.telemetry.role = "server"
        if not self._stop.is_set():
            upkeep = app.upkeep(archive=self._archive_of(name))
            run = upkeep.run if self._settings.upkeep else app.telemetry.run
            self._keep(run(self._stop), f"upkeep of {name}")
            if not is_counted_elsewhere(app.engine):
                self._server.alerters[name] = alerter = self._alerter(name, app)
                self._keep(alerter.run(self._stop, app.listeners), f"look at alerts of {name}")

    async def end(self, at_once: asyncio.Event) -> None:
        """Steps that have begun are finished, if they can be within the grace time."""
        self._stop.set()
        kept = asyncio.gather(*self._tasks, return_exceptions=True)
        hurried = asyncio.create_task(at_once.wait())
        grace_s = self._settings.grace_ms / 1000
        await asyncio.wait((kept, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for task in list(self._tasks):
            task.cancel()
        await kept

    def _keep(self, run: Coroutine[object, object, None], what: str) -> None:
        task = asyncio.create_task(run, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _alerter(self, name: str, app: Holdfast) -> Alerter:
        """What is about the whole store is told once, and not for each namespace."""
        seen = seen_of(app)
        reader = Reader(
            app.engine,
            app.home.store,
            whole=name == DEFAULT,
            views=seen.views,
            fleet=seen.fleet,
        )
        deliver = None if self._hook is None else self._hook.deliver
        return Alerter(app.engine, reader, Teller(app.engine, name, deliver))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the %s has ended", task.get_name(), exc_info=task.exception())

    def _archive_of(self, name: str) -> Path | None:
        """Each namespace has a file of its own, and what is in it is nobody else's."""
        if self._settings.archive is None:
            return None
        path = Path(self._settings.archive)
        return path if name == DEFAULT else path.with_name(f"{path.stem}-{name}{path.suffix}")
