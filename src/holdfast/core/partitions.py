"""The home partition of a name, by its hash. Pure: every process finds the same one."""

from __future__ import annotations

from collections.abc import Container, Iterable
from hashlib import blake2b


def home_of(name: str, count: int) -> int:
    """The partition with the highest score for the name: rendezvous hashing."""
    if count == 1:
        return 0
    text = name.encode(errors="surrogatepass")
    return max(
        range(count),
        key=lambda place: blake2b(text, digest_size=8, salt=place.to_bytes(2, "big")).digest(),
    )


def at_home(ids: Iterable[str], places: Container[int], count: int) -> str:
    """The first of the ids whose home is one of these places; the last if there is none."""
    id_ = ""
    for id_ in ids:
        if home_of(id_, count) in places:
            break
    return id_
