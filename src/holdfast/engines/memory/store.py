"""The stored jobs of the memory engine and the indexes over them: enqueue, settle and amend, one
job at a time.

`core` makes every decision. Jobs change only in `write` and `remove`, which also update the order
of the queue, the group, the slots and the children.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterable, Sequence

from msgspec.structs import replace

from holdfast.core import amend as amending
from holdfast.core import checks, dependencies, lifecycle
from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import ParentEffect
from holdfast.core.limits import SlotKey
from holdfast.core.model import (
    Event,
    Job,
    Lease,
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
from holdfast.engines.memory.flow import Slots, TenantCounters
from holdfast.errors import UsageError


class MemoryStore:
    """Jobs, queues and keys, with the indexes over them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queues: dict[str, Queue] = {}
        self.rows: dict[str, JobRow] = {}
        self.keys: dict[tuple[str, str], tuple[str, int]] = {}
        self.waiting: WaitingJobs = WaitingJobs(self.rows)
        self.groups: StrictGroups = StrictGroups()
        self.dependencies: Dependencies = Dependencies(self.rows)
        self.slots: Slots = Slots(clock)
        self.tenants: TenantCounters = TenantCounters()
        self._ended: deque[tuple[int, str, State | None]] = deque()
        self._numbers = itertools.count(1)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        order, circular = dependencies.arrange(jobs, self.rows)
        receipts = {place: self._enqueue(jobs[place], circular.get(place)) for place in order}
        return [receipts[place] for place in range(len(jobs))]

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
        row.job = with_note(replace(row.job, deadline_at=now + lease_ms), renewal.note)
        return Lease(job=for_lease(row.job), token=lease.token, lease_ms=lease_ms)

    def settle(self, settlement: Settlement) -> Outcome:
        lease, verdict = settlement.lease, settlement.verdict
        row = self.rows.get(lease.id)
        lapsed = row is not None and row.deadline <= self.clock.boot_ms()
        answer = lifecycle.judge(row.job if row else None, lease.token, verdict, lapsed=lapsed)
        if answer is not None or row is None:
            return answer or Outcome.LOST
        then = verdict.then if isinstance(verdict, Complete) else ()
        if not checks.is_acceptable(settlement, self.queues) or not self._may_follow(
            then, lease.id
        ):
            return Outcome.REFUSED
        job = with_note(row.job, settlement.note)
        change = lifecycle.apply(job, verdict, self.policy(job), self.clock.wall_ms())
        if change is not None:
            self.write(row, change)
        for place in dependencies.arrange(then, self.rows)[0]:
            new = then[place]
            if new.id not in self.rows and self._holder(new) is None:
                self._admit(new)
        if change is None:
            self.remove(row)
        return Outcome.SETTLED

    def amend(self, row: JobRow, amendment: Amendment) -> None:
        policy, now = self.policy(row.job), self.clock.wall_ms()
        change = amending.amend(row.job, amendment, policy, now, self.queues)
        if change is None:
            self.remove(row)
        else:
            self.write(row, change)

    def write(self, row: JobRow, change: lifecycle.Change) -> None:
        before, after = row.job, change.job
        after = lifecycle.with_queue_expiry(after, self.queues[after.queue])
        self._remove_from_indexes(row, is_leased=after.state is State.LEASED)
        row.job = after
        if change.event is not None:
            row.events.append(checks.clean_event(change.event))
        if after.state is State.WAITING:
            if change.tail:
                row.place = next(self._numbers)
            self.waiting.join(row)
        self.groups.join(row)
        if after.has_ended and not before.has_ended:
            self._ended.append((after.seq, after.id, after.state))

    def remove(self, row: JobRow) -> None:
        job = row.job
        self._remove_from_indexes(row, is_leased=False)
        self.dependencies.close(row, *row.parents)
        del self.rows[job.id]
        if not job.has_ended:
            self._ended.append((job.seq, job.id, None))

    def apply_parent_effects(self) -> None:
        """At the end of every call: release or cancel the children of jobs that ended, oldest
        parent first, and their children in turn."""
        self._ended = deque(sorted(self._ended, key=lambda end: end[0]))
        while self._ended:
            _, parent, ended = self._ended.popleft()
            for child in self.dependencies.children(parent):
                effect = lifecycle.after_parent(child.job, ended)
                if effect is ParentEffect.CANCELLED and child.job.state is State.WAITING:
                    self._orphan(child, parent, ended)
                elif effect is not ParentEffect.HELD:
                    self.dependencies.close(child, parent)

    def number(self) -> int:
        """A number that was never used before."""
        return next(self._numbers)

    def policy(self, job: Job) -> Queue:
        return checks.effective_queue(self.queues[job.queue], self.queues)

    def _enqueue(self, new: NewJob, circle: str | None) -> Receipt:
        queue = self.queues.get(new.queue)
        try:
            queue = checks.check_new(new, queue)
            if new.id in self.rows:
                return self._duplicate(new.id)
            if circle is not None:
                raise checks.circular(new.id, circle)
            holder = self._holder(new)
            if holder is not None:
                self._apply_key_policy(self.rows.get(holder), new, queue)
                return self._duplicate(holder)
            for parent in new.after:
                if parent not in self.rows:
                    raise checks.unknown_parent(new.id, parent)
            lane_of(new, queue, strict=True)
            checks.check_room(queue, self.waiting.depths[queue.name])
        except UsageError as error:
            return checks.refusal(new.id, error)
        return Receipt(id=new.id, status=Status.NEW, seq=self._admit(new))

    def _duplicate(self, id: str) -> Receipt:
        row = self.rows.get(id)
        return Receipt(id=id, status=Status.DUPLICATE, seq=row.job.seq if row else None)

    def _admit(self, new: NewJob) -> int:
        now = self.clock.wall_ms()
        number = next(self._numbers)
        job = lifecycle.with_queue_expiry(lifecycle.admit(new, number, now), self.queues[new.queue])
        row = JobRow(job, number)
        self.rows[new.id] = row
        self.waiting.join(row)
        self.groups.join(row)
        if new.key is not None:
            self.keys[new.queue, new.key] = (new.id, now + new.key_window_ms)
        lost = self.dependencies.add(row)
        if lost is not None:
            self._orphan(row, *lost)
        return number

    def _may_follow(self, then: Sequence[NewJob], done: str) -> bool:
        return not then or dependencies.can_enqueue_follow_ups(
            then,
            dependencies.arrange(then, self.rows),
            queue_of=self.queues.__getitem__,
            is_known=self.rows.__contains__,
            is_held=lambda new: self._holder(new, done) is not None,
            is_orphan=lambda new, coming: any(
                parent not in self.rows and parent not in coming for parent in new.after
            ),
        )

    def _holder(self, new: NewJob, done: str | None = None) -> str | None:
        """The id of the job that holds the new job's key. `done` is a job that is about to
        finish."""
        if new.key is None:
            return None
        held = self.keys.get((new.queue, new.key))
        if held is None:
            return None
        id_, until = held
        row = self.rows.get(id_)
        unfinished = row is not None and not row.job.has_ended and id_ != done
        now = self.clock.wall_ms()
        is_held = lifecycle.is_key_held(new, until=until, now=now, unfinished=unfinished)
        return id_ if is_held else None

    def _apply_key_policy(self, row: JobRow | None, new: NewJob, queue: Queue) -> None:
        change = (
            lifecycle.apply_key_policy(row.job, new, queue, self.clock.wall_ms()) if row else None
        )
        if row is not None and change is not None:
            self.write(row, change)

    def _orphan(self, child: JobRow, parent: str, ended: State | None) -> None:
        self.dependencies.close(child, *child.parents)
        self.write(child, lifecycle.orphan(child.job, parent, ended, self.clock.wall_ms()))

    def _remove_from_indexes(self, row: JobRow, *, is_leased: bool) -> None:
        """Remove a job from the indexes before it changes; `is_leased` if its lease continues."""
        job = row.job
        if job.state is State.WAITING:
            self.waiting.leave(job)
        self.groups.leave(job)
        if job.state is State.LEASED and not is_leased and not job.is_dead_letter:
            self.slots.give_back(row.slots)
            row.slots = ()
            queue = self.queues.get(job.queue)
            if queue is not None and queue.fairness != "off":
                self.tenants.ended(job, self.clock.wall_ms())


