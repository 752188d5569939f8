"""What a move leaves written down: in the store it leaves, how its queues were; in the one it comes
to, how far it is. Every change is on the version that was read, so that two moves notice."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.core.moving import Mover
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable

KIND = "move"
_OUT, _IN = "out", "in"

Kept = TypeVar("Kept", bound=msgspec.Struct)


class Side(msgspec.Struct, frozen=True):
    """A store at one end of a move; `place` says where it is, without secrets."""

    engine: Engine
    mover: Mover
    place: str


class Phase(StrEnum):
    JOBS = "jobs"
    REST = "rest"
    COMPARED = "compared"
    DONE = "done"


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """Whether a queue took jobs and let them start, before it was closed."""

    accepting: bool
    paused: bool


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """In the store that is left."""

    id: str
    to: str
    queues: dict[str, Opening] = {}


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """In the store that is filled: `after` is the arrival of the last job that is in."""

    id: str
    source: str
    begun_at: int
    phase: Phase = Phase.JOBS
    after: int = 0
    jobs: int = 0


class Slate(Generic[Kept]):
    """One such record, as it was last read or written by this process."""

    def __init__(self, engine: Engine, key: str, type_: type[Kept]) -> None:
        self._engine = engine
        self._key = key
        self._type = type_
        self._version = 0
        self.value: Kept | None = None

    async def read(self) -> Kept | None:
        found = await self._engine.load(KIND, limit=limits.PAGE_MAX)
        record = next((each for each in found if each.key == self._key), None)
        self._version = record.version if record else 0
        self.value = None
        try:
            if record is not None:
                self.value = msgspec.json.decode(
                    zlib.decompress(record.value or b""), type=self._type
                )
        except (msgspec.DecodeError, zlib.error) as error:
            raise ConfigError(
                f"what is written of a move cannot be read ({error}): finish it with the version"
                " of Holdfast that began it"
            ) from None
        return self.value

    async def write(self, value: Kept | None) -> None:
        # Of many thousand queues it would be more than a record may hold.
        data = None if value is None else zlib.compress(msgspec.json.encode(value))
        record = Record(kind=KIND, key=self._key, value=data, version=self._version)
        if (await self._engine.save([record]))[0] is Saved.STALE:
            raise EngineUnavailable("somebody else is at the same move: leave it to them")
        self._version = 0 if value is None else self._version + 1
        self.value = value


def leaving(engine: Engine) -> Slate[Leaving]:
    return Slate(engine, _OUT, Leaving)


def coming(engine: Engine) -> Slate[Coming]:
    return Slate(engine, _IN, Coming)
