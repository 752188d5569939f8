"""All waiting jobs of a queue, page by page, though it changes between two pages: those that are
held by the most first, the ready ones last.

What ends elsewhere makes a job's `holds` smaller, so it is still to come. Whoever makes them larger
in a queue that is being sorted puts the job into its lane there and then.
"""

from __future__ import annotations

from typing import Any

from holdfast.engines.sqlite.unit import Unit

Cursor = list[Any]
"""A kind of jobs, and the place in its index up to which they are done."""

_LOWEST = -(2**62)
START: Cursor = ["laned", 2**62, _LOWEST, 0, 0]
_HELD = "FROM hf_jobs INDEXED BY hf_aside WHERE queue = ? AND state = 0 AND holds <> 0"
_NEXT_HOLDS = f"SELECT max(holds) {_HELD} AND holds < ?"
_PAGES = {
    "nowhere": (
        f"SELECT seq, holds, due_at, place {_HELD} AND holds = ? AND lane IS NULL"
        " AND (due_at, place) > (?, ?) ORDER BY due_at, place LIMIT ?"
    ),
    "laned": (
        f"SELECT seq, holds, lane, due_at, place {_HELD} AND holds = ?"
        " AND (lane, due_at, place) > (?, ?, ?) ORDER BY lane, due_at, place LIMIT ?"
    ),
    "ready": (
        "SELECT seq, rank, due_at, place FROM hf_jobs INDEXED BY hf_ready WHERE queue = ?"
        " AND state = 0 AND holds = 0 AND (rank, due_at, place) > (?, ?, ?)"
        " ORDER BY rank, due_at, place LIMIT ?"
    ),
}


def page(
    unit: Unit, queue_id: int, cursor: Cursor | None, limit: int
) -> tuple[list[int], Cursor | None]:
    """The next ones, and where to go on; None when those were all."""
    seqs: list[int] = []
    while cursor is not None and len(seqs) < limit:
        kind, *after = cursor
        wanted = limit - len(seqs)
        found = unit.run(_PAGES[kind], (queue_id, *after, wanted)).fetchall()
        seqs += [seq for seq, *_ in found]
        cursor = [kind, *found[-1][1:]] if len(found) == wanted else _next(unit, queue_id, cursor)
    return seqs, cursor


def _next(unit: Unit, queue_id: int, cursor: Cursor) -> Cursor | None:
    kind, holds, *_ = cursor
    if kind == "ready":
        return None
    if kind == "nowhere":
        return ["laned", holds, _LOWEST, 0, 0]
    fewer = unit.run(_NEXT_HOLDS, (queue_id, holds)).get
    return ["ready", _LOWEST, 0, 0] if fewer is None else ["nowhere", fewer, _LOWEST, 0]
