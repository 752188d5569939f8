"""Amendments by operators: candidates are found without the lock and checked again under it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from holdfast.core import amend as core_amend
from holdfast.core import checks
from holdfast.core.amend import matches
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Amendment, Cancel, Move
from holdfast.engines.base import unknown_if_partial
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import effects
from holdfast.engines.sqlite.search import oldest_range, query_for
from holdfast.engines.sqlite.settle import policy
from holdfast.engines.sqlite.transaction import Transaction

Run: TypeAlias = Callable[[Callable[[Transaction], Any]], Awaitable[Any]]


async def amend_in_rounds(
    read: Run, write: Run, wanted: JobFilter, amendment: Amendment, *, limit: int
) -> int:
    """Find and amend jobs; returns how many were changed.

    One round, unless the table is long or another process was faster.
    """
    changed = 0
    after: int | None = 0
    with unknown_if_partial(lambda: changed):
        while after is not None and changed < limit:
            look = partial(candidates, wanted=wanted, amendment=amendment, after=after)
            seqs, after = await read(partial(look, limit=limit - changed))
            if seqs:
                changed += await write(
                    partial(amend, seqs=seqs, wanted=wanted, amendment=amendment)
                )
    return changed


def candidates(
    transaction: Transaction, wanted: JobFilter, amendment: Amendment, *, limit: int, after: int
) -> tuple[list[int], int | None]:
    """Seqs of jobs to amend, oldest first, and the seq to continue after; None at the end."""
    _check_target(transaction, amendment)
    states = core_amend.amendable(amendment, wanted)
    query = query_for(transaction, replace(wanted, states=states))
    if query is None:
        return [], None
    span = oldest_range(transaction, query, after)
    not_cancelled = "AND cancel = 0" if isinstance(amendment, Cancel) else ""
    found = transaction.run(
        f"SELECT seq {query.source} {not_cancelled} {query.order} LIMIT ?",  # sql: constant pieces
        (*query.values, span.low, span.high, limit),
    ).fetchall()
    if len(found) == limit:
        return [seq for (seq,) in found], found[-1][0]
    return [seq for (seq,) in found], span.high if span.more else None


def amend(
    transaction: Transaction, seqs: list[int], wanted: JobFilter, amendment: Amendment
) -> int:
    """Amend the jobs that still match; returns how many were changed."""
    _check_target(transaction, amendment)
    states = core_amend.amendable(amendment, wanted)
    # The parents of a job never change, and are not read again.
    wanted = replace(wanted, parent=None)
    changed = 0
    for seq in seqs:
        row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
        job = None if row is None else rows.to_job(transaction, row)
        if job is None or job.state not in states or not matches(wanted, job, transaction.now):
            continue
        if isinstance(amendment, Cancel) and job.cancel_requested:
            continue
        queue = policy(transaction, job)
        if queue is None:
            continue
        change = core_amend.amend(job, amendment, queue, transaction.now, transaction.queues)
        if change is None:
            effects.delete_job(transaction, row)
        else:
            effects.write_change(transaction, row, job, change)
        changed += 1
    if changed:
        # Not every amendment leaves a trace elsewhere: see `count_revision`.
        transaction.allocate(1)
    transaction.notifies = changed > 0
    return changed


def _check_target(transaction: Transaction, amendment: Amendment) -> None:
    if isinstance(amendment, Move) and amendment.queue not in transaction.queues:
        raise checks.unknown_queue(amendment.queue)
