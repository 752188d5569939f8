"""Reads from the store how everything stands, in bounded calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from holdfast.alerts.growth import Grower
from holdfast.alerts.judging import Facts, Out
from holdfast.core.model import QueueView
from holdfast.engines.base import Engine, Examination
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.looking import Looker
from holdfast.telemetry.partitions import View
from holdfast.upkeep import wall_ms
from holdfast.worker.registry import Workers


class Reader:
    """`store` is the engine without what is wrapped around it. Without `whole` somebody else looks
    after what is about all of it: its disk and its partitions. Whoever reads queues and counts for
    others too gives their `views` and `fleet`."""

    def __init__(
        self,
        engine: Engine,
        store: object,
        *,
        whole: bool = True,
        views: Callable[[], Awaitable[list[QueueView]]] | None = None,
        fleet: Callable[[], Awaitable[Fleet]] | None = None,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._engine = engine
        self._whole = whole
        self._views = views or engine.queues
        self._fleet = fleet or Looker(engine, age_s_max=0).fleet
        self._clock_s = clock_s
        self._partitions: Callable[[], Sequence[View]] | None
        self._partitions = getattr(store, "partitions", None)
        self._examine: Callable[[], Awaitable[Examination]] | None
        self._examine = getattr(store, "examine", None)
        self._grower = Grower()

    async def read(self) -> Facts:
        found = Examination(now=wall_ms()) if self._examine is None else await self._examine()
        out = self._out()
        at = round(self._clock_s() * 1000)
        grown = self._grower.look(at, await self._fleet(), [each.name for each in out])
        return Facts(
            now=found.now,
            views=await self._views(),
            workers=await Workers(self._engine).all(),
            grown=grown,
            minute=self._grower.minute,
            out=out if self._whole else (),
            free_bytes=found.free_bytes if self._whole else None,
            partial=bool(out),
        )

    def _out(self) -> list[Out]:
        views = () if self._partitions is None else self._partitions()
        return [Out(view.name, view.out_ms, view.text) for view in views if view.out_ms is not None]
