"""Operators' changes to jobs without a lease. Candidates are found without locks, then locked,
matched again by `core`, changed by `core` and written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core import amend as amending
from holdfast.core import checks
from holdfast.core.amend import matches
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Amendment, Cancel, Delete, Move, Redrive
from holdfast.engines.postgres import write
from holdfast.engines.postgres.flow import lanes
from holdfast.engines.postgres.queues import QueueSet, read_queues
from holdfast.engines.postgres.rows import locked_job
from holdfast.engines.postgres.script import CallContext, Restart, Script, Statement, only_value
from holdfast.engines.postgres.search import (
    CONDITION,
    QUEUE_NAME,
    SOURCES,
    Source,
    filter_values,
    scan,
    source_of,
)
from holdfast.engines.postgres.write import LockedJob


def _choose(source: Source) -> str:
    condition = "true" if source.numbers else "x.state = ANY ($5::smallint[])"
    return f"""
    SELECT j.seq, j.flow, q.name, j.origin FROM ({scan(source, condition, "ASC")}) j {QUEUE_NAME}
    WHERE {CONDITION} AND NOT ($22::boolean AND j.cancel)
    ORDER BY j.number LIMIT $23::bigint
    """  # sql: the sources are the constants of `search`


_CHOOSE = {source: _choose(source) for source in SOURCES}
_LOCK = "SELECT * FROM $schema.hold($1::int, $2::bigint[], $3::boolean)"
_NOTED, _FLOW = 29, 31
"""Positions in a row of the SQL type `kept`."""


class AmendCount(NamedTuple):
    """Counts of jobs that were changed, and of those that another call changed first."""

    changed: int
    lost: int = 0


def amend(
    context: CallContext, wanted: JobFilter, amendment: Amendment, *, limit: int
) -> Script[AmendCount]:
    """Change jobs that match the filter, the oldest first."""
    targets = [amendment.queue] if isinstance(amendment, Move) else []
    if targets and targets[0] not in (yield from read_queues(context, targets)):
        raise checks.unknown_queue(targets[0])
    states = amending.amendable(amendment, wanted)
    if not states:
        return AmendCount(0)
    cancels = isinstance(amendment, Cancel)
    values = (context.ns, context.given_ms, *filter_values(wanted, states), cancels, limit)
    chosen = yield Statement(_CHOOSE[source_of(wanted, states)], values)
    if not chosen:
        return AmendCount(0)
    names = {*targets, *(name for _, _, name, _ in chosen)}
    if isinstance(amendment, Redrive):
        names |= {origin for *_, origin in chosen if origin is not None}
    queues = yield from read_queues(context, names)
    locked = context.effects.locks or bool(queues.laned) or any(flow for _, flow, _, _ in chosen)
    if locked:
        yield from lanes.lock(queues.numbers)
    seqs = [seq for seq, *_ in chosen]
    rows = yield Statement(_LOCK, (context.ns, seqs, queues.reads_payload))
    now, numbers = yield from write.draw_numbers(context, len(rows))
    if not locked and any(row[_FLOW] for row in rows):
        context.effects.locks = True
        raise Restart
    jobs = [
        LockedJob(job, job, row[_NOTED])
        for row in rows
        if (job := locked_job(row)).state in states
        and matches(wanted, job, now)
        and not (cancels and job.cancel_requested)
    ]
    moved_to = {amending.target_of(job.before, amendment) for job in jobs} - {None}
    if not all(name in queues for name in {*targets, *(job.before.queue for job in jobs)}):
        raise Restart
    if not moved_to <= names:
        # A job died in another queue since it was chosen.
        raise Restart
    if isinstance(amendment, Delete):
        seqs = [job.before.seq for job in jobs]
        context.effects.endings += only_value(
            (yield Statement(write.ERASE, (context.ns, now, seqs)))
        )
    else:
        changed = _changed(amendment, jobs, queues, now=now, numbers=numbers)
        yield from write.rewrite(context, changed, queues, now=now, locked=locked)
    return AmendCount(len(jobs), len(chosen) - len(jobs))


def _changed(
    amendment: Amendment,
    jobs: Sequence[LockedJob],
    queues: QueueSet,
    *,
    now: int,
    numbers: Iterator[int],
) -> list[LockedJob]:
    changed = []
    for job in jobs:
        change = amending.amend(job.before, amendment, queues.policy(job.before), now, queues)
        assert change is not None
        changed.append(write.with_change(job, change, numbers))
    return changed
