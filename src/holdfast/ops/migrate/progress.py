"""The records of a migration: in the source, the original state of its queues; in the target, its
progress.

Every change is on the version that was read, so that two runs of the same migration notice each
other.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.bounds import Count, Instant
from holdfast.core.transfer import Mover
from holdfast.engines.base import Engine
from holdfast.errors import EngineUnavailable
from holdfast.ops.records import RecordKind

MOVE_KIND = "move"
_SOURCE_KEY, _TARGET_KEY = "out", "in"
_BYTES_MAX = 32 * 1024 * 1024

Progress = TypeVar("Progress", bound=msgspec.Struct)


class Side(msgspec.Struct, frozen=True):
    """The store at one end of a migration; `place` names it without secrets."""

    engine: Engine
    mover: Mover
    place: str


class Phase(StrEnum):
    """Jobs are copied; then keys and records; then all is compared; then the target is opened."""

    JOBS = "jobs"
    REST = "rest"
    COMPARED = "compared"
    DONE = "done"


class QueueSwitches(msgspec.Struct, frozen=True, array_like=True):
    """Whether a queue accepted jobs and was paused before the migration closed it."""

    accepting: bool
    paused: bool


class SourceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The record in the source store."""

    id: str
    to: str
    queues: dict[str, QueueSwitches] = {}


class TargetProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The record in the target store; `after` is the sequence number of the last copied job."""

    id: str
    source: str
    begun_at: Instant
    phase: Phase = Phase.JOBS
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    jobs: Count = 0


class ProgressRecord(Generic[Progress]):
    """One of the two records, as this process last read or wrote it."""

    def __init__(self, engine: Engine, key: str, kind: RecordKind[Progress]) -> None:
        self._engine = engine
        self._key = key
        self._kind = kind
        self._version = 0
        self.value: Progress | None = None

    async def read(self) -> Progress | None:
        """Read the record; None if there is none. ConfigError if it cannot be read."""
        found = await self._kind.read(self._engine, self._key)
        self._version = 0 if found is None else found.version
        self.value = None if found is None else self._kind.require(found.record)
        return self.value

    async def write(self, value: Progress | None) -> None:
        """Write the record, or remove it with None. EngineUnavailable if another run was first."""
        if not await self._kind.save(self._engine, self._key, value, self._version):
            raise EngineUnavailable("another process moves the same store: let it finish")
        self._version = 0 if value is None else self._version + 1
        self.value = value


def source_progress(engine: Engine) -> ProgressRecord[SourceProgress]:
    """The record of a migration in its source store."""
    return ProgressRecord(engine, _SOURCE_KEY, _SOURCES)


def target_progress(engine: Engine) -> ProgressRecord[TargetProgress]:
    """The record of a migration in its target store."""
    return ProgressRecord(engine, _TARGET_KEY, _TARGETS)


class _CompressedKind(RecordKind[Progress]):
    """The queues of a large store, uncompressed, are more than a record may hold."""

    def encode_value(self, value: Progress) -> bytes:
        return zlib.compress(super().encode_value(value))

    def decode_value(self, data: bytes) -> Progress:
        unpacker = zlib.decompressobj()
        try:
            text = unpacker.decompress(data, _BYTES_MAX)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or over {_BYTES_MAX} bytes uncompressed")
        return super().decode_value(text)


_REMEDY = "finish the move with the version of Holdfast that began it"
_SOURCES = _CompressedKind(f"{MOVE_KIND}/{_SOURCE_KEY}", SourceProgress, remedy=_REMEDY)
_TARGETS = _CompressedKind(f"{MOVE_KIND}/{_TARGET_KEY}", TargetProgress, remedy=_REMEDY)
