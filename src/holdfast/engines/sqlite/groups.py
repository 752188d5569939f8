"""Strict groups: at most one waiting member is exposed, the first to arrive, and only while none
of the group is leased. All others are held as being behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.engines.sqlite import relane
from holdfast.engines.sqlite.aftermath import Aftermath
from holdfast.engines.sqlite.unit import Unit

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


def refresh(unit: Unit, aftermath: Aftermath, queue_id: int, group: str) -> None:
    """After one job joined, left or changed: who was exposed is first or second now."""
    is_leased = bool(unit.run(_LEASED, (queue_id, group)).get)
    found = unit.run(_FIRST_TWO, (queue_id, group)).fetchall()
    for place, (seq, holds, lane) in enumerate(found):
        is_behind = is_leased or place > 0
        if bool(holds & 4) is not is_behind:
            step = 4 if is_behind else -4
            unit.run("UPDATE hf_jobs SET holds = holds + ? WHERE seq = ?", (step, seq))
            if lane is not None:
                aftermath.lanes.add(lane)
            if is_behind and _is_unsorted(unit, queue_id):
                # The walk that sorts may have passed those that are held so.
                relane.relane(unit, aftermath, [seq])


def is_misplaced(unit: Unit, queue_id: int, group: str) -> bool:
    """Is nobody leased, and the first one behind all the same, or somebody else not?"""
    is_leased = bool(unit.run(_LEASED, (queue_id, group)).get)
    found = unit.run(_FIRST_TWO, (queue_id, group)).fetchall()
    return any(
        bool(holds & 4) is not (is_leased or place > 0) for place, (_, holds, _) in enumerate(found)
    )


def expose_first(unit: Unit, groups: Iterable[tuple[int, str]]) -> list[int]:
    """The same after members ended, or joined at the end: nobody need step back."""
    found = unit.run(_EXPOSE_FIRST, (msgspec.json.encode(list(groups)).decode(),)).fetchall()
    return [lane for (lane,) in found if lane is not None]


def ahead(unit: Unit, queue_id: int, group: str, id: str) -> str | None:
    """The leased member, or else the first waiting one, if it is not this one."""
    first: str | None = unit.run(_AHEAD, (queue_id, group, 1)).get
    if first is None:
        first = unit.run(_AHEAD, (queue_id, group, 0)).get
    return None if first == id else first


def members(unit: Unit, queue_id: int, group: str, fields: str) -> Iterator[tuple[Any, ...]]:
    """The waiting members in their order; `fields` is ours."""
    found: Iterator[tuple[Any, ...]] = unit.run(
        f"SELECT {fields} {_MEMBERS} AND state = 0 ORDER BY seq",  # sql: constant pieces
        (queue_id, group),
    )
    return found


def _is_unsorted(unit: Unit, queue_id: int) -> bool:
    name = unit.catalog.names.get(queue_id)
    return name is not None and unit.catalog.lines[name].unsorted
