"""Where the jobs of one call go. Pure: the same call is always answered the same.

A group and a key bind a job to their homes, a parent binds its children to its own partition, and
jobs of one call that wait for each other stay together. What is bound to nothing goes by its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.model import NewJob
from holdfast.engines.partitioned.homes import bound_homes, home_of
from holdfast.engines.partitioned.traits import NAME
from holdfast.errors import Unsupported

_REMEDY = "give their names the same {tag}, or use one engine for them"


def arrange(
    jobs: Sequence[NewJob], count: int, parents: Mapping[str, int]
) -> list[int | Unsupported]:
    """A partition for each job, or why it can have none. `parents` says where those are that are
    not in the call."""
    places: list[int | Unsupported] = [_place([job], count, {}) for job in jobs]
    if not any(job.after for job in jobs):
        return places
    here = {job.id for job in jobs}
    for family in _families(jobs):
        # One without parents first: alone it would have the same home, and its children follow it.
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
        NAME, f"jobs that belong to two partitions ({one[:80]}; {other[:80]}): {_REMEDY}"
    )


def _families(jobs: Sequence[NewJob]) -> list[list[int]]:
    """Positions of the jobs that are tied by `after`, directly or through others of the call."""
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
