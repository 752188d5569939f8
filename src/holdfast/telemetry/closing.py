"""Accounts of processes that ended → one account for all of them, so that there are never many.

Three steps, each one conditional write that may be repeated and that another upkeep may make just
as well: close the account, add the closed one to the ended, remove it. Killed between two of them,
nothing is lost and nothing counts twice, because who reads leaves out what was added.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.telemetry.accounts import (
    ENDED_KEY,
    GONE_MS,
    KIND,
    REMEMBERED_MS,
    Account,
    Ended,
    is_over,
    names,
    read,
    written,
)
from holdfast.telemetry.totals import summed_up
from holdfast.upkeep.paging import records

_STEP_MAX = 100
"""Accounts that one step closes, adds or removes."""


class Closer:
    """Part of the bookkeeper's work. `open` is how many processes count, as far as it saw."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self.open = 0
        self._engine = engine
        self._wall_ms = wall_ms

    async def once(self) -> bool:
        """Whether there is more to do."""
        found = [record async for record in records(self._engine, KIND)]
        ended, version = Ended(), 0
        if found and found[0].key == ENDED_KEY:
            first = found.pop(0)
            known = read(first, Ended)
            if known is None:
                # A later version keeps its own books, and this one leaves them alone.
                return False
            ended, version = known, first.version
        accounts = [(record, read(record, Account)) for record in found]
        self.open = sum(account is not None and not account.closed for _, account in accounts)
        await self._close(ended, accounts)
        await self._remove(ended, accounts)
        return await self._add(ended, version, accounts)

    async def _close(self, ended: Ended, accounts: list[tuple[Record, Account | None]]) -> None:
        """Nobody adds to it any more; whoever wanted to finds that it was."""
        over = [
            replace(record, value=written(replace(account, closed=True)))
            for record, account in accounts
            if account is not None
            and not account.closed
            and record.key not in ended.added
            and is_over(record, account, len(accounts))
        ]
        if over:
            await self._engine.save(over[:_STEP_MAX])

    async def _remove(self, ended: Ended, accounts: list[tuple[Record, Account | None]]) -> None:
        """What was added a while ago, and what nobody here can read and nobody writes."""
        now = self._wall_ms()
        gone = [
            replace(record, value=None)
            for record, account in accounts
            if (record.key in ended.added and now - ended.added[record.key] >= GONE_MS)
            or (account is None and record.age_ms > limits.DAY_MS)
        ]
        if gone:
            await self._engine.save(gone[:_STEP_MAX])

    async def _add(
        self, ended: Ended, version: int, accounts: list[tuple[Record, Account | None]]
    ) -> bool:
        """The closed ones that were read, and the names of new queues; whether there are more."""
        now = self._wall_ms()
        there = {record.key for record, _ in accounts}
        added = {
            key: at
            for key, at in ended.added.items()
            if key in there or abs(now - at) < REMEMBERED_MS
        }
        fresh = [
            (record.key, account)
            for record, account in accounts
            if account is not None and record.key not in ended.added
        ]
        closed = [(key, account) for key, account in fresh if account.closed][:_STEP_MAX]
        seen = [account.totals.queues for _, account in fresh]
        queues = names(ended, {*ended.totals.queues}.union(*seen))
        totals = summed_up((ended.totals, *(account.totals for _, account in closed)))
        new = Ended(
            epoch=ended.epoch or secrets.token_hex(8),
            queues=queues,
            added=added | {key: now for key, _ in closed},
            totals=totals.named(queues),
        )
        if closed or (new.epoch, new.queues) != (ended.epoch, ended.queues):
            record = Record(kind=KIND, key=ENDED_KEY, value=written(new), version=version)
            if await self._engine.save([record]) != [Saved.SAVED]:
                # Another upkeep was faster with it.
                return False
        return len(closed) == _STEP_MAX
