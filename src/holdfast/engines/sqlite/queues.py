"""Queues: declare, drop in bounded transactions, and views with counts. Also the small versioned
records of a namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import Queue, QueueView, Record
from holdfast.engines.base import ANY, Known, Saved
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import effects, lanes
from holdfast.engines.sqlite.flow.limits import change_rates
from holdfast.engines.sqlite.schema import PART_QUEUE_EXPIRY, RANK_FIRST, encode_queue
from holdfast.engines.sqlite.transaction import QueueRow, Transaction

DROP_BATCH = 2_000
EXPIRY_BATCH = 1_000


class Declared(NamedTuple):
    """Whether a queue was written, and whether the expiry of its waiting jobs may have changed."""

    is_written: bool
    has_expiry: bool = False


def declare(transaction: Transaction, queue: Queue, instead_of: Known) -> Declared:
    """Create or update a queue, unless its settings are no longer `instead_of`."""
    checks.check_dead_queue(queue, transaction.queues)
    queue_row = transaction.queues.get(queue.name)
    if instead_of is not ANY and instead_of != (None if queue_row is None else queue_row.settings):
        return Declared(is_written=False)
    if queue_row is None:
        transaction.run(
            "INSERT INTO hf_queues(id, ns, name, settings) VALUES (?, ?, ?, ?)",
            (transaction.allocate(1), transaction.namespace_id, queue.name, encode_queue(queue)),
        )
    else:
        transaction.run(
            "UPDATE hf_queues SET settings = ? WHERE id = ?", (encode_queue(queue), queue_row.id)
        )
        lanes.begin_relane(transaction, queue_row, queue)
    change_rates(transaction, queue)
    transaction.bump_revision()
    transaction.notifies = True
    before = None if queue_row is None else queue_row.settings.expires_ms
    has_expiry = queue_row is not None and (before, queue.expires_ms) != (None, None)
    return Declared(is_written=True, has_expiry=has_expiry)


def expiry_step(
    transaction: Transaction, name: str, cursor: lanes.WalkCursor
) -> lanes.WalkCursor | None:
    """Give the next waiting jobs of a queue the expiry that its settings demand; returns where to
    continue, None at the end. A job that was held as expired is looked at again."""
    queue_row = transaction.queues.get(name)
    if queue_row is None:
        return None
    expires_ms = queue_row.settings.expires_ms
    seqs, following = lanes.waiting_page(transaction, queue_row.id, cursor, EXPIRY_BATCH)
    changed = False
    for seq in seqs:
        row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
        expires_at, parts = row[rows.EXPIRES_AT], row[rows.PARTS] & ~PART_QUEUE_EXPIRY
        is_own = expires_at is not None and parts == row[rows.PARTS]
        wanted = None if expires_ms is None else row[rows.DUE_AT] + expires_ms
        if is_own or expires_at == wanted:
            continue
        parts |= 0 if wanted is None else PART_QUEUE_EXPIRY
        transaction.run(
            "UPDATE hf_jobs SET expires_at = ?, parts = ?, holds = holds & ~2 WHERE seq = ?",
            (wanted, parts, seq),
        )
        if row[rows.LANE] is not None:
            transaction.effects.lanes.add(row[rows.LANE])
        changed = True
    if changed:
        transaction.allocate(1)  # See `count_revision`.
    return following


def begin_drop(transaction: Transaction, name: str) -> None:
    """Remove the queue's name: from now on no call sees it. Its rows are deleted in steps."""
    queue_row = transaction.queues.get(name)
    if queue_row is not None:
        transaction.run("UPDATE hf_queues SET name = NULL WHERE id = ?", (queue_row.id,))
        transaction.bump_revision()


def is_dropping(transaction: Transaction) -> bool:
    """True if rows of a dropped queue remain, perhaps because a process was killed."""
    return bool(transaction.run("SELECT 1 FROM hf_queues WHERE name IS NULL LIMIT 1").get)


