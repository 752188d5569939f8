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
from holdfast.engines.postgres import lanes, write
from holdfast.engines.postgres.filters import (
    CONDITION,
    QUEUE_NAME,
    SCAN_MAX,
    SOURCES,
    source_of,
    values_of,
)
from holdfast.engines.postgres.queues import Lines, read_lines
from holdfast.engines.postgres.rows import kept_job
from holdfast.engines.postgres.steps import Again, Ask, Steps, Store, only
from holdfast.engines.postgres.write import Kept


def _choose(source: str) -> str:
    return f"""
    SELECT j.seq, j.flow, q.name FROM (
        SELECT * FROM $schema.jobs j
        WHERE j.ns = $1::int AND j.state = ANY ($5::smallint[]) AND {source}
        ORDER BY j.seq LIMIT {SCAN_MAX}
    ) j {QUEUE_NAME}
    WHERE {CONDITION} AND NOT ($20::boolean AND j.cancel)
    ORDER BY j.seq LIMIT $21::bigint
    """  # sql: the sources are the constants of `filters`


_CHOOSE = {source: _choose(source) for source in SOURCES}
_LOCK = "SELECT * FROM $schema.hold($1::int, $2::bigint[], $3::boolean)"
_ERASE = "SELECT $schema.erase($1::int, $2::bigint, $3::bigint[])"
_HAS_FLOW = 31


class Amended(NamedTuple):
    """How many jobs were changed, and how many others were faster at."""

    changed: int
    lost: int = 0


def amend(store: Store, wanted: JobFilter, amendment: Amendment, *, limit: int) -> Steps[Amended]:
    targets = [amendment.queue] if isinstance(amendment, Move) else []
    if targets and targets[0] not in (yield from read_lines(store, targets)):
        raise admission.unknown(targets[0])
    states = amending.amendable(amendment, wanted)
    if not states:
        return Amended(0)
    cancels = isinstance(amendment, Cancel)
    values = (store.ns, store.given_ms, *values_of(wanted, states), cancels, limit)
    chosen = yield Ask(_CHOOSE[source_of(wanted, states)], values)
    if not chosen:
        return Amended(0)
    lines = yield from read_lines(store, {*targets, *(row[2] for row in chosen)})
    locked = store.duties.locks or bool(lines.laned) or any(row[1] for row in chosen)
    if locked:
        yield from lanes.lock(lines.numbers)
    rows = yield Ask(_LOCK, (store.ns, [row[0] for row in chosen], lines.reads_payload))
    now, numbers = yield from write.draw(store, len(rows))
    kept = [Kept(job := kept_job(row), job, row[29]) for row in rows]
    if not locked and any(row[_HAS_FLOW] for row in rows):
        store.duties.locks = True
        raise Again
    kept = [
        one
        for one in kept
        if one.before.state in states
        and matches(wanted, one.before, now)
        and not (cancels and one.before.cancel_requested)
    ]
    if not all(name in lines for name in {*targets, *(one.before.queue for one in kept)}):
        raise Again
    if isinstance(amendment, Delete):
        seqs = [one.before.seq for one in kept]
        store.duties.endings += only((yield Ask(_ERASE, (store.ns, now, seqs))))
    else:
        after = _changed(amendment, kept, lines, now=now, numbers=numbers)
        yield from write.rewrite(store, after, lines, now=now, locked=locked)
    return Amended(len(kept), len(chosen) - len(kept))


def _changed(
    amendment: Amendment, kept: Sequence[Kept], lines: Lines, *, now: int, numbers: Iterator[int]
) -> list[Kept]:
    after = []
    for one in kept:
        change = amending.amend(one.before, amendment, lines.policy(one.before), now)
        assert change is not None
        after.append(write.changed(one, change, numbers))
    return after
