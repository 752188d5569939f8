"""Reads the accounts of all processes and sums them, at most once in a while for all who ask.

An account that has not changed since the last look is not read again.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from holdfast.engines.base import Engine
from holdfast.telemetry.accounts import (
    ENDED_KEY,
    KIND,
    REMEMBERED_MS,
    Account,
    Ended,
    Fleet,
    read,
    summed,
)
from holdfast.upkeep.paging import records

_MEMORY_S = REMEMBERED_MS / 1000 / 2


class Looker:
    """What it gives may be `age_s_max` old."""

    def __init__(self, engine: Engine, *, age_s_max: float = 1.0) -> None:
        self._engine = engine
        self._age_s_max = age_s_max
        self._known: dict[str, tuple[int, Account]] = {}
        self._ended = Ended()
        self._guard = asyncio.Lock()
        self._fleet = Fleet()
        self._looked = float("-inf")

    async def fleet(self) -> Fleet:
        """Who comes while another one looks gets what that one finds."""
        async with self._guard:
            if monotonic() - self._looked >= self._age_s_max:
                self._fleet = await self._look()
                self._looked = monotonic()
            return self._fleet

    async def _look(self) -> Fleet:
        found: dict[str, tuple[int, Account]] = {}
        ended: Ended | None = None
        async for record in records(self._engine, KIND):
            if record.key == ENDED_KEY:
                ended = read(record, Ended)
                continue
            known = self._known.get(record.key)
            if known is None or known[0] != record.version:
                known = (record.version, read(record, Account) or Account())
            found[record.key] = known
        self._ended = ended or self._ended
        if monotonic() - self._looked < _MEMORY_S:
            # An account goes only after it was added. One that is missing otherwise is in a part of
            # the store that is away: without it counters would go back, and then leap.
            added = self._ended.added
            found |= {
                key: known
                for key, known in self._known.items()
                if key not in found and key not in added
            }
        self._known = found
        return summed(self._ended, [(key, account) for key, (_, account) in found.items()])
