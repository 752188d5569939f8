"""Which partition a name belongs to, and which partition a token is of. Pure.

A name's home follows from the name and the number of partitions alone, so that every process, and
every repeat of a call, finds the same one.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.core.model import Job, Lease, NewJob

PARTITIONS_MAX = 16
"""As many as a token has room for; a store's own token is kept in the other bits."""

_TAG = re.compile(r"\{([^{}]+)\}")
_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


def home_of(name: str, count: int) -> int:
    """The partition with the highest score for the name: rendezvous hashing."""
    if count == 1:
        return 0
    text = name.encode(errors="surrogatepass")
    return max(
        range(count), key=lambda place: blake2b(text, digest_size=8, salt=_salt(place)).digest()
    )


def tagged_home(name: str, count: int) -> int:
    """The home of a key or a group: what stands in its first {braces} decides, if there is any,
    so that people can give names one home."""
    tag = _TAG.search(name)
    return home_of(tag[1] if tag else name, count)


def is_made(id: str) -> bool:
    """A UUIDv7, as Holdfast makes them: nobody gives it to two jobs."""
    return _MADE.match(id) is not None


def bound_homes(new: NewJob, count: int) -> dict[str, int]:
    """Where the job must be, by what binds it: order in its group, once-only by its key."""
    homes = {}
    if new.group is not None:
        homes[f"group {new.group}"] = tagged_home(new.group, count)
    if new.key is not None:
        homes[f"key {new.key}"] = tagged_home(new.key, count)
    return homes


def place_of(token: int) -> int:
    return token % PARTITIONS_MAX


def inner(lease: Lease) -> Lease:
    """The lease as its partition knows it."""
    return replace(lease, token=lease.token // PARTITIONS_MAX)


def outer(lease: Lease, place: int) -> Lease:
    """The lease as it is handed out: its token says which partition it is of."""
    return replace(
        lease, token=lease.token * PARTITIONS_MAX + place, job=outer_job(lease.job, place)
    )


def outer_job(job: Job, place: int) -> Job:
    if job.token is None:
        return job
    return replace(job, token=job.token * PARTITIONS_MAX + place)


def _salt(place: int) -> bytes:
    return place.to_bytes(2, "big")
