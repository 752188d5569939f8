"""Dependencies between the jobs of one call: insertion order, cycles, and whether the follow-up
jobs of a verdict can be inserted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import is_key_held
from holdfast.core.model import NewJob, Queue
from holdfast.errors import UsageError

_SHOWN_MAX = 8
_Parents = list[list[int]]

Arrangement = tuple[list[int], dict[int, str]]
"""The positions of a batch in the order in which to insert them, and the cycle, as text, of each
position that depends on itself."""


def arrange(jobs: Sequence[NewJob], known: Container[str]) -> Arrangement:
    """Order a batch so that parents come before their children. Jobs whose id is `known` already
    are duplicates, so their `after` is ignored."""
    if not any(new.after for new in jobs):
        return list(range(len(jobs))), {}
    return order_parents_first([replace(new, after=()) if new.id in known else new for new in jobs])


def can_enqueue_follow_ups(
    then: Sequence[NewJob],
    arrangement: Arrangement,
    *,
    queue_of: Callable[[str], Queue],
    is_known: Callable[[str], bool],
    is_held: Callable[[NewJob], bool],
    is_orphan: Callable[[NewJob, Container[str]], bool],
) -> bool:
    """Whether all follow-up jobs could be inserted once the job they follow is done. `is_orphan`
    returns whether a parent is neither stored nor among the ids that are inserted before it.
    """
    order, circular = arrangement
    coming: set[str] = set()
    windows: dict[tuple[str, str], int] = {}
    for place in order:
        new = then[place]
        if new.id in coming or is_known(new.id):
            continue
        if place in circular:
            return False
        key = None if new.key is None else (new.queue, new.key)
        taken = key in windows and is_key_held(new, until=windows[key], now=0, unfinished=True)
        if taken or is_held(new):
            continue
        if is_orphan(new, coming):
            return False
        try:
            lane_of(new, queue_of(new.queue), strict=True)
        except UsageError:
            return False
        coming.add(new.id)
        if key is not None:
            windows[key] = new.key_window_ms
    return True


def order_parents_first(jobs: Sequence[NewJob]) -> Arrangement:
    """Sort topologically, keeping the given order where it is free. A position that depends on
    itself, directly or through others, is reported with the ids of its cycle."""
    if not any(job.after for job in jobs):
        return list(range(len(jobs))), {}
    places = {job.id: place for place, job in reversed(list(enumerate(jobs)))}
    parents: _Parents = [
        sorted({places[id_] for id_ in job.after if id_ in places}) for job in jobs
    ]
    cyclic: dict[int, str] = {}
    for component in _cycles(parents):
        text = _describe_cycle(min(component), set(component), parents, jobs)
        cyclic |= dict.fromkeys(component, text)
    for place in cyclic:
        parents[place] = []
    return _topological_order(parents), cyclic


def _topological_order(parents: _Parents) -> list[int]:
    """Kahn's algorithm; among the positions that are free, the lowest goes first."""
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


def _cycles(parents: _Parents) -> Iterator[list[int]]:
    """Strongly connected components with a cycle (Tarjan's algorithm, without recursion)."""
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
                    component = _pop_component(open_, place)
                    if len(component) > 1 or place in parents[place]:
                        yield component
            elif parent not in found:
                path.append((parent, iter(parents[parent])))
            elif parent in open_:
                low[place] = min(low[place], found[parent])


def _pop_component(open_: dict[int, None], place: int) -> list[int]:
    component: list[int] = []
    while not component or component[-1] != place:
        component.append(open_.popitem()[0])
    return component


def _describe_cycle(
    place: int, component: set[int], parents: _Parents, jobs: Sequence[NewJob]
) -> str:
    """The ids of one cycle as "a after b after a", for the error message."""
    walk: dict[int, None] = {}
    while place not in walk:
        walk[place] = None
        place = next(parent for parent in parents[place] if parent in component)
    steps = list(walk)
    ids = [jobs[step].id for step in steps[steps.index(place) :]]
    shown = ids if len(ids) <= _SHOWN_MAX else [*ids[: _SHOWN_MAX - 1], "…"]
    return " after ".join((*shown, ids[0]))
