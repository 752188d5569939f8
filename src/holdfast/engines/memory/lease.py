"""One call of `lease`: chooses and takes jobs, one after the other.

A plain queue is read in order. In a queue with limits, fairness, aging or group batches, all jobs
are examined, and those that may start again after each one taken: slow, but a direct statement of
the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.core import fairness, lifecycle
from holdfast.core.lanes import Lane, lane_of
from holdfast.core.model import Job, Lease, LeaseRequest, Queue, State
from holdfast.engines.lease import make_token
from holdfast.engines.memory.flow import is_at_work, noisy
from holdfast.engines.memory.store import JobRow, MemoryStore, for_lease


class LeaseSelection:
    """The state of one call; all its leases share one token."""

    def __init__(self, store: MemoryStore, request: LeaseRequest) -> None:
        self.leases: list[Lease] = []
        self.skipped: set[int] = set()
        """Due jobs of other tasks, by `seq`."""
        self._store = store
        self._request = request
        self._token = make_token(store.number())
        self._now = store.clock.wall_ms()
        self._boot = store.clock.boot_ms()

    def run(self) -> list[Lease]:
        for id_ in self._request.ids:
            row = self._store.rows.get(id_)
            if row is not None and self._left:
                self._take_dead((row,)) if self._request.dead else self._take_if_eligible(row)
        for name in self._request.queues:
            queue = self._store.queues.get(name)
            if queue is not None and not queue.paused:
                self._take_dead_of(name) if self._request.dead else self._take_from(queue)
        return self.leases

    @property
    def _left(self) -> int:
        return self._request.limit - len(self.leases)

    def _take_dead_of(self, name: str) -> None:
        rows = [row for row in self._store.rows.values() if row.job.queue == name]
        self._take_dead(sorted(rows, key=lambda row: (row.job.due_at, row.job.seq)))

    def _take_dead(self, rows: Iterable[JobRow]) -> None:
        """Lease dead letters, which are in no index: limits and groups concern tasks that run."""
        for row in rows:
            job = row.job
            queue = self._store.queues[job.queue]
            is_wanted = self._request.tasks is None or job.task in self._request.tasks
            is_due = job.state is State.DEAD and job.due_at <= self._now and not queue.paused
            if self._left and is_wanted and is_due:
                row.deadline = self._boot + (lease_ms := self._lease_ms(job, queue))
                row.job = lifecycle.lease_dead(
                    job,
                    token=self._token,
                    worker=self._request.worker,
                    now=self._now,
                    lease_ms=lease_ms,
                )
                lease = Lease(job=for_lease(row.job), token=self._token, lease_ms=lease_ms)
                self.leases.append(lease)

    def _lease_ms(self, job: Job, queue: Queue) -> int:
        own = job.overrides.lease_ms or queue.lease_ms
        return own if self._request.lease_ms is None else self._request.lease_ms

    def _take_from(self, queue: Queue) -> None:
        if queue.limits or queue.fairness != "off" or queue.aging_ms or queue.group_batch > 1:
            self._take_by_rule(queue)
            return
        line = self._store.waiting.due(queue.name, self._now)
        try:
            while self._left and (row := next(line, None)) is not None:
                self._take_if_eligible(row)
        finally:
            line.close()

    def _take_if_eligible(self, row: JobRow) -> None:
        queue = self._store.queues[row.job.queue]
        lane = lane_of(row.job, queue)
        if self._is_eligible(row, lane, queue):
            self._take(row, lane, queue)

    def _take_by_rule(self, queue: Queue) -> None:
        if not self._left:
            return
        lanes = [(row, lane_of(row.job, queue)) for row in self._store.waiting.all_of(queue.name)]
        # A call only takes slots and heads of groups: what may not start now will not during it.
        eligible = [(row, lane) for row, lane in lanes if self._is_eligible(row, lane, queue)]
        if queue.fairness == "off":
            self._take_in_order(eligible, queue)
            return
        noisy_tenants = self._noisy_tenants(queue) if queue.fairness == "noisy" else set()
        while self._left and eligible:
            best = min((row for row, _ in eligible), key=lambda row: _aged(row, queue))
            alike = [each for each in eligible if each[0].job.priority == best.job.priority]
            if queue.fairness == "noisy":
                row, lane = min(
                    alike,
                    key=lambda each: ((each[0].job.tenant or "") in noisy_tenants, *_time(each[0])),
                )
                self._take_with_followers(row, lane, queue)
            else:
                self._take_turn(alike, queue)
            eligible = [each for each in eligible if self._is_eligible(*each, queue)]

    def _take_in_order(self, eligible: list[tuple[JobRow, Lane | None]], queue: Queue) -> None:
        for row, lane in sorted(eligible, key=lambda each: _aged(each[0], queue)):
            if not self._left:
                return
            if self._is_eligible(row, lane, queue):
                self._take_with_followers(row, lane, queue)

    def _take_turn(self, alike: list[tuple[JobRow, Lane | None]], queue: Queue) -> None:
        """Take a few jobs of the tenant whose turn it is, all of one lane."""
        tenants = self._store.tenants
        _, lane = min(
            alike,
            key=lambda each: (
                tenants.turn(queue.name, each[0].job.tenant or ""),
                *_time(each[0]),
            ),
        )
        assert lane is not None
        assert lane.tenant is not None
        taken = 0
        own = sorted((row for row, each in alike if each == lane), key=_time)
        for row in own[: fairness.quantum(self._request.limit)]:
            if self._left and self._is_eligible(row, lane, queue):
                taken += self._take_with_followers(row, lane, queue)
        tenants.took(queue, lane.tenant, taken)

    def _take_with_followers(self, row: JobRow, lane: Lane | None, queue: Queue) -> int:
        """Take a job and, up to `group_batch`, the next ones of its strict group. Returns how many
        were taken."""
        self._take(row, lane, queue)
        taken = 1
        if row.job.group is None:
            return taken
        for next_ in self._store.groups.waiting(row.job):
            fits = lane_of(next_.job, queue) == lane and self._may_go(next_, lane, queue)
            if taken >= queue.group_batch or not self._left or not fits:
                break
            self._take(next_, lane, queue)
            taken += 1
        return taken

    def _take(self, row: JobRow, lane: Lane | None, queue: Queue) -> None:
        job = row.job
        lease_ms = self._lease_ms(job, queue)
        worker = self._request.worker
        row.deadline = self._boot + lease_ms
        row.slots = () if lane is None else self._store.slots.take(lane, queue)
        self._store.waiting.leave(job)
        self._store.groups.leave(job)
        row.job = lifecycle.lease(
            job, token=self._token, worker=worker, now=self._now, lease_ms=lease_ms
        )
        self._store.groups.join(row)
        self.leases.append(Lease(job=for_lease(row.job), token=self._token, lease_ms=lease_ms))

    def _is_eligible(self, row: JobRow, lane: Lane | None, queue: Queue) -> bool:
        return self._may_go(row, lane, queue) and self._store.groups.ahead(row.job) is None

    def _may_go(self, row: JobRow, lane: Lane | None, queue: Queue) -> bool:
        """True if the job can start, regardless of its place in its group."""
        job = row.job
        if queue.paused or row.parents or not lifecycle.is_ready(job, self._now):
            return False
        if self._request.tasks is not None and job.task not in self._request.tasks:
            self.skipped.add(job.seq)
            return False
        return self._store.slots.have_room(lane, queue)

    def _noisy_tenants(self, queue: Queue) -> set[str]:
        rows = self._store.rows.values()
        leased = Counter(
            row.job.tenant or ""
            for row in rows
            if row.job.queue == queue.name and is_at_work(row.job)
        )
        return noisy(leased, self._store.tenants.busy_us(queue.name, self._now))


def _aged(row: JobRow, queue: Queue) -> tuple[int, int, int, int]:
    """Sort key in which each `aging_ms` of waiting raises the priority by one."""
    rank = -row.job.priority
    score = rank if queue.aging_ms is None else row.job.due_at + rank * queue.aging_ms
    return score, rank, *_time(row)


def _time(row: JobRow) -> tuple[int, int]:
    return row.job.due_at, row.place