def drop_step(transaction: Transaction) -> None:
    """Delete some rows of a dropped queue."""
    queue_id = transaction.run("SELECT id FROM hf_queues WHERE name IS NULL LIMIT 1").get
    if queue_id is None:
        return
    found = transaction.run(
        "SELECT seq FROM ("
        " SELECT seq FROM hf_jobs INDEXED BY hf_ready"
        "  WHERE queue = ?1 AND state = 0 AND holds = 0"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_ended"
        "  WHERE queue = ?1 AND state >= 2"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_aside"
        "  WHERE queue = ?1 AND state = 0 AND holds <> 0"
        " UNION ALL SELECT seq FROM hf_jobs INDEXED BY hf_leased"
        "  WHERE queue = ?1 AND state IN (1, 5) AND state = 1"
        ") LIMIT ?2",
        (queue_id, DROP_BATCH),
    ).fetchall()
    for (seq,) in sorted(found):
        effects.delete_job(transaction, transaction.run(rows.BY_SEQ, (seq,)).fetchone())
    if len(found) == DROP_BATCH:
        return
    transaction.run(
        "DELETE FROM hf_keys WHERE queue = ?1"
        " AND key IN (SELECT key FROM hf_keys WHERE queue = ?1 LIMIT ?2)",
        (queue_id, DROP_BATCH),
    )
    if transaction.changes() < DROP_BATCH and not lanes.drop_flow_rows(
        transaction, queue_id, DROP_BATCH
    ):
        transaction.run("DELETE FROM hf_queues WHERE id = ?", (queue_id,))
        transaction.bump_revision()


def views(
    transaction: Transaction,
    names: Collection[str] | None,
    *,
    counts: bool,
    most: int = bounds.COUNT_EXACT_MAX,
) -> list[QueueView]:
    """The queues of `names` that exist, or all, sorted by name, with their counts if wanted. The
    counts are exact up to `most`."""
    queues = transaction.queues
    wanted = queues.keys() if names is None else queues.keys() & set(names)
    queue_rows = [queues[name] for name in sorted(wanted)]
    if not counts:
        return [QueueView(queue=queue_row.settings) for queue_row in queue_rows]
    leased = _leased(transaction, most)
    return [
        _counted(transaction, queue_row, leased.get(queue_row.id, (0, 0)), most)
        for queue_row in queue_rows
    ]


def _counted(
    transaction: Transaction, queue_row: QueueRow, leased: tuple[int, int], most: int
) -> QueueView:
    ready, delayed, oldest_at = _waiting(transaction, queue_row, most)
    done, dead, cancelled = (_ended(transaction, queue_row, code, most) for code in (2, 3, 4))
    exact = {
        "ready": ready,
        "delayed": delayed,
        "blocked": _blocked(transaction, queue_row, most),
        "leased": leased[0],
        "overdue": leased[1],
        "done": done,
        "dead": dead,
        "cancelled": cancelled,
    }
    view = QueueView(
        queue=queue_row.settings,
        oldest_age_ms=None if oldest_at is None else transaction.now - oldest_at,
        estimated=frozenset(name for name, count in exact.items() if count > most),
    )
    return replace(view, **{name: min(count, most) for name, count in exact.items()})


def _waiting(
    transaction: Transaction, queue_row: QueueRow, most: int
) -> tuple[int, int, int | None]:
    """Ready, delayed and the oldest due instant, with two bounded scans per priority."""
    ready, delayed, oldest_at = _held(transaction, queue_row, most)
    rank = RANK_FIRST
    while True:
        rank = transaction.run(
            "SELECT rank FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ? AND state = 0 AND holds = 0 AND rank > ? ORDER BY rank LIMIT 1",
            (queue_row.id, rank),
        ).get
        if rank is None:
            return ready, delayed, oldest_at
        count, due_at = transaction.run(
            "SELECT count(*), min(due_at) FROM (SELECT due_at FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ?1 AND state = 0 AND holds = 0 AND rank = ?2 AND due_at <= ?3"
            " AND (expires_at IS NULL OR expires_at > ?3) LIMIT ?4)",
            (queue_row.id, rank, transaction.now, most + 1),
        ).fetchone()
        ready += count
        if due_at is not None and (oldest_at is None or due_at < oldest_at):
            oldest_at = due_at
        delayed += transaction.run(
            "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ready"
            " WHERE queue = ?1 AND state = 0 AND holds = 0 AND rank = ?2 AND due_at > ?3 LIMIT ?4)",
            (queue_row.id, rank, transaction.now, most + 1),
        ).get


def _ended(transaction: Transaction, queue_row: QueueRow, code: int, most: int) -> int:
    count: int = transaction.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ended"
        " WHERE queue = ? AND state = ? AND state >= 2 LIMIT ?)",
        (queue_row.id, code, most + 1),
    ).get
    return count


