"""Typed records stored with the jobs: read, page through, create, change and remove them.

A `RecordKind` owns how one kind is encoded, decoded and checked. `update` is the one
compare-and-set loop. A stored record is hostile input: its bounds are checked before it is saved
and again when it is read. One that cannot be read is isolated, reported by the doctor and an alert,
and can be removed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    HoldfastError,
    UsageError,
)

_log = logging.getLogger("holdfast.records")

TRIES_MAX = 20
"""Lost races after which `update` gives up."""

_FIRST_PAGE = 20
_FAULT_MAX = 300
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, UsageError)
_KINDS: dict[tuple[str, str], RecordKind[Any]] = {}
"""Every kind by its name and, if its records are told apart by key, the key."""

Value = TypeVar("Value")


class Stored(NamedTuple, Generic[Value]):
    """A record and its decoded value; the value is None if this version cannot read it."""

    record: Record
    value: Value | None

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def version(self) -> int:
        return self.record.version

    @property
    def age_ms(self) -> int:
        return self.record.age_ms


class RecordKind(Generic[Value]):
    """All records of one kind, as values of one type.

    `fallback` replaces a value that cannot be read; with `strict`, `update` raises instead.
    `check` gets the key and the value, and raises UsageError or ValueError if a bound is exceeded
    that the type does not express. `remedy` ends the error that `require` raises. If one key holds
    another type than the others, its kind has the name `kind/key`.
    """

    is_log = False

    def __init__(
        self,
        name: str,
        type: type[Value],
        *,
        label: str = "",
        remedy: str = "another version of Holdfast wrote it",
        strict: bool = False,
        fallback: Callable[[], Value] | None = None,
        check: Callable[[str, Value], None] | None = None,
    ) -> None:
        self.name: str
        self.name, _, only = name.partition("/")
        self._label = label or self.name
        self._remedy = remedy
        self._strict = strict
        self._fallback = fallback
        self._check = check
        self.type = type
        self._decoder = msgspec.json.Decoder(type)
        _KINDS[self.name, only] = self

    def encode_value(self, value: Value) -> bytes:
        """The stored form: JSON, unless a subclass has another one."""
        return msgspec.json.encode(value)

    def decode_value(self, data: bytes) -> Value:
        """The value of a stored form. Raises MsgspecError or ValueError if it cannot be read."""
        return self._decoder.decode(data)

    def decode(self, record: Record) -> Value | None:
        """The value of a record; the fallback, or else None, if it cannot be read."""
        try:
            return self._read(record)
        except _UNREADABLE as error:
            _log.debug("the record of %s %s is not readable: %s", self._label, record.key, error)
            return None if self._fallback is None else self._fallback()

    def require(self, record: Record) -> Value:
        """The value of a record. ConfigError if it cannot be read."""
        try:
            return self._read(record)
        except _UNREADABLE as error:
            raise ConfigError(
                f"the record of {self._label} {record.key} cannot be read ({error}): {self._remedy}"
            ) from None

    def record(self, key: str, value: Value | None, version: int = 0) -> Record:
        """The record to save; None as the value removes it. ConfigError if it is out of bounds."""
        if value is None:
            return Record(kind=self.name, key=key, value=None, version=version)
        record = Record(kind=self.name, key=key, value=self.encode_value(value), version=version)
        self.check(record)
        return record

    def check(self, record: Record) -> None:
        """Raise ConfigError unless the value of a record to save can be read back."""
        why = self.fault(record)
        if why:
            raise ConfigError(
                f"the record {record.key[:80]!r} is not a valid {self.name}, so it is not stored:"
                f" {why}"
            )

    def fault(self, record: Record) -> str:
        """Why the value of a record cannot be read; "" if it can."""
        try:
            self._read(record)
        except _UNREADABLE as error:
            return " ".join(str(error).split())[:_FAULT_MAX] or type(error).__name__
        return ""

    async def read(self, engine: Engine, key: str) -> Stored[Value] | None:
        """The record under this key; None if there is none."""
        try:
            checks.check_text("record key", key)
        except UsageError:
            # No record can have this key.
            return None
        # Every proper prefix sorts before the key, and few other keys lie between the two.
        after, limit = key[:-1] or None, min(_FIRST_PAGE, bounds.PAGE_MAX)
        while True:
            page = await engine.load(self.name, after=after, limit=limit)
            for record in page:
                if record.key == key:
                    return Stored(record, self.decode(record))
            if len(page) < limit or page[-1].key > key:
                return None
            after, limit = page[-1].key, bounds.PAGE_MAX

    async def read_all(
        self, engine: Engine, after: str | None = None
    ) -> AsyncIterator[Stored[Value]]:
        """Every record by key, unreadable ones too, in bounded pages."""
        async for record in scan(engine, self.name, after):
            yield Stored(record, self.decode(record))

    async def values(self, engine: Engine) -> dict[str, Value]:
        """Every readable value by key."""
        return {
            stored.key: stored.value
            async for stored in self.read_all(engine)
            if stored.value is not None
        }

    async def save(self, engine: Engine, key: str, value: Value | None, version: int) -> bool:
        """Make one conditional write on the version that was read; False if another writer was
        first.
        """
        return await engine.save([self.record(key, value, version)]) == [Saved.SAVED]

    async def create(self, engine: Engine, key: str, value: Value) -> bool:
        """Create a record; False if one with this key exists."""
        return await self.save(engine, key, value, version=0)

    async def update(
        self,
        engine: Engine,
        key: str,
        change: Callable[[Value | None], Value | None],
        *,
        tries_max: int = TRIES_MAX,
    ) -> Value | None:
        """Write the result of `change` on the current value, and return it. `change` gets None if
        there is no readable record; it returns None to remove the record, or the same object to
        leave the record unchanged. It runs again after a concurrent write.
        """
        stored = await self.update_stored(engine, key, change, tries_max=tries_max)
        return None if stored is None else stored.value

    async def update_stored(
        self,
        engine: Engine,
        key: str,
        change: Callable[[Value | None], Value | None],
        *,
        known: Stored[Value] | None = None,
        tries_max: int = TRIES_MAX,
    ) -> Stored[Value] | None:
        """As `update`, but returns the record with its new version. `known` is the record as the
        caller has just read or written it, so that it need not be read again.
        """
        for _ in range(tries_max):
            found, known = known or await self.read(engine, key), None
            old = None if found is None else found.value
            if self._strict and found is not None:
                old = self.require(found.record)
            new = change(old)
            if new is old and (new is not None or found is None):
                return found
            record = self.record(key, new, 0 if found is None else found.version)
            if await engine.save([record]) == [Saved.SAVED]:
                return Stored(replace(record, version=record.version + 1), new)
        raise self.busy(key)

    async def remove(
        self, engine: Engine, key: str, *, check: Callable[[Record], None] | None = None
    ) -> bool:
        """Remove a record, readable or not; False if there is none. `check` raises to refuse the
        removal.
        """
        for _ in range(TRIES_MAX):
            found = await self.read(engine, key)
            if found is None:
                return False
            if check is not None:
                check(found.record)
            if await self.save(engine, key, None, found.version):
                return True
        raise self.busy(key)

    def busy(self, key: str) -> EngineUnavailable:
        """The error after too many lost races."""
        return EngineUnavailable(f"{self._label} {key} is being changed by others: try again")

    def _read(self, record: Record) -> Value:
        value = self.decode_value(record.value or b"")
        if self._check is not None:
            self._check(record.key, value)
        return value


class LogKind(RecordKind[Value]):
    """Records that are many, written by Holdfast alone and removed by age. Only a deep check reads
    them all."""

    is_log = True


def kind_of(record: Record) -> RecordKind[Any] | None:
    """The kind that reads this record; None if this process has none."""
    return _KINDS.get((record.kind, record.key)) or _KINDS.get((record.kind, ""))


def kinds(*, logs: bool = True) -> list[str]:
    """The names of all kinds that this process reads, with or without logs."""
    return sorted({name for (name, _), kind in _KINDS.items() if logs or not kind.is_log})


def check_same(field: str, value: str, key: str) -> None:
    """Raise ValueError unless a field that repeats the record's key equals it."""
    if value != key:
        raise ValueError(f"its {field} is {value[:80]!r}")


