"""Lease due jobs without scanning: one index seek per priority, then rows in their order.

`check_due` looks without the lock, `take` chooses and leases inside a transaction. A delayed job at
the front costs one seek, however many are behind it. Jobs found past their expiry are moved out of
the ready index, so that they are met once; the reaper buries them. Queues with lanes are handled by
`flow.lane_lease`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile, islice
from typing import NamedTuple

import apsw
import msgspec

from holdfast.core import bounds, lifecycle
from holdfast.core.model import Job, Lease, LeaseRequest, State
from holdfast.engines.lease import make_token
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import fairness, groups, lanes
from holdfast.engines.sqlite.flow.lane_lease import LaneChooser, lanes_skipped, next_in_lanes_ms
from holdfast.engines.sqlite.flow.lane_order import EXPIRED_MAX, PASS_MAX
from holdfast.engines.sqlite.flow.limits import SlotCapacity
from holdfast.engines.sqlite.rows import QueuePosition, Row
from holdfast.engines.sqlite.schema import FLOW_TENANT, HOLD_BEHIND, HOLD_PARENT, RANK_FIRST, READY
from holdfast.engines.sqlite.transaction import QueueRow, Transaction

SCAN_STEP_MAX = 20_000
"""Jobs skipped in one step of a task scan; a longer read transaction would block checkpoints."""

RESTORE_MAX = 20_000
"""Jobs restored from expiry in one call after the wall clock was set back."""

# The columns that leasing does not overwrite; those that few jobs set are last.
FIELDS = (
    "seq, queue, id, task, payload, rank, due_at, attempt, version, created_at, lease_ms, tenant,"
    " grp, expires_at, crashes, releases, cancel, reason, key, extra, parts"
)
SEQ, QUEUE, ID, TASK, PAYLOAD, RANK, DUE_AT, ATTEMPT, VERSION, CREATED_AT, LEASE_MS = range(11)
TENANT, GROUP, EXPIRES_AT, CRASHES, RELEASES, CANCEL, REASON, KEY, EXTRA, PARTS = range(11, 21)
_RARE = slice(EXPIRES_AT, PARTS + 1)
_NOTHING_RARE = (None, 0, 0, 0, None, None, None, 0)
_ORDER = "ORDER BY rank, due_at, place"
_TAKE = f"SELECT {FIELDS} {READY} AND rank > ? {_ORDER}"
_TAKE_FROM = f"SELECT {FIELDS} {READY} AND (rank, due_at, place) >= (?, ?, ?) {_ORDER}"
_TAKE_RANK = f"SELECT {FIELDS} {READY} AND rank = ? AND (due_at, place) >= (?, ?) {_ORDER}"
_FIRST_OF_RANK = f"SELECT rank, due_at {READY} AND rank > ? {_ORDER} LIMIT 1"
_HOLD_EXPIRED = (
    "UPDATE hf_jobs SET holds = 2 WHERE seq IN ("
    f"SELECT seq {READY} AND rank = ? AND due_at <= ? AND expires_at <= ? LIMIT ?)"
)


class DueCheck(NamedTuple):
    """The result of looking for due jobs."""

    next_ms: int | None
    """Time until a job may be leased: 0 is now; None if only a change can help."""
    start: QueuePosition | None = None
    """The first job found for the request; before it, only lanes can have any."""
    resume: QueuePosition | None = None
    """The last job that a task scan has skipped; the jobs behind it are not scanned yet."""
    needs_relane: int | None = None
    """A queue whose jobs must be sorted into lanes before any of them is leased."""
    skipped: int = 0
    """Due jobs of other tasks that were skipped, and lanes of them."""


def check_due(
    transaction: Transaction, request: LeaseRequest, after: QueuePosition | None = None
) -> DueCheck:
    """Whether a job can be leased now, or when. Only reads. `after` continues a task scan."""
    if request.dead:
        return _check_dead(transaction, request)
    if request.ids:
        return _check_due_by_id(transaction, request)
    queue_rows = list(_queue_rows(transaction, request))
    for queue_row in queue_rows:
        if queue_row.needs_relane:
            return DueCheck(0, needs_relane=queue_row.id)
    in_lanes = [
        next_in_lanes_ms(transaction, queue_row, request.tasks)
        for queue_row in queue_rows
        if queue_row.has_lanes
    ]
    if request.tasks is None:
        found = DueCheck(0) if 0 in in_lanes else _check_any_task(transaction, queue_rows)
    else:
        scanned = [row.id for row in queue_rows if row.settings.fairness == "off"]
        found = _scan_for_tasks(transaction, scanned, request.tasks, after)
        if 0 in in_lanes:
            # A job in a lane may come before the job that the scan found or would find.
            found = DueCheck(0, start=found.start)
        elif found.next_ms != 0 and after is None:
            skipped = sum(lanes_skipped(transaction, row) for row in queue_rows if row.has_lanes)
            found = found._replace(skipped=found.skipped + skipped)
    if found.next_ms == 0:
        return found
    if found.resume is None and _must_restore(transaction):
        return DueCheck(0)
    times = [ms for ms in (found.next_ms, *in_lanes) if ms is not None]
    return found._replace(next_ms=min(times, default=None))


def take(
    transaction: Transaction, request: LeaseRequest, start: QueuePosition | None = None
) -> list[Lease]:
    """Lease due jobs, best first; the attempt is counted in the same write.

    Before `start` there was no job for this request outside lanes.
    """
    if request.dead:
        return _take_dead(transaction, request)
    if transaction.now < transaction.expired_held_at:
        _restore_unexpired(transaction)
    if request.ids:
        return _take_by_id(transaction, request)
    batch = LeaseBatch(transaction, request)
    for queue_row, position in _from_start(list(_queue_rows(transaction, request)), start):
        if queue_row.needs_relane:
            continue
        if queue_row.has_lanes:
            chooser = LaneChooser(transaction, queue_row, request, position)
            batch.take_seqs(chooser.choose(batch.left), queue_row)
            chooser.write()
            is_exhausted = chooser.is_exhausted
        else:
            found, is_exhausted = _choose(transaction, request, queue_row, position, batch.left)
            batch.take(found, queue_row)
        if not batch.left or is_exhausted:
            break
    return batch.leases


def _queue_rows(transaction: Transaction, request: LeaseRequest) -> Iterator[QueueRow]:
    """The requested queues that exist and are not paused."""
    for name in dict.fromkeys(request.queues):
        queue_row = transaction.queues.get(name)
        if queue_row is not None and not queue_row.settings.paused:
            yield queue_row


def _check_any_task(transaction: Transaction, queue_rows: list[QueueRow]) -> DueCheck:
    next_at = None
    for queue_row in queue_rows:
        first = transaction.run(_FIRST_OF_RANK, (queue_row.id, RANK_FIRST)).fetchone()
        while first is not None:
            rank, due_at = first
            if due_at <= transaction.now:
                return DueCheck(0)
            # All others of this priority are due even later: continue with the next priority.
            next_at = due_at if next_at is None else min(next_at, due_at)
            first = transaction.run(_FIRST_OF_RANK, (queue_row.id, rank)).fetchone()
    return DueCheck(None if next_at is None else next_at - transaction.now)


def _from_start(
    queue_rows: list[QueueRow], start: QueuePosition | None
) -> Iterator[tuple[QueueRow, QueuePosition | None]]:
    """The queues to take from, and where to start. Queues before `start` only have lanes."""
    if start is None:
        yield from ((queue_row, None) for queue_row in queue_rows)
        return
    queue_id = start.queue_id
    after = list(dropwhile(lambda queue_row: queue_row.id != queue_id, queue_rows))
    for queue_row in queue_rows[: len(queue_rows) - len(after)]:
        if queue_row.has_lanes:
            yield queue_row, None
    for queue_row in after:
        yield queue_row, start if queue_row.id == queue_id else None


def _choose(
    transaction: Transaction,
    request: LeaseRequest,
    queue_row: QueueRow,
    start: QueuePosition | None,
    limit: int,
) -> tuple[list[Row], bool]:
    """The best due jobs, and whether the call has skipped as many jobs as it may. Expired jobs are
    held on the way.
    """
    now, tasks, passed, held = transaction.now, request.tasks, 0, 0
    queue, found = queue_row.settings, list[Row]()
    while True:
        due = _due(transaction, queue_row, start)
        expired = None
        for row in due if limit > 0 else ():
            if row[EXPIRES_AT] is not None and row[EXPIRES_AT] <= now:
                expired = row
                break
            if tasks is not None and row[TASK] not in tasks:
                passed += 1
                if passed >= PASS_MAX:
                    break
                continue
            found.append(row)
            if row[GROUP] is not None and queue.group_batch > 1:
                found += _followers(transaction, queue_row, row, tasks, limit - len(found))
            if len(found) >= limit:
                break
        if expired is None:
            return found, passed >= PASS_MAX
        # Hold all expired jobs at once and start again: this is rare, and they are many.
        found, passed = [], 0
        transaction.run(_HOLD_EXPIRED, (queue_row.id, expired[RANK], now, now, EXPIRED_MAX))
        held += transaction.changes()
        transaction.note_expired()
        if held >= EXPIRED_MAX:
            return [], True


def _due(
    transaction: Transaction, queue_row: QueueRow, start: QueuePosition | None
) -> Iterator[Row]:
    """A queue's due jobs in their order, from `start` on."""
    if queue_row.settings.aging_ms:
        yield from _due_by_age(transaction, queue_row, start, queue_row.settings.aging_ms)
        return
    if start is None:
        found = transaction.run(_TAKE, (queue_row.id, RANK_FIRST))
    else:
        found = transaction.run(_TAKE_FROM, start)
    while True:
        for row in found:
            if row[DUE_AT] > transaction.now:
                rank = row[RANK]
                break
            yield row
        else:
            return
        found = transaction.run(_TAKE, (queue_row.id, rank))