class JobRow:
    """A job, with its place in the queue, its deadline on the boot clock, the slots of its lease
    and the parents it still waits for."""

    __slots__ = ("deadline", "events", "job", "parents", "place", "slots")

    def __init__(self, job: Job, place: int) -> None:
        self.job: Job = job
        self.place: int = place
        self.deadline: int = 0
        self.slots: tuple[SlotKey, ...] = ()
        self.parents: dict[str, None] = {}
        self.events: list[Event] = []


class WaitingJobs:
    """The waiting jobs of every queue: one heap per priority. Stale entries stay in a heap until
    they are met; they are recognised by their place."""

    def __init__(self, rows: dict[str, JobRow]) -> None:
        self.depths: Counter[str] = Counter()
        """Number of waiting jobs by queue."""
        self._rows = rows
        self._heaps: dict[str, dict[int, list[tuple[int, int, str]]]] = {}

    def join(self, row: JobRow) -> None:
        job = row.job
        self.depths[job.queue] += 1
        ranks = self._heaps.setdefault(job.queue, defaultdict(list))
        heapq.heappush(ranks[-job.priority], (job.due_at, row.place, job.id))

    def leave(self, job: Job) -> None:
        self.depths[job.queue] -= 1

    def all_of(self, name: str) -> list[JobRow]:
        """Every waiting job of a queue; removes the stale entries of its heaps."""
        found: dict[str, JobRow] = {}
        for rank, heap in self._heaps.get(name, {}).items():
            fresh = {entry for entry in heap if self._fresh(entry, name, rank) is not None}
            heap[:] = sorted(fresh)
            found |= {entry[2]: self._rows[entry[2]] for entry in heap}
        return list(found.values())

    def due(self, name: str, now: int) -> Generator[JobRow, None, None]:
        """Due jobs in order. The caller must take a job before it requests the next."""
        heaps = self._heaps.get(name, {})
        for rank in sorted(heaps):
            heap = heaps[rank]
            passed_over = []
            try:
                while heap and heap[0][0] <= now:
                    entry = heapq.heappop(heap)
                    row = self._fresh(entry, name, rank)
                    if row is not None:
                        # If the caller takes the job, this entry becomes stale.
                        passed_over.append(entry)
                        yield row
            finally:
                for entry in passed_over:
                    heapq.heappush(heap, entry)

    def _fresh(self, entry: tuple[int, int, str], name: str, rank: int) -> JobRow | None:
        """The row of an entry; None if the entry is stale."""
        row = self._rows.get(entry[2])
        if row is None or row.job.state is not State.WAITING:
            return None
        job = row.job
        same = (job.due_at, row.place, job.queue, -job.priority) == (*entry[:2], name, rank)
        return row if same else None


