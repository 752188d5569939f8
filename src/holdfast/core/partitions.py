"""The home partition of a name, by its hash. Pure: every process finds the same one."""

from __future__ import annotations

from collections.abc import Callable, Container
from hashlib import blake2b

_TRIES_MAX = 1_000


def home_of(name: str, count: int) -> int:
    """The partition with the highest score for the name: rendezvous hashing."""
    if count == 1:
        return 0
    text = name.encode(errors="surrogatepass")
    return max(
        range(count),
        key=lambda place: blake2b(text, digest_size=8, salt=place.to_bytes(2, "big")).digest(),
    )


def make_at_home(make_id: Callable[[], str], places: Container[int], count: int) -> str:
    """A new id whose home is one of these places; any id if none is found in many tries."""
    for _ in range(_TRIES_MAX):
        id_ = make_id()
        if home_of(id_, count) in places:
            break
    return id_
