"""The circuit breakers of a store: read them, change them, and show them.

Each change is conditional on the version that was read; after a lost race it reads again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from holdfast.core import breaker as rules
from holdfast.core.breaker import (
    HOST_PREFIX,
    KIND,
    TASK_PREFIX,
    Breaker,
    BreakerRecord,
    BreakerState,
)
from holdfast.engines.base import Engine
from holdfast.errors import NotFound
from holdfast.notation.policies import checked_breaker, show_breaker
from holdfast.ops.records import TRIES_MAX, RecordKind
from holdfast.process import boot_s


def _check_stored(key: str, breaker: BreakerRecord) -> None:
    if not key.startswith((TASK_PREFIX, HOST_PREFIX)):
        raise ValueError(f"its key begins neither with {TASK_PREFIX} nor with {HOST_PREFIX}")
    checked_breaker("policy", breaker.policy)


BREAKERS = RecordKind(KIND, BreakerRecord, fallback=BreakerRecord, check=_check_stored)
"""A breaker that cannot be read counts as closed."""

BreakerChange: TypeAlias = Callable[[BreakerRecord, int], BreakerRecord]
"""A record and its age in milliseconds → the next record."""

_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,240}\Z")


class StoredBreaker(NamedTuple):
    """A breaker as it was read; `saved_at` is on this machine's boot clock."""

    record: BreakerRecord
    version: int
    saved_at: float

    @property
    def age_ms(self) -> int:
        """The time since it was saved."""
        return round((boot_s() - self.saved_at) * 1000)


class BreakerRecords:
    """A snapshot of all breakers, and changes to them. `policy_of` returns the policy of a breaker
    that has no record yet."""

    def __init__(self, engine: Engine, policy_of: Callable[[str], Breaker | None]) -> None:
        self.known: dict[str, StoredBreaker] = {}
        self._engine = engine
        self._policy_of = policy_of

    async def load(self) -> None:
        """Read all breakers again."""
        found = [stored async for stored in BREAKERS.read_all(self._engine)]
        now = boot_s()
        self.known = {
            stored.key: StoredBreaker(stored.value, stored.version, now - stored.age_ms / 1000)
            for stored in found
            if stored.value is not None
        }

    async def change(self, key: str, change: BreakerChange, *, anyway: bool = False) -> bool:
        """Apply a change, and return whether it was written.

        `anyway` writes an unchanged record too, so that its age starts from 0. The record of a
        host with nothing to remember is removed.
        """
        for _ in range(TRIES_MAX):
            plain = BreakerRecord(policy=self._policy_of(key) or Breaker())
            known = self.known.get(key) or StoredBreaker(plain, 0, boot_s())
            new = change(known.record, known.age_ms)
            gone = key.startswith(HOST_PREFIX) and rules.is_plain(new)
            same = new == known.record and known.version > 0 and not anyway
            if same or (gone and not known.version):
                return False
            if await BREAKERS.save(self._engine, key, None if gone else new, known.version):
                self.known.pop(key, None)
                if not gone:
                    self.known[key] = StoredBreaker(new, known.version + 1, boot_s())
                return True
            await self.load()
        return False


async def read_breakers(engine: Engine) -> dict[str, StoredBreaker]:
    """All breakers by key."""
    breakers = BreakerRecords(engine, lambda _: None)
    await breakers.load()
    return dict(sorted(breakers.known.items()))


async def change_breakers(engine: Engine, names: Iterable[str], change: BreakerChange) -> list[str]:
    """Change the named breakers and return their keys. NotFound, before any change, if one of the
    names is unknown."""
    breakers = BreakerRecords(engine, lambda _: None)
    await breakers.load()
    keys = [breaker_key(name, breakers.known) for name in dict.fromkeys(names)]
    for key in keys:
        if not await breakers.change(key, change, anyway=True):
            raise BREAKERS.busy(key)
    return keys


def breaker_key(name: str, known: Mapping[str, StoredBreaker]) -> str:
    """The key of a known breaker; the name may leave out the prefix."""
    for key in (name, TASK_PREFIX + name, HOST_PREFIX + name):
        if key in known:
            return key
    raise NotFound(f'unknown breaker "{name[:80]}": see "holdfast breaker list"')


class _WebhookTarget(msgspec.Struct, frozen=True):
    url: str


def webhook_host(payload: bytes) -> str:
    """`host:port` that a webhook job sends to; "" if its payload names no valid URL."""
    try:
        parts = urlsplit(msgspec.json.decode(payload, type=_WebhookTarget).url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ""
    has_login = parts.username is not None or parts.password is not None
    if parts.scheme not in ("http", "https") or not _HOST.match(host) or has_login or port == 0:
        return ""
    return f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """`opened_by` is the operator who opened it, "" if it opened automatically."""

    name: str
    state: BreakerState
    failures: int
    openings: int
    opened_by: str
    probe_in_ms: int | None
    last: str
    policy: str
    changed_ms_ago: int


def breaker_view(name: str, known: StoredBreaker) -> BreakerView:
    """A breaker as people read it."""
    record = known.record
    return BreakerView(
        name=name,
        state=record.state,
        failures=record.streak,
        openings=record.openings,
        opened_by=record.by,
        probe_in_ms=rules.left_ms(record, known.age_ms),
        last=record.last,
        policy=show_breaker(record.policy),
        changed_ms_ago=max(0, known.age_ms),
    )
