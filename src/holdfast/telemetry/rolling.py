"""Takes the snapshots that charts are made of, and removes what is past its retention.

The first upkeep in a minute takes the minute's, which nobody writes again. Killed anywhere, the
next goes on: a snapshot is one write, and one that is missing loses nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast import config
from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError
from holdfast.telemetry import notable
from holdfast.telemetry.looking import Looker
from holdfast.telemetry.snapshots import KINDS, STEPS, Step, key_of, snapshot, start_of
from holdfast.upkeep.paging import records

_PAGE = 20
_SPREAD_MS = 1_000
_EVENTS_MAX = 2_000
_SETTINGS: Final[dict[Step, str]] = {
    "minute": "history-minutes",
    "hour": "history-hours",
    "day": "history-days",
}
_KEY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d\Z")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long each is kept; of records with events at most so many, too. Unless it is said, the
    settings of the store say it."""

    minute_ms: int = limits.DAY_MS
    hour_ms: int = 14 * limits.DAY_MS
    day_ms: int = 400 * limits.DAY_MS
    events_ms: int = limits.DAY_MS
    events_max: int = _EVENTS_MAX

    def of(self, step: Step) -> int:
        return {"minute": self.minute_ms, "hour": self.hour_ms, "day": self.day_ms}[step]


class Roller:
    """A service of upkeep."""

    name = "roller"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        retention: Retention | None = None,
        net_ms: int = 2 * limits.MINUTE_MS,
    ) -> None:
        self.net_ms = net_ms
        self._engine = engine
        self._wall_ms = wall_ms
        self._retention = retention
        self._looker = Looker(engine, age_s_max=0)
        self._taken: dict[Step, str] = {}

    async def once(self) -> int | None:
        """The time to the next minute. Who took the snapshot of one tidies up."""
        now = self._wall_ms()
        missing = await self._missing(now)
        if missing and await self._take(missing):
            retention = self._retention or await _stored(self._engine)
            for step in STEPS:
                await self._trim(step, now, retention.of(step))
            await self._trim_events(retention.events_ms, retention.events_max)
        next_ms = start_of("minute", now) + limits.MINUTE_MS - self._wall_ms()
        # Not all at once: whoever comes a moment later finds that it is done.
        return max(1, next_ms) + random.randrange(_SPREAD_MS)

    async def _missing(self, now: int) -> dict[Step, str]:
        """The steps whose snapshot nobody has taken, and their keys."""
        missing: dict[Step, str] = {}
        for step in STEPS:
            key = key_of(step, now)
            if self._taken.get(step) == key:
                continue
            found = await self._engine.load(KINDS[step], after=key[:-1], limit=10)
            if any(record.key == key for record in found):
                self._taken[step] = key
            else:
                missing[step] = key
        return missing

    async def _take(self, missing: dict[Step, str]) -> bool:
        """Whether this one was the first."""
        views = await self._engine.queues()
        fleet = await self._looker.fleet()
        value = msgspec.json.encode(snapshot(fleet, views, self._wall_ms()))
        # Stale is what another upkeep took in the same moment.
        answers = await self._engine.save(
            [Record(kind=KINDS[step], key=key, value=value) for step, key in missing.items()]
        )
        self._taken |= missing
        return Saved.SAVED in answers

    async def _trim(self, step: Step, now: int, kept_ms: int) -> None:
        """What is old by its name and by the store's clock: this machine's may be far ahead."""
        oldest = key_of(step, max(0, now - kept_ms))
        spared_ms = kept_ms - STEPS[step]
        while True:
            found = await self._engine.load(KINDS[step], limit=_PAGE)
            old = [
                each
                for each in found
                if (each.key < oldest and each.age_ms >= spared_ms) or not _KEY.match(each.key)
            ]
            if old:
                await self._engine.save([replace(each, value=None) for each in old])
            if len(old) < _PAGE:
                return

    async def _trim_events(self, kept_ms: int, most: int) -> None:
        """By the store's clock: their names are of as many clocks as there are processes."""
        found = [record async for record in records(self._engine, notable.KIND)]
        found.sort(key=lambda each: -each.age_ms)
        over = len(found) - most
        old = [each for at, each in enumerate(found) if at < over or each.age_ms > kept_ms]
        for at in range(0, len(old), limits.BATCH_MAX):
            some = old[at : at + limits.BATCH_MAX]
            await self._engine.save([replace(each, value=None) for each in some])


async def _stored(engine: Engine) -> Retention:
    """What a person set; what makes no sense, as something else may have stored it, is not set."""
    settings = await config.settings(engine)
    given: dict[str, int] = {}
    for step, name in _SETTINGS.items():
        with suppress(ConfigError):
            value = settings.value(name)
            if value is not None:
                given[f"{step}_ms"] = int(value)
    return Retention(**given)
