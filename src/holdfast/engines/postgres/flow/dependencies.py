"""Dependencies: the edges of new jobs to their parents, and notifying children that a parent ended.
The ending of a parent is written in the transaction that ends it. Its children are notified in
another transaction right after, or by the next reaper if the process died; in a caller's
transaction, within it. No child starts before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.core import lifecycle
from holdfast.core.lifecycle import ParentEffect
from holdfast.core.model import STATES, Job, State
from holdfast.engines.postgres import write
from holdfast.engines.postgres.queues import read_queues
from holdfast.engines.postgres.rows import columns, locked_job
from holdfast.engines.postgres.script import CallContext, Script, Statement, only_value
from holdfast.engines.postgres.write import LockedJob

TELL_BATCH = 1_000
"""Maximum numbers of endings and edges in one transaction that notifies children."""

_FATES = {ParentEffect.SATISFIED: 0, ParentEffect.CANCELLED: 1, ParentEffect.HELD: 2}
PARENT_STATES = (*STATES, State.DEAD)
"""The states of parents by their code: a dead letter under lease is dead."""
_HOLD_PARENTS = "SELECT * FROM $schema.hold_parents($1::int, $2::text[])"
_LINK = """
SELECT $schema.link_jobs($1::int, $2::bigint[], $3::smallint[], $4::smallint[], $5::text[])
"""
# The join sees the endings as they were before `release` removes them.
_RELEASE = """
SELECT r.child_, r.parent_, r.state_, r.left_
FROM $schema.release($1::int, $2::bigint, $3::bigint[], $4::int) r
LEFT JOIN $schema.endings e ON e.number = ANY ($3::bigint[]) AND e.parent = r.parent_
ORDER BY e.number, r.child_
"""
_HOLD_CHILDREN = "SELECT $schema.hold_children($1::int, $2::bigint[])"
_CLOSE = "SELECT $schema.close_edges($1::bigint[])"
_HOLD = "SELECT * FROM $schema.hold($1::int, $2::bigint[], false)"
_NOW = "SELECT $schema.now_ms($1::bigint)"


def lock_parents(context: CallContext, ids: Collection[str]) -> Script[dict[str, State]]:
    """Lock the rows of parents in the order of seq; returns their states, which do not change until
    the end of the transaction.
    """
    if not ids:
        return {}
    rows = yield Statement(_HOLD_PARENTS, (context.ns, list(ids)))
    return {id_: PARENT_STATES[state] for id_, state in rows}


def link(context: CallContext, children: Iterable[tuple[Job, Collection[str]]]) -> Script[None]:
    """Write which parents new jobs wait for. The parents' rows must be locked."""
    rows = [
        (child.seq, *_fates(child), parent) for child, parents in children for parent in parents
    ]
    if rows:
        yield Statement(_LINK, (context.ns, *columns(rows, 4)))


def _fates(child: Job) -> tuple[int, int]:
    """The codes for the child's fate if a parent is done, and if it dies."""
    done, death = (lifecycle.after_parent(child, state) for state in (State.DONE, State.DEAD))
    return _FATES[done], _FATES[death]


def hold_children(context: CallContext, numbers: Sequence[int]) -> Script[None]:
    """Lock the children that `tell_children` will notify, and their domains, in a transaction that
    already holds rows: the call fails if it would have to wait.
    """
    yield Statement(_HOLD_CHILDREN, (context.ns, sorted(numbers)))


def tell_children(context: CallContext, numbers: Sequence[int]) -> Script[bool]:
    """Notify the children of these endings, a bounded number at a time; True if there are more.
    Children of the first ending come first, in order of arrival.
    """
    values = (context.ns, context.given_ms, sorted(numbers), TELL_BATCH)
    rows = yield Statement(_RELEASE, values)
    orphans = {child: (parent, state) for child, parent, state, _ in rows if child is not None}
    if orphans:
        yield from cancel_orphans(context, orphans)
    return any(is_left for *_, is_left in rows)


def cancel_orphans(
    context: CallContext, orphans: dict[int, tuple[str, int | None]]
) -> Script[None]:
    """Cancel children, given by seq with the parent and its state, that can never run. The flow
    locks are held. The children end in the order given, and their own children are notified in that
    order.
    """
    now: int = only_value((yield Statement(_NOW, (context.given_ms,))))
    cancelled = {}
    yield Statement(_CLOSE, (sorted(orphans),))
    for row in (yield Statement(_HOLD, (context.ns, sorted(orphans)))):
        child = locked_job(row)
        parent, state = orphans[child.seq]
        ended = None if state is None else STATES[state]
        change = lifecycle.orphan(child, parent, ended, now)
        cancelled[child.seq] = write.with_change(LockedJob(child, child, row[29]), change, iter(()))
    jobs = [cancelled[seq] for seq in orphans if seq in cancelled]
    queues = yield from read_queues(context, {job.before.queue for job in jobs}, lock="none")
    # The jobs of a queue that was dropped in the meantime are gone.
    jobs = [job for job in jobs if job.before.queue in queues]
    yield from write.rewrite(context, jobs, queues, now=now, locked=True)
