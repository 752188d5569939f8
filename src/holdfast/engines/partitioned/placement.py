"""The partition of a job, a name and a token. Pure: every process and every repeated call finds
the same one.

Groups and keys have home partitions, children follow their parents, and jobs of one call that
depend on each other stay together. Any other job goes to the home of its id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.model import Job, Lease, NewJob
from holdfast.core.partitions import home_of
from holdfast.errors import Unsupported

NAME = "partitioned"
"""The name of the engine in its traits and errors."""

PARTITIONS_MAX = 16
"""The number that fits into the low bits of a token; the other bits hold the store's own token."""
_TAG = re.compile(r"\{([^{}]+)\}")
_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_REMEDY = "give their names the same {tag}, or use one engine for them"


def arrange(
    jobs: Sequence[NewJob], count: int, parents: Mapping[str, int]
) -> list[int | Unsupported]:
    """A partition for each job, or the reason why there is none. `parents` has the partitions of
    parents that are not in the call."""
    places: list[int | Unsupported] = [_place([job], count, {}) for job in jobs]
    if not any(job.after for job in jobs):
        return places
    here = {job.id for job in jobs}
    for family in _families(jobs):
        # A job without parents comes first: its children follow it to the home it would have alone.
        members = sorted(
            (jobs[at] for at in family), key=lambda job: not here.isdisjoint(job.after)
        )
        place = _place(members, count, parents)
        for at in family:
            places[at] = place
    return places


def _place(family: Sequence[NewJob], count: int, parents: Mapping[str, int]) -> int | Unsupported:
    homes: dict[str, int] = {}
    for new in family:
        if new.group is not None or new.key is not None:
            homes |= bound_homes(new, count)
        homes |= {f"parent {id_}": parents[id_] for id_ in new.after if id_ in parents}
    if not homes:
        return home_of(family[0].id, count)
    names = {place: name for name, place in reversed(homes.items())}
    if len(names) == 1:
        return next(iter(names))
    one, other = [names[place] for place in sorted(names)][:2]
    return Unsupported(
        NAME, f"jobs that belong to two partitions ({one[:80]}; {other[:80]})", _REMEDY
    )


def _families(jobs: Sequence[NewJob]) -> list[list[int]]:
    """Positions of jobs that depend on each other, directly or through other jobs of the call."""
    first = {job.id: at for at, job in reversed(list(enumerate(jobs)))}
    leader = list(range(len(jobs)))

    def lead(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    for at, job in enumerate(jobs):
        for id_ in job.after:
            if id_ in first:
                one, other = sorted((lead(at), lead(first[id_])))
                leader[other] = one
    families: dict[int, list[int]] = {}
    for at in range(len(jobs)):
        families.setdefault(lead(at), []).append(at)
    return [family for at, family in families.items() if len(family) > 1 or jobs[at].after]


def tagged_home(name: str, count: int) -> int:
    """The home of a key or a group. If the name has a {tag}, only the tag counts, so that users can
    give several names one home.
    """
    tag = _TAG.search(name)
    return home_of(tag[1] if tag else name, count)


def is_made(id: str) -> bool:
    """True for a UUIDv7 as Holdfast generates it: no two jobs have the same one."""
    return _MADE.match(id) is not None


def bound_homes(new: NewJob, count: int) -> dict[str, int]:
    """The partitions that the job's group and key require, by a description of each."""
    homes = {}
    if new.group is not None:
        homes[f"group {new.group}"] = tagged_home(new.group, count)
    if new.key is not None:
        homes[f"key {new.key}"] = tagged_home(new.key, count)
    return homes


def place_of(token: int) -> int:
    """The partition that a lease belongs to."""
    return token % PARTITIONS_MAX


def inner(lease: Lease) -> Lease:
    """The lease with the token of its partition."""
    return replace(lease, token=lease.token // PARTITIONS_MAX)


def outer(lease: Lease, place: int) -> Lease:
    """The lease for callers: its token includes the partition."""
    return replace(
        lease, token=lease.token * PARTITIONS_MAX + place, job=outer_job(lease.job, place)
    )


def outer_job(job: Job, place: int) -> Job:
    """The job for callers, see `outer`."""
    if job.token is None:
        return job
    return replace(job, token=job.token * PARTITIONS_MAX + place)
