"""The service that writes events of the store, and folds accounts of ended processes into one.

Any number may run. The more processes there are, the less often each one runs, so that together
they run about as often as one would.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.ops.records import remove_records, scan
from holdfast.telemetry.accounts import (
    ACCOUNT_KIND,
    ACCOUNTS,
    ENDED_ACCOUNTS,
    ENDED_KEY,
    GONE_MS,
    REMEMBERED_MS,
    Account,
    EndedAccounts,
    queue_names,
    should_close,
)
from holdfast.telemetry.meter import sum_totals
from holdfast.telemetry.watch import StoreWatcher

_LOOK_MS = 2 * bounds.SECOND_MS
_LOOK_MS_MAX = bounds.MINUTE_MS
_STEP_MAX = 100
"""Accounts that one step closes, adds or removes."""

ReadAccount = tuple[Record, Account | None]
"""A record, and the account in it, if this version can read it."""


class Bookkeeper:
    """A service of upkeep: watches the store for events, and closes accounts of ended processes."""

    name = "bookkeeper"

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._watcher = StoreWatcher(engine, wall_ms)
        self._closer = AccountCloser(engine, wall_ms)

    @property
    def sleep_ms_max(self) -> int:
        """Longer the more processes count."""
        return min(_LOOK_MS_MAX, _LOOK_MS * max(1, self._closer.open))

    async def once(self) -> int | None:
        """One scan of the store, and one step of closing accounts."""
        await self._watcher.once()
        return 0 if await self._closer.once() else None


class AccountCloser:
    """Folds accounts of ended processes into one, so that there are never many.

    Three steps, each a conditional write that can be repeated, also by another process: close the
    account, add it to the ended ones, remove it. A crash in between loses nothing and counts
    nothing twice, since readers skip accounts that were added. `open` is the number of processes
    that count, as of the last step.
    """

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self.open: int = 0
        self._engine = engine
        self._wall_ms = wall_ms

    async def once(self) -> bool:
        """Take one step; True if there is more to do."""
        found = [record async for record in scan(self._engine, ACCOUNT_KIND)]
        ended, version = EndedAccounts(), 0
        if found and found[0].key == ENDED_KEY:
            first = found.pop(0)
            known = ENDED_ACCOUNTS.decode(first)
            if known is None:
                # A later version manages these accounts.
                return False
            ended, version = known, first.version
        accounts = [(record, ACCOUNTS.decode(record)) for record in found]
        self.open = sum(account is not None and not account.closed for _, account in accounts)
        await self._close(ended, accounts)
        await self._remove(ended, accounts)
        return await self._add(ended, version, accounts)

    async def _close(self, ended: EndedAccounts, accounts: list[ReadAccount]) -> None:
        """Close accounts of processes that ended; a process that still runs notices it."""
        over = [
            ACCOUNTS.record(record.key, replace(account, closed=True), record.version)
            for record, account in accounts
            if account is not None
            and not account.closed
            and record.key not in ended.added
            and should_close(record, account, len(accounts))
        ]
        if over:
            await self._engine.save(over[:_STEP_MAX])

    async def _remove(self, ended: EndedAccounts, accounts: list[ReadAccount]) -> None:
        """Remove accounts that were added a while ago, and unreadable ones that are a day old."""
        now = self._wall_ms()
        gone = [
            record
            for record, account in accounts
            if (record.key in ended.added and now - ended.added[record.key] >= GONE_MS)
            or (account is None and record.age_ms > bounds.DAY_MS)
        ]
        await remove_records(self._engine, gone[:_STEP_MAX])

    async def _add(self, ended: EndedAccounts, version: int, accounts: list[ReadAccount]) -> bool:
        """Add closed accounts and the names of new queues; True if there are more accounts."""
        now = self._wall_ms()
        present = {record.key for record, _ in accounts}
        added = {
            key: at
            for key, at in ended.added.items()
            if key in present or abs(now - at) < REMEMBERED_MS
        }
        fresh = [
            (record.key, account)
            for record, account in accounts
            if account is not None and record.key not in ended.added
        ]
        closed = [(key, account) for key, account in fresh if account.closed][:_STEP_MAX]
        every = sum_totals((ended.totals, *(account.totals for _, account in fresh)))
        queues = queue_names(ended, every.queues)
        totals = sum_totals((ended.totals, *(account.totals for _, account in closed)))
        new = EndedAccounts(
            epoch=ended.epoch or secrets.token_hex(8),
            queues=queues,
            added=added | {key: now for key, _ in closed},
            totals=totals.named(queues),
        )
        changed = closed or (new.epoch, new.queues) != (ended.epoch, ended.queues)
        if changed and not await ENDED_ACCOUNTS.save(self._engine, ENDED_KEY, new, version):
            # Another process was first.
            return False
        return len(closed) == _STEP_MAX
