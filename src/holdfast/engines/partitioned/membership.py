"""Are the partitions the stores of one map, in its order? The first opening of all makes the map;
every later one, and every return of a store, is compared with it."""

from __future__ import annotations

from collections.abc import Sequence

import uuid_utils

from holdfast.core.model import JobFilter
from holdfast.engines.base import Saved
from holdfast.engines.partitioned.map import (
    Identity,
    Store,
    check_distinct,
    check_map,
    known_map,
    map_record,
    store_record,
)
from holdfast.engines.partitioned.partition import Partition
from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    UsageError,
)


class Membership:
    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._all = partitions
        self._names = [each.name for each in partitions]
        self._stores: tuple[Store, ...] | None = None

    async def agree(self, identities: dict[int, Identity]) -> dict[int, EngineError]:
        """Of the stores that could be opened, which are lost, by place. ConfigError if the map
        is another."""
        stores = known_map(self._names, identities)
        if stores is None:
            stores = await self._found(identities)
        self._stores = stores
        for partition in self._all:
            # A place that cannot be opened is a fault of that store, unless it is another place.
            renamed = (
                partition.place >= len(stores) or partition.name != stores[partition.place].name
            )
            if isinstance(partition.health.error, UsageError) and renamed:
                raise partition.health.error
        check_map(stores, self._names, {})
        lost: dict[int, EngineError] = {}
        for place, found in identities.items():
            partition = self._all[place]
            try:
                # All are named before there is a map: this one may have been read before that.
                now = await partition.open() if found.store is None else found
                await self.confirm(partition, now)
            except EngineError as error:
                lost[place] = error
        return lost

    async def confirm(self, partition: Partition, found: Identity) -> None:
        """It is what the map says; if it was to hear of the map and did not, it hears now."""
        assert self._stores is not None
        check_map(self._stores, self._names, {partition.place: found})
        if found.map is None:
            [saved] = await partition.engine.save([map_record(self._stores)])
            if saved is Saved.STALE:
                check_map(self._stores, self._names, {partition.place: await partition.open()})

    async def _found(self, identities: dict[int, Identity]) -> tuple[Store, ...]:
        """The first opening of all: each store gets its id, then all of them the map."""
        for partition in self._all:
            if not partition.is_in:
                raise _blame(partition)
            if identities[partition.place].store is None:
                await self._name_store(partition)
                identities[partition.place] = await partition.open()
        stores = known_map(self._names, identities)
        if stores is None:
            check_distinct(self._names, identities)
            stores = tuple(
                Store(identities[each.place].store or "", each.name) for each in self._all
            )
        return stores

    async def _name_store(self, partition: Partition) -> None:
        """Ids, keys and records that are there already would not be found in their homes."""
        if len(self._all) > 1 and (await partition.engine.find(JobFilter(), limit=1)).jobs:
            raise ConfigError(
                f"{partition.name} holds jobs from before: partitions begin with empty stores"
            )
        # Whoever is first names it; the others read that name.
        await partition.engine.save([store_record(str(uuid_utils.uuid7()))])


def _blame(partition: Partition) -> HoldfastError:
    error = partition.health.error
    if isinstance(error, UsageError):
        return error
    return EngineUnavailable(
        "partitions that were never opened together need all of them, and"
        f" {partition.name} is out ({error}): try again later"
    )
