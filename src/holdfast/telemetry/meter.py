"""Count the engine calls of one process: the meter, its counters and histograms, and their sums.

No I/O. The meter receives every engine call; most batches are uniform (one queue, all settled, all
complete) and are counted without inspecting each job. Counts only grow from the start of a process,
so a later value always replaces an earlier one. Queues are the only labels that users choose: the
busiest have one, and the rest share one. Tenants, keys and ids are never labels.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from holdfast import process
from holdfast.core import bounds, failures
from holdfast.core.dead_messages import DeadOutcome
from holdfast.core.model import (
    FailureKind,
    Job,
    JobFilter,
    Lease,
    NewJob,
    Reason,
    Receipt,
    Renewal,
    Status,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Forward,
    Outcome,
    Redrive,
    Release,
    Retry,
    Settlement,
)
from holdfast.engines.extras import Partitioned, extra
from holdfast.events import (
    DeadMessagesHandled,
    EngineCalled,
    GateChanged,
    GateMoved,
    ProcessEvent,
)
from holdfast.telemetry.event_log import (
    EVENTS_MAX,
    EventBuffer,
    FeedEvent,
    FeedEventKind,
)

Each = TypeVar("Each")
_log = logging.getLogger("holdfast.jobs")

_CRASHES = (FailureKind.CRASH, FailureKind.OVERDUE)
_LAG_MS_WORTH = 25
_LOGGED_MAX = 300
_COUNTED = ("enqueue", "lease", "settle", "renew")


class Meter:
    """Counts into `totals`, which only grow, and into `events`, which the flusher takes. Each lease
    shows how far `wall_ms`, this machine's clock, is from the engine's."""

    def __init__(self, wall_ms: Callable[[], int] = process.wall_ms) -> None:
        self.totals: Totals = Totals()
        self.events: EventBuffer = EventBuffer()
        self.changes: int = 0
        """Grows with every change of the counts."""
        self._wall_ms = wall_ms
        self._ahead_ms = 0
        self._existing: set[str] = set()
        """Queues that the engine has named."""

    def record(self, event: ProcessEvent) -> None:
        """Count one event of the engine, of the dead-letter handler or of a gate."""
        match event:
            case DeadMessagesHandled():
                self._handled(event)
            case GateMoved():
                self._moved(event)
            case GateChanged(gate=gate, is_failing=failing, text=text):
                kind = FeedEventKind.GATE_FAILING if failing else FeedEventKind.GATE_WORKING
                self.events.add(FeedEvent(kind=kind, name=gate, text=text))
            case EngineCalled() if event.answer:
                self._called(event)
            case _:
                pass

    def _called(self, event: EngineCalled) -> None:
        verb, request, answer = event.verb, event.asked, event.answer
        if verb in _COUNTED:
            self.changes += 1
            _at(self.totals.batches, verb, "batch").add(len(answer))
        match verb:
            case "enqueue":
                self._enqueued(request, answer)
            case "lease" if not request.dead:
                self._leased(answer)
            case "settle":
                self._settled(request, answer)
            case "renew":
                self._renewed(request, answer)
            case "queues" if len(answer) != len(self._existing):
                self._existing = {view.queue.name for view in answer}
            case "declare":
                self._existing.update(name for name, _ in event.counted())
            case "amend":
                self.changes += 1
                wanted, amendment = request
                self._amended(wanted, amendment, answer)
            case _:
                pass

    def _handled(self, event: DeadMessagesHandled) -> None:
        self.changes += 1
        for queue, outcomes in event.outcomes.items():
            for outcome, count in outcomes.items():
                self._queue(queue).add(DEAD_MESSAGES[DeadOutcome(outcome)], count)
        if event.delays_ms:
            _at(self.totals.handlings, "ended", "time").add_all(list(event.delays_ms))

    def _moved(self, event: GateMoved) -> None:
        self.changes += 1
        gates = self.totals.gates
        has_room = event.gate in gates or len(gates) < GATES_MAX
        counts = gates.setdefault(event.gate if has_room else OTHER, Counts())
        for name, count in event.counts.items():
            counts.add(name, count)

    def lagged(self, role: str, lag_ms: float) -> None:
        """Count a lag of the event loop. A small one is written with the next change."""
        self.changes += lag_ms > _LAG_MS_WORTH
        _at(self.totals.lags, role, "lag").add(lag_ms)

    def requested(self, operation: str, status: int, duration_ms: float) -> None:
        """Count a request that was answered."""
        self.changes += 1
        found = self.totals.requests.setdefault(operation, {})
        _at(found, f"{status // 100}xx", "request").add(duration_ms)

    def served(self, queue: str, counts: Mapping[str, int]) -> None:
        """Count a request of an SQS client on a queue that exists, by `SQS_COUNTERS`."""
        self.changes += 1
        totals = self._queue(queue).counts
        for counter, count in counts.items():
            totals[counter] = totals.get(counter, 0) + count

    def subtract(self, stored: Totals) -> None:
        """Subtract counts that are stored in an account that was closed."""
        self.totals.queues.setdefault(OTHER, QueueTotals())
        self.totals = self.totals.plus(stored.named(self.totals.queues), -1)

    def _queue(self, name: str) -> QueueTotals:
        found = self.totals.queues.get(name)
        if found is None:
            if name and len(self.totals.queues) >= METERED_MAX:
                self.totals = self.totals.busiest(QUEUES_MAX)
            found = self.totals.queues.setdefault(name or OTHER, QueueTotals())
        return found

    def _named(self, name: str) -> QueueTotals:
        """The queue that a caller names, if the engine has named it too; otherwise a caller could
        fill up the names with a settle or a repeated enqueue."""
        return self._queue(name if name in self._existing else "")

    def _enqueued(self, jobs: Sequence[NewJob], receipts: Sequence[Receipt]) -> None:
        statuses = [receipt.status for receipt in receipts]
        queues = {job.queue for job in jobs}
        if len(queues) == 1 and statuses.count(Status.NEW) == len(jobs):
            name = queues.pop()
            self._existing.add(name)
            self._queue(name).add("enqueued", len(jobs))
            return
        for job, status in zip(jobs, statuses, strict=True):
            if status is Status.NEW:
                self._existing.add(job.queue)
            # A queue that does not exist must not take up a name.
            name = "" if status is Status.REFUSED else job.queue
            self._named(name).add(_BY_STATUS[status])

    def _leased(self, leases: Sequence[Lease]) -> None:
        jobs = [lease.job for lease in leases]
        last = jobs[-1].leased_at
        if last is not None:
            self._ahead_ms = self._wall_ms() - last
        for name, some in _by_queue(jobs, jobs):
            self._existing.add(name)
            queue = self._queue(name)
            queue.add("leased", len(some))
            queue.waits.add_all([(job.leased_at or job.due_at) - job.due_at for job in some])

    def _settled(self, settlements: Sequence[Settlement], outcomes: Sequence[Outcome]) -> None:
        now = self._wall_ms() - self._ahead_ms
        if any(settlement.lease.job.reason is not None for settlement in settlements):
            # A dead letter was counted when it died.
            own = [
                (settlement, outcome)
                for settlement, outcome in zip(settlements, outcomes, strict=True)
                if settlement.lease.job.reason is None
            ]
            settlements, outcomes = [each for each, _ in own], [each for _, each in own]
        if outcomes.count(Outcome.SETTLED) == len(outcomes):
            jobs = [settlement.lease.job for settlement in settlements]
            for name, some in _by_queue(settlements, jobs):
                self._judged(self._named(name), some, now)
            return
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            queue = self._named(settlement.lease.job.queue)
            if outcome is Outcome.LOST:
                queue.add("settles_lost")
            elif outcome is Outcome.SETTLED:
                self._judged(queue, [settlement], now)

    def _judged(self, queue: QueueTotals, settlements: Sequence[Settlement], now: int) -> None:
        verdicts = [settlement.verdict for settlement in settlements]
        kinds = [verdict.__class__ for verdict in verdicts]
        if kinds.count(Complete) == len(kinds):
            queue.add("completed", len(kinds))
            ran = settlements
        else:
            for settlement in settlements:
                self._judged_one(queue, settlement)
            # A released job did not run.
            ran = [each for each in settlements if each.verdict.__class__ is not Release]
        starts = [settlement.lease.job.leased_at for settlement in ran]
        queue.runs.add_all([now - start for start in starts if start is not None])
        for verdict in verdicts:
            if verdict.__class__ is Complete and verdict.then:
                for job in verdict.then:
                    self._named(job.queue).add("enqueued")

    def _judged_one(self, queue: QueueTotals, settlement: Settlement) -> None:
        verdict = settlement.verdict
        match verdict:
            case Complete():
                queue.add("completed")
            case Retry():
                queue.add("retried")
                self._failed(queue, verdict)
            case Bury():
                queue.add("dead")
                self._failed(queue, verdict)
                job = settlement.lease.job
                self._died(_death(job.id, job.task, job.queue, verdict))
            case Release():
                queue.add("released")
            case Forward():
                queue.add("forwarded")

    def _died(self, event: FeedEvent) -> None:
        """Every death has one event and one line in the log, as far as events are kept."""
        if self.events.add(event):
            _log.warning(
                "job %s of task %s died in queue %s (%s)%s",
                event.id or "(unknown)",
                event.name or "(unknown)",
                event.queue or "(unknown)",
                event.reason,
                f": {event.text[:_LOGGED_MAX]}" if event.text else "",
                extra={
                    "job_id": event.id,
                    "task": event.name,
                    "queue": event.queue,
                    "reason": event.reason,
                },
            )

    def _failed(self, queue: QueueTotals, verdict: Retry | Bury) -> None:
        if verdict.failure is not None:
            queue.add("failed")
            if verdict.failure.kind in _CRASHES:
                queue.add("crashed")

    def _renewed(self, renewals: Sequence[Renewal], leases: Sequence[Lease | None]) -> None:
        jobs = [renewal.lease.job for renewal in renewals]
        for name, answers in _by_queue(leases, jobs):
            lost = answers.count(None)
            queue = self._named(name)
            if lost:
                queue.add("renewals_lost", lost)
            if len(answers) > lost:
                queue.add("renewals", len(answers) - lost)

    def _amended(self, wanted: JobFilter, amendment: Amendment, changed: int) -> None:
        queue = wanted.queue or ""
        match amendment:
            case BuryWaiting(reason=reason):
                found = self._queue(queue)
                found.add("dead", changed)
                if reason is Reason.EXPIRED:
                    found.add("expired", changed)
                # If only some were waiting, which ones is not known.
                ids = wanted.ids if wanted.ids and len(wanted.ids) == changed else ("",) * changed
                for id_ in ids[:EVENTS_MAX]:
                    self._died(_death(id_, wanted.task or "", queue, amendment))
                for _ in ids[EVENTS_MAX:]:
                    self.events.leave_out()
            case Cancel():
                self._queue(queue).add("cancelled", changed)
            case Redrive():
                self._queue(queue).add("redriven", changed)
            case _:
                pass


_BY_STATUS = {
    Status.NEW: "enqueued",
    Status.DUPLICATE: "duplicates",
    Status.REFUSED: "refused",
}


def _at(found: dict[str, Histogram], name: str, scale: Scale) -> Histogram:
    known = found.get(name)
    if known is None:
        known = found[name] = histogram(scale)
    return known


def _by_queue(some: Sequence[Each], jobs: Sequence[Job]) -> Iterable[tuple[str, Sequence[Each]]]:
    """Grouped by the queues of their jobs, which mostly are one."""
    queues = {job.queue for job in jobs}
    if len(queues) == 1:
        return [(queues.pop(), some)]
    found: dict[str, list[Each]] = {}
    for each, job in zip(some, jobs, strict=True):
        found.setdefault(job.queue, []).append(each)
    return found.items()


def _death(id: str, task: str, queue: str, verdict: Bury | BuryWaiting) -> FeedEvent:
    failure = verdict.failure
    text = "" if failure is None else failures.line(failure)
    return FeedEvent(
        kind=FeedEventKind.JOB_DIED,
        queue=queue,
        id=id,
        name=task,
        reason=verdict.reason,
        text=text,
    )


class PartitionWatch:
    """Reports partitions that this process shuts out or uses again. Most stores have none."""

    def __init__(self, engine: object) -> None:
        self._partitioned = extra(engine, Partitioned)
        self._out: frozenset[str] = frozenset()

    def check(self, meter: Meter) -> None:
        """Compare with the last check, and add events for the changes."""
        if self._partitioned is None:
            return
        views = self._partitioned.partitions()
        out = frozenset(view.name for view in views if view.out_ms is not None)
        for view in views:
            if view.name in out - self._out:
                meter.events.add(
                    FeedEvent(kind=FeedEventKind.PARTITION_OUT, name=view.name, text=view.text)
                )
            elif view.name in self._out - out:
                meter.events.add(FeedEvent(kind=FeedEventKind.PARTITION_BACK, name=view.name))
        self._out = out


OTHER: Final = "(other)"
"""The label of all other queues together, which no queue can have."""
QUEUES_MAX: Final = 500
"""Queues with a label of their own: the busiest."""
METERED_MAX: Final = 2 * QUEUES_MAX
"""Queues that one process counts apart, so that a new one can become one of the busiest."""

GATES_MAX: Final = 200
"""Gates with a label of their own."""

COUNTERS: Final = {
    "enqueued": "Jobs that were enqueued, follow-up jobs included.",
    "duplicates": "Jobs that already existed, by their id or key.",
    "refused": "Jobs that their queue refused.",
    "leased": "Attempts that were leased.",
    "completed": "Attempts that succeeded.",
    "retried": "Attempts after which the job waits for a retry.",
    "failed": "Attempts that failed, whether the job is retried or not.",
    "crashed": "Attempts whose process crashed, or whose lease was overdue.",
    "dead": "Jobs that died, by their last attempt or by an operator.",
    "expired": "Jobs that expired before they started.",
    "released": "Leases that were released.",
    "forwarded": "Jobs that were forwarded to another queue.",
    "cancelled": "Jobs that were cancelled, or requested to stop.",
    "redriven": "Finished jobs that were redriven.",
    "renewals": "Leases that were renewed.",
    "renewals_lost": "Renewals that came too late.",
    "settles_lost": "Verdicts that came too late.",
}
"""Every counter by queue, and what it counts."""

DEAD_MESSAGES: Final = {outcome: f"dead_message_{outcome}" for outcome in DeadOutcome}
"""The counters of dead messages of the broker by queue, by their outcome."""

SQS_COUNTERS: Final = {
    "sqs_sent": "Messages that SQS clients sent, without duplicates.",
    "sqs_sent_bytes": "Bytes of the messages that SQS clients sent, with their attributes.",
    "sqs_received": "Messages that SQS clients received.",
    "sqs_empty_receives": "Receives of SQS clients that found no message.",
    "sqs_deleted": "Deletions of messages by SQS clients, repeated ones included.",
    "sqs_deduplicated": "Messages to FIFO queues that were duplicates.",
}
"""The counters of queues that SQS clients use, and what they count."""

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
"""Upper bounds of the buckets, in milliseconds or jobs. A scale with changed bounds needs a new
name, since stored histograms are recognised by it."""


AnyCount: TypeAlias = Annotated[int, Meta(ge=-bounds.COUNT_MAX, le=bounds.COUNT_MAX)]
"""A count that was stored. The difference of two may be negative."""
_TOTAL_MAX = 1e18


class Histogram(msgspec.Struct, array_like=True):
    """Counts by bucket: up to the first bound, up to the second, …, beyond the last."""

    scale: Scale
    counts: list[AnyCount]
    total: Annotated[float, Meta(ge=-_TOTAL_MAX, le=_TOTAL_MAX)] = 0

    def __post_init__(self) -> None:
        """Raise ValueError unless there is one count for each bucket."""
        if len(self.counts) != len(BOUNDS[self.scale]) + 1:
            raise ValueError(f"{len(self.counts)} counts do not fit the scale {self.scale}")

    @property
    def bounds(self) -> tuple[int, ...]:
        """The upper bounds of all buckets but the last."""
        return BOUNDS[self.scale]

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def add(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(BOUNDS[self.scale], value)] += 1
        self.total += value

    def add_all(self, values: list[int]) -> None:
        """Add many values. Negative ones, from clocks that differ, count as 0. With more values
        than buckets it is cheaper to sort them and to search for each bound."""
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
        """The sum, or the difference with sign -1; a histogram of another scale is ignored."""
        if other.scale != self.scale:
            return self
        counts = [one + sign * two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.scale, counts, self.total + sign * other.total)

    def copy(self) -> Histogram:
        """A copy that can be changed on its own."""
        return Histogram(self.scale, list(self.counts), self.total)

    def absorb(self, other: Histogram) -> None:
        """Like `plus`, in place."""
        if other.scale == self.scale:
            counts = zip(self.counts, other.counts, strict=True)
            self.counts = [one + two for one, two in counts]
            self.total += other.total

    def quantile(self, share: float) -> float | None:
        """The value below which about this share lies, at most the last bound; None if empty."""
        wanted = share * self.count
        below = 0
        for at, count in enumerate(self.counts[:-1]):
            if count and below + count >= wanted:
                low = self.bounds[at - 1] if at else 0
                return low + (self.bounds[at] - low) * (wanted - below) / count
            below += count
        return float(self.bounds[-1]) if self.count else None


def histogram(scale: Scale) -> Histogram:
    """An empty histogram."""
    return Histogram(scale, [0] * (len(BOUNDS[scale]) + 1))


class Counts(msgspec.Struct, omit_defaults=True):
    """Counts by name: those of one gate."""

    counts: dict[str, AnyCount] = msgspec.field(default_factory=dict)

    def add(self, counter: str, count: int = 1) -> None:
        """Add to one of the counts."""
        self.counts[counter] = self.counts.get(counter, 0) + count

    def plus(self, other: Self, sign: int = 1) -> Self:
        """The sum, or the difference with sign -1."""
        found = self.copy()
        for name, count in other.counts.items():
            found.add(name, sign * count)
        return found

    def copy(self) -> Self:
        """A copy that can be changed on its own."""
        return msgspec.structs.replace(self, counts=dict(self.counts))

    def absorb(self, other: Self) -> None:
        """Like `plus`, in place."""
        mine = self.counts
        for name, count in other.counts.items():
            mine[name] = mine.get(name, 0) + count


class QueueTotals(Counts, omit_defaults=True):
    """The counts of one queue, which are those of `COUNTERS`. `waits` are from due to leased,
    `runs` from leased to settled."""

    waits: Histogram = msgspec.field(default_factory=lambda: histogram("time"))
    runs: Histogram = msgspec.field(default_factory=lambda: histogram("time"))

    @property
    def jobs(self) -> int:
        """How busy the queue is: the jobs that came and those that started."""
        return self.counts.get("enqueued", 0) + self.counts.get("leased", 0)

    def plus(self, other: Self, sign: int = 1) -> Self:
        """The sum, or the difference with sign -1."""
        found = super().plus(other, sign)
        found.waits = self.waits.plus(other.waits, sign)
        found.runs = self.runs.plus(other.runs, sign)
        return found

    def copy(self) -> Self:
        """A copy that can be changed on its own."""
        counts, waits, runs = dict(self.counts), self.waits.copy(), self.runs.copy()
        return msgspec.structs.replace(self, counts=counts, waits=waits, runs=runs)

    def absorb(self, other: Self) -> None:
        """Like `plus`, in place."""
        super().absorb(other)
        self.waits.absorb(other.waits)
        self.runs.absorb(other.runs)


class Totals(msgspec.Struct, omit_defaults=True):
    """All counts of a process. `lags` are by role, `batches` by engine verb, `requests` by
    operation and status class (`2xx`); `gates` are by name, at most `GATES_MAX`. `handlings` are
    from the expiry of jobs to their end by the dead-letter handler."""

    queues: dict[str, QueueTotals] = msgspec.field(default_factory=dict)
    lags: dict[str, Histogram] = msgspec.field(default_factory=dict)
    batches: dict[str, Histogram] = msgspec.field(default_factory=dict)
    requests: dict[str, dict[str, Histogram]] = msgspec.field(default_factory=dict)
    handlings: dict[str, Histogram] = msgspec.field(default_factory=dict)
    gates: dict[str, Counts] = msgspec.field(default_factory=dict)

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        """The sum; with sign -1 the difference to an earlier state of the same counts."""
        return Totals(
            queues=_merged(self.queues, other.queues, sign),
            lags=_merged(self.lags, other.lags, sign),
            batches=_merged(self.batches, other.batches, sign),
            requests={
                name: _merged(self.requests.get(name, {}), other.requests.get(name, {}), sign)
                for name in self.requests | other.requests
            },
            handlings=_merged(self.handlings, other.handlings, sign),
            gates=_merged(self.gates, other.gates, sign),
        )

    def named(self, names: Iterable[str]) -> Totals:
        """The counts with all queues but these under `OTHER`."""
        kept = set(names)
        queues: dict[str, QueueTotals] = {}
        for name, each in self.queues.items():
            label = name if name in kept else OTHER
            queues[label] = queues[label].plus(each) if label in queues else each
        return msgspec.structs.replace(self, queues=queues)

    def busiest(self, count: int) -> Totals:
        """The counts with all queues but so many under `OTHER`."""
        if len(self.queues) <= count:
            return self
        return self.named(rank_queues(self.queues)[:count])


def rank_queues(queues: Mapping[str, QueueTotals], known: Container[str] = ()) -> list[str]:
    """The queues, the busiest first. A `known` one counts double: a queue that is about as busy as
    another one must not take its label."""
    found = [name for name in queues if name != OTHER]
    return sorted(found, key=lambda name: (-queues[name].jobs * (1 + (name in known)), name))


def sum_totals(some: Iterable[Totals]) -> Totals:
    """The sum of all; the arguments are not changed."""
    found = Totals()
    for each in some:
        _absorb(found.queues, each.queues)
        _absorb(found.lags, each.lags)
        _absorb(found.batches, each.batches)
        _absorb(found.handlings, each.handlings)
        _absorb(found.gates, each.gates)
        for name, by_status in each.requests.items():
            _absorb(found.requests.setdefault(name, {}), by_status)
    found.gates = _first_gates(found.gates)
    return found


def _first_gates(gates: dict[str, Counts]) -> dict[str, Counts]:
    """The counts of the first gates in alphabetical order, and of all others together."""
    if len(gates) <= GATES_MAX:
        return gates
    kept = sorted(name for name in gates if name != OTHER)[: GATES_MAX - 1]
    others = Counts()
    for name, counts in gates.items():
        if name not in kept:
            others.absorb(counts)
    return {name: gates[name] for name in kept} | {OTHER: others}


Part = TypeVar("Part", Histogram, QueueTotals, Counts)


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


def queue_label(queue: str, known: Mapping[str, object]) -> str:
    """The label that a queue counts under, given the labels in use."""
    if queue in known:
        return queue
    room = len(known) - (OTHER in known) < QUEUES_MAX
    return queue if room and queue else OTHER
