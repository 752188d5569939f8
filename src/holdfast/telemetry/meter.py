"""Counts what goes through one process's engine: hears of each call, keeps numbers, does no I/O.

It is on the way of every job. Batches are mostly alike (one queue, all settled, all complete), and
those are counted without looking at each job for its own sake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from holdfast.core.model import FailureKind, Job, Lease, NewJob, Reason, Receipt, Renewal, Status
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
from holdfast.events import EngineCalled, Happening
from holdfast.telemetry.notable import Kind, Notable, Notables
from holdfast.telemetry.totals import (
    Histogram,
    QueueTotals,
    Scale,
    Totals,
    histogram,
    label_of,
)

Each = TypeVar("Each")

_CRASHES = (FailureKind.CRASH, FailureKind.OVERDUE)
_LAG_MS_WORTH = 25
_COUNTED = ("enqueue", "lease", "settle", "renew")


class Meter:
    """`hear` is a listener. `totals` grow; `notables` are taken out. `wall_ms` is this machine's
    clock: how far the engine's is from it, each lease tells."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.totals = Totals()
        self.notables = Notables()
        self.changes = 0
        """Grows with everything that is counted."""
        self._wall_ms = wall_ms
        self._ahead_ms = 0
        self._there: set[str] = set()
        """Queues that there are."""

    def hear(self, happening: Happening) -> None:
        if not isinstance(happening, EngineCalled) or not happening.answer:
            return
        verb, asked, answer = happening.verb, happening.asked, happening.answer
        if verb in _COUNTED:
            self.changes += 1
            _at(self.totals.batches, verb, "batch").add(len(answer))
        match verb:
            case "enqueue":
                self._enqueued(asked, answer)
            case "lease":
                self._leased(answer)
            case "settle":
                self._settled(asked, answer)
            case "renew":
                self._renewed(asked, answer)
            case "queues" if len(answer) != len(self._there):
                self._there = {view.queue.name for view in answer}
            case "declare":
                self._there.update(name for name, _ in happening.counted())
            case "amend":
                wanted, amendment = asked
                self.changes += 1
                self._amended(wanted.queue or "", amendment, answer)
            case _:
                pass

    def lagged(self, role: str, lag_ms: float) -> None:
        """The event loop came so much later than it was asked to. That it did not is no news, and
        is told with the next."""
        self.changes += lag_ms > _LAG_MS_WORTH
        _at(self.totals.lags, role, "lag").add(lag_ms)

    def requested(self, operation: str, status: int, duration_ms: float) -> None:
        """A request was answered."""
        self.changes += 1
        found = self.totals.requests.setdefault(operation, {})
        _at(found, f"{status // 100}xx", "request").add(duration_ms)

    def take_away(self, told: Totals) -> None:
        """What was told under another name already."""
        self.totals = self.totals.plus(told, -1)

    def _queue(self, name: str) -> QueueTotals:
        queues = self.totals.queues
        found = queues.get(name)
        if found is None:
            found = queues.setdefault(label_of(name, queues), QueueTotals())
        return found

    def _named(self, name: str) -> QueueTotals:
        """What a caller says that the queue is: only one that the engine has told of is believed,
        else whoever settles, or repeats what is done already, could fill the names with any."""
        return self._queue(name if name in self._there else "")

    def _enqueued(self, jobs: Sequence[NewJob], receipts: Sequence[Receipt]) -> None:
        statuses = [receipt.status for receipt in receipts]
        queues = {job.queue for job in jobs}
        if len(queues) == 1 and statuses.count(Status.NEW) == len(jobs):
            name = queues.pop()
            self._there.add(name)
            self._queue(name).add("enqueued", len(jobs))
            return
        for job, status in zip(jobs, statuses, strict=True):
            if status is Status.NEW:
                self._there.add(job.queue)
            # A queue that is not there must not be given a name by whoever asks for it.
            name = "" if status is Status.REFUSED else job.queue
            self._named(name).add(_BY_STATUS[status])

    def _leased(self, leases: Sequence[Lease]) -> None:
        jobs = [lease.job for lease in leases]
        last = jobs[-1].leased_at
        if last is not None:
            self._ahead_ms = self._wall_ms() - last
        for name, some in _by_queue(jobs, jobs):
            self._there.add(name)
            queue = self._queue(name)
            queue.add("leased", len(some))
            queue.waits.add_all([(job.leased_at or job.due_at) - job.due_at for job in some])

    def _settled(self, settlements: Sequence[Settlement], outcomes: Sequence[Outcome]) -> None:
        now = self._wall_ms() - self._ahead_ms
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
            # What was given back did not run.
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
                self.notables.add(_death(settlement.lease.job, verdict))
            case Release():
                queue.add("released")
            case Forward():
                queue.add("forwarded")

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

    def _amended(self, queue: str, amendment: Amendment, changed: int) -> None:
        match amendment:
            case BuryWaiting(reason=reason):
                found = self._queue(queue)
                found.add("dead", changed)
                if reason is Reason.EXPIRED:
                    found.add("expired", changed)
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
    """Told apart by the queues of their jobs, which mostly are one."""
    queues = {job.queue for job in jobs}
    if len(queues) == 1:
        return [(queues.pop(), some)]
    found: dict[str, list[Each]] = {}
    for each, job in zip(some, jobs, strict=True):
        found.setdefault(job.queue, []).append(each)
    return found.items()


def _death(job: Job, verdict: Bury) -> Notable:
    failure = verdict.failure
    text = "" if failure is None else ": ".join(filter(None, (failure.type, failure.message)))
    return Notable(
        kind=Kind.JOB_DIED,
        queue=job.queue,
        id=job.id,
        name=job.task,
        reason=verdict.reason,
        text=text,
    )
