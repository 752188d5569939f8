"""One partition: its engine, its health, and the identity of its store.

The partition map lists the stores that are the partitions, in order; each store holds a copy. A
store is recognised by the id that is stored in it; its name is for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.model import QueueView, Record
from holdfast.engines.base import Engine
from holdfast.engines.extras import FileBacked, PartitionView, extra
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    HoldfastError,
    SchemaMismatch,
    StorageFull,
)

KIND = "partition"
_STORE, _MAP, _PROBE = "store", "map", "probe"

RETRY_MS_FIRST, RETRY_MS_MAX = 100, 30_000
WELL_MS = 60_000
"""After this time without failures the back-off starts from the beginning."""


class Partition:
    """`place` is its index in the partition map; `name` is shown to people."""

    def __init__(self, place: int, name: str, engine: Engine) -> None:
        self.place = place
        self.name = name
        self.engine = engine
        self.files: FileBacked | None = extra(engine, FileBacked)
        self.health: PartitionHealth = PartitionHealth()
        self._ready: dict[str, int] = {}
        self.waiting: int = 0
        """Approximate number of jobs that are not yet leased."""

    @property
    def is_in(self) -> bool:
        """In use, not shut out."""
        return not self.health.is_out

    async def open(self) -> PartitionIdentity:
        """Open the engine and read which store it is. Idempotent."""
        await self.engine.open()
        return read_identity(await self.engine.load(KIND, limit=100))

    async def create(self) -> PartitionIdentity:
        """Open a store, which may be new. A missing folder is not created: it may be on a disk that
        is not mounted."""
        if gone := await self.missing(creating=True):
            raise ConfigError(f"{gone}: create it first, or correct the URL")
        return await self.open()

    async def reopen(self) -> PartitionIdentity:
        """Open a store that was in use before. A missing file is not created: it would collide
        with a backup that an operator is restoring."""
        if gone := await self.missing():
            raise self.lost(gone)
        # The file may disappear at this moment, so this call must not create it either.
        await (self.engine.open() if self.files is None else self.files.reopen())
        return await self.open()

    async def missing(self, *, creating: bool = False) -> str:
        """The file or folder that opening would have to create, in words; "" if there is none."""
        if self.files is None:
            return ""
        return await asyncio.to_thread(self.files.missing, creating=creating)

    def lost(self, gone: str) -> EngineUnavailable:
        """The error of a store that was in use before and is `gone`."""
        return EngineUnavailable(
            f"{gone}, but it was partition {self.place + 1}: restore it from a backup"
        )

    async def close(self) -> None:
        await self.engine.close()

    async def read_lifecycle(self) -> None:
        """Make the reads of upkeep, and read the counts: a store that answers these can be used."""
        await self.engine.overdue(1)
        await self.engine.expired(1)
        await self.count()

    async def write(self) -> None:
        """Check that the store can be written: a readable one may be read-only."""
        kept = await self.engine.load(KIND, after=_PROBE[:-1], limit=1)
        version = kept[0].version if kept and kept[0].key == _PROBE else 0
        await self.engine.save([Record(kind=KIND, key=_PROBE, value=b"", version=version)])

    async def count(self) -> None:
        self.counted(await self.engine.queues())

    def counted(self, views: Iterable[QueueView]) -> None:
        each = list(views)
        self._ready = {view.queue.name: view.ready for view in each}
        self.waiting = sum(view.ready + view.delayed + view.blocked for view in each)

    def ready(self, queues: Iterable[str]) -> int:
        return sum(self._ready.get(queue, 0) for queue in queues)

    def changed(self, queue: str, count: int) -> None:
        """Adjust the count by `count` jobs until it is read again."""
        self._ready[queue] = max(0, self._ready.get(queue, 0) + count)
        self.waiting = max(0, self.waiting + count)

    def view(self, now: int) -> PartitionView:
        health = self.health
        return PartitionView(
            name=self.name,
            waiting=self.waiting,
            out_ms=None if health.out_at is None else now - health.out_at,
            code="" if health.error is None else health.error.code,
            text="" if health.error is None else str(health.error),
        )

    def unavailable(self) -> EngineUnavailable:
        return EngineUnavailable(
            f"partition {self.name} is shut out ({self.health.error}): try again later"
        )


class PartitionHealth(msgspec.Struct, frozen=True, kw_only=True):
    """`out_at` is None while in use; `error` is the reason, or that of the last failed attempt. A
    partition that fails again soon after it came back continues its back-off, so that a flapping
    one is tried rarely.
    """

    out_at: int | None = None
    well_at: int = 0
    failures: int = 0
    error: HoldfastError | None = None

    @property
    def is_out(self) -> bool:
        return self.out_at is not None

    @property
    def settles(self) -> bool:
        """True if leases can be settled there: a full disk refuses only new jobs."""
        return not self.is_out or isinstance(self.error, StorageFull)


def after_failure(health: PartitionHealth, error: HoldfastError, now: int) -> PartitionHealth:
    """The health after a failed call or a failed try to reopen."""
    if health.is_out:
        return replace(health, failures=health.failures + 1, error=error)
    forgotten = now - health.well_at >= WELL_MS
    return replace(
        health, out_at=now, failures=1 if forgotten else health.failures + 1, error=error
    )


def after_clean_read(health: PartitionHealth, now: int) -> PartitionHealth:
    """The health of a partition that comes back."""
    return replace(health, out_at=None, well_at=now, error=None)


def retry_ms(health: PartitionHealth) -> int:
    """The time to the next attempt, before jitter."""
    return min(RETRY_MS_MAX, RETRY_MS_FIRST << min(max(health.failures - 1, 0), 20))


class PartitionStore(msgspec.Struct, frozen=True):
    """One entry of the partition map: the id of a store, and its name in the URL."""

    id: str
    name: str


class PartitionIdentity(msgspec.Struct, frozen=True):
    """The id and the map that are stored in one store; None if not written yet."""

    store: str | None = None
    map: tuple[PartitionStore, ...] | None = None


def read_identity(records: Sequence[Record]) -> PartitionIdentity:
    """Read from the partition records of a store."""
    found = {record.key: record.value for record in records}
    own, known = found.get(_STORE), found.get(_MAP)
    try:
        return PartitionIdentity(
            None if own is None else own.decode(),
            None if known is None else msgspec.json.decode(known, type=tuple[PartitionStore, ...]),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaMismatch(f"its partition map cannot be read ({error}): restore it") from None


def store_record(id: str) -> Record:
    """The record that gives a store its id."""
    return Record(kind=KIND, key=_STORE, value=id.encode())


def map_record(stores: Sequence[PartitionStore]) -> Record:
    """The record that holds the map."""
    return Record(kind=KIND, key=_MAP, value=msgspec.json.encode(stores))


def known_map(
    names: Sequence[str], identities: Mapping[int, PartitionIdentity]
) -> tuple[PartitionStore, ...] | None:
    """The map that the stores that were read agree on; None if there is none yet."""
    maps = {
        place: found.map for place, found in sorted(identities.items()) if found.map is not None
    }
    first = min(maps, default=0)
    for place, other in maps.items():
        if [store.id for store in other] != [store.id for store in maps[first]]:
            raise ConfigError(
                f"{names[first]} and {names[place]} are partitions of different sets"
                f" ({_list(maps[first])}; {_list(other)}): list only stores of one set"
            )
    return maps.get(first)


def check_map(
    stores: Sequence[PartitionStore],
    names: Sequence[str],
    identities: Mapping[int, PartitionIdentity],
) -> None:
    """Raise ConfigError unless the stores that were read match the map and its order, and
    EngineUnavailable for a store that was lost."""
    if len(stores) != len(names):
        raise _changed(
            f"these stores are {len(stores)} partitions ({_list(stores)}) and the URL lists"
            f" {len(names)}",
            stores,
        )
    ids = [store.id for store in stores]
    for place, found in sorted(identities.items()):
        if found.map is not None and [store.id for store in found.map] != ids:
            raise _changed(
                f"{names[place]} is a partition of another set ({_list(found.map)})", stores
            )
        if found.store == ids[place]:
            continue
        if found.store in ids:
            was = ids.index(found.store)
            raise _changed(
                f"{names[place]} is listed as partition {place + 1} but is partition {was + 1}",
                stores,
            )
        if found.store is None and names[place] == stores[place].name:
            raise EngineUnavailable(
                f"{names[place]} is empty, but partition {place + 1} is not: it was deleted or"
                " replaced; restore it from a backup"
            )
        raise _changed(
            f"{names[place]} is not the store of partition {place + 1} ({stores[place].name})",
            stores,
        )


def check_distinct(names: Sequence[str], identities: Mapping[int, PartitionIdentity]) -> None:
    """ConfigError if two partitions are the same store."""
    seen: dict[str | None, int] = {}
    for place, found in sorted(identities.items()):
        if found.store in seen:
            raise ConfigError(
                f"partitions {seen[found.store] + 1} and {place + 1} ({names[place]}) are the"
                " same"
                " store: list each once"
            )
        seen[found.store] = place


def _changed(what: str, stores: Sequence[PartitionStore]) -> ConfigError:
    return ConfigError(
        f"the partition map changed: {what}. List {_list(stores)}, in this order; to change the"
        " number of partitions, move the jobs to new stores"
    )


def _list(stores: Sequence[PartitionStore]) -> str:
    return ", ".join(store.name for store in stores)
