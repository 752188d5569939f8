"""Queues: declared, dropped in bounded transactions, and how they stand."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import admission, limits
from holdfast.core.model import Queue, QueueView
from holdfast.engines.base import ANY, Known
from holdfast.engines.sqlite import flow, rows, slots, sorting
from holdfast.engines.sqlite.catalog import Line, encode_queue
from holdfast.engines.sqlite.schema import RANK_FIRST
from holdfast.engines.sqlite.unit import Unit

DROP_BATCH = 2_000
_MOST = limits.COUNT_EXACT_MAX


def declare(unit: Unit, queue: Queue, instead_of: Known) -> bool:
    admission.check_dead_queue(queue, unit.catalog.lines)
    line = unit.catalog.lines.get(queue.name)
    if instead_of is not ANY and instead_of != (None if line is None else line.queue):
        return False
    if line is None:
        unit.run(
            "INSERT INTO hf_queues(id, ns, name, settings) VALUES (?, ?, ?, ?)",
            (unit.numbers(1), unit.namespace_id, queue.name, encode_queue(queue)),
        )
    else:
        unit.run("UPDATE hf_queues SET settings = ? WHERE id = ?", (encode_queue(queue), line.id))
        sorting.begin(unit, line, queue)
    slots.change_rates(unit, queue)
    unit.bump_revision()
    unit.rings = True
    return True


def begin_drop(unit: Unit, name: str) -> None:
    """From here on the queue is gone for everybody; what is left of it has no name."""
    line = unit.catalog.lines.get(name)
    if line is not None:
        unit.run("UPDATE hf_queues SET name = NULL WHERE id = ?", (line.id,))
        unit.bump_revision()


def is_dropping(unit: Unit) -> bool:
    """Did a queue leave something behind, perhaps in a process that was killed?"""
    return bool(unit.run("SELECT 1 FROM hf_queues WHERE name IS NULL LIMIT 1").get)


def go_on_dropping(unit: Unit) -> None:
    """Remove some of what a nameless queue left."""
    queue_id = unit.run("SELECT id FROM hf_queues WHERE name IS NULL LIMIT 1").get
    if queue_id is None:
        return
    found = unit.run(
        "SELECT seq FROM ("
        " SELECT seq FROM hf_jobs INDEXED BY hf_ready"
        "  WHERE queue = ?1 AND state = 0 AND holds = 0"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_ended"
        "  WHERE queue = ?1 AND state >= 2"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_aside"
        "  WHERE queue = ?1 AND state = 0 AND holds <> 0"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_leased"
        "  WHERE queue = ?1 AND state = 1"
        ") LIMIT ?2",
        (queue_id, DROP_BATCH),
    ).fetchall()
    for (seq,) in sorted(found):
        flow.remove(unit, unit.run(rows.BY_SEQ, (seq,)).fetchone())
    if len(found) == DROP_BATCH:
        return
    unit.run(
        "DELETE FROM hf_keys WHERE queue = ?1"
        " AND key IN (SELECT key FROM hf_keys WHERE queue = ?1 LIMIT ?2)",
        (queue_id, DROP_BATCH),
    )
    if unit.changes() < DROP_BATCH and not sorting.drop(unit, queue_id, DROP_BATCH):
        unit.run("DELETE FROM hf_queues WHERE id = ?", (queue_id,))
        unit.bump_revision()


def views(unit: Unit, *, counts: bool) -> list[QueueView]:
    lines = [line for _, line in sorted(unit.catalog.lines.items())]
    if not counts:
        return [QueueView(queue=line.queue) for line in lines]
    leased = _leased(unit)
    return [_counted(unit, line, leased.get(line.id, (0, 0))) for line in lines]


def _counted(unit: Unit, line: Line, leased: tuple[int, int]) -> QueueView:
    ready, delayed, oldest_at = _waiting(unit, line)
    done, dead, cancelled = (_ended(unit, line, code) for code in (2, 3, 4))
    exact = {
        "ready": ready,
        "delayed": delayed,
        "blocked": _blocked(unit, line),
        "leased": leased[0],
        "overdue": leased[1],
        "done": done,
        "dead": dead,
        "cancelled": cancelled,
    }
    view = QueueView(
        queue=line.queue,
        oldest_age_ms=None if oldest_at is None else unit.now - oldest_at,
        estimated=frozenset(name for name, count in exact.items() if count > _MOST),
    )
    return replace(view, **{name: min(count, _MOST) for name, count in exact.items()})


def _waiting(unit: Unit, line: Line) -> tuple[int, int, int | None]:
    """Ready, delayed and the oldest due instant, with two bounded walks per priority."""
    ready, delayed, oldest_at = _aside(unit, line)
    rank = RANK_FIRST
    while True:
        rank = unit.run(
            "SELECT rank FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ? AND state = 0 AND holds = 0 AND rank > ? ORDER BY rank LIMIT 1",
            (line.id, rank),
        ).get
        if rank is None:
            return ready, delayed, oldest_at
        count, due_at = unit.run(
            "SELECT count(*), min(due_at) FROM (SELECT due_at FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ?1 AND state = 0 AND holds = 0 AND rank = ?2 AND due_at <= ?3"
            " AND (expires_at IS NULL OR expires_at > ?3) LIMIT ?4)",
            (line.id, rank, unit.now, _MOST + 1),
        ).fetchone()
        ready += count
        if due_at is not None and (oldest_at is None or due_at < oldest_at):
            oldest_at = due_at
        delayed += unit.run(
            "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ?1 AND state = 0 AND holds = 0 AND rank = ?2 AND due_at > ?3 LIMIT ?4)",
            (line.id, rank, unit.now, _MOST + 1),
        ).get


def _ended(unit: Unit, line: Line, code: int) -> int:
    count: int = unit.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ended"
        " WHERE queue = ? AND state = ? AND state >= 2 LIMIT ?)",
        (line.id, code, _MOST + 1),
    ).get
    return count


def _aside(unit: Unit, line: Line) -> tuple[int, int, int | None]:
    """The same three of jobs in lanes, and of those put aside as expired before the clock was set
    back, over a bounded number of them."""
    ready, delayed, oldest_at = unit.run(
        "SELECT total(due_at <= ?2 AND ifnull(expires_at > ?2, 1)), total(due_at > ?2),"
        " min(due_at) FILTER (WHERE due_at <= ?2 AND ifnull(expires_at > ?2, 1)) FROM ("
        " SELECT due_at, expires_at FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ?1 AND state = 0 AND holds <> 0 AND holds < 4 LIMIT ?3)",
        (line.id, unit.now, limits.SCAN_MAX),
    ).fetchone()
    return int(ready), int(delayed), oldest_at


def _blocked(unit: Unit, line: Line) -> int:
    """Behind in their group, or with an open parent."""
    count: int = unit.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds >= 4 LIMIT ?)",
        (line.id, _MOST + 1),
    ).get
    return count


def _leased(unit: Unit) -> dict[int, tuple[int, int]]:
    """Leases and overdue ones by queue id, over a bounded number of leases."""
    found = unit.run(
        "SELECT queue, count(*), sum(deadline <= ?1) FROM ("
        " SELECT queue, deadline FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ?2 AND state = 1 LIMIT ?3) GROUP BY queue",
        (unit.boot, unit.namespace_id, limits.SCAN_MAX),
    ).fetchall()
    return {queue_id: (leased, overdue) for queue_id, leased, overdue in found}