def _due_by_age(
    transaction: Transaction, queue_row: QueueRow, start: QueuePosition | None, aging_ms: int
) -> Iterator[Row]:
    """The same where each `aging_ms` of waiting counts as one more of priority. Aging keeps the
    order within a priority, so the priorities are merged."""

    def due_of(rank: int) -> Iterator[Row]:
        at_rank = start if start is not None and start.rank == rank else None
        first = (-1, -1) if at_rank is None else (at_rank.due_at, at_rank.place)
        for row in transaction.run(_TAKE_RANK, (queue_row.id, rank, *first)):
            if row[DUE_AT] > transaction.now:
                return
            yield row

    ranks = []
    rank = RANK_FIRST if start is None else start.rank - 1
    while (first := transaction.run(_FIRST_OF_RANK, (queue_row.id, rank)).fetchone()) is not None:
        rank = first[0]
        ranks.append(due_of(rank))
    return heapq.merge(
        *ranks, key=lambda row: (row[DUE_AT] + row[RANK] * aging_ms, row[RANK], row[DUE_AT])
    )


def _followers(
    transaction: Transaction,
    queue_row: QueueRow,
    head: Row,
    tasks: frozenset[str] | None,
    limit: int,
) -> list[Row]:
    """The next jobs of the head's strict group, as long as they can be leased with it."""
    found: list[Row] = []
    most = min(limit, queue_row.settings.group_batch - 1)
    for row in groups.members(transaction, queue_row.id, head[GROUP], f"{FIELDS}, holds"):
        if row[SEQ] == head[SEQ]:
            continue
        expires_at = row[EXPIRES_AT]
        if (
            len(found) >= most
            or row[DUE_AT] > transaction.now
            or (expires_at is not None and expires_at <= transaction.now)
            or (tasks is not None and row[TASK] not in tasks)
            or row[-1] >= HOLD_PARENT
        ):
            break
        found.append(row)
    return found


