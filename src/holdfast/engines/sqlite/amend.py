"""An operator's act: the jobs are looked for without the lock, and judged again inside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core import amend as amending
from holdfast.core.match import matches
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Amendment, Cancel, Move
from holdfast.engines.parts import told_in_part
from holdfast.engines.sqlite import flow, rows
from holdfast.engines.sqlite.search import oldest_span, search_for
from holdfast.engines.sqlite.settle import policy
from holdfast.engines.sqlite.unit import Unit

Run: TypeAlias = Callable[[Callable[[Unit], Any]], Awaitable[Any]]


async def in_rounds(
    read: Run, write: Run, wanted: JobFilter, amendment: Amendment, *, limit: int
) -> int:
    """Each looks and acts: one, unless the table is long or another act was faster. How many jobs
    were changed."""
    changed = 0
    after: int | None = 0
    with told_in_part(lambda: changed):
        while after is not None and changed < limit:
            look = partial(candidates, wanted=wanted, amendment=amendment, after=after)
            seqs, after = await read(partial(look, limit=limit - changed))
            if seqs:
                changed += await write(
                    partial(amend, seqs=seqs, wanted=wanted, amendment=amendment)
                )
    return changed


def candidates(
    unit: Unit, wanted: JobFilter, amendment: Amendment, *, limit: int, after: int
) -> tuple[list[int], int | None]:
    """Seqs of jobs to act on, oldest first, and where to look on; None at the end."""
    _check_target(unit, amendment)
    states = amending.amendable(amendment, wanted)
    search = search_for(unit, replace(wanted, states=states))
    if search is None:
        return [], None
    span = oldest_span(unit, search, after)
    asked = "AND cancel = 0" if isinstance(amendment, Cancel) else ""
    found = unit.run(
        f"SELECT seq {search.source} {asked} ORDER BY seq LIMIT ?",  # sql: constant pieces
        (*search.values, span.low, span.high, limit),
    ).fetchall()
    if len(found) == limit:
        return [seq for (seq,) in found], found[-1][0]
    return [seq for (seq,) in found], span.high if span.more else None


def amend(unit: Unit, seqs: list[int], wanted: JobFilter, amendment: Amendment) -> int:
    """Act on those that still match; how many were changed."""
    _check_target(unit, amendment)
    states = amending.amendable(amendment, wanted)
    changed = 0
    for seq in seqs:
        row = unit.run(rows.BY_SEQ, (seq,)).fetchone()
        job = None if row is None else rows.job_of(unit, row)
        if job is None or job.state not in states or not matches(wanted, job, unit.now):
            continue
        if isinstance(amendment, Cancel) and job.cancel_requested:
            continue
        queue = policy(unit, job)
        if queue is None:
            continue
        change = amending.amend(job, amendment, queue, unit.now)
        if change is None:
            flow.remove(unit, row)
        else:
            flow.keep(unit, row, job, change)
        changed += 1
    unit.rings = changed > 0
    return changed


def _check_target(unit: Unit, amendment: Amendment) -> None:
    if isinstance(amendment, Move) and amendment.queue not in unit.catalog.lines:
        raise admission.unknown(amendment.queue)
