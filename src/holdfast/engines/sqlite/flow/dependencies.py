"""Dependencies: one row of `hf_edges` for each open edge from a parent's id to a child's seq."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engines.sqlite.schema import FLOW_CHILDREN, HOLD_BEHIND, HOLD_PARENT
from holdfast.engines.sqlite.transaction import Transaction


def states_of(transaction: Transaction, ids: Sequence[str]) -> dict[str, int]:
    """The state codes of the jobs with these ids, as far as they exist. A dead letter under lease
    is dead."""
    found = transaction.run(
        "SELECT id, iif(state = 5, 3, state), queue FROM hf_jobs WHERE ns = ?"
        " AND id IN (SELECT value FROM json_each(?))",
        (transaction.namespace_id, msgspec.json.encode(ids).decode()),
    ).fetchall()
    return {id_: state for id_, state, queue in found if queue in transaction.queue_names}


def add(transaction: Transaction, child: int, parents: Sequence[str]) -> None:
    """Make a child wait for these parents."""
    transaction.connection.executemany(
        "INSERT INTO hf_edges(parent, ns, child) VALUES (?, ?, ?)",
        [(parent, transaction.namespace_id, child) for parent in parents],
    )
    transaction.run(
        "UPDATE hf_jobs SET flow = flow | ? WHERE ns = ?"
        " AND id IN (SELECT value FROM json_each(?))",
        (FLOW_CHILDREN, transaction.namespace_id, msgspec.json.encode(parents).decode()),
    )


def children_of(
    transaction: Transaction, parents: Sequence[str], limit: int
) -> list[tuple[Any, ...]]:
    """(parent, child, child's state, child's extra) by parent as given, then by arrival."""
    found: list[tuple[Any, ...]] = transaction.run(
        "SELECT e.parent, e.child, j.state, j.extra FROM json_each(?) p"
        " CROSS JOIN hf_edges e ON e.parent = p.value AND e.ns = ?"
        " CROSS JOIN hf_jobs j ON j.seq = e.child LIMIT ?",
        (msgspec.json.encode(parents).decode(), transaction.namespace_id, limit),
    ).fetchall()
    return found


def close(transaction: Transaction, closed: Sequence[tuple[str, int]]) -> list[int]:
    """Close these edges; returns the lanes of children that nothing else holds."""
    if not closed:
        return []
    transaction.connection.executemany(
        "DELETE FROM hf_edges WHERE parent = ? AND child = ? AND ns = ?",
        [(*edge, transaction.namespace_id) for edge in closed],
    )
    counts = Counter(child for _, child in closed)
    freed = transaction.connection.executemany(
        "UPDATE hf_jobs SET holds = holds - ? WHERE seq = ? AND state = 0 RETURNING lane, holds",
        [(HOLD_PARENT * count, child) for child, count in counts.items()],
    )
    return [lane for lane, holds in freed if lane is not None and holds < HOLD_BEHIND]


def close_all(transaction: Transaction, child: int) -> None:
    """Close all edges of a child."""
    transaction.run("DELETE FROM hf_edges WHERE child = ?", (child,))


def count_open(transaction: Transaction, child: int) -> int:
    """The number of parents a child still waits for."""
    count: int = transaction.run("SELECT count(*) FROM hf_edges WHERE child = ?", (child,)).get
    return count


def open_parents(transaction: Transaction, child: int) -> set[str]:
    """The ids of the parents a child still waits for."""
    found = transaction.run("SELECT parent FROM hf_edges WHERE child = ?", (child,)).fetchall()
    return {parent for (parent,) in found}


def note_lost_parent(transaction: Transaction, parent: str) -> None:
    """Note that a parent of waiting children was deleted: a later job with its id replaces it."""
    if not transaction.has_lost_parents and has_children(transaction, parent):
        transaction.run("UPDATE hf_meta SET forsaken = 1")
        transaction.has_lost_parents = 1


def are_awaited(transaction: Transaction, ids: Sequence[str]) -> bool:
    """True if a child waits for a job with one of these ids."""
    try:
        ids_json = msgspec.json.encode(ids).decode()
    except UnicodeEncodeError:
        return True  # Some id cannot be stored; enqueueing one by one finds it.
    return bool(
        transaction.run(
            "SELECT 1 FROM json_each(?) i CROSS JOIN hf_edges e ON e.parent = i.value"
            " AND e.ns = ? LIMIT 1",
            (ids_json, transaction.namespace_id),
        ).get
    )


def has_children(transaction: Transaction, parent: str) -> bool:
    """True if a child waits for this parent."""
    return bool(
        transaction.run(
            "SELECT 1 FROM hf_edges WHERE parent = ? AND ns = ? LIMIT 1",
            (parent, transaction.namespace_id),
        ).get
    )
