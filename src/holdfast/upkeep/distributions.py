"""Distributions as records beside the jobs: which queues feed which, for upkeep to see to."""

from __future__ import annotations

import fnmatch
import re

import msgspec

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable

RECORD_KIND = "distribution"
DEPTH_MAX = 100_000
_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,80}\Z")
_ROUNDS_MAX = 10


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs of the queues that `source` fits, `mail.*`, go on to the queue `target`, in fair turns,
    while fewer than `depth` wait there. `weights` are of those queues, by name; 1 is the rule."""

    source: str
    target: str
    depth: int = 1_000
    weights: dict[str, int] = {}

    def feeds_from(self, queue: str) -> bool:
        return queue != self.target and fnmatch.fnmatchcase(queue, self.source)


class Distributions:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self) -> list[Distribution]:
        """By target. One that another version wrote and this one cannot read is left out."""
        return [found for record in await self._records() if (found := decode(record)) is not None]

    async def put(self, distribution: Distribution) -> None:
        """Add it, or put it in the place of the one with the same target."""
        check_distribution(distribution)
        await self._save(distribution.target, msgspec.json.encode(distribution))

    async def remove(self, target: str) -> bool:
        """False when it was not there."""
        if all(record.key != target for record in await self._records()):
            return False
        await self._save(target, None)
        return True

    async def _save(self, key: str, value: bytes | None) -> None:
        for _ in range(_ROUNDS_MAX):
            versions = {record.key: record.version for record in await self._records()}
            record = Record(kind=RECORD_KIND, key=key, value=value, version=versions.get(key, 0))
            if (await self._engine.save([record]))[0] is Saved.SAVED:
                return
        raise EngineUnavailable(f"the distribution to {key} is being changed by others: try again")

    async def _records(self) -> list[Record]:
        return await self._engine.load(RECORD_KIND, limit=limits.PAGE_MAX)


def decode(record: Record) -> Distribution | None:
    try:
        return msgspec.json.decode(record.value or b"", type=Distribution)
    except msgspec.DecodeError:
        return None


def check_distribution(distribution: Distribution) -> None:
    if not _PATTERN.match(distribution.source):
        raise ConfigError(
            f"{distribution.source[:80]!r} is no pattern of queues: write it like mail.*"
        )
    if not limits.QUEUE_NAME.match(distribution.target):
        raise ConfigError(f"{distribution.target[:80]!r} is no name of a queue")
    if not 1 <= distribution.depth <= DEPTH_MAX:
        raise ConfigError(f"depth {distribution.depth} is not 1 to {DEPTH_MAX}")
    for name, weight in distribution.weights.items():
        if not 1 <= weight <= limits.WEIGHT_MAX:
            raise ConfigError(f"weight {weight} of {name[:80]!r} is not 1 to {limits.WEIGHT_MAX}")