_BY_SEQS = (
    f"SELECT {FIELDS} FROM (SELECT value AS at FROM json_each(?)) CROSS JOIN hf_jobs ON seq = at"
)
_WRITE = """
UPDATE hf_jobs SET state = 1, holds = 0, attempt = attempt + 1, version = version + 1, token = ?,
  deadline = ? + coalesce(?, lease_ms, ?), leased_at = ?, worker = ?
WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0
"""
_LEASED = State.LEASED
_DAMAGE = apsw.CorruptError("waiting jobs in an index are not in the table")


class LeaseBatch:
    """The leases of one call, all under one token."""

    def __init__(self, transaction: Transaction, request: LeaseRequest) -> None:
        self._transaction = transaction
        self._request = request
        self._worker = request.worker or None
        self._token = 0
        self.leases: list[Lease] = []

    @property
    def left(self) -> int:
        """The number of jobs the request still wants."""
        return self._request.limit - len(self.leases)

    def take_seqs(self, seqs: Sequence[int], queue_row: QueueRow) -> None:
        """Lease these jobs, in this order."""
        if seqs:
            found = self._transaction.run(_BY_SEQS, (str(list(seqs)),)).fetchall()
            if len(found) != len(seqs):
                raise _DAMAGE
            self.take(found, queue_row)

    def take(self, found: list[Row], queue_row: QueueRow) -> None:
        """Lease the jobs of these rows of FIELDS, in this order."""
        if not found:
            return
        transaction, request = self._transaction, self._request
        self._token = self._token or make_token(transaction.allocate(1))
        transaction.run(
            _WRITE,
            (
                self._token,
                transaction.boot,
                request.lease_ms,
                queue_row.settings.lease_ms,
                transaction.now,
                self._worker,
                str([row[SEQ] for row in found]),
            ),
        )
        if transaction.changes() != len(found):
            # No other process can write now, so the index and the table disagree.
            raise _DAMAGE
        self._add_leases(found, queue_row)

    def _add_leases(self, found: list[Row], queue_row: QueueRow) -> None:
        """Add the leases of rows as `_WRITE` left them."""
        transaction, token, worker = self._transaction, self._token, self._worker
        now, queue = transaction.now, queue_row.settings.name
        for row in found:
            (
                seq, _, id_, task, payload, rank, due_at, attempt, version, created_at, own_ms,
                tenant, group,
            ) = row[:EXPIRES_AT]  # fmt: skip
            lease_ms = self._request.lease_ms
            if lease_ms is None:
                lease_ms = own_ms or queue_row.settings.lease_ms
            if payload is None:
                payload = rows.large_payload(transaction, seq)
            # Only the fields that most jobs have: each one that is named takes time.
            job = Job(
                id=id_, task=task, queue=queue, payload=payload, priority=-rank, state=_LEASED,
                seq=seq, version=version + 1, attempt=attempt + 1, created_at=created_at,
                due_at=due_at, leased_at=now, deadline_at=now + lease_ms, token=token,
                worker=worker,
            )  # fmt: skip
            # A call with more than 15 keyword arguments takes twice as long.
            if tenant is not None or group is not None:
                job = msgspec.structs.replace(job, tenant=tenant, group=group)
            if row[_RARE] != _NOTHING_RARE:
                job = _with_rare_fields(transaction, job, row)
            self.leases.append(Lease(job=job, token=token, lease_ms=lease_ms))


