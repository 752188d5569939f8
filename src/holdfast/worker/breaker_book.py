"""The records of circuit breakers, as one worker or one person sees them, and changes to them.

Each change is on the version that was read: of two at once, the second reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core import breaker as rules
from holdfast.core.breaker import HOST_PREFIX, KIND, TASK_PREFIX, Breaker, BreakerRecord
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable, NotFound
from holdfast.worker.clock import boot_s
from holdfast.worker.registry import load_all

Change: TypeAlias = Callable[[BreakerRecord, int], BreakerRecord]
"""A record and its age → the next one."""
_TURNS = 20


class Known(NamedTuple):
    record: BreakerRecord
    version: int
    saved_at: float

    @property
    def age_ms(self) -> int:
        return round((boot_s() - self.saved_at) * 1000)


class Book:
    """`policy_of` is asked for the policy of one that has no record yet."""

    def __init__(self, engine: Engine, policy_of: Callable[[str], Breaker | None]) -> None:
        self.known: dict[str, Known] = {}
        self._engine = engine
        self._policy_of = policy_of

    async def load(self) -> None:
        found = await load_all(self._engine, KIND)
        now = boot_s()
        self.known = {
            each.key: Known(_read(each), each.version, now - each.age_ms / 1000) for each in found
        }

    async def change(self, key: str, change: Change, *, anyway: bool = False) -> bool:
        """Whether it was written; `anyway` writes also what stays the same, so that its age is
        nothing again. A host about which there is nothing to say has no record."""
        for _ in range(_TURNS):
            plain = BreakerRecord(policy=self._policy_of(key) or Breaker())
            known = self.known.get(key) or Known(plain, 0, boot_s())
            new = change(known.record, known.age_ms)
            gone = key.startswith(HOST_PREFIX) and rules.is_plain(new)
            same = new == known.record and known.version > 0 and not anyway
            if same or (gone and not known.version):
                return False
            value = None if gone else msgspec.json.encode(new)
            record = Record(kind=KIND, key=key, value=value, version=known.version)
            if await self._engine.save([record]) == [Saved.SAVED]:
                self.known.pop(key, None)
                if not gone:
                    self.known[key] = Known(new, known.version + 1, boot_s())
                return True
            await self.load()
        return False


async def breakers_of(engine: Engine) -> dict[str, Known]:
    """All of them, by name."""
    book = Book(engine, lambda _: None)
    await book.load()
    return dict(sorted(book.known.items()))


async def change_by_hand(engine: Engine, names: Iterable[str], change: Change) -> list[str]:
    """The keys of those that were changed: all, or none if one of the names is not known."""
    book = Book(engine, lambda _: None)
    await book.load()
    keys = [key_of(name, book.known) for name in dict.fromkeys(names)]
    for key in keys:
        if not await book.change(key, change, anyway=True):
            raise EngineUnavailable(f"breaker {key} is being changed all the time: try again")
    return keys


def key_of(name: str, known: Mapping[str, Known]) -> str:
    """Of a breaker that is there; its name may go without its prefix."""
    for key in (name, TASK_PREFIX + name, HOST_PREFIX + name):
        if key in known:
            return key
    raise NotFound(f"no breaker is called {name[:80]!r}")


def _read(record: Record) -> BreakerRecord:
    """What another version wrote and this one cannot read counts as closed."""
    try:
        return msgspec.json.decode(record.value or b"{}", type=BreakerRecord)
    except msgspec.DecodeError:
        return BreakerRecord()
