"""Settle and renew leases.

Plain completions are one guarded statement; other verdicts and renewals are applied one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import msgspec
from msgspec.structs import replace

from holdfast.core import checks, lifecycle
from holdfast.core.model import Job, Lease, Queue, Renewal, State
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.enqueue import accepts_follow_ups, enqueue_follow_ups
from holdfast.engines.sqlite.flow import effects, groups
from holdfast.engines.sqlite.schema import FLOW_CHILDREN, FLOW_GROUP, PART_NOTES
from holdfast.engines.sqlite.transaction import QueueRow, Transaction

# The lease's seq finds the row directly; the id and the token prove that it is the right one.
_COMPLETE = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = ?
WHERE seq = ? AND token = ? AND state = 1 AND id = ? AND ns = ? AND flow = 0
"""
# To bind values job by job takes as long as the change itself.
_COMPLETE_TOGETHER = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = NULL
FROM json_each(?) AS held
WHERE seq = CAST(held.key AS INTEGER) AND held.value = token || ' ' || hf_jobs.id AND ns = ?
  AND state = 1 AND flow = 0
"""
_TOGETHER_MIN = 32
"""One statement for all jobs without a result takes less time from about so many on."""

_LEASED_ROWS = """
SELECT seq, id, token, state, grp, queue, lane, flow, tenant, leased_at
FROM (SELECT value AS at FROM json_each(?)) CROSS JOIN hf_jobs ON seq = at WHERE ns = ?
"""
_COMPLETE_IN_FLOW = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = ?,
  flow = flow & 12, lane = NULL
WHERE seq = ?
"""


_ENCODER = msgspec.json.Encoder()


def settle(transaction: Transaction, settlements: Sequence[Settlement]) -> list[Outcome]:
    """Apply each verdict if its token is still valid; one outcome for each settlement."""
    known: dict[int, Outcome] = {}
    if not transaction.is_dropping and all(map(_is_plain, settlements)):
        if not any(map(_may_flow, settlements, repeat(transaction.queues))) and _complete_plain(
            transaction, settlements
        ):
            return [Outcome.SETTLED] * len(settlements)
        # Jobs that `_complete_plain` has completed count as repeats here, with the same outcome.
        known = _complete_in_flow(transaction, settlements)
        if len(known) == len(settlements):
            return [Outcome.SETTLED] * len(settlements)
    transaction.notifies = True
    return [
        known.get(place) or _settle_one(transaction, settlement)
        for place, settlement in enumerate(settlements)
    ]


def policy(transaction: Transaction, job: Job) -> Queue | None:
    """The queue settings that apply to the job; None if its queue is gone."""
    queue_row = transaction.queues.get(job.queue)
    if queue_row is None:
        return None
    return checks.effective_queue(queue_row.settings, transaction.queues)


def _is_plain(settlement: Settlement) -> bool:
    """True for a completion without follow-ups, note or large result."""
    verdict = settlement.verdict
    return (
        type(verdict) is Complete
        and not verdict.then
        and settlement.note is None
        and (verdict.result is None or len(verdict.result) <= rows.INLINE_MAX)
    )


def _may_flow(settlement: Settlement, queues: dict[str, QueueRow]) -> bool:
    job = settlement.lease.job
    queue_row = queues.get(job.queue)
    return job.group is not None or (queue_row is not None and queue_row.has_lanes)


def _complete_plain(transaction: Transaction, settlements: Sequence[Settlement]) -> bool:
    """Complete jobs that have no group, lane or family; False if not all could be."""
    now, ns = transaction.now, transaction.namespace_id
    are_many = len(settlements) >= _TOGETHER_MIN
    proofs: dict[int, str] = {}
    values: list[tuple[object, ...]] = []
    for one in settlements:
        job, token, verdict = one.lease.job, one.lease.token, one.verdict
        assert isinstance(verdict, Complete)
        if are_many and verdict.result is None:
            proofs[job.seq] = f"{token} {job.id}"
        else:
            values.append((now, verdict.result, job.seq, token, job.id, ns))
    before = transaction.connection.total_changes()
    try:
        if proofs:
            held = _ENCODER.encode(proofs).decode()
            transaction.run(_COMPLETE_TOGETHER, (now, held, ns))
        transaction.connection.executemany(_COMPLETE, values)
    except (UnicodeEncodeError, OverflowError):
        return False  # An id or token of this lease cannot be stored; `_settle_one` finds it lost.
    return transaction.connection.total_changes() - before == len(settlements)


