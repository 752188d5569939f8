"""Jobs that wait for others in the same call: in which order they come in, and which cannot."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from holdfast.core.model import NewJob

_SHOWN_MAX = 8
_Parents = list[list[int]]


def arrange(jobs: Sequence[NewJob]) -> tuple[list[int], dict[int, str]]:
    """Positions with parents before their children, otherwise as given; and for each position
    that waits for itself, directly or through others of the call, the ids of a circle there."""
    if not any(job.after for job in jobs):
        return list(range(len(jobs))), {}
    places = {job.id: place for place, job in reversed(list(enumerate(jobs)))}
    parents: _Parents = [
        sorted({places[id_] for id_ in job.after if id_ in places}) for job in jobs
    ]
    circular: dict[int, str] = {}
    for knot in _knots(parents):
        text = _circle(min(knot), set(knot), parents, jobs)
        circular |= dict.fromkeys(knot, text)
    for place in circular:
        parents[place] = []
    return _in_order(parents), circular


def _in_order(parents: _Parents) -> list[int]:
    """The first in the given order whose parents are all in comes next."""
    children: list[list[int]] = [[] for _ in parents]
    missing = [len(each) for each in parents]
    for place, each in enumerate(parents):
        for parent in each:
            children[parent].append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for child in children[place]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, child)
    return order


def _knots(parents: _Parents) -> Iterator[list[int]]:
    """Sets of positions that all wait for each other (Tarjan's components, without recursion)."""
    found: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: dict[int, None] = {}
    for root in range(len(parents)):
        path = [] if root in found else [(root, iter(parents[root]))]
        while path:
            place, rest = path[-1]
            if place not in found:
                found[place] = low[place] = len(found)
                open_[place] = None
            parent = next(rest, None)
            if parent is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[place])
                if low[place] == found[place]:
                    knot = _close(open_, place)
                    if len(knot) > 1 or place in parents[place]:
                        yield knot
            elif parent not in found:
                path.append((parent, iter(parents[parent])))
            elif parent in open_:
                low[place] = min(low[place], found[parent])


def _close(open_: dict[int, None], place: int) -> list[int]:
    knot: list[int] = []
    while not knot or knot[-1] != place:
        knot.append(open_.popitem()[0])
    return knot


def _circle(place: int, knot: set[int], parents: _Parents, jobs: Sequence[NewJob]) -> str:
    """People read who waits for whom."""
    walk: dict[int, None] = {}
    while place not in walk:
        walk[place] = None
        place = next(parent for parent in parents[place] if parent in knot)
    steps = list(walk)
    ids = [jobs[step].id for step in steps[steps.index(place) :]]
    shown = ids if len(ids) <= _SHOWN_MAX else [*ids[: _SHOWN_MAX - 1], "…"]
    return " after ".join((*shown, ids[0]))
