"""Strict groups: only the first waiting member is exposed, and only while none is leased.

All other waiting members are held as behind (HOLD_BEHIND).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.engines.sqlite.flow import lanes
from holdfast.engines.sqlite.transaction import Transaction

_MEMBERS = (
    "FROM hf_jobs INDEXED BY hf_grouped"
    " WHERE queue = ?1 AND grp = ?2 AND grp IS NOT NULL AND state < 2"
)
_LEASED = f"SELECT 1 {_MEMBERS} AND state = 1 LIMIT 1"
_FIRST_TWO = f"SELECT seq, holds, lane {_MEMBERS} AND state = 0 ORDER BY seq LIMIT 2"
_OF_EACH = (
    "FROM hf_jobs m INDEXED BY hf_grouped WHERE m.queue = g.value ->> 0 AND m.grp = g.value ->> 1"
    " AND m.grp IS NOT NULL AND m.state < 2"
)
_EXPOSE_FIRST = (
    "UPDATE hf_jobs SET holds = holds - 4 WHERE seq IN ("
    f"SELECT (SELECT m.seq {_OF_EACH} AND m.state = 0 ORDER BY m.seq LIMIT 1)"
    f" FROM json_each(?) g WHERE NOT EXISTS (SELECT 1 {_OF_EACH} AND m.state = 1))"
    " AND holds & 4 RETURNING lane"
)
_AHEAD = f"SELECT id {_MEMBERS} AND state = ?3 ORDER BY seq LIMIT 1"


def refresh(transaction: Transaction, queue_id: int, group: str) -> None:
    """Expose the right member after one job joined, left or changed.

    The member that was exposed before is now the first or the second.
    """
    is_leased = bool(transaction.run(_LEASED, (queue_id, group)).get)
    found = transaction.run(_FIRST_TWO, (queue_id, group)).fetchall()
    for place, (seq, holds, lane) in enumerate(found):
        is_behind = is_leased or place > 0
        if bool(holds & 4) is not is_behind:
            step = 4 if is_behind else -4
            transaction.run("UPDATE hf_jobs SET holds = holds + ? WHERE seq = ?", (step, seq))
            if lane is not None:
                transaction.effects.lanes.add(lane)
            if is_behind and _needs_relane(transaction, queue_id):
                # The relane step may already have passed jobs that are held like this one.
                lanes.relane(transaction, [seq])


def is_misplaced(transaction: Transaction, queue_id: int, group: str) -> bool:
    """True if the wrong member is exposed, or none although one should be."""
    is_leased = bool(transaction.run(_LEASED, (queue_id, group)).get)
    found = transaction.run(_FIRST_TWO, (queue_id, group)).fetchall()
    return any(
        bool(holds & 4) is not (is_leased or place > 0) for place, (_, holds, _) in enumerate(found)
    )


def expose_first(transaction: Transaction, groups: Iterable[tuple[int, str]]) -> list[int]:
    """Expose first members after members ended or joined at the end; returns their lanes.

    Cheaper than `refresh`: no exposed member has to step back.
    """
    found = transaction.run(_EXPOSE_FIRST, (msgspec.json.encode(list(groups)).decode(),)).fetchall()
    return [lane for (lane,) in found if lane is not None]


def ahead(transaction: Transaction, queue_id: int, group: str, id: str) -> str | None:
    """The id of the leased member, or else of the first waiting one, unless it is `id`."""
    first: str | None = transaction.run(_AHEAD, (queue_id, group, 1)).get
    if first is None:
        first = transaction.run(_AHEAD, (queue_id, group, 0)).get
    return None if first == id else first


def members(
    transaction: Transaction, queue_id: int, group: str, fields: str
) -> Iterator[tuple[Any, ...]]:
    """The waiting members in their order; `fields` are column names, never user input."""
    found: Iterator[tuple[Any, ...]] = transaction.run(
        f"SELECT {fields} {_MEMBERS} AND state = 0 ORDER BY seq",  # sql: constant pieces
        (queue_id, group),
    )
    return found


def _needs_relane(transaction: Transaction, queue_id: int) -> bool:
    name = transaction.queue_names.get(queue_id)
    return name is not None and transaction.queues[name].needs_relane
