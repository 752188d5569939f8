"""What children wait for: edges added with them, and judged when a parent has ended.

The end of a parent is written down in the transaction that ends it. Its children are told in
another one right after, or by the next reaper if the process is gone: until then nothing starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Parting
from holdfast.core.model import STATES, Job, State
from holdfast.engines.postgres import write
from holdfast.engines.postgres.queues import read_lines
from holdfast.engines.postgres.rows import columns, kept_job
from holdfast.engines.postgres.steps import Ask, Steps, Store, only
from holdfast.engines.postgres.write import Kept

STEP = 1_000

_FATES = {Parting.SATISFIED: 0, Parting.CANCELLED: 1, Parting.HELD: 2}
_HOLD_PARENTS = "SELECT * FROM $schema.hold_parents($1::int, $2::text[])"
_LINK = """
SELECT $schema.link($1::int, $2::bigint[], $3::smallint[], $4::smallint[], $5::text[])
"""
# The endings are those from before the statement: it does not see that `release` removes them.
_RELEASE = """
SELECT r.child_, r.parent_, r.state_, r.left_
FROM $schema.release($1::int, $2::bigint, $3::bigint[], $4::int) r
LEFT JOIN $schema.endings e ON e.number = ANY ($3::bigint[]) AND e.parent = r.parent_
ORDER BY e.number, r.child_
"""
_CLOSE = "SELECT $schema.close_edges($1::bigint[])"
_HOLD = "SELECT * FROM $schema.hold($1::int, $2::bigint[], false)"
_NOW = "SELECT $schema.now_ms($1::bigint)"


def hold_parents(store: Store, ids: Collection[str]) -> Steps[dict[str, State]]:
    """The states of these jobs, which nobody changes until it is over."""
    if not ids:
        return {}
    rows = yield Ask(_HOLD_PARENTS, (store.ns, list(ids)))
    return {id_: STATES[state] for id_, state in rows}


def link(store: Store, children: Iterable[tuple[Job, Collection[str]]]) -> Steps[None]:
    """Write which of their parents new jobs wait for."""
    rows = [
        (child.seq, *_fates(child), parent) for child, parents in children for parent in parents
    ]
    if rows:
        yield Ask(_LINK, (store.ns, *columns(rows, 4)))


def _fates(child: Job) -> tuple[int, int]:
    """What the parent's end means: if it is done, and if it is not."""
    done, death = (lifecycle.after_parent(child, state) for state in (State.DONE, State.DEAD))
    return _FATES[done], _FATES[death]


def release(store: Store, numbers: Sequence[int]) -> Steps[bool]:
    """Tell the children of these ends, a bounded number at a time; whether there are more. Those
    of the first to end are told first, as they arrived: so they end in turn."""
    rows = yield Ask(_RELEASE, (store.ns, store.given_ms, sorted(numbers), STEP))
    lost = {row[0]: (row[1], row[2]) for row in rows if row[0] is not None}
    if lost:
        yield from orphan(store, lost)
    return any(row[3] for row in rows)


def orphan(store: Store, lost: dict[int, tuple[str, int | None]]) -> Steps[None]:
    """Cancel children, by seq, that will never have what they waited for; their flow is held.
    They end in the order given, which decides whom their own children hear of first."""
    now: int = only((yield Ask(_NOW, (store.given_ms,))))
    found = {}
    yield Ask(_CLOSE, (sorted(lost),))
    for row in (yield Ask(_HOLD, (store.ns, sorted(lost)))):
        child = kept_job(row)
        parent, state = lost[child.seq]
        ended = None if state is None else STATES[state]
        change = lifecycle.orphan(child, parent, ended, now)
        found[child.seq] = write.changed(Kept(child, child, row[29]), change, iter(()))
    kept = [found[seq] for seq in lost if seq in found]
    lines = yield from read_lines(store, {one.before.queue for one in kept}, held=True)
    # A queue that was dropped meanwhile took its jobs with it.
    kept = [one for one in kept if one.before.queue in lines]
    yield from write.rewrite(store, kept, lines, now=now, locked=True)