class StrictGroups:
    """The unfinished jobs of every strict group: the leased ones, then the waiting ones, each in
    order of arrival."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], list[tuple[bool, int, JobRow]]] = {}

    def join(self, row: JobRow) -> None:
        job = row.job
        if job.group is not None and not job.has_ended:
            members = self._members.setdefault((job.queue, job.group), [])
            insort(members, (*_position(job), row), key=_place)

    def leave(self, job: Job) -> None:
        """Remove a job; `job` is its value before the change."""
        if job.group is None or job.has_ended:
            return
        members = self._members[job.queue, job.group]
        del members[bisect_left(members, _position(job), key=_place)]
        if not members:
            del self._members[job.queue, job.group]

    def ahead(self, job: Job) -> JobRow | None:
        """The job of the same group that this one waits for: a leased one, else the first."""
        if job.group is None:
            return None
        first = self._members[job.queue, job.group][0][2]
        return None if first.job.id == job.id else first

    def waiting(self, job: Job) -> list[JobRow]:
        """The waiting jobs of its group."""
        members = self._members[job.queue, job.group or ""]
        return [row for is_waiting, _, row in members if is_waiting]


def _position(job: Job) -> tuple[bool, int]:
    return job.state is State.WAITING, job.seq


def _place(member: tuple[bool, int, JobRow]) -> tuple[bool, int]:
    return member[:2]


class Dependencies:
    """Open dependencies between the rows of a store."""

    def __init__(self, rows: dict[str, JobRow]) -> None:
        self._rows = rows
        self._children: dict[str, dict[str, None]] = {}
        """Ids of waiting children, by the id of their parent."""

    def children(self, parent: str) -> list[JobRow]:
        """The jobs that still wait for this parent, in order of arrival."""
        rows = [self._rows[id_] for id_ in self._children.get(parent, ())]
        return sorted(rows, key=lambda row: row.job.seq)

    def add(self, child: JobRow) -> tuple[str, State] | None:
        """Add a new job, some of whose parents may have ended. Returns the first parent whose end
        cancels the child, with its state; the child then waits for none."""
        for parent in child.job.after:
            job = self._rows[parent].job
            state = State.DEAD if job.is_dead_letter else job.state
            effect = (
                lifecycle.after_parent(child.job, state) if state.finished else ParentEffect.HELD
            )
            if effect is ParentEffect.CANCELLED:
                self.close(child, *child.parents)
                return parent, state
            if effect is ParentEffect.HELD:
                self.wait_for(child, (parent,))
        return None

    def wait_for(self, child: JobRow, parents: Iterable[str]) -> None:
        """The child waits for these parents."""
        for parent in parents:
            child.parents[parent] = None
            self._children.setdefault(parent, {})[child.job.id] = None

    def close(self, child: JobRow, *parents: str) -> None:
        """The child no longer waits for these parents."""
        for parent in parents:
            child.parents.pop(parent, None)
            waiting = self._children.get(parent, {})
            waiting.pop(child.job.id, None)
            if not waiting:
                self._children.pop(parent, None)


def with_note(job: Job, note: Note | None) -> Job:
    """The job with the progress, checkpoint and output of a note."""
    if note is None:
        return job
    return replace(
        job,
        progress=job.progress if note.progress is None else note.progress,
        checkpoint=job.checkpoint if note.checkpoint is None else note.checkpoint,
        output=job.output if note.output is None else checks.clip_output(note.output),
    )


def for_lease(job: Job) -> Job:
    """As in a lease: with the checkpoint, without output, result and the end of a dead letter."""
    return replace(job, output=None, result=None, finished_at=None, fingerprint=None)


def for_list(job: Job) -> Job:
    """As in a list: without notes, result and parents."""
    return replace(job, output=None, result=None, checkpoint=None, progress=None, after=())


def for_reaper(job: Job) -> Job:
    """As the reaper needs it: without the payload."""
    return replace(for_list(job), payload=b"")
