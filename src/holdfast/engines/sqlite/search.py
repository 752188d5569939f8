"""JobFilter → SQL: constant pieces with bound values, walked in the order of arrival.

A walk looks at no more than `limits.SCAN_MAX` rows. Dead and cancelled jobs are few among many
done ones and have an index of their own; so have leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.core import limits
from holdfast.core.model import JobFilter, State
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.unit import Unit

_EXACT = {
    "task": "task = ?",
    "tenant": "tenant = ?",
    "group": "grp = ?",
    "key": "key = ?",
    "worker": "worker = ?",
    "fingerprint": "fingerprint = ?",
    "version": "version = ?",
    "created_from": "created_at >= ?",
    "created_before": "created_at < ?",
}
_FOUND = (
    "(instr(id, ?) OR instr(task, ?) OR instr(ifnull(key, ''), ?) OR instr(ifnull(tenant, ''), ?))"
)


_LABELLED = (
    "EXISTS (SELECT 1 FROM json_each(CAST(extra AS TEXT), '$.labels') AS label"
    " WHERE label.key = ? AND label.value = ?)"
)
_EXPIRED = "(state = 0 AND ifnull(expires_at <= ?, 0))"
_NOT_EXPIRED = "NOT (state = 0 AND ifnull(expires_at <= ?, 0))"
_INDEXED = {
    None: "NOT INDEXED",
    "hf_id": "INDEXED BY hf_id",
    "hf_buried": "INDEXED BY hf_buried",
    "hf_leased": "INDEXED BY hf_leased",
}
_SEQ_MAX = 2**63 - 1


class Search(NamedTuple):
    """Conditions joined by AND, their values, and the index to walk; None walks the table."""

    conditions: str
    values: tuple[object, ...]
    indexed_by: str | None

    @property
    def source(self) -> str:
        """FROM and WHERE; the bounds of the walk are bound last."""
        indexed = _INDEXED[self.indexed_by]
        return f"FROM hf_jobs {indexed} WHERE {self.conditions} AND seq BETWEEN ? AND ?"


class Span(NamedTuple):
    """The seqs to look at, both included, and whether there are more beyond."""

    low: int
    high: int
    more: bool


def search_for(unit: Unit, wanted: JobFilter) -> Search | None:
    """None when nothing can match."""
    if wanted.states == ():
        return None
    conditions = ["ns = ?"]
    values: list[object] = [unit.namespace_id]

    def demand(condition: str, *bound: object) -> None:
        conditions.append(condition)
        values.extend(bound)

    for name, condition in _EXACT.items():
        value = getattr(wanted, name)
        if value is not None:
            demand(condition, value)
    if wanted.queue is not None:
        line = unit.catalog.lines.get(wanted.queue)
        if line is None:
            return None
        demand("queue = ?", line.id)
    if wanted.reason is not None:
        demand("reason = ?", wanted.reason.value)
    if wanted.search:
        demand(_FOUND, *[wanted.search] * 4)
    for name, value in (wanted.labels or {}).items():
        demand(_LABELLED, name, value)
    if wanted.finished_before_ms is not None:
        demand("finished_at <= ?", unit.now - wanted.finished_before_ms)
    if wanted.expired is not None:
        demand(_EXPIRED if wanted.expired else _NOT_EXPIRED, unit.now)
    index = _demand_states(wanted, demand)
    if wanted.ids is not None:
        index = "hf_id"
        demand("id IN (SELECT value FROM json_each(?))", msgspec.json.encode(wanted.ids).decode())
    return Search(" AND ".join(conditions), tuple(values), index)


def newest_span(unit: Unit, search: Search, before: int | None) -> Span:
    """The newest SCAN_MAX rows below `before`, or fewer."""
    high = _SEQ_MAX if before is None else before - 1
    if search.indexed_by in ("hf_id", "hf_leased"):
        return Span(0, high, more=False)
    if search.indexed_by == "hf_buried":
        low = unit.run(
            "SELECT seq FROM hf_jobs INDEXED BY hf_buried"
            " WHERE ns = ? AND state >= 3 AND seq <= ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
            (unit.namespace_id, high, limits.SCAN_MAX),
        ).get
        return Span(0 if low is None else low + 1, high, more=low is not None)
    # Numbers have gaps, so that this looks at fewer rows than it may, and never at more.
    high = unit.run("SELECT max(seq) FROM hf_jobs WHERE seq <= ?", (high,)).get or 0
    low = max(high - limits.SCAN_MAX + 1, 0)
    lowest = unit.run("SELECT min(seq) FROM hf_jobs").get
    return Span(low, high, more=lowest is not None and lowest < low)


def oldest_span(unit: Unit, search: Search, after: int) -> Span:
    """The oldest SCAN_MAX rows above `after`, or fewer; an index is walked to its end."""
    if search.indexed_by is not None:
        return Span(after + 1, _SEQ_MAX, more=False)
    low = unit.run("SELECT min(seq) FROM hf_jobs WHERE seq > ?", (after,)).get
    if low is None:
        return Span(after + 1, after, more=False)
    high = low + limits.SCAN_MAX - 1
    highest = unit.run("SELECT max(seq) FROM hf_jobs").get
    return Span(low, high, more=highest > high)


def _demand_states(wanted: JobFilter, demand: Callable[..., None]) -> str | None:
    """The index that fits the states; its own condition must be said again to use it."""
    if wanted.states is None:
        return None
    codes = {rows.CODES[State(state)] for state in wanted.states}
    demand("state IN (SELECT value FROM json_each(?))", str(sorted(codes)))
    if codes <= {rows.DEAD, rows.CANCELLED}:
        demand("state >= 3")
        return "hf_buried"
    if codes == {rows.LEASED}:
        demand("state = 1")
        return "hf_leased"
    return None
