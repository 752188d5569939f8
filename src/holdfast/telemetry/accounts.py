"""The records that hold counts: one account for each process, and one for all that ended.

An account holds everything its process counted since it started, so that writing it twice changes
nothing. The flusher writes it every few seconds, until upkeep closes it; a closed account is added
to the ended ones and then removed. A reader sums the ended ones and all accounts that were not
added yet. A process that is killed loses the counts since its last flush.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.bounds import Count, Instant
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.ops.records import RecordKind, scan
from holdfast.telemetry.event_log import event_key, event_record
from holdfast.telemetry.meter import QUEUES_MAX, Meter, QueueTotals, Totals, rank_queues, sum_totals

_log = logging.getLogger("holdfast.telemetry")

ACCOUNT_KIND: Final = "counters"
ENDED_KEY: Final = "(ended)"

SILENT_MS: Final = 5 * bounds.MINUTE_MS
"""A process that wrote nothing for this long counts as ended. If it has not ended, it begins a new
account.
"""
ALIVE_MS: Final = bounds.MINUTE_MS
"""A process without new counts writes its account this often."""
CROWD: Final = 500
"""With more accounts than this, silent ones are closed sooner."""
CROWD_SILENT_MS: Final = 30 * bounds.SECOND_MS
GONE_MS: Final = 15 * bounds.SECOND_MS
"""How long an account stays after it was added: no reader takes that long."""
REMEMBERED_MS: Final = 10 * bounds.MINUTE_MS
"""How long the key of an added account is remembered: no step takes that long."""
_MEMORY_S = REMEMBERED_MS / 1000 / 2

_EVENT_RECORDS_MAX = 20
"""Records of events that are buffered while the store is unreachable."""


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of one process. Nothing is added once it is `closed`, by its process at the end
    or by upkeep."""

    role: str = ""
    host: str = ""
    pid: Count = 0
    closed: bool = False
    totals: Totals = msgspec.field(default_factory=Totals)


class EndedAccounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sum of all ended processes. `epoch` changes if the counts start from 0. `queues` have
    their own label in the fleet's counts. `added` are the keys of the accounts in the totals, and
    when each was added.
    """

    epoch: str = ""
    queues: tuple[str, ...] = ()
    added: dict[str, Instant] = {}
    totals: Totals = msgspec.field(default_factory=Totals)


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of all processes that the store has."""

    epoch: str = ""
    totals: Totals = msgspec.field(default_factory=Totals)
    processes: int = 0


AnyAccount = TypeVar("AnyAccount", bound=Account | EndedAccounts)


