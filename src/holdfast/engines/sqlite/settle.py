"""How a lease ends. Plain completions go in one guarded statement; the rest one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from holdfast.core import admission, lifecycle
from holdfast.core.model import Job, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import flow, rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.completing import complete_many
from holdfast.engines.sqlite.following import follow_up, may_follow
from holdfast.engines.sqlite.unit import Unit

# The lease's seq finds the row at once; the id and the token say that it is the right one.
_COMPLETE = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = ?
WHERE seq = ? AND token = ? AND state = 1 AND id = ? AND ns = ? AND flow = 0
"""


def settle(unit: Unit, settlements: Sequence[Settlement]) -> list[Outcome]:
    known: dict[int, Outcome] = {}
    if not unit.catalog.is_dropping and all(map(_is_plain, settlements)):
        if not any(map(_may_flow, settlements, repeat(unit.catalog.lines))) and _complete_all(
            unit, settlements
        ):
            return [Outcome.SETTLED] * len(settlements)
        # Those that were just completed are met again, and a repeat is answered the same.
        known = complete_many(unit, settlements)
        if len(known) == len(settlements):
            return [Outcome.SETTLED] * len(settlements)
    unit.rings = True
    return [
        known.get(place) or _settle(unit, settlement)
        for place, settlement in enumerate(settlements)
    ]


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


def _may_flow(settlement: Settlement, lines: dict[str, Line]) -> bool:
    job = settlement.lease.job
    line = lines.get(job.queue)
    return job.group is not None or (line is not None and line.laned)


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
    then = verdict.then if isinstance(verdict, Complete) else ()
    is_welcome = admission.is_welcome(settlement, unit.catalog.lines)
    if not is_welcome or not may_follow(unit, then, lease.id):
        return Outcome.REFUSED
    change = lifecycle.apply(job, verdict, queue, unit.now)
    flow.keep(unit, row, job, change, settlement.note)
    follow_up(unit, then)
    return Outcome.SETTLED
