"""The loop that every background service shares: do what is due, sleep until the next, repeat.

A service does not exit when its engine is unreachable. Only a stop, or an engine that this process
closed, ends it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import Protocol

from holdfast.errors import EngineClosed, Forbidden, HoldfastError
from holdfast.events import Tell, Troubled

_log = logging.getLogger("holdfast.upkeep")

_PAUSE_MS_FIRST = 200
_PAUSE_MS_MAX = 30_000
_SPREAD_MS_MAX = 50


class Service(Protocol):
    """A background service that works in steps. Any number of instances may run, in any number of
    processes.
    """

    @property
    def name(self) -> str:
        """The name in logs and events."""

    @property
    def sleep_ms_max(self) -> int:
        """The longest sleep: work that no timer announced is found by then."""

    async def once(self) -> int | None:
        """Do one bounded step. Returns the time to the next: 0 if there is more to do now, None if
        it is unknown."""


class Alarm:
    """Ends the sleep of a service at the earliest time that was set."""

    def __init__(self) -> None:
        self._rang = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def set(self, ms: int) -> None:
        """Ring in `ms` milliseconds, unless the alarm rings sooner."""
        loop = asyncio.get_running_loop()
        at = loop.time() + ms / 1000
        if at < self._at:
            if self._timer is not None:
                self._timer.cancel()
            self._at, self._timer = at, loop.call_at(at, self._ring)

    async def wait(self) -> None:
        """Return once the alarm has rung since the last call."""
        await self._rang.wait()
        self._rang.clear()

    def _ring(self) -> None:
        self._at, self._timer = math.inf, None
        self._rang.set()


async def run_service(
    service: Service, stop: asyncio.Event, tell: Tell, alarm: Alarm | None = None
) -> None:
    """Run the service until `stop` is set; `alarm` may end a sleep early."""
    failures = 0
    while not stop.is_set():
        try:
            next_ms = await service.once()
        except EngineClosed:
            if stop.is_set():
                return
            raise
        except Forbidden as error:
            # Over HTTP with a token that may only run jobs: the server does this.
            _log.info("the %s does not run here: %s", service.name, error)
            await stop.wait()
            return
        except Exception as error:  # noqa: BLE001 (it is reported and logged, and the service goes on)
            failures += 1
            pause_ms = _report_failure(service, error, failures, tell)
        else:
            failures = 0
            pause_ms = _pause_ms(next_ms, service.sleep_ms_max)
        await _sleep(pause_ms, stop, alarm)


def _report_failure(service: Service, error: Exception, failures: int, tell: Tell) -> int:
    """Log the failure and report it as an event; returns how long to pause, with back-off."""
    longest_ms = min(_PAUSE_MS_FIRST << min(failures - 1, 20), _PAUSE_MS_MAX)
    pause_ms = round(longest_ms * random.uniform(0.5, 1.0))
    if isinstance(error, HoldfastError):
        code = error.code
        _log.warning("the %s failed and continues in %d ms: %s", service.name, pause_ms, error)
    else:
        code = type(error).__name__
        _log.error("the %s failed and continues in %d ms", service.name, pause_ms, exc_info=error)
    tell(Troubled(service=service.name, error=code, text=str(error), pause_ms=pause_ms))
    return pause_ms


def _pause_ms(next_ms: int | None, sleep_ms_max: int) -> int:
    """The sleep, spread a little so that processes do not all wake at the same instant."""
    if next_ms == 0:
        return 0
    if next_ms is None or next_ms > sleep_ms_max:
        return round(sleep_ms_max * random.uniform(0.8, 1.0))
    return next_ms + 1 + round(min(next_ms / 20, _SPREAD_MS_MAX) * random.random())


async def _sleep(pause_ms: int, stop: asyncio.Event, alarm: Alarm | None) -> None:
    ends = [asyncio.ensure_future(each.wait()) for each in (stop, alarm) if each is not None]
    try:
        await asyncio.wait(ends, timeout=pause_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