def _complete_in_flow(
    transaction: Transaction, settlements: Sequence[Settlement]
) -> dict[int, Outcome]:
    """Complete jobs with limits, groups, tenants or families; outcomes by position.

    Positions left out need `_settle_one`.
    """
    seqs = str([one.lease.job.seq for one in settlements])
    found = {row[0]: row for row in transaction.run(_LEASED_ROWS, (seqs, transaction.namespace_id))}
    known: dict[int, Outcome] = {}
    values: dict[int, tuple[int, bytes | None, int]] = {}
    exposed: dict[tuple[int, str], None] = {}
    deferred = transaction.effects
    now, end_lease = transaction.now, effects.end_lease
    for place, one in enumerate(settlements):
        lease = one.lease
        row = found.get(lease.job.seq)
        if row is None:
            continue
        seq, id_, token, state, group, queue_id, lane, bits, tenant, leased_at = row
        if id_ != lease.job.id or token != lease.token:
            continue
        if state == rows.LEASED and seq not in values:
            assert isinstance(one.verdict, Complete)
            values[seq] = (now, one.verdict.result, seq)
            end_lease(transaction, (queue_id, lane, bits, tenant, leased_at))
            if bits & FLOW_GROUP:
                exposed[queue_id, group] = None
            if bits & FLOW_CHILDREN:
                deferred.ended.append((seq, id_, State.DONE))
        elif state != rows.DONE and seq not in values:
            continue
        known[place] = Outcome.SETTLED
    if values:
        transaction.connection.executemany(_COMPLETE_IN_FLOW, values.values())
        transaction.notifies = True
    if exposed:
        deferred.lanes.update(groups.expose_first(transaction, exposed))
    return known


def _settle_one(transaction: Transaction, settlement: Settlement) -> Outcome:
    lease, verdict = settlement.lease, settlement.verdict
    row = rows.fetch(transaction, lease.id)
    # No verdict depends on the payload, so a large one is not read.
    job = None if row is None else rows.to_job(transaction, row, payload=b"")
    deadline = None if row is None else row[rows.DEADLINE]
    lapsed = deadline is not None and deadline <= transaction.boot
    outcome = lifecycle.judge(job, lease.token, verdict, lapsed=lapsed)
    if outcome is not None or row is None or job is None:
        return outcome or Outcome.LOST
    queue = policy(transaction, job)
    if queue is None:
        return Outcome.LOST
    then = verdict.then if isinstance(verdict, Complete) else ()
    is_welcome = checks.is_acceptable(settlement, transaction.queues)
    if not is_welcome or not accepts_follow_ups(transaction, then, lease.id):
        return Outcome.REFUSED
    change = lifecycle.apply(job, verdict, queue, transaction.now)
    if change is not None:
        effects.write_change(transaction, row, job, change, settlement.note)
    enqueue_follow_ups(transaction, then)
    if change is None:
        # A follow-up job may have become its child.
        effects.delete_job(transaction, rows.fetch(transaction, lease.id) or row)
    return Outcome.SETTLED


def renew(transaction: Transaction, renewals: Iterable[Renewal]) -> list[Lease | None]:
    """The renewed lease for each renewal; None if it was lost."""
    return [_renew(transaction, renewal) for renewal in renewals]


def _renew(transaction: Transaction, renewal: Renewal) -> Lease | None:
    lease, note = renewal.lease, renewal.note
    row = rows.fetch(transaction, lease.id)
    if row is None or row[rows.TOKEN] != lease.token:
        return None
    seq, parts = row[rows.SEQ], row[rows.PARTS]
    lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
    transaction.run(
        "UPDATE hf_jobs SET deadline = ?"
        " WHERE seq = ? AND token = ? AND state IN (1, 5) AND deadline > ?",
        (transaction.boot + lease_ms, seq, lease.token, transaction.boot),
    )
    if transaction.changes() != 1:
        return None
    job = rows.to_job(transaction, row)
    if job is None:
        return None
    if note is not None and rows.write_note(transaction, seq, note):
        parts |= PART_NOTES
        transaction.run("UPDATE hf_jobs SET parts = ? WHERE seq = ?", (parts, seq))
    job = rows.with_checkpoint(
        transaction, seq, parts, replace(job, deadline_at=transaction.now + lease_ms)
    )
    return Lease(job=rows.for_lease(job), token=lease.token, lease_ms=lease_ms)