def _held(transaction: Transaction, queue_row: QueueRow, most: int) -> tuple[int, int, int | None]:
    """The same for jobs in lanes, and for those held as expired before the clock was set back, over
    a bounded number of them."""
    ready, delayed, oldest_at = transaction.run(
        "SELECT total(due_at <= ?2 AND ifnull(expires_at > ?2, 1)), total(due_at > ?2),"
        " min(due_at) FILTER (WHERE due_at <= ?2 AND ifnull(expires_at > ?2, 1)) FROM ("
        " SELECT due_at, expires_at FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ?1 AND state = 0 AND holds <> 0 AND holds < 4 LIMIT ?3)",
        (queue_row.id, transaction.now, max(most + 1, bounds.SCAN_MAX)),
    ).fetchone()
    return int(ready), int(delayed), oldest_at


def _blocked(transaction: Transaction, queue_row: QueueRow, most: int) -> int:
    """Jobs behind in their group, or with an open parent."""
    count: int = transaction.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds >= 4 LIMIT ?)",
        (queue_row.id, most + 1),
    ).get
    return count


def _leased(transaction: Transaction, most: int) -> dict[int, tuple[int, int]]:
    """Leased and overdue jobs by queue id, over a bounded number of leases."""
    found = transaction.run(
        "SELECT queue, count(*), sum(deadline <= ?1) FROM ("
        " SELECT queue, deadline FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ?2 AND state IN (1, 5) LIMIT ?3) GROUP BY queue",
        (transaction.boot, transaction.namespace_id, max(most + 1, bounds.SCAN_MAX)),
    ).fetchall()
    return {queue_id: (leased, overdue) for queue_id, leased, overdue in found}


def count_revision(transaction: Transaction) -> str:
    """A text that changes with every call that changes counts. Arrivals, leases, retries,
    amendments and repairs allocate numbers; the end of a lease changes the leased jobs, as far as
    they are counted."""
    meta = transaction.run("SELECT number, revision, aside_at FROM hf_meta").fetchone()
    leased = transaction.run(
        "SELECT count(*), min(deadline), max(deadline) FROM ("
        " SELECT deadline FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state IN (1, 5) LIMIT ?)",
        (transaction.namespace_id, max(bounds.COUNT_EXACT_MAX + 1, bounds.SCAN_MAX)),
    ).fetchone()
    return repr((*meta, *leased))


def load_records(
    transaction: Transaction, kind: str, after: str | None, limit: int
) -> list[Record]:
    """Records of a kind by key, starting after `after`."""
    found = transaction.run(
        "SELECT key, version, value, saved_at FROM hf_records"
        " WHERE ns = ? AND kind = ? AND key > ? ORDER BY key LIMIT ?",
        (transaction.namespace_id, kind, after or "", limit),
    ).fetchall()
    return [
        Record(
            kind=kind,
            key=key,
            value=value,
            version=version,
            age_ms=max(0, transaction.now - saved_at),
        )
        for key, version, value, saved_at in found
    ]


def save_records(transaction: Transaction, records: Sequence[Record]) -> list[Saved]:
    """Write each record if its version is still the stored one."""
    return [_save_record(transaction, record) for record in records]


def _save_record(transaction: Transaction, record: Record) -> Saved:
    """One conditional write, guarded by the version that was read."""
    name = (transaction.namespace_id, record.kind, record.key)
    if record.value is None and record.version == 0:
        known = transaction.run(
            "SELECT 1 FROM hf_records WHERE ns = ? AND kind = ? AND key = ?", name
        ).get
        return Saved.STALE if known else Saved.SAVED
    if record.value is None:
        transaction.run(
            "DELETE FROM hf_records WHERE ns = ? AND kind = ? AND key = ? AND version = ?",
            (*name, record.version),
        )
    elif record.version == 0:
        transaction.run(
            "INSERT INTO hf_records(ns, kind, key, version, value, saved_at)"
            " VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO NOTHING",
            (*name, record.value, transaction.now),
        )
    else:
        transaction.run(
            "UPDATE hf_records SET version = version + 1, value = ?, saved_at = ?"
            " WHERE ns = ? AND kind = ? AND key = ? AND version = ?",
            (record.value, transaction.now, *name, record.version),
        )
    return Saved.SAVED if transaction.changes() == 1 else Saved.STALE
