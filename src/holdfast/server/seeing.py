"""What many ask of one namespace, read once for all of them: queues, alerts, the fleet's counts.

It reads with the application's own engine. Whoever shows it to a caller leaves out what is not
theirs: `Seen.for_caller` is the one place for that.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from holdfast.alerts import Alert, alerts_of
from holdfast.app import Holdfast
from holdfast.core.model import QueueView
from holdfast.server.callers import Caller
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.looking import Looker
from holdfast.telemetry.totals import Totals

_AGE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The queues, the counts and the alerts that are raised, as one caller may see them."""

    views: list[QueueView]
    fleet: Fleet
    alerts: tuple[Alert, ...] = ()


class Seen:
    """Of one namespace."""

    def __init__(self, app: Holdfast, *, age_s_max: float = _AGE_S_MAX) -> None:
        # Held by the map below: it must not hold its own key.
        self._app = weakref.ref(app)
        self.age_s_max = age_s_max
        self._looker: Looker | None = None
        self._views: list[QueueView] = []
        self._alerts: tuple[Alert, ...] = ()
        self._sight = Sight(views=[], fleet=Fleet())
        self._looked = float("-inf")
        self._guard = asyncio.Lock()

    async def for_caller(self, caller: Caller) -> Sight:
        """With a prefix nothing but what is in those queues: not even what the others sum up to.
        Who has none gets the same as the last, if it is."""
        views, fleet = await self.views(), await self.fleet()
        if not caller.prefix:
            if self._sight.views is not views or self._sight.fleet is not fleet:
                self._sight = Sight(views=views, fleet=fleet, alerts=self._alerts)
            return self._sight
        own = {name: each for name, each in fleet.totals.queues.items() if caller.owns(name)}
        return Sight(
            views=[view for view in views if caller.owns(view.queue.name)],
            fleet=replace(fleet, totals=Totals(queues=own), processes=0),
            alerts=tuple(each for each in self._alerts if each.queue and caller.owns(each.queue)),
        )

    async def fleet(self) -> Fleet:
        app = self._app()
        if app is None:
            return Fleet()
        if self._looker is None:
            self._looker = Looker(app.engine, age_s_max=self.age_s_max)
        return await self._looker.fleet()

    async def views(self) -> list[QueueView]:
        """Who comes while another one looks gets what that one finds."""
        async with self._guard:
            app = self._app()
            if app is not None and monotonic() - self._looked >= self.age_s_max:
                self._views = await app.engine.queues()
                found = await alerts_of(app.engine)
                self._alerts = tuple(alert for alert, _ in found if alert.is_raised)
                self._looked = monotonic()
            return self._views


_SEEN: weakref.WeakKeyDictionary[Holdfast, Seen] = weakref.WeakKeyDictionary()


def seen_of(app: Holdfast) -> Seen:
    """The one of this application."""
    found = _SEEN.get(app)
    if found is None:
        found = _SEEN[app] = Seen(app)
    return found