def _with_rare_fields(transaction: Transaction, job: Job, row: Row) -> Job:
    """The job with the fields that few jobs set."""
    expires_at, crashes, releases, cancel, reason, key, extra_json, parts = row[_RARE]
    extra = rows.NO_EXTRA if extra_json is None else rows.decode_extra(extra_json)
    job = msgspec.structs.replace(
        job,
        expires_at=expires_at,
        crashes=crashes,
        releases=releases,
        cancel_requested=cancel != 0,
        reason=rows.reason_of(reason),
        key=key,
        content_type=extra.content_type,
        redrives=extra.redrives,
        labels=extra.labels,
        headers=extra.headers,
        overrides=extra.overrides,
        after_on=extra.after_on,
        parent_death=extra.parent_death,
        origin=extra.origin,
    )
    return rows.with_checkpoint(transaction, job.seq, parts, job) if parts else job


_BY_ID = f"SELECT {FIELDS}, flow, lane, holds FROM hf_jobs WHERE id = ? AND ns = ? AND state = 0"
_FLOW, _LANE, _HOLDS = -3, -2, -1


def _take_by_id(transaction: Transaction, request: LeaseRequest) -> list[Lease]:
    """Lease the jobs with the requested ids, under the same laws as any other lease."""
    batch = LeaseBatch(transaction, request)
    for row, queue_row in _rows_by_id(transaction, request):
        if queue_row.needs_relane or not _may_start(transaction, row, request):
            continue
        # Queues may share slots, so the counts are read and written for each job.
        capacity = SlotCapacity(transaction, queue_row.settings)
        slots = _slots(transaction, row)
        capacity.load(slots)
        if capacity.full(slots) is not None:
            continue
        capacity.take(slots)
        batch.take([row], queue_row)
        if row[_LANE] is not None:
            transaction.effects.lanes.add(row[_LANE])
        if row[_FLOW] & FLOW_TENANT:
            fairness.note_started(transaction, queue_row.id, {row[TENANT] or "": 1})
        capacity.write()
        if not batch.left:
            break
    return batch.leases


