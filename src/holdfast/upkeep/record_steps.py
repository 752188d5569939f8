"""Steps of the loops that carry out stored plans: redrives and acts.

Each record gets one step per round. A record that cannot be read, or whose step fails, does not
hold up the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.ops.records import SkippedRecords, scan

_log = logging.getLogger("holdfast.upkeep")

TAKEOVER_MS = 5 * bounds.SECOND_MS
"""How long a step is left to the process that began it."""


class RecordSteps:
    """The records of one kind, each with its age on this machine's monotonic clock: an operator may
    set the engine's wall clock."""

    def __init__(
        self, engine: Engine, kind: str, *, boot_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._engine = engine
        self._kind = kind
        self._boot_ns = boot_ns
        self._skipped = SkippedRecords(_log)
        self._first_reads: dict[str, tuple[int, int, int]] = {}
        """By key: the version, when it was first read, and its age then."""
        self.present: set[str] = set()
        """The keys that the last round found."""

    async def round(self, step: Callable[[Record], Awaitable[int | None]]) -> int | None:
        """One step of every record; the time to the next."""
        ahead: list[int] = []
        self.present = set()
        async for record in scan(self._engine, self._kind):
            self.present.add(record.key)
            try:
                next_ms = await step(replace(record, age_ms=self.age_ms(record)))
            except EngineError:
                raise
            except Exception as error:  # noqa: BLE001 (it must not hold up the other records)
                self._skipped.skip(record, error)
                continue
            if next_ms is not None:
                ahead.append(next_ms)
        self._skipped.end_round()
        for key in set(self._first_reads).difference(self.present):
            self._first_reads.pop(key)
        return min(ahead, default=None)

    def age_ms(self, record: Record) -> int:
        """The age that the engine gave when this version was first read, and the time since."""
        version, first_ns, age_ms = self._first_reads.get(record.key, (0, 0, 0))
        if version == record.version:
            return age_ms + self.since_ms(first_ns)
        self._first_reads[record.key] = (record.version, self._boot_ns(), record.age_ms)
        return record.age_ms

    def saved(self, key: str, version: int, before_ns: int) -> None:
        """Note that this process saved a version, and when it began to."""
        self._first_reads[key] = (version, before_ns, 0)

    def now_ns(self) -> int:
        """This machine's monotonic clock."""
        return self._boot_ns()

    def since_ms(self, read_ns: int) -> int:
        """The time since an earlier `now_ns`."""
        return max(0, self._boot_ns() - read_ns) // 1_000_000
