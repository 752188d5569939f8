"""Splits a batch by partition, and merges the answers of several partitions in the verb's order.

A failure in one partition leaves the answers of the others intact. Answers are given by the place
of their partition; ties are ordered by place.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.model import Flow, Job, Lease, LeaseRequest, Page, QueueView, Record, Tally
from holdfast.engines.base import Engine, Expired, Overdue
from holdfast.engines.extras import Examination
from holdfast.engines.partitioned.membership import Membership
from holdfast.engines.partitioned.partition import Partition
from holdfast.engines.partitioned.placement import outer, outer_job
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown, UsageError

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Verb = Callable[[Engine, list[Ask]], Awaitable[Sequence[Answer]]]

COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")
_BITS = 64
_ENDED = 1
_SHIFT = 2


class PartitionedBatch(Generic[Ask, Answer]):
    """A batch call in progress. `places`, `answers` and `errors` are by position in the call."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._parts: dict[int, list[tuple[int, Ask]]] = {}
        self.places: dict[int, int] = {}
        self.answers: dict[int, Answer] = {}
        self.errors: dict[int, EngineError] = {}

    def add(self, at: int, place: int, ask: Ask) -> None:
        self.places[at] = place
        self._parts.setdefault(place, []).append((at, ask))

    async def ask(self, verb: Verb[Ask, Answer], is_welcome: Callable[[Partition], bool]) -> None:
        """Call all partitions at once, each with its part of the batch."""
        await asyncio.gather(
            *(
                self._ask_part(self._members.all[place], part, verb, is_welcome)
                for place, part in self._parts.items()
            )
        )

    def whole(self, count: int) -> list[Answer]:
        """All answers; if some are missing, OutcomeUnknown with those that are known."""
        if not self.errors:
            return [self.answers[at] for at in range(count)]
        errors = sorted(self.errors.items(), key=lambda each: _is_definite(each[1]))
        first = errors[0][1]
        if not self.answers:
            raise first
        raise OutcomeUnknown(
            f"{len(self.errors)} of {count} items have no answer ({first}): repeat them",
            known=self.answers,
        ) from first

    async def _ask_part(
        self,
        partition: Partition,
        part: list[tuple[int, Ask]],
        verb: Verb[Ask, Answer],
        is_welcome: Callable[[Partition], bool],
    ) -> None:
        try:
            if not is_welcome(partition):
                raise partition.unavailable()
            answers = await self._members.ask(
                partition, lambda engine: verb(engine, [ask for _, ask in part])
            )
        except EngineClosed:
            raise
        except EngineError as error:
            self.errors |= dict.fromkeys((at for at, _ in part), error)
        else:
            self.answers |= {at: answer for (at, _), answer in zip(part, answers, strict=True)}


def _is_definite(error: EngineError) -> bool:
    """True if nothing was changed. An unknown outcome takes precedence over such an error."""
    return not isinstance(error, OutcomeUnknown)


def jobs_by(
    lists: Mapping[int, Sequence[Job]], key: Callable[[Job], int], limit: int
) -> tuple[Job, ...]:
    """Merge sorted lists."""
    ways = [
        [(key(job), place, n, job) for n, job in enumerate(jobs)] for place, jobs in lists.items()
    ]
    merged = heapq.merge(*ways, key=lambda way: way[:3])
    return tuple(outer_job(job, place) for _, place, _, job in islice(merged, limit))


def overdue(found: Mapping[int, Overdue], limit: int) -> Overdue:
    """The overdue leases of all partitions, by deadline."""
    leases = sorted(
        (outer(lease, place) for place, each in sorted(found.items()) for lease in each.leases),
        key=lambda lease: lease.job.deadline_at or 0,
    )
    next_ms = _next_ms([each.next_ms for each in found.values()], len(leases), limit)
    return Overdue(leases=tuple(leases[:limit]), next_ms=next_ms)


def expired(found: Mapping[int, Expired], limit: int) -> Expired:
    """The expired jobs of all partitions, by expiry."""
    lists = {place: each.jobs for place, each in found.items()}
    jobs = jobs_by(lists, lambda job: job.expires_at or 0, limit)
    count = sum(len(each.jobs) for each in found.values())
    next_ms = _next_ms([each.next_ms for each in found.values()], count, limit)
    return Expired(jobs=jobs, next_ms=next_ms)


