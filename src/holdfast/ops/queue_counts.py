"""Counts of queues beyond `bounds.COUNT_EXACT_MAX`: read rarely, cached, marked as estimates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import QueueView
from holdfast.engines.base import Engine
from holdfast.engines.extras import Countable, extra
from holdfast.errors import EngineClosed, EngineError

_log = logging.getLogger("holdfast.queues")

_CACHED_S_MIN = 10.0
_REST = 50
"""The pause after a count is this many times as long as the count: 2 % of the time is counting."""


class QueueCountCache:
    """Reads queues with their counts. Exact counts are fresh; a larger one, up to
    `bounds.COUNT_FAR_MAX`, comes from the cache. If the engine cannot count that far, it stays a
    lower bound."""

    def __init__(
        self, engine: Engine, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._monotonic_s = monotonic_s
        self._reading = asyncio.Lock()
        self._cache: dict[str, _CachedView] = {}
        self._asked: set[str] = set()
        """Large queues that were read since the last count: they are counted together."""
        self._rest_until_s = 0.0

    async def read(self, names: Collection[str] | None = None) -> list[QueueView]:
        """The queues of `names` that exist, or all, sorted by name."""
        views = await self._engine.queues(names=names)
        large = [view.queue.name for view in views if view.estimated]
        if not large:
            return views
        await self._refresh(large)
        return [self._with_cached(view) for view in views]

    async def _refresh(self, names: Collection[str]) -> None:
        """Count the jobs of these queues, unless they are cached or it is too early to count."""
        countable = extra(self._engine, Countable)
        if countable is None:
            return
        self._asked.update(names)
        async with self._reading:
            start_s = self._monotonic_s()
            if start_s < self._rest_until_s or not self._outdated(names, start_s):
                return
            wanted = self._outdated(self._asked, start_s)
            self._asked.clear()
            views = await self._count(countable, wanted)
            end_s = self._monotonic_s()
            self._rest_until_s = end_s + _REST * (end_s - start_s)
            until_s = max(self._rest_until_s, end_s + _CACHED_S_MIN)
            self._cache = {
                name: cached for name, cached in self._cache.items() if cached.until_s > start_s
            } | {name: _CachedView(views.get(name), until_s) for name in wanted}

    def _outdated(self, names: Collection[str], now_s: float) -> list[str]:
        return [
            name for name in names if name not in self._cache or self._cache[name].until_s <= now_s
        ]

    async def _count(self, countable: Countable, names: Collection[str]) -> dict[str, QueueView]:
        try:
            views = await countable.count_far(names, most=bounds.COUNT_FAR_MAX)
        except EngineClosed:
            raise
        except EngineError as error:
            # The exact counts were read: lower bounds are better than no answer.
            _log.warning("cannot count the jobs of %d large queues: %s", len(names), error)
            return {}
        return {view.queue.name: view for view in views}

    def _with_cached(self, view: QueueView) -> QueueView:
        cached = self._cache.get(view.queue.name)
        if cached is None or cached.view is None:
            return view
        larger = {
            name: max(getattr(view, name), getattr(cached.view, name)) for name in view.estimated
        }
        return replace(view, **larger)


class _CachedView(NamedTuple):
    """Counts of a queue, None if they could not be read, and when to read them again."""

    view: QueueView | None
    until_s: float
