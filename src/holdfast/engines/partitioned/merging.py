"""Several partitions' answers made one, each in the order that it states. Pure.

Answers come by the place of their partition. What is equally early goes by place.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.flow import Flow
from holdfast.core.model import Job, Lease, LeaseRequest, Page, QueueView, Record, Tally
from holdfast.engines.base import Examination, Expired, Overdue
from holdfast.engines.partitioned.cursor import Position, encode
from holdfast.engines.partitioned.homes import outer, outer_job

T = TypeVar("T")
COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")


def jobs_by(
    lists: Mapping[int, Sequence[Job]], key: Callable[[Job], int], limit: int
) -> tuple[Job, ...]:
    """Sorted lists as one."""
    ways = [
        [(key(job), place, n, job) for n, job in enumerate(jobs)] for place, jobs in lists.items()
    ]
    merged = heapq.merge(*ways, key=lambda way: way[:3])
    return tuple(outer_job(job, place) for _, place, _, job in islice(merged, limit))


def overdue(found: Mapping[int, Overdue], limit: int) -> Overdue:
    leases = sorted(
        (outer(lease, place) for place, each in sorted(found.items()) for lease in each.leases),
        key=lambda lease: lease.job.deadline_at or 0,
    )
    next_ms = _next_ms([each.next_ms for each in found.values()], len(leases), limit)
    return Overdue(leases=tuple(leases[:limit]), next_ms=next_ms)


def expired(found: Mapping[int, Expired], limit: int) -> Expired:
    lists = {place: each.jobs for place, each in found.items()}
    jobs = jobs_by(lists, lambda job: job.expires_at or 0, limit)
    count = sum(len(each.jobs) for each in found.values())
    next_ms = _next_ms([each.next_ms for each in found.values()], count, limit)
    return Expired(jobs=jobs, next_ms=next_ms)


def page(positions: list[Position], found: Mapping[int, Page], limit: int) -> Page:
    """Newest first by their time of arrival. It ends where one partition's page ends and more of
    it is to come; one that did not answer goes on from where it was when it does."""
    taken: list[Job] = []
    ahead = {place: list(reversed(each.jobs)) for place, each in found.items()}
    while len(taken) < limit and not any(
        found[place].after is not None for place, jobs in ahead.items() if not jobs
    ):
        heads = [(-jobs[-1].created_at, place) for place, jobs in ahead.items() if jobs]
        if not heads:
            break
        _, place = min(heads)
        job = ahead[place].pop()
        taken.append(outer_job(job, place))
        positions[place].after = job.seq
    for place, each in found.items():
        if not ahead[place]:
            positions[place].after = each.after
            positions[place].ended = each.after is None
    goes_on = any(not positions[place].ended for place in found)
    return Page(jobs=tuple(taken), after=encode(positions) if goes_on else None)


def tally(found: Iterable[Sequence[Tally]], limit: int) -> list[Tally]:
    counter: Counter[str | None] = Counter()
    for each in found:
        for one in each:
            counter[one.value] += one.count
    ranked = sorted(counter.items(), key=lambda item: (-item[1], (item[0] or "").encode()))
    return [Tally(value=value, count=count) for value, count in ranked[:limit]]


def queues(found: Mapping[int, Sequence[QueueView]], *, whole: bool) -> list[QueueView]:
    """By name, with the settings of the first that knows it. Unless the answer is `whole` its
    counts are at least so many."""
    merged: dict[str, QueueView] = {}
    for _, views in sorted(found.items()):
        for view in views:
            known = merged.get(view.queue.name)
            merged[view.queue.name] = view if known is None else _sum(known, view)
    if not whole:
        every = frozenset(COUNTS)
        merged = {name: replace(view, estimated=every) for name, view in merged.items()}
    return [merged[name] for name in sorted(merged)]


def records(found: Iterable[Sequence[Record]], limit: int) -> list[Record]:
    return sorted((one for each in found for one in each), key=lambda one: one.key.encode())[:limit]


def leases(found: Iterable[Sequence[Lease]], request: LeaseRequest) -> list[Lease]:
    """Each keeps its order, so that a group's batch stays together. Between them whoever's next
    comes first by queue or id as asked, then by priority and due time."""
    order = request.ids or request.queues
    asked = {name: at for at, name in reversed(list(enumerate(order)))}

    def rank(lease: Lease) -> tuple[int, int, int]:
        if request.ids:
            return asked[lease.id], 0, 0
        return asked[lease.job.queue], -lease.job.priority, lease.job.due_at

    return list(heapq.merge(*found, key=rank))


def flow(found: Iterable[Flow], limit: int) -> Flow:
    each = list(found)
    slots = sorted((slot for one in each for slot in one.slots), key=lambda s: (s.limit, s.key))
    tenants = sorted((view for one in each for view in one.tenants), key=lambda v: v.tenant)
    return Flow(slots=tuple(slots[:limit]), tenants=tuple(tenants[:limit]))


def examination(
    found: Mapping[int, Examination], names: Sequence[str], trouble: Sequence[str]
) -> Examination:
    said = {names[place]: each for place, each in sorted(found.items())}
    free = [each.free_bytes for each in said.values() if each.free_bytes is not None]
    damage = [(name, text) for name, each in said.items() for text in each.damage or ()]
    looked = any(each.damage is not None for each in said.values())
    return Examination(
        now=max(each.now for each in said.values()),
        versions={what: text for each in said.values() for what, text in each.versions.items()},
        free_bytes=min(free, default=None),
        trouble=(
            *trouble,
            *(f"{name}, {text}" for name, each in said.items() for text in each.trouble),
        ),
        damage=tuple(f"{name}: {text}" for name, text in damage) if looked else None,
    )


def _next_ms(each: Sequence[int | None], count: int, limit: int) -> int | None:
    if count >= limit:
        return 0
    return min((ms for ms in each if ms is not None), default=None)


def _sum(known: QueueView, view: QueueView) -> QueueView:
    ages = [each.oldest_age_ms for each in (known, view) if each.oldest_age_ms is not None]
    return replace(
        known,
        **{name: getattr(known, name) + getattr(view, name) for name in COUNTS},
        oldest_age_ms=max(ages, default=None),
        estimated=known.estimated | view.estimated,
    )