def _check_due_by_id(transaction: Transaction, request: LeaseRequest) -> DueCheck:
    next_ms = None
    for row, queue_row in _rows_by_id(transaction, request):
        if queue_row.needs_relane:
            return DueCheck(0, needs_relane=queue_row.id)
        slots = _slots(transaction, row)
        capacity = SlotCapacity(transaction, queue_row.settings)
        capacity.load(slots)
        full = capacity.full(slots)
        if _may_start(transaction, row, request) and full is None:
            return DueCheck(0)
        if row[_HOLDS] >= HOLD_BEHIND:
            continue
        wake_us = 0 if full is None else capacity.wake_us(full)
        if wake_us is not None:
            wait_ms = max(row[DUE_AT] - transaction.now, wake_us // 1_000 - transaction.boot)
            if wait_ms > 0 and (next_ms is None or wait_ms < next_ms):
                next_ms = wait_ms
    return DueCheck(next_ms)


def _rows_by_id(transaction: Transaction, request: LeaseRequest) -> Iterator[tuple[Row, QueueRow]]:
    """The requested jobs that wait in a queue that exists and is not paused."""
    for id_ in dict.fromkeys(request.ids):
        row = transaction.run(_BY_ID, (id_, transaction.namespace_id)).fetchone()
        name = None if row is None else transaction.queue_names.get(row[QUEUE])
        queue_row = None if name is None else transaction.queues.get(name)
        if queue_row is not None and not queue_row.settings.paused:
            yield row, queue_row


def _may_start(transaction: Transaction, row: Row, request: LeaseRequest) -> bool:
    expires_at = row[EXPIRES_AT]
    return (
        row[_HOLDS] < HOLD_BEHIND
        and row[DUE_AT] <= transaction.now
        and (expires_at is None or expires_at > transaction.now)
        and (request.tasks is None or row[TASK] in request.tasks)
    )


def _slots(transaction: Transaction, row: Row) -> tuple[int, ...]:
    lane = row[_LANE]
    return () if lane is None else lanes.slots_of(transaction, lane)


_DEAD = "FROM hf_jobs INDEXED BY hf_dead WHERE queue = ? AND state = 3"
_DUE_DEAD = (
    f"SELECT seq FROM (SELECT seq, task, due_at {_DEAD} AND due_at <= ? ORDER BY due_at, seq"
    " LIMIT ?) WHERE ?4 IS NULL OR task IN (SELECT value FROM json_each(?4))"
    " ORDER BY due_at, seq LIMIT ?5"
)
_NEXT_DEAD = f"SELECT due_at {_DEAD} AND due_at > ? ORDER BY due_at LIMIT 1"
_WRITE_DEAD = """
UPDATE hf_jobs SET state = 5, version = version + 1, token = ?, leased_at = ?, worker = ?,
  deadline = ? + ? WHERE seq = ? AND state = 3
"""


def _check_dead(transaction: Transaction, request: LeaseRequest) -> DueCheck:
    if next(_due_dead(transaction, request, 1), None) is not None:
        return DueCheck(0)
    ahead = [row[rows.DUE_AT] for row, _ in _dead_by_id(transaction, request)]
    for queue_row in _queue_rows(transaction, request):
        next_at = transaction.run(_NEXT_DEAD, (queue_row.id, transaction.now)).get
        ahead += [] if next_at is None else [next_at]
    later = [due_at for due_at in ahead if due_at > transaction.now]
    return DueCheck(min(later) - transaction.now if later else None)


def _take_dead(transaction: Transaction, request: LeaseRequest) -> list[Lease]:
    """Lease dead letters, the longest due first. They have neither lane nor group."""
    found = list(_due_dead(transaction, request, request.limit))
    token = make_token(transaction.allocate(1)) if found else 0
    leases = []
    for row, queue_row in found:
        job = rows.to_job(transaction, row)
        assert job is not None
        lease_ms = request.lease_ms or job.overrides.lease_ms or queue_row.settings.lease_ms
        now, worker = transaction.now, request.worker
        transaction.run(
            _WRITE_DEAD, (token, now, worker or None, transaction.boot, lease_ms, row[rows.SEQ])
        )
        assert transaction.changes() == 1
        job = lifecycle.lease_dead(job, token=token, worker=worker, now=now, lease_ms=lease_ms)
        job = rows.with_checkpoint(transaction, row[rows.SEQ], row[rows.PARTS], job)
        leases.append(Lease(job=rows.for_lease(job), token=token, lease_ms=lease_ms))
    return leases


def _due_dead(
    transaction: Transaction, request: LeaseRequest, limit: int
) -> Iterator[tuple[Row, QueueRow]]:
    """The dead letters that the request may lease now, in order."""
    now, tasks = transaction.now, request.tasks
    for row, queue_row in islice(
        (
            entry
            for entry in _dead_by_id(transaction, request)
            if entry[0][rows.DUE_AT] <= now and (tasks is None or entry[0][rows.TASK] in tasks)
        ),
        limit,
    ):
        yield row, queue_row
    names = None if tasks is None else msgspec.json.encode(sorted(tasks)).decode()
    left = limit
    for queue_row in _queue_rows(transaction, request):
        values = (queue_row.id, now, bounds.SCAN_MAX, names, left)
        for (seq,) in transaction.run(_DUE_DEAD, values).fetchall():
            left -= 1
            yield transaction.run(rows.BY_SEQ, (seq,)).fetchone(), queue_row


def _dead_by_id(transaction: Transaction, request: LeaseRequest) -> Iterator[tuple[Row, QueueRow]]:
    """The requested dead letters, in queues that exist and are not paused."""
    for id_ in dict.fromkeys(request.ids):
        row = rows.fetch(transaction, id_)
        name = None if row is None else transaction.queue_names.get(row[rows.QUEUE])
        queue_row = None if name is None else transaction.queues.get(name)
        if row is None or row[rows.STATE] != rows.DEAD:
            continue
        if queue_row is not None and not queue_row.settings.paused:
            yield row, queue_row


_SCAN_FIRST = f"SELECT rank, due_at, place, task {READY} AND rank > ? {_ORDER}"
_BEHIND = (
    f"{READY} AND rank = ? AND (due_at, place) > (?, ?) AND due_at <= ? ORDER BY due_at, place"
)
_MATCH = (
    f"SELECT due_at, place FROM (SELECT due_at, place, task {_BEHIND} LIMIT ?)"
    " WHERE task IN (SELECT value FROM json_each(?)) LIMIT 1"
)
_COUNT = f"SELECT count(*) FROM (SELECT 1 {_BEHIND} LIMIT ?)"
_NTH = f"SELECT due_at, place {_BEHIND} LIMIT 1 OFFSET ? - 1"
_LATER = f"SELECT due_at {READY} AND rank = ? AND due_at > ? ORDER BY due_at LIMIT 1"


def _scan_for_tasks(
    transaction: Transaction,
    queue_ids: Sequence[int],
    tasks: Collection[str],
    after: QueuePosition | None,
) -> DueCheck:
    """One step of the search for the first due job of some tasks, skipping any number of others. It
    reads without the lock, so a worker that knows few tasks is not starved by a backlog of other
    tasks, and blocks no other call.
    """
    scan = _TaskScan(transaction, tasks)
    # If the queue of the last step is gone, the scan starts again.
    begin = queue_ids.index(after.queue_id) if after and after.queue_id in queue_ids else 0
    for queue_id in queue_ids[begin:]:
        position = after if after is not None and after.queue_id == queue_id else None
        found = scan.scan_queue(queue_id, position)
        if found is not None:
            return found
    return DueCheck(scan.next_ms, skipped=scan.skipped)


class _TaskScan:
    """One step of a task scan, bounded by SCAN_STEP_MAX jobs."""

    def __init__(self, transaction: Transaction, tasks: Collection[str]) -> None:
        self._transaction = transaction
        self._tasks = tasks
        self._tasks_json = msgspec.json.encode(list(tasks)).decode()
        self._left = SCAN_STEP_MAX
        self._next_at: int | None = None
        self.skipped = 0

    @property
    def next_ms(self) -> int | None:
        return None if self._next_at is None else self._next_at - self._transaction.now

    def scan_queue(self, queue_id: int, position: QueuePosition | None) -> DueCheck | None:
        """Scan a queue from `position` on; None at its end."""
        transaction, rank = self._transaction, RANK_FIRST
        while True:
            if position is None:
                first = transaction.run(_SCAN_FIRST, (queue_id, rank)).fetchone()
                if first is None:
                    return None
                rank, due_at, place, task = first
                if due_at > transaction.now:
                    self._note(due_at)
                    continue
                position = QueuePosition(queue_id, rank, due_at, place)
                if task in self._tasks:
                    return DueCheck(0, start=position)
                self.skipped += 1
            found = self._scan_behind(position)
            if found is not None:
                return found
            rank, position = position.rank, None

    def _scan_behind(self, position: QueuePosition) -> DueCheck | None:
        """Scan the due jobs of one priority; None at their end."""
        transaction, behind = self._transaction, (*position, self._transaction.now)
        queue_id, rank = position.queue_id, position.rank
        found = transaction.run(_MATCH, (*behind, self._left, self._tasks_json)).fetchone()
        if found is not None:
            return DueCheck(0, start=QueuePosition(queue_id, rank, *found))
        passed = transaction.run(_COUNT, (*behind, self._left)).get
        self.skipped += passed
        if passed >= self._left:
            last = transaction.run(_NTH, (*behind, self._left)).fetchone()
            resume = QueuePosition(queue_id, rank, *last)
            return DueCheck(self.next_ms, resume=resume, skipped=self.skipped)
        self._left -= passed
        later = transaction.run(_LATER, (queue_id, rank, transaction.now)).get
        if later is not None:
            self._note(later)
        return None

    def _note(self, due_at: int) -> None:
        self._next_at = due_at if self._next_at is None else min(self._next_at, due_at)


_HELD_UNEXPIRED = (
    "FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds & 2 AND expires_at > ?"
)


def _must_restore(transaction: Transaction) -> bool:
    """True if a job is held as expired that is not, because the wall clock was set back."""
    if transaction.now >= transaction.expired_held_at:
        return False
    return any(
        transaction.run(f"SELECT 1 {_HELD_UNEXPIRED} LIMIT 1", (row.id, transaction.now)).get
        for row in transaction.queues.values()
    )


def _restore_unexpired(transaction: Transaction) -> None:
    """Release jobs held as expired that are not, after the wall clock was set back.

    In every namespace, because `aside_at` is then set back for all of them.
    """
    restored = 0
    for (queue_id,) in transaction.run("SELECT id FROM hf_queues").fetchall():
        found = transaction.run(
            "UPDATE hf_jobs SET holds = holds - 2"
            f" WHERE seq IN (SELECT seq {_HELD_UNEXPIRED} LIMIT ?) RETURNING lane",
            (queue_id, transaction.now, RESTORE_MAX - restored),
        ).fetchall()
        lanes.refresh(transaction, {lane for (lane,) in found if lane is not None})
        restored += len(found)
    if restored < RESTORE_MAX:
        transaction.run("UPDATE hf_meta SET aside_at = ?", (transaction.now,))
        transaction.expired_held_at = transaction.now
