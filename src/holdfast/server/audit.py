"""Who did what: a record of every operator's act, written before it is done and completed after.

One that has no outcome was begun by a server that died: whether it happened is to be seen from
the jobs. The newest come first; what is old, or too much, is forgotten.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import JobFilter, Queue, Record
from holdfast.core.verdict import Amendment, Edit, Move
from holdfast.engines.base import Engine, Known
from holdfast.errors import HoldfastError, StorageFull

KIND = "audit"
KEPT_MS = 90 * limits.DAY_MS
KEPT_MAX = 10_000

_FAR_MS = 10**14
_TIDY_EVERY = 200
_ON_MAX = 1_000
_log = logging.getLogger("holdfast.audit")


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`who` is the name of a token or of a person, `token` the id of the token, `peer` where they
    were. `outcome` is "done" or the code of an error; "" is not known. `changed` is how many."""

    at: int
    who: str
    what: str
    on: str = ""
    token: str = ""
    peer: str = ""
    outcome: str = ""
    changed: int | None = None


class Audit:
    """Of one namespace, whose engine this is. `wall_ms` is this server's clock."""

    def __init__(self, engine: Callable[[], Engine], wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._written = 0

    @asynccontextmanager
    async def doing(self, act: Act) -> AsyncIterator[Noted]:
        """Around the act. What cannot be written down is not done, unless the disk is full: then
        the log must do, because clearing away is what helps."""
        act = replace(act, at=self._wall_ms(), on=checks.clean_text(act.on, _ON_MAX))
        noted = Noted()
        record = await self._begin(act)
        try:
            yield noted
        except HoldfastError as error:
            await self._end(record, replace(act, outcome=error.code))
            raise
        await self._end(record, replace(act, outcome="done", changed=noted.changed))

    async def page(
        self, *, after: str | None = None, limit: int = 100
    ) -> list[tuple[str, Act | None]]:
        """The newest first, each with the key that the next page goes on `after`; None for what
        another version wrote and this one cannot read."""
        found = await self._engine().load(KIND, after=after, limit=limit)
        return [(record.key, _read(record)) for record in found]

    async def _begin(self, act: Act) -> Record | None:
        if self._written % _TIDY_EVERY == 0:
            await self._tidy()
        self._written += 1
        key = _key(act.at, self._written)
        record = Record(kind=KIND, key=key, value=msgspec.json.encode(act))
        try:
            await self._engine().save([record])
        except StorageFull:
            _log.warning("not kept, for lack of room: %s", _told(act))
            return None
        return replace(record, version=1)

    async def _end(self, record: Record | None, act: Act) -> None:
        """Failing this, it stays as one of which nothing is known, and the log says more."""
        if record is None:
            _log.warning("%s: %s", _told(act), act.outcome)
            return
        try:
            await self._engine().save([replace(record, value=msgspec.json.encode(act))])
        except HoldfastError as error:
            _log.warning("the outcome of %s, %s, is not kept: %s", _told(act), act.outcome, error)

    async def _tidy(self) -> None:
        """Some, at each look."""
        engine = self._engine()
        try:
            old = await engine.load(
                KIND, after=_key(self._wall_ms() - KEPT_MS), limit=limits.PAGE_MAX
            )
            after: str | None = None
            for _ in range(KEPT_MAX // limits.PAGE_MAX):
                page = await engine.load(KIND, after=after, limit=limits.PAGE_MAX)
                if len(page) < limits.PAGE_MAX:
                    break
                after = page[-1].key
            else:
                old += await engine.load(KIND, after=after, limit=limits.PAGE_MAX)
            gone = {record.key: replace(record, value=None) for record in old}
            if gone:
                await engine.save(list(gone.values())[: limits.BATCH_MAX])
        except HoldfastError as error:
            _log.warning("the audit is not tidied: %s", error)


class Noted:
    """What the act comes to, if there is something to count."""

    changed: int | None = None


def about_queue(queue: Queue, instead_of: Known) -> str:
    """The queue, and what is changed of it."""
    base = instead_of if isinstance(instead_of, Queue) else Queue(name=queue.name)
    changes = [
        f"{name}={getattr(queue, name)!r}"
        for name in queue.__struct_fields__
        if getattr(queue, name) != getattr(base, name)
    ]
    return " ".join([queue.name, *changes])


def about_jobs(wanted: JobFilter, amendment: Amendment) -> str:
    """The filter, and what is changed, but no payload."""
    told = msgspec.json.encode(wanted).decode()
    if isinstance(amendment, Move):
        return f"{told} to {amendment.queue}"
    if isinstance(amendment, Edit):
        fields = [name for name in amendment.__struct_fields__ if name not in ("by", "text")]
        given = [name for name in fields if getattr(amendment, name) is not None]
        return f"{told}: {', '.join(given)}"
    return told


def about_records(records: Sequence[Record]) -> str:
    return ", ".join(record.key for record in records[:20])


def _key(at: int, number: int = 0) -> str:
    """The newer, the earlier; also of those that one server wrote in the same instant."""
    return f"{_FAR_MS - at:015d}-{0xFFFF - number % 0x10000:04x}{secrets.token_hex(2)}"


def _read(record: Record) -> Act | None:
    try:
        return msgspec.json.decode(record.value or b"", type=Act)
    except msgspec.DecodeError:
        return None


def _told(act: Act) -> str:
    return f"{act.what} by {act.who} ({act.peer}) on {act.on}"
