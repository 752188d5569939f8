"""The partition map: which stores are the partitions, in which order. Kept in every one of them.

Pure. Names are for people; the id that each store keeps is what tells it from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.model import Record
from holdfast.errors import ConfigError, EngineUnavailable, SchemaMismatch

KIND = "partition"
_STORE, _MAP = "store", "map"


class Store(msgspec.Struct, frozen=True):
    id: str
    name: str


class Identity(msgspec.Struct, frozen=True):
    """What one store says of itself: its id, and the map it was made part of."""

    store: str | None = None
    map: tuple[Store, ...] | None = None


def identity(records: Sequence[Record]) -> Identity:
    found = {record.key: record.value for record in records}
    own, known = found.get(_STORE), found.get(_MAP)
    try:
        return Identity(
            None if own is None else own.decode(),
            None if known is None else msgspec.json.decode(known, type=tuple[Store, ...]),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaMismatch(f"its partition map cannot be read ({error}): restore it") from None


def store_record(id: str) -> Record:
    return Record(kind=KIND, key=_STORE, value=id.encode())


def map_record(stores: Sequence[Store]) -> Record:
    return Record(kind=KIND, key=_MAP, value=msgspec.json.encode(stores))


def known_map(names: Sequence[str], identities: Mapping[int, Identity]) -> tuple[Store, ...] | None:
    """The map that the stores agree on, as far as they were read; None before there is one."""
    maps = {
        place: found.map for place, found in sorted(identities.items()) if found.map is not None
    }
    first = min(maps, default=0)
    for place, other in maps.items():
        if [store.id for store in other] != [store.id for store in maps[first]]:
            raise ConfigError(
                f"{names[first]} and {names[place]} are partitions of different sets"
                f" ({_list(maps[first])}; {_list(other)}): name only stores of one set"
            )
    return maps.get(first)


def check_map(
    stores: Sequence[Store], names: Sequence[str], identities: Mapping[int, Identity]
) -> None:
    """Raise ConfigError unless the stores that were read are those of the map, in its order; and
    EngineUnavailable for one that is lost, which harms none but itself."""
    if len(stores) != len(names):
        raise _changed(
            f"these stores are {len(stores)} partitions ({_list(stores)}) and the URL names"
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
                f"{names[place]} is given as partition {place + 1} and is partition {was + 1}",
                stores,
            )
        if found.store is None and names[place] == stores[place].name:
            raise EngineUnavailable(
                f"{names[place]} is empty, but partition {place + 1} is not: it was deleted or"
                " replaced; restore it from a backup"
            )
        raise _changed(
            f"{names[place]} is another store than partition {place + 1} ({stores[place].name})",
            stores,
        )


def check_distinct(names: Sequence[str], identities: Mapping[int, Identity]) -> None:
    seen: dict[str | None, int] = {}
    for place, found in sorted(identities.items()):
        if found.store in seen:
            raise ConfigError(
                f"partitions {seen[found.store] + 1} and {place + 1} ({names[place]}) are the same"
                " store: name each once"
            )
        seen[found.store] = place


def _changed(what: str, stores: Sequence[Store]) -> ConfigError:
    return ConfigError(
        f"the partition map changed: {what}. Name {_list(stores)}, in this order; for another"
        " number of partitions move the jobs to new stores"
    )


def _list(stores: Sequence[Store]) -> str:
    return ", ".join(store.name for store in stores)