def page(positions: list[PartitionCursor], found: Mapping[int, Page], limit: int) -> Page:
    """Newest first by creation time. The page ends where a partition's own page ends and has a
    next one. A partition that did not answer keeps its position for the next page."""
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
    return Page(jobs=tuple(taken), after=encode_cursor(positions) if goes_on else None)


def tally(found: Iterable[Sequence[Tally]], limit: int) -> list[Tally]:
    """Sums by value, highest first."""
    counter: Counter[str | None] = Counter()
    for each in found:
        for one in each:
            counter[one.value] += one.count
    ranked = sorted(counter.items(), key=lambda item: (-item[1], (item[0] or "").encode()))
    return [Tally(value=value, count=count) for value, count in ranked[:limit]]


def queues(found: Mapping[int, Sequence[QueueView]], *, whole: bool) -> list[QueueView]:
    """By name, with the settings of the first partition that has the queue. Unless the answer is
    `whole`, the counts are lower bounds and marked as estimates."""
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
    """The records of all partitions, by key."""
    return sorted((one for each in found for one in each), key=lambda one: one.key.encode())[:limit]


def leases(found: Iterable[Sequence[Lease]], request: LeaseRequest) -> list[Lease]:
    """By queue or id as requested, then by priority and due time. Each partition's own order is
    kept, so that the batch of a strict group stays together."""
    order = request.ids or request.queues
    position = {name: at for at, name in reversed(list(enumerate(order)))}

    def rank(lease: Lease) -> tuple[int, int, int]:
        if request.ids:
            return position[lease.id], 0, 0
        priority = 0 if request.dead else lease.job.priority
        return position[lease.job.queue], -priority, lease.job.due_at

    return list(heapq.merge(*found, key=rank))


def flow(found: Iterable[Flow], limit: int) -> Flow:
    """Slots by limit and key, tenants by name."""
    each = list(found)
    slots = sorted((slot for one in each for slot in one.slots), key=lambda s: (s.limit, s.key))
    tenants = sorted((view for one in each for view in one.tenants), key=lambda v: v.tenant)
    return Flow(slots=tuple(slots[:limit]), tenants=tuple(tenants[:limit]))


def examination(
    found: Mapping[int, Examination], names: Sequence[str], trouble: Sequence[str]
) -> Examination:
    """One report; problems and damage are prefixed with the partition's name."""
    reports = {names[place]: each for place, each in sorted(found.items())}
    free = [each.free_bytes for each in reports.values() if each.free_bytes is not None]
    damage = [(name, text) for name, each in reports.items() for text in each.damage or ()]
    looked = any(each.damage is not None for each in reports.values())
    return Examination(
        now=max(each.now for each in reports.values()),
        versions={what: text for each in reports.values() for what, text in each.versions.items()},
        free_bytes=min(free, default=None),
        trouble=(
            *trouble,
            *(f"{name}, {text}" for name, each in reports.items() for text in each.trouble),
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


class PartitionCursor:
    """The position in one partition's list: `after` is its own cursor, None at the beginning.

    `encode_cursor` packs the positions of all partitions into one integer: 64 bits for each, the
    first in the lowest, and a 1 above them all. Each value is 0 at the beginning of a list, 1 at
    its end, and else the partition's own cursor plus 2.
    """

    __slots__ = ("after", "ended")

    def __init__(self, after: int | None = None, *, ended: bool = False) -> None:
        self.after: int | None = after
        self.ended: bool = ended


def decode_cursor(after: int | None, count: int) -> list[PartitionCursor]:
    """The positions in `count` partitions; UsageError if the cursor is not valid."""
    given: object = after
    if after is None:
        return [PartitionCursor() for _ in range(count)]
    if not isinstance(given, int) or after < 0 or after >> (_BITS * count) != 1:
        raise UsageError(f"after {after!r} is not a cursor of this engine")
    numbers = [after >> (_BITS * place) & (1 << _BITS) - 1 for place in range(count)]
    return [
        PartitionCursor(None if number < _SHIFT else number - _SHIFT, ended=number == _ENDED)
        for number in numbers
    ]


def encode_cursor(positions: Sequence[PartitionCursor]) -> int:
    """One integer for all positions."""
    numbers = [_cursor_number(each) << (_BITS * place) for place, each in enumerate(positions)]
    return 1 << (_BITS * len(positions)) | sum(numbers)


def _cursor_number(position: PartitionCursor) -> int:
    if position.ended:
        return _ENDED
    return 0 if position.after is None else position.after + _SHIFT