class SkippedRecords:
    """Logs the records that a loop skips: each version once, not in every round."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def skip(self, record: Record, error: Exception) -> None:
        """Log a record, unless the last round skipped the same version."""
        self._now[record.key] = record.version
        if self._before.get(record.key) != record.version:
            known = isinstance(error, HoldfastError)
            text = str(error) if known else repr(error)
            self._log.warning(
                "%s %s is skipped: %s",
                record.kind,
                record.key[:80],
                text,
                exc_info=None if known else error,
            )

    def end_round(self) -> None:
        """Forget the records that were not skipped in this round."""
        self._before, self._now = self._now, {}


async def scan(engine: Engine, kind: str, after: str | None = None) -> AsyncIterator[Record]:
    """Every record of a kind by key, undecoded, read in pages."""
    async for page in pages(engine, kind, after):
        for record in page:
            yield record


async def pages(
    engine: Engine, kind: str, after: str | None = None, *, size: int | None = None
) -> AsyncIterator[list[Record]]:
    """The records of a kind by key, undecoded, page by page."""
    size = size or bounds.PAGE_MAX
    while True:
        page = await engine.load(kind, after=after, limit=size)
        yield page
        if len(page) < size:
            return
        after = page[-1].key


async def remove_records(engine: Engine, records: Sequence[Record]) -> None:
    """Remove records that are still as they were read, a batch in each call."""
    for start in range(0, len(records), bounds.BATCH_MAX):
        batch = records[start : start + bounds.BATCH_MAX]
        await engine.save([replace(record, value=None) for record in batch])
