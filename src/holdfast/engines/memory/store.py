"""The rows of the memory engine, one job at a time: admit, take, settle, amend.

Calls `core` for every decision. The only index is one heap of waiting jobs per queue and
priority, whose stale entries are recognised by their place.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.core import admission, checks, codec, lifecycle, limits
from holdfast.core import amend as amending
from holdfast.core.model import (
    Event,
    Job,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Receipt,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import Amendment, Complete, Outcome, Settlement
from holdfast.engines.clock import Clock
from holdfast.engines.tokens import make_token
from holdfast.errors import UsageError


class Row:
    """A job and what its frozen value does not say: its place in line and its boot deadline."""

    __slots__ = ("deadline", "events", "job", "place")

    def __init__(self, job: Job, place: int) -> None:
        self.job = job
        self.place = place
        self.deadline = 0
        self.events: list[Event] = []


class Store:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queues: dict[str, Queue] = {}
        self.rows: dict[str, Row] = {}
        self.keys: dict[tuple[str, str], tuple[str, int]] = {}
        self._numbers = itertools.count(1)
        self._waiting: Counter[str] = Counter()
        self._lines: dict[str, dict[int, list[tuple[int, int, str]]]] = {}

    def enqueue(self, new: NewJob) -> Receipt:
        queue = self.queues.get(new.queue)
        try:
            checks.check_job(new, queue.payload_max if queue else limits.PAYLOAD_MAX)
            if queue is None:
                raise admission.unknown(new.queue)
            if new.id in self.rows:
                return Receipt(id=new.id, status=Status.DUPLICATE)
            holder = self._holder(new)
            if holder is not None:
                self._meet(self.rows.get(holder), new, queue)
                return Receipt(id=holder, status=Status.DUPLICATE)
            admission.check_room(queue, self._waiting[queue.name])
        except UsageError as error:
            return admission.refused(new.id, error)
        self.admit(new)
        return Receipt(id=new.id, status=Status.NEW)

    def admit(self, new: NewJob) -> None:
        now = self.clock.wall_ms()
        number = next(self._numbers)
        row = Row(lifecycle.admit(new, number, now), number)
        self.rows[new.id] = row
        self._line_up(row)
        if new.key is not None:
            self.keys[new.queue, new.key] = (new.id, now + new.key_window_ms)

    def take(self, request: LeaseRequest) -> list[Lease]:
        """Lease what is due, best first."""
        now, boot = self.clock.wall_ms(), self.clock.boot_ms()
        token = make_token(next(self._numbers))
        leases = []
        for row in itertools.islice(self._takeable(request, now), request.limit):
            job = row.job
            own = job.overrides.lease_ms or self.queues[job.queue].lease_ms
            lease_ms = own if request.lease_ms is None else request.lease_ms
            row.job = lifecycle.lease(
                job, token=token, worker=request.worker, now=now, lease_ms=lease_ms
            )
            row.deadline = boot + lease_ms
            self._waiting[job.queue] -= 1
            leases.append(Lease(job=in_hand(row.job), token=token, lease_ms=lease_ms))
        return leases

    def renew(self, renewal: Renewal) -> Lease | None:
        lease = renewal.lease
        row = self.rows.get(lease.id)
        now, boot = self.clock.wall_ms(), self.clock.boot_ms()
        if (
            row is None
            or row.job.state is not State.LEASED
            or row.job.token != lease.token
            or row.deadline <= boot
        ):
            return None
        lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
        row.deadline = boot + lease_ms
        row.job = noted(replace(row.job, deadline_at=now + lease_ms), renewal.note)
        return Lease(job=in_hand(row.job), token=lease.token, lease_ms=lease_ms)

    def settle(self, settlement: Settlement) -> Outcome:
        lease, verdict = settlement.lease, settlement.verdict
        row = self.rows.get(lease.id)
        lapsed = row is not None and row.deadline <= self.clock.boot_ms()
        answer = lifecycle.judge(row.job if row else None, lease.token, verdict, lapsed=lapsed)
        if answer is not None or row is None:
            return answer or Outcome.LOST
        if not admission.is_welcome(settlement, self.queues):
            return Outcome.REFUSED
        job = noted(row.job, settlement.note)
        self.keep(row, lifecycle.apply(job, verdict, self.policy(job), self.clock.wall_ms()))
        if isinstance(verdict, Complete):
            for new in verdict.then:
                if new.id not in self.rows and self._holder(new) is None:
                    self.admit(new)
        return Outcome.SETTLED

    def amend(self, row: Row, amendment: Amendment) -> None:
        now = self.clock.wall_ms()
        change = amending.amend(row.job, amendment, self.policy(row.job), now)
        if change is None:
            self.remove(row)
        else:
            self.keep(row, change)

    def keep(self, row: Row, change: lifecycle.Change) -> None:
        before = row.job
        if before.state is State.WAITING:
            self._waiting[before.queue] -= 1
        row.job = change.job
        if change.event is not None:
            row.events.append(checks.clean_event(change.event))
        if change.job.state is State.WAITING:
            if change.tail:
                row.place = next(self._numbers)
            self._line_up(row)

    def remove(self, row: Row) -> None:
        if row.job.state is State.WAITING:
            self._waiting[row.job.queue] -= 1
        del self.rows[row.job.id]

    def policy(self, job: Job) -> Queue:
        return admission.policy(self.queues[job.queue], self.queues)

    def next_due_ms(self, request: LeaseRequest) -> int | None:
        """The time to the next job that only waits for the clock."""
        now = self.clock.wall_ms()
        names = set(request.queues)
        ahead = [
            row.job.due_at - now
            for row in self.rows.values()
            if row.job.state is State.WAITING
            and row.job.due_at > now
            and (row.job.queue in names or row.job.id in request.ids)
        ]
        return min(ahead, default=None)

    def _holder(self, new: NewJob) -> str | None:
        """The id of the job that holds this key: unfinished, or still within its window."""
        if new.key is None:
            return None
        held = self.keys.get((new.queue, new.key))
        if held is None:
            return None
        id_, until = held
        row = self.rows.get(id_)
        unfinished = row is not None and not row.job.state.finished
        return id_ if unfinished or until > self.clock.wall_ms() else None

    def _meet(self, row: Row | None, new: NewJob, queue: Queue) -> None:
        """A later job under a held key: what it says goes to the job that still waits."""
        if row is None or row.job.state is not State.WAITING or new.key_policy == "keep":
            return
        now = self.clock.wall_ms()
        if new.key_policy == "replace":
            self.keep(row, lifecycle.replace_waiting(row.job, new, now))
        else:
            payload = codec.merge_patch(row.job.payload, new.payload)
            merged = replace(new, payload=payload)
            checks.check_job(merged, queue.payload_max)
            self.keep(row, lifecycle.merge_waiting(row.job, payload, now))

    def _line_up(self, row: Row) -> None:
        job = row.job
        self._waiting[job.queue] += 1
        ranks = self._lines.setdefault(job.queue, defaultdict(list))
        heapq.heappush(ranks[-job.priority], (job.due_at, row.place, job.id))

    def _takeable(self, request: LeaseRequest, now: int) -> Iterator[Row]:
        if request.ids:
            for id_ in request.ids:
                row = self.rows.get(id_)
                if row is not None and self._may_go(row, request, now):
                    yield row
            return
        for name in request.queues:
            for rank in sorted(self._lines.get(name, {})):
                yield from self._due(name, rank, request, now)

    def _due(self, name: str, rank: int, request: LeaseRequest, now: int) -> Iterator[Row]:
        line = self._lines[name][rank]
        passed_over = []
        try:
            while line and line[0][0] <= now:
                entry = heapq.heappop(line)
                row = self.rows.get(entry[2])
                if row is None or self._stale(row, entry, name, rank):
                    continue
                # Whoever takes the row ends its waiting, which makes this entry stale.
                passed_over.append(entry)
                if self._may_go(row, request, now):
                    yield row
        finally:
            for entry in passed_over:
                heapq.heappush(line, entry)

    def _stale(self, row: Row, entry: tuple[int, int, str], name: str, rank: int) -> bool:
        job = row.job
        return (
            job.state is not State.WAITING
            or (job.due_at, row.place) != entry[:2]
            or (job.queue, -job.priority) != (name, rank)
        )

    def _may_go(self, row: Row, request: LeaseRequest, now: int) -> bool:
        job = row.job
        queue = self.queues.get(job.queue)
        known = request.tasks is None or job.task in request.tasks
        return queue is not None and not queue.paused and known and lifecycle.is_ready(job, now)


def noted(job: Job, note: Note | None) -> Job:
    if note is None:
        return job
    return replace(
        job,
        progress=job.progress if note.progress is None else note.progress,
        checkpoint=job.checkpoint if note.checkpoint is None else note.checkpoint,
        output=job.output if note.output is None else checks.clip_output(note.output),
    )


def in_hand(job: Job) -> Job:
    """What a lease carries: the checkpoint to go on from, but no output or result."""
    return replace(job, output=None, result=None)


def brief(job: Job) -> Job:
    """What a list carries."""
    return replace(job, output=None, result=None, checkpoint=None, progress=None)


def bare(job: Job) -> Job:
    """What the reaper decides on."""
    return replace(brief(job), payload=b"")
