"""The rows of the memory engine: admit, settle, amend, one job at a time.

Calls `core` for every decision. `keep` and `remove` are the two places where a job changes, and
see to what that means for its line, its group, its slots and its children.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import admission, checks, lifecycle, meeting
from holdfast.core import amend as amending
from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import Parting
from holdfast.core.model import (
    Job,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Receipt,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import Amendment, Complete, Outcome, Settlement
from holdfast.engines.clock import Clock
from holdfast.engines.memory.family import Family
from holdfast.engines.memory.flow import Slots, Tenants
from holdfast.engines.memory.lines import Groups, Lines
from holdfast.engines.memory.rows import Row, in_hand, noted
from holdfast.engines.memory.taking import Taking
from holdfast.engines.tokens import make_token
from holdfast.errors import UsageError


class Store:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queues: dict[str, Queue] = {}
        self.rows: dict[str, Row] = {}
        self.keys: dict[tuple[str, str], tuple[str, int]] = {}
        self.lines = Lines(self.rows)
        self.groups = Groups()
        self.family = Family(self.rows)
        self.slots = Slots(clock)
        self.tenants = Tenants()
        self._ended: deque[tuple[int, str, State | None]] = deque()
        self._numbers = itertools.count(1)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        order, circular = meeting.arrange(jobs, self.rows)
        receipts = {place: self._enqueue(jobs[place], circular.get(place)) for place in order}
        return [receipts[place] for place in range(len(jobs))]

    def take(self, request: LeaseRequest) -> list[Lease]:
        """Lease what is due, best first."""
        return Taking(self, request, make_token(next(self._numbers))).run()

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
        then = verdict.then if isinstance(verdict, Complete) else ()
        if not admission.is_welcome(settlement, self.queues) or not self._may_follow(
            then, lease.id
        ):
            return Outcome.REFUSED
        job = noted(row.job, settlement.note)
        self.keep(row, lifecycle.apply(job, verdict, self.policy(job), self.clock.wall_ms()))
        for place in meeting.arrange(then, self.rows)[0]:
            new = then[place]
            if new.id not in self.rows and self._holder(new) is None:
                self._admit(new)
        return Outcome.SETTLED

    def amend(self, row: Row, amendment: Amendment) -> None:
        now = self.clock.wall_ms()
        change = amending.amend(row.job, amendment, self.policy(row.job), now)
        if change is None:
            self.remove(row)
        else:
            self.keep(row, change)

    def keep(self, row: Row, change: lifecycle.Change) -> None:
        before, after = row.job, change.job
        self._leave(row, is_leased=after.state is State.LEASED)
        row.job = after
        if change.event is not None:
            row.events.append(checks.clean_event(change.event))
        if after.state is State.WAITING:
            if change.tail:
                row.place = next(self._numbers)
            self.lines.join(row)
        self.groups.join(row)
        if after.state.finished and not before.state.finished:
            self._ended.append((after.seq, after.id, after.state))

    def remove(self, row: Row) -> None:
        job = row.job
        self._leave(row, is_leased=False)
        self.family.close(row, *row.parents)
        del self.rows[job.id]
        if not job.state.finished:
            self._ended.append((job.seq, job.id, None))

    def part(self) -> None:
        """Judge the children of all that ended, the oldest first, and theirs in turn: the end of
        every call."""
        self._ended = deque(sorted(self._ended, key=lambda end: end[0]))
        while self._ended:
            _, parent, ended = self._ended.popleft()
            for child in self.family.children(parent):
                parting = lifecycle.after_parent(child.job, ended)
                if parting is Parting.CANCELLED and child.job.state is State.WAITING:
                    self._orphan(child, parent, ended)
                elif parting is not Parting.HELD:
                    self.family.close(child, parent)

    def number(self) -> int:
        """One that was never used before."""
        return next(self._numbers)

    def policy(self, job: Job) -> Queue:
        return admission.policy(self.queues[job.queue], self.queues)

    def _enqueue(self, new: NewJob, circle: str | None) -> Receipt:
        queue = self.queues.get(new.queue)
        try:
            queue = admission.check_new(new, queue)
            if new.id in self.rows:
                return Receipt(id=new.id, status=Status.DUPLICATE)
            if circle is not None:
                raise admission.circular(new.id, circle)
            holder = self._holder(new)
            if holder is not None:
                self._meet(self.rows.get(holder), new, queue)
                return Receipt(id=holder, status=Status.DUPLICATE)
            for parent in new.after:
                if parent not in self.rows:
                    raise admission.unknown_parent(new.id, parent)
            lane_of(new, queue, strict=True)
            admission.check_room(queue, self.lines.depths[queue.name])
        except UsageError as error:
            return admission.refused(new.id, error)
        self._admit(new)
        return Receipt(id=new.id, status=Status.NEW)

    def _admit(self, new: NewJob) -> None:
        now = self.clock.wall_ms()
        number = next(self._numbers)
        row = Row(lifecycle.admit(new, number, now), number)
        self.rows[new.id] = row
        self.lines.join(row)
        self.groups.join(row)
        if new.key is not None:
            self.keys[new.queue, new.key] = (new.id, now + new.key_window_ms)
        lost = self.family.add(row)
        if lost is not None:
            self._orphan(row, *lost)

    def _may_follow(self, then: Sequence[NewJob], done: str) -> bool:
        return not then or meeting.may_follow(
            then,
            meeting.arrange(then, self.rows),
            queue_of=self.queues.__getitem__,
            is_known=self.rows.__contains__,
            is_held=lambda new: self._holder(new, done) is not None,
            is_orphan=lambda new, coming: any(
                parent not in self.rows and parent not in coming for parent in new.after
            ),
        )

    def _holder(self, new: NewJob, done: str | None = None) -> str | None:
        """The id of the job that holds this key: unfinished, or still within its window. `done`
        is about to be finished."""
        if new.key is None:
            return None
        held = self.keys.get((new.queue, new.key))
        if held is None:
            return None
        id_, until = held
        row = self.rows.get(id_)
        unfinished = row is not None and not row.job.state.finished and id_ != done
        return id_ if unfinished or until > self.clock.wall_ms() else None

    def _meet(self, row: Row | None, new: NewJob, queue: Queue) -> None:
        change = meeting.meet(row.job, new, queue, self.clock.wall_ms()) if row else None
        if row is not None and change is not None:
            self.keep(row, change)

    def _orphan(self, child: Row, parent: str, ended: State | None) -> None:
        self.family.close(child, *child.parents)
        self.keep(child, lifecycle.orphan(child.job, parent, ended, self.clock.wall_ms()))

    def _leave(self, row: Row, *, is_leased: bool) -> None:
        """Before a job changes; `is_leased` is whether its lease goes on."""
        job = row.job
        if job.state is State.WAITING:
            self.lines.leave(job)
        self.groups.leave(job)
        if job.state is State.LEASED and not is_leased:
            self.slots.give_back(row.slots)
            row.slots = ()
            queue = self.queues.get(job.queue)
            if queue is not None and queue.fairness != "off":
                self.tenants.ended(job, self.clock.wall_ms())
