"""How a lease ends. Plain completions go in one guarded statement; the rest one by one."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import admission, lifecycle
from holdfast.core.model import Job, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.enqueue import follow_up
from holdfast.engines.sqlite.unit import Unit

# The lease's seq finds the row at once; the id and the token say that it is the right one.
_COMPLETE = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = ?
WHERE seq = ? AND token = ? AND state = 1 AND id = ? AND ns = ?
"""


def settle(unit: Unit, settlements: Sequence[Settlement]) -> list[Outcome]:
    plain = not unit.catalog.is_dropping and all(map(_is_plain, settlements))
    if plain and _complete_all(unit, settlements):
        return [Outcome.SETTLED] * len(settlements)
    # Those that were just completed are met again here, and a repeat is answered the same.
    unit.rings = True
    return [_settle(unit, settlement) for settlement in settlements]


def policy(unit: Unit, job: Job) -> Queue | None:
    """What applies to the job; None when its queue is gone."""
    line = unit.catalog.lines.get(job.queue)
    if line is None:
        return None
    return admission.policy(line.queue, unit.catalog.lines)


def _is_plain(settlement: Settlement) -> bool:
    verdict = settlement.verdict
    return (
        type(verdict) is Complete
        and not verdict.then
        and settlement.note is None
        and (verdict.result is None or len(verdict.result) <= rows.INLINE_MAX)
    )


def _complete_all(unit: Unit, settlements: Sequence[Settlement]) -> bool:
    now, ns = unit.now, unit.namespace_id
    before = unit.connection.total_changes()
    values = [
        (now, one.verdict.result, one.lease.job.seq, one.lease.token, one.lease.job.id, ns)
        for one in settlements
        if isinstance(one.verdict, Complete)
    ]
    try:
        unit.connection.executemany(_COMPLETE, values)
    except (UnicodeEncodeError, OverflowError):
        return False  # An id or a token that was never ours; one by one it is found out.
    return unit.connection.total_changes() - before == len(settlements)


def _settle(unit: Unit, settlement: Settlement) -> Outcome:
    lease, verdict = settlement.lease, settlement.verdict
    row = rows.fetch(unit, lease.id)
    # No verdict looks at the payload, so a large one is not read for it.
    job = None if row is None else rows.job_of(unit, row, payload=b"")
    deadline = None if row is None else row[rows.DEADLINE]
    lapsed = deadline is not None and deadline <= unit.boot
    answer = lifecycle.judge(job, lease.token, verdict, lapsed=lapsed)
    if answer is not None or row is None or job is None:
        return answer or Outcome.LOST
    queue = policy(unit, job)
    if queue is None:
        return Outcome.LOST
    if not admission.is_welcome(settlement, unit.catalog.lines):
        return Outcome.REFUSED
    change = lifecycle.apply(job, verdict, queue, unit.now)
    rows.keep(unit, row, job, change, settlement.note)
    if isinstance(verdict, Complete):
        follow_up(unit, verdict.then)
    return Outcome.SETTLED
