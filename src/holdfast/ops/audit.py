"""The audit log: an entry for every operator's act, written before the act and completed after.

An entry without an outcome was begun by a server that died; the jobs show whether the act
happened. Newest entries come first. Old ones, and those beyond a bound, are removed.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.bounds import Count, Instant
from holdfast.core.model import JobFilter, Queue, Record
from holdfast.core.verdict import Amendment, Edit, Move
from holdfast.engines.base import Engine, Known
from holdfast.errors import HoldfastError, StorageFull
from holdfast.notation.durations import show_at
from holdfast.ops.records import LogKind, remove_records

AUDIT_KIND = "audit"
RETENTION_MS = 90 * bounds.DAY_MS
ENTRIES_MAX = 10_000

_FAR_MS = 10**14
_TIDY_EVERY = 200
_ON_MAX = 1_000
_log = logging.getLogger("holdfast.audit")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`who` is the name of a token or a person, `token` the token's id, `peer` the remote address.
    `outcome` is "done" or an error code; "" is unknown. `changed` counts what was changed."""

    at: Instant
    who: str
    what: str
    on: str = ""
    token: str = ""
    peer: str = ""
    outcome: str = ""
    changed: Count | None = None


ENTRIES = LogKind(AUDIT_KIND, AuditEntry, label="audit entry")


class Audit:
    """The audit log of one namespace. `wall_ms` is this server's clock."""

    def __init__(self, engine: Callable[[], Engine], wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._written = 0

    @asynccontextmanager
    async def doing(self, act: AuditEntry) -> AsyncIterator[AuditedChange]:
        """Write the entry, do the act in the `with` body, and complete the entry.

        If the entry cannot be written the act is not done, unless the disk is full: then it is only
        logged, because the act may be the deletion that frees space.
        """
        act = replace(act, at=self._wall_ms(), on=checks.clean_text(act.on, _ON_MAX))
        change = AuditedChange()
        record = await self._begin(act)
        try:
            yield change
        except HoldfastError as error:
            await self._end(record, replace(act, outcome=error.code))
            raise
        await self._end(record, replace(act, outcome="done", changed=change.changed))

    async def note_once(self, entry: AuditEntry, about: str) -> None:
        """Write a complete entry. Repeating it with the same time and `about` writes nothing."""
        entry = replace(entry, on=checks.clean_text(entry.on, _ON_MAX))
        digest = hashlib.blake2b(f"{entry.what} {about}".encode(), digest_size=4).hexdigest()
        await ENTRIES.create(self._engine(), f"{_FAR_MS - entry.at:015d}-{digest}", entry)

    async def page(
        self, *, after: str | None = None, limit: int = 100
    ) -> list[tuple[str, AuditEntry | None]]:
        """The newest entries, each with its key, which the next page takes as `after`; None for an
        entry that this version cannot read."""
        found = await self._engine().load(AUDIT_KIND, after=after, limit=limit)
        return [(record.key, ENTRIES.decode(record)) for record in found]

    async def _begin(self, act: AuditEntry) -> Record | None:
        if self._written % _TIDY_EVERY == 0:
            await self._tidy()
        self._written += 1
        record = ENTRIES.record(_key(act.at, self._written), act)
        try:
            await self._engine().save([record])
        except StorageFull:
            _log.warning("not in the audit log, because the disk is full: %s", _sentence(act))
            return None
        return replace(record, version=1)

    async def _end(self, record: Record | None, act: AuditEntry) -> None:
        """Complete the entry. If that fails it stays without an outcome, and the error is
        logged.
        """
        if record is None:
            _log.warning("%s: %s", _sentence(act), act.outcome)
            return
        try:
            await self._engine().save([ENTRIES.record(record.key, act, record.version)])
        except HoldfastError as error:
            _log.warning(
                "the outcome of %s, %s, is not in the audit log: %s",
                _sentence(act),
                act.outcome,
                error,
            )

    async def _tidy(self) -> None:
        """Remove one batch of entries that are too old or beyond the bound."""
        engine = self._engine()
        try:
            old = await engine.load(
                AUDIT_KIND, after=_key(self._wall_ms() - RETENTION_MS), limit=bounds.PAGE_MAX
            )
            after: str | None = None
            for _ in range(ENTRIES_MAX // bounds.PAGE_MAX):
                page = await engine.load(AUDIT_KIND, after=after, limit=bounds.PAGE_MAX)
                if len(page) < bounds.PAGE_MAX:
                    break
                after = page[-1].key
            else:
                old += await engine.load(AUDIT_KIND, after=after, limit=bounds.PAGE_MAX)
            unique = list({record.key: record for record in old}.values())
            await remove_records(engine, unique[: bounds.BATCH_MAX])
        except HoldfastError as error:
            _log.warning("old audit entries were not removed: %s", error)


class AuditedChange:
    """The result of an act; the `with` body sets `changed` if there is something to count."""

    changed: int | None = None


def describe_queue(queue: Queue, instead_of: Known) -> str:
    """The queue, and which of its settings change."""
    base = instead_of if isinstance(instead_of, Queue) else Queue(name=queue.name)
    changes = [
        f"{name}={getattr(queue, name)!r}"
        for name in queue.__struct_fields__
        if getattr(queue, name) != getattr(base, name)
    ]
    return " ".join([queue.name, *changes])


def describe_jobs(wanted: JobFilter, amendment: Amendment) -> str:
    """The filter, which fields change, without any payload, and the reason."""
    on = _describe_filter(wanted)
    if isinstance(amendment, Move):
        on += f" to queue {amendment.queue}"
    if isinstance(amendment, Edit):
        fields = [name for name in amendment.__struct_fields__ if name not in ("by", "text")]
        given = [name for name in fields if getattr(amendment, name) is not None]
        on += f" changing: {', '.join(given)}"
    return with_reason(on, getattr(amendment, "text", ""))


def _describe_filter(wanted: JobFilter) -> str:
    """The given fields: queue=mail states=waiting,leased"""
    parts = []
    for name, value in msgspec.to_builtins(wanted).items():
        match value:
            case dict():
                text = ",".join(f"{key}={each}" for key, each in value.items())
            case list() | tuple():
                text = ",".join(value)
            case _:
                text = str(value)
        parts.append(f"{name}={shlex.quote(text)}")
    return " ".join(parts) or "all jobs"


def with_reason(on: str, text: str) -> str:
    """The target of an act and the reason for it, if there is one. A long target is cut, so that
    the reason fits."""
    return f"{on[: _ON_MAX // 2]}; reason: {text}" if text else on


def describe_records(records: Sequence[Record]) -> str:
    """The keys of the first records."""
    return ", ".join(record.key for record in records[:20])


def _key(at: int, number: int = 0) -> str:
    """Sorts newer entries first, also those that one server wrote in the same millisecond."""
    return f"{_FAR_MS - at:015d}-{0xFFFF - number % 0x10000:04x}{secrets.token_hex(2)}"


def _sentence(act: AuditEntry) -> str:
    return f"{act.what} by {act.who} ({act.peer}) on {act.on}"


class ActView(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is "done", an error code, or null if it is not known."""

    at: str
    who: str
    token: str | None
    peer: str | None
    what: str
    on: str
    outcome: str | None
    changed: int | None


def act_view(act: AuditEntry) -> ActView:
    """An entry as people read it."""
    return ActView(
        at=show_at(act.at),
        who=act.who,
        token=act.token or None,
        peer=act.peer or None,
        what=act.what,
        on=act.on,
        outcome=act.outcome or None,
        changed=act.changed,
    )
