"""What is counted, and how counts are laid together: counters and histograms with fixed buckets.

Pure. Everything only grows, from the start of a process on, so that a later count always stands
for an earlier one. Queues are the only names that users choose: of those there is a bound, and
what is beyond counts under one name. Tenants, keys and ids are never names here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from holdfast.core.workers import addressee

OTHER: Final = "(other)"
"""No queue can have this name. The queues of single workers count here too: they come and go."""
QUEUES_MAX: Final = 100

COUNTERS: Final = {
    "enqueued": "Jobs that were put in, follow-ups of others too.",
    "duplicates": "Jobs that were there already, by their id or key.",
    "refused": "Jobs that their queue did not take.",
    "leased": "Attempts that were handed out.",
    "completed": "Attempts that ended well.",
    "retried": "Attempts after which the job waits for another.",
    "failed": "Attempts that ended with a failure, whether the job is tried again or not.",
    "crashed": "Attempts whose process died, or whose lease ran out.",
    "dead": "Jobs that died, by their last attempt or by a hand.",
    "expired": "Jobs that died waiting, past their expiry.",
    "released": "Leases that were given back.",
    "forwarded": "Jobs that were handed on to another queue.",
    "cancelled": "Jobs that were cancelled, or asked to stop.",
    "redriven": "Finished jobs that were put back to work.",
    "renewals": "Leases that were renewed.",
    "renewals_lost": "Renewals that came too late.",
    "settles_lost": "Verdicts that came too late.",
}
"""Every counter by queue, and what it counts."""

Scale = Literal["time", "lag", "request", "batch"]
BOUNDS: Final[dict[Scale, tuple[int, ...]]] = {
    "time": (
        *(1, 5, 10, 25, 50, 100, 250, 500),
        *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000),
        *(300_000, 1_800_000, 7_200_000),
    ),
    "lag": (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000),
    "request": (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000),
    "batch": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000),
}
"""Milliseconds, and jobs. Whoever changes the bounds of a scale gives it another name: what is
stored is told apart by that."""


class Histogram(msgspec.Struct, array_like=True):
    """`counts` are by bucket: up to the first bound, up to the second, …, beyond the last."""

    scale: Scale
    counts: list[int]
    total: float = 0

    @property
    def bounds(self) -> tuple[int, ...]:
        return BOUNDS[self.scale]

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS[self.scale], value)] += 1
        self.total += value

    def add_all(self, values: list[int]) -> None:
        """A few one by one; of many it is cheaper to look where each bound would stand. What is
        below nothing, by clocks that differ, is nothing."""
        if not values:
            return
        bounds, counts = BOUNDS[self.scale], self.counts
        if min(values) < 0:
            values = [max(0, value) for value in values]
        if len(values) < len(bounds):
            for value in values:
                counts[bisect_left(bounds, value)] += 1
        else:
            values = sorted(values)
            below = 0
            for at, bound in enumerate(bounds):
                up_to = bisect_left(values, bound + 1, below)
                counts[at] += up_to - below
                below = up_to
            counts[-1] += len(values) - below
        self.total += sum(values)

    def plus(self, other: Histogram, sign: int = 1) -> Histogram:
        """Of other buckets than these nothing is taken."""
        if other.scale != self.scale:
            return self
        counts = [one + sign * two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.scale, counts, self.total + sign * other.total)

    def copy(self) -> Histogram:
        return Histogram(self.scale, list(self.counts), self.total)

    def absorb(self, other: Histogram) -> None:
        """The same as `plus`, into this one."""
        if other.scale == self.scale:
            counts = zip(self.counts, other.counts, strict=True)
            self.counts = [one + two for one, two in counts]
            self.total += other.total

    def quantile(self, share: float) -> float | None:
        """About where so large a share lies below; None of nothing. Beyond the last bound it says
        that bound."""
        wanted = share * self.count
        below = 0
        for at, count in enumerate(self.counts[:-1]):
            if count and below + count >= wanted:
                low = self.bounds[at - 1] if at else 0
                return low + (self.bounds[at] - low) * (wanted - below) / count
            below += count
        return float(self.bounds[-1]) if self.count else None


def histogram(scale: Scale) -> Histogram:
    return Histogram(scale, [0] * (len(BOUNDS[scale]) + 1))


class QueueTotals(msgspec.Struct, omit_defaults=True):
    """`waits` are the milliseconds from due to leased, `runs` from leased to settled."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    waits: Histogram = msgspec.field(default_factory=lambda: histogram("time"))
    runs: Histogram = msgspec.field(default_factory=lambda: histogram("time"))

    def add(self, counter: str, count: int = 1) -> None:
        self.counts[counter] = self.counts.get(counter, 0) + count

    def plus(self, other: QueueTotals, sign: int = 1) -> QueueTotals:
        counts = dict(self.counts)
        for name, count in other.counts.items():
            counts[name] = counts.get(name, 0) + sign * count
        waits, runs = self.waits.plus(other.waits, sign), self.runs.plus(other.runs, sign)
        return QueueTotals(counts, waits, runs)

    def copy(self) -> QueueTotals:
        return QueueTotals(dict(self.counts), self.waits.copy(), self.runs.copy())

    def absorb(self, other: QueueTotals) -> None:
        """The same as `plus`, into this one."""
        mine = self.counts
        for name, count in other.counts.items():
            mine[name] = mine.get(name, 0) + count
        self.waits.absorb(other.waits)
        self.runs.absorb(other.runs)


