"""Who still waits for whom: one row for each open edge from a parent, by its id, to its child."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engines.sqlite.flow_schema import FLOW_CHILDREN, HOLD_BEHIND, HOLD_PARENT
from holdfast.engines.sqlite.unit import Unit


def parents_of(unit: Unit, ids: Sequence[str]) -> dict[str, int]:
    """The states of those that exist, by id."""
    found = unit.run(
        "SELECT id, state, queue FROM hf_jobs WHERE ns = ?"
        " AND id IN (SELECT value FROM json_each(?))",
        (unit.namespace_id, msgspec.json.encode(ids).decode()),
    ).fetchall()
    return {id_: state for id_, state, queue in found if queue in unit.catalog.names}


def add(unit: Unit, child: int, parents: Sequence[str]) -> None:
    unit.connection.executemany(
        "INSERT INTO hf_edges(parent, ns, child) VALUES (?, ?, ?)",
        [(parent, unit.namespace_id, child) for parent in parents],
    )
    unit.run(
        "UPDATE hf_jobs SET flow = flow | ? WHERE ns = ?"
        " AND id IN (SELECT value FROM json_each(?))",
        (FLOW_CHILDREN, unit.namespace_id, msgspec.json.encode(parents).decode()),
    )


def of_parents(unit: Unit, parents: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
    """(parent, child, its state, its extra): by parent as given, then as the children arrived."""
    found: list[tuple[Any, ...]] = unit.run(
        "SELECT e.parent, e.child, j.state, j.extra FROM json_each(?) p"
        " CROSS JOIN hf_edges e ON e.parent = p.value AND e.ns = ?"
        " CROSS JOIN hf_jobs j ON j.seq = e.child LIMIT ?",
        (msgspec.json.encode(parents).decode(), unit.namespace_id, limit),
    ).fetchall()
    return found


def close(unit: Unit, closed: Sequence[tuple[str, int]]) -> list[int]:
    """These are done with. The lanes of children that wait for nothing else either."""
    if not closed:
        return []
    unit.connection.executemany(
        "DELETE FROM hf_edges WHERE parent = ? AND child = ? AND ns = ?",
        [(*edge, unit.namespace_id) for edge in closed],
    )
    counts = Counter(child for _, child in closed)
    freed = unit.connection.executemany(
        "UPDATE hf_jobs SET holds = holds - ? WHERE seq = ? AND state = 0 RETURNING lane, holds",
        [(HOLD_PARENT * count, child) for child, count in counts.items()],
    )
    return [lane for lane, holds in freed if lane is not None and holds < HOLD_BEHIND]


def close_all(unit: Unit, child: int) -> None:
    unit.run("DELETE FROM hf_edges WHERE child = ?", (child,))


def count_open(unit: Unit, child: int) -> int:
    count: int = unit.run("SELECT count(*) FROM hf_edges WHERE child = ?", (child,)).get
    return count


def open_parents(unit: Unit, child: int) -> set[str]:
    found = unit.run("SELECT parent FROM hf_edges WHERE child = ?", (child,)).fetchall()
    return {parent for (parent,) in found}


def forsake(unit: Unit, parent: str) -> None:
    """It is gone, and some are still held by it: a later job under its id counts as it."""
    if not unit.forsaken and has_children(unit, parent):
        unit.run("UPDATE hf_meta SET forsaken = 1")
        unit.forsaken = 1


def are_awaited(unit: Unit, ids: Sequence[str]) -> bool:
    """Does anybody still wait for a job of one of these ids?"""
    try:
        given = msgspec.json.encode(ids).decode()
    except UnicodeEncodeError:
        return True  # One by one it is found out which can be stored.
    return bool(
        unit.run(
            "SELECT 1 FROM json_each(?) i CROSS JOIN hf_edges e ON e.parent = i.value"
            " AND e.ns = ? LIMIT 1",
            (given, unit.namespace_id),
        ).get
    )


def has_children(unit: Unit, parent: str) -> bool:
    return bool(
        unit.run(
            "SELECT 1 FROM hf_edges WHERE parent = ? AND ns = ? LIMIT 1",
            (parent, unit.namespace_id),
        ).get
    )