class _AccountKind(RecordKind[AnyAccount]):
    """If an account is too large for a record, the counts of requests are left out, and if that is
    not enough, fewer queues have counts of their own."""

    def encode_value(self, value: AnyAccount) -> bytes:
        data = super().encode_value(value)
        totals = value.totals
        while len(data) > bounds.RECORD_MAX and (totals.requests or len(totals.queues) > 1):
            if totals.requests:
                totals = replace(totals, requests={})
            else:
                totals = totals.busiest(len(totals.queues) * 3 // 4)
            data = super().encode_value(replace(value, totals=totals))
        return data


ACCOUNTS = _AccountKind(ACCOUNT_KIND, Account, label="account")
ENDED_ACCOUNTS = _AccountKind(f"{ACCOUNT_KIND}/{ENDED_KEY}", EndedAccounts, label="account")
"""The one record under ENDED_KEY, beside those of ACCOUNTS."""


def sum_fleet(ended: EndedAccounts, accounts: Sequence[tuple[str, Account]]) -> FleetTotals:
    """The sum of all processes. The busiest queues have names of their own, as `queue_names` will
    store them."""
    new = (account.totals for key, account in accounts if key not in ended.added)
    totals = sum_totals((ended.totals, *new))
    return FleetTotals(
        epoch=ended.epoch,
        totals=totals.named(queue_names(ended, totals.queues)),
        processes=sum(not account.closed for _, account in accounts),
    )


def counts_restarted(before: str, epoch: str) -> bool:
    """True if the counts started from 0 between two epochs; an unknown epoch does not count."""
    return bool(before and epoch) and before != epoch


def queue_names(ended: EndedAccounts, queues: Mapping[str, QueueTotals]) -> tuple[str, ...]:
    """The queues with a name of their own, of all with these counts: the busiest. One that has a
    name keeps it until there is no room and another is twice as busy."""
    known = dict.fromkeys(ended.queues)
    seen = {name: QueueTotals() for name in known} | dict(queues)
    named = rank_queues(seen, known)[:QUEUES_MAX]
    kept = [name for name in known if name in named]
    return (*kept, *sorted(set(named).difference(known)))


def should_close(record: Record, account: Account | None, count: int) -> bool:
    """True if upkeep has to close the account, one of `count`."""
    if account is not None and account.closed:
        return True
    return record.age_ms > (SILENT_MS if count <= CROWD else CROWD_SILENT_MS)


class FleetReader:
    """Reads and sums all accounts, at most every `age_s_max` seconds for all callers. An account
    that has not changed since the last read is not decoded again."""

    def __init__(self, engine: Engine, *, age_s_max: float = 1.0) -> None:
        self._engine = engine
        self._age_s_max = age_s_max
        self._known: dict[str, tuple[int, Account]] = {}
        self._ended = EndedAccounts()
        self._guard = asyncio.Lock()
        self._fleet = FleetTotals()
        self._read_at = float("-inf")

    async def fleet(self) -> FleetTotals:
        """The sum; concurrent callers share one read."""
        async with self._guard:
            if monotonic() - self._read_at >= self._age_s_max:
                self._fleet = await self._read()
                self._read_at = monotonic()
            return self._fleet

    async def _read(self) -> FleetTotals:
        found: dict[str, tuple[int, Account]] = {}
        ended: EndedAccounts | None = None
        async for record in scan(self._engine, ACCOUNT_KIND):
            if record.key == ENDED_KEY:
                ended = ENDED_ACCOUNTS.decode(record)
                continue
            known = self._known.get(record.key)
            if known is None or known[0] != record.version:
                known = (record.version, ACCOUNTS.decode(record) or Account())
            found[record.key] = known
        self._ended = ended or self._ended
        if monotonic() - self._read_at < _MEMORY_S:
            # An account is removed only after it was added. One that is missing otherwise is in an
            # unreachable part of the store: without it, counters would drop and then jump.
            added = self._ended.added
            found |= {
                key: known
                for key, known in self._known.items()
                if key not in found and key not in added
            }
        self._known = found
        return sum_fleet(self._ended, [(key, account) for key, (_, account) in found.items()])


class Flusher:
    """Writes counts and events of one process, each exactly once; `role` is worker, server or app.

    A write of unknown outcome is repeated unchanged before anything else. A process that upkeep
    considered ended continues in a new account.
    """

    def __init__(self, engine: Engine, meter: Meter, role: str, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._meter = meter
        self._role = role
        self._wall_ms = wall_ms
        self._events: list[Record] = []
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Start a new account; its key sorts by role and start."""
        role = re.sub(r"[^a-z]", "", self._role) or "app"
        self.key: str = f"{role}-{self._wall_ms():013d}-{secrets.token_hex(4)}"
        self._version = 0
        self._saved = b"{}"
        self._saved_at = 0
        self._changes = -1
        self._unsure: bytes | None = None
        """A value that may or may not be stored."""

    async def flush(self, *, last: bool = False) -> None:
        """Write what is new. With `last` the account is closed."""
        await self._flush_events()
        if self._unsure is not None:
            await self._save(self._unsure)
        changes, now = self._meter.changes, self._wall_ms()
        quiet = changes == self._changes and 0 <= now - self._saved_at < ALIVE_MS
        if changes and (last or not quiet) and await self._save(self._account(closed=last)):
            self._changes, self._saved_at = changes, now

    def _account(self, *, closed: bool) -> bytes:
        return ACCOUNTS.encode_value(
            Account(
                role=self._role,
                host=socket.gethostname()[:60],
                pid=os.getpid(),
                closed=closed,
                totals=self._meter.totals,
            )
        )

    async def _save(self, value: bytes) -> bool:
        """True if exactly this value is stored; otherwise there is more to write."""
        tried, self._unsure = self._unsure is not None, value
        record = Record(kind=ACCOUNT_KIND, key=self.key, value=value, version=self._version)
        [saved] = await self._engine.save([record])
        if saved is Saved.SAVED:
            self._version, self._saved, self._unsure = self._version + 1, value, None
            return True
        found = await ACCOUNTS.read(self._engine, self.key)
        if found is not None and found.record.value == value:
            # An earlier attempt succeeded, but its answer was lost.
            self._version, self._saved, self._unsure = found.version, value, None
            return True
        # Upkeep closed the account. If it is removed already, what was tried before counts as
        # written, although it may not have been: never twice.
        written = None if found is None else found.value
        written = written or ACCOUNTS.decode_value(value if tried else self._saved)
        _log.info("upkeep considered this process ended: it continues counting in a new account")
        self._meter.subtract(written.totals)
        self._begin()
        return False

    async def _flush_events(self) -> None:
        """Write each record of events once, under the key of its first attempt."""
        now = self._wall_ms()
        new = self._meter.events.take(now)
        if new:
            self._number += 1
            self._events.append(event_record(event_key(now, self.key, self._number), new))
            del self._events[:-_EVENT_RECORDS_MAX]
        if self._events:
            # A stale record is already in the store.
            await self._engine.save(self._events)
            self._events = []