class Totals(msgspec.Struct, omit_defaults=True):
    """`lags` are by what the process is, `batches` by the engine's verb, `requests` by operation
    and class of status (`2xx`): all names of the program's own."""

    queues: dict[str, QueueTotals] = msgspec.field(default_factory=dict)
    lags: dict[str, Histogram] = msgspec.field(default_factory=dict)
    batches: dict[str, Histogram] = msgspec.field(default_factory=dict)
    requests: dict[str, dict[str, Histogram]] = msgspec.field(default_factory=dict)

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        """With the sign -1 what is left when the other, which this one grew from, is taken away."""
        return Totals(
            queues=_merged(self.queues, other.queues, sign),
            lags=_merged(self.lags, other.lags, sign),
            batches=_merged(self.batches, other.batches, sign),
            requests={
                name: _merged(self.requests.get(name, {}), other.requests.get(name, {}), sign)
                for name in self.requests | other.requests
            },
        )

    def named(self, names: Iterable[str]) -> Totals:
        """With every queue but these under `OTHER`."""
        kept = set(names)
        queues: dict[str, QueueTotals] = {}
        for name, each in self.queues.items():
            label = name if name in kept else OTHER
            queues[label] = queues[label].plus(each) if label in queues else each
        return msgspec.structs.replace(self, queues=queues)


def summed_up(some: Iterable[Totals]) -> Totals:
    """All of them together; none of them is changed."""
    found = Totals()
    for each in some:
        _absorb(found.queues, each.queues)
        _absorb(found.lags, each.lags)
        _absorb(found.batches, each.batches)
        for name, by_status in each.requests.items():
            _absorb(found.requests.setdefault(name, {}), by_status)
    return found


Part = TypeVar("Part", Histogram, QueueTotals)


def _absorb(into: dict[str, Part], parts: Mapping[str, Part]) -> None:
    for name, part in parts.items():
        known = into.get(name)
        if known is None:
            into[name] = part.copy()
        else:
            known.absorb(part)


def _merged(one: Mapping[str, Part], two: Mapping[str, Part], sign: int) -> dict[str, Part]:
    found = dict(one)
    for name, each in two.items():
        known = found.get(name)
        if known is not None:
            found[name] = known.plus(each, sign)
        elif sign > 0:
            found[name] = each
    return found


def label_of(queue: str, known: Mapping[str, object]) -> str:
    """What a queue counts as, beside those that are known already."""
    if queue in known:
        return queue
    room = len(known) - (OTHER in known) < QUEUES_MAX
    return queue if room and queue and addressee(queue) is None else OTHER
