"""Acts of people: candidates are found without locks, then locked, looked at again with the
meaning that `core` gives the filter, changed by `core` and written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core import admission
from holdfast.core import amend as amending
from holdfast.core.match import matches
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Amendment, Cancel, Delete, Move
from holdfast.engines.postgres import write
from holdfast.engines.postgres.filters import (
    CONDITION,
    QUEUE_NAME,
    SCAN_MAX,
    SOURCES,
    source_of,
    values_of,
)
from holdfast.engines.postgres.queues import read_lines
from holdfast.engines.postgres.rows import brief_job
from holdfast.engines.postgres.steps import Again, Ask, Steps, Store
from holdfast.engines.postgres.write import Kept


def _choose(source: str) -> str:
    return f"""
    SELECT j.seq FROM (
        SELECT * FROM $schema.jobs j
        WHERE j.ns = $1::int AND j.state = ANY ($5::smallint[]) AND {source}
        ORDER BY j.seq LIMIT {SCAN_MAX}
    ) j {QUEUE_NAME}
    WHERE {CONDITION} AND NOT ($19::boolean AND j.cancel)
    ORDER BY j.seq LIMIT $20::bigint
    """  # sql: the sources are the constants of `filters`


_CHOOSE = {source: _choose(source) for source in SOURCES}
_LOCK = "SELECT * FROM $schema.hold($1::int, $2::bigint[], false)"
_REMOVE = "SELECT $schema.remove($1::int, $2::bigint[])"


class Amended(NamedTuple):
    """How many jobs were changed, and how many others were faster at."""

    changed: int
    lost: int = 0


def amend(store: Store, wanted: JobFilter, amendment: Amendment, *, limit: int) -> Steps[Amended]:
    if isinstance(amendment, Move):
        lines = yield from read_lines(store, [amendment.queue])
        if amendment.queue not in lines:
            raise admission.unknown(amendment.queue)
    states = amending.amendable(amendment, wanted)
    if not states:
        return Amended(0)
    cancels = isinstance(amendment, Cancel)
    values = (store.ns, store.given_ms, *values_of(wanted, states), cancels, limit)
    chosen = yield Ask(_CHOOSE[source_of(wanted, states)], values)
    if not chosen:
        return Amended(0)
    rows = yield Ask(_LOCK, (store.ns, [row[0] for row in chosen]))
    now, numbers = yield from write.draw(store, len(rows))
    kept = [Kept(job := brief_job(row), job, row[29]) for row in rows]
    kept = [
        one
        for one in kept
        if one.before.state in states
        and matches(wanted, one.before, now)
        and not (cancels and one.before.cancel_requested)
    ]
    if isinstance(amendment, Delete):
        yield Ask(_REMOVE, (store.ns, [one.before.seq for one in kept]))
    else:
        yield from _change(store, amendment, kept, now=now, numbers=numbers)
    return Amended(len(kept), len(chosen) - len(kept))


def _change(
    store: Store,
    amendment: Amendment,
    kept: Sequence[Kept],
    *,
    now: int,
    numbers: Iterator[int],
) -> Steps[None]:
    names = {one.before.queue for one in kept}
    if isinstance(amendment, Move):
        names.add(amendment.queue)
    lines = yield from read_lines(store, names)
    if not all(name in lines for name in names):
        raise Again
    after = []
    for one in kept:
        change = amending.amend(one.before, amendment, lines.policy(one.before), now)
        assert change is not None
        after.append(write.changed(one, change, numbers))
    yield from write.rewrite(store, after, lines)
