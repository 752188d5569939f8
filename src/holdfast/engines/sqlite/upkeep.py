"""Upkeep: reads of overdue, expired and finished jobs and of free keys; recounts and pruning of
flow-control rows. `find_discrepancies` only reads, in pages that cover everything in turn;
`repair_discrepancies` checks again under the lock. In a store that was never damaged there is
nothing to repair.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import NamedTuple

import msgspec

from holdfast.core import bounds, retry_policy
from holdfast.core.fairness import CREDIT, decayed
from holdfast.core.lifecycle import ParentEffect
from holdfast.core.model import STATES, Job, Lease, State
from holdfast.engines.base import Expired, Overdue
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import effects, fairness, groups, lanes
from holdfast.engines.sqlite.flow.limits import SlotCapacity
from holdfast.engines.sqlite.schema import FLOW_TENANT
from holdfast.engines.sqlite.transaction import Transaction, read_slots

HOLD_VALUES_MAX = 64
"""A queue with more different values of `holds` keeps its empty lanes for now."""

_OVERDUE = (
    f"SELECT {rows.COLUMNS} FROM hf_jobs INDEXED BY hf_leased"
    " WHERE ns = ? AND state IN (1, 5) AND deadline <= ? ORDER BY deadline, seq LIMIT ?"
)
_EXPIRED = (
    f"SELECT {rows.COLUMNS} FROM hf_jobs INDEXED BY hf_expiring"
    " WHERE ns = ? AND state = 0 AND expires_at <= ? ORDER BY expires_at, seq LIMIT ?"
)
_HEAD = (
    "SELECT due_at, place FROM hf_jobs INDEXED BY hf_aside WHERE queue = l.queue AND state = 0"
    " AND holds <> 0 AND holds = 1 AND lane = l.id ORDER BY due_at, place LIMIT 1"
)
_NEXT_LANES = (
    f"SELECT id, due_at, place, bar, queue, (due_at, place) IS NOT ({_HEAD}) FROM hf_lanes l"
    " WHERE id > ? ORDER BY id LIMIT ?"
)
_NEXT_GROUP = (
    "SELECT queue, grp FROM hf_jobs INDEXED BY hf_grouped WHERE grp IS NOT NULL AND state < 2"
    " AND (queue, grp) > (?, ?) ORDER BY queue, grp LIMIT 1"
)
_NEXT_EDGES = (
    "SELECT e.parent, e.child, iif(p.state = 5, 3, p.state), c.extra, c.state FROM hf_edges e"
    " JOIN hf_jobs c ON c.seq = e.child LEFT JOIN hf_jobs p ON p.id = e.parent AND p.ns = e.ns"
    " WHERE e.ns = ? AND (e.parent, e.child) > (?, ?) ORDER BY e.parent, e.child LIMIT ?"
)
_EMPTY_LANES = (
    "SELECT id FROM hf_lanes l WHERE queue = ?1 AND due_at IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM json_each(?2) h CROSS JOIN hf_jobs j INDEXED BY hf_aside"
    " WHERE j.queue = ?1 AND j.state = 0 AND j.holds <> 0 AND j.holds = h.value AND j.lane = l.id)"
    " AND id NOT IN (SELECT value FROM json_each(?3)) LIMIT ?4"
)
# With too many edges to check, the answer is yes: some may have lost their parent.
_HAS_LOST_PARENTS = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM hf_edges LIMIT 10000)) = 10000 OR EXISTS"
    " (SELECT 1 FROM hf_edges e WHERE NOT EXISTS"
    " (SELECT 1 FROM hf_jobs p WHERE p.id = e.parent AND p.ns = e.ns))"
)


def overdue(transaction: Transaction, limit: int) -> Overdue:
    """Leases past their deadline, oldest first, and the time to the next one."""
    found = transaction.run(
        _OVERDUE, (transaction.namespace_id, transaction.boot, limit)
    ).fetchall()
    leases = []
    for row in found:
        job = rows.to_job(transaction, row, payload=b"")
        if job is not None:
            leases.append(Lease(job=job, token=job.token or 0, lease_ms=0))
    if len(found) >= limit:
        return Overdue(leases=tuple(leases), next_ms=0)
    next_at = transaction.run(
        "SELECT deadline FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state IN (1, 5) AND deadline > ? ORDER BY deadline LIMIT 1",
        (transaction.namespace_id, transaction.boot),
    ).get
    return Overdue(
        leases=tuple(leases), next_ms=None if next_at is None else next_at - transaction.boot
    )


def expired(transaction: Transaction, limit: int) -> Expired:
    """Waiting jobs past their expiry, oldest first, and the time to the next one."""
    found = transaction.run(_EXPIRED, (transaction.namespace_id, transaction.now, limit)).fetchall()
    jobs = tuple(
        job for row in found if (job := rows.to_job(transaction, row, payload=b"")) is not None
    )
    if len(found) >= limit:
        return Expired(jobs=jobs, next_ms=0)
    next_at = transaction.run(
        "SELECT expires_at FROM hf_jobs INDEXED BY hf_expiring"
        " WHERE ns = ? AND state = 0 AND expires_at > ? ORDER BY expires_at LIMIT 1",
        (transaction.namespace_id, transaction.now),
    ).get
    return Expired(jobs=jobs, next_ms=None if next_at is None else next_at - transaction.now)


def finished(transaction: Transaction, limit: int) -> list[Job]:
    """Finished jobs past the retention of their queue, oldest first."""
    past: list[tuple[int, int]] = []
    for queue_row in transaction.queues.values():
        for state in (State.DONE, State.DEAD, State.CANCELLED):
            until = transaction.now - retry_policy.retention_ms(queue_row.settings, state)
            past += transaction.run(
                "SELECT finished_at, seq FROM hf_jobs INDEXED BY hf_ended"
                " WHERE queue = ? AND state = ? AND state >= 2 AND finished_at <= ?"
                " ORDER BY finished_at, seq LIMIT ?",
                (queue_row.id, rows.CODES[state], until, limit),
            ).fetchall()
    jobs = []
    for _, seq in heapq.nsmallest(limit, past):
        row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
        job = rows.to_job(transaction, row)
        if job is not None:
            jobs.append(rows.with_details(transaction, row, job))
    return jobs


def free_keys(transaction: Transaction) -> list[tuple[int, str]]:
    """Once-only keys past their window whose jobs are finished or gone: (queue id, key)."""
    found: list[tuple[int, str]] = transaction.run(
        "SELECT k.queue, k.key FROM ("
        " SELECT queue, key, ns, id FROM hf_keys INDEXED BY hf_keys_until"
        " WHERE ns = ? AND until <= ? ORDER BY until LIMIT ?) k"
        " LEFT JOIN hf_jobs j ON j.id = k.id AND j.ns = k.ns"
        " WHERE ifnull(j.state, 2) >= 2 LIMIT ?",
        (transaction.namespace_id, transaction.now, bounds.SCAN_MAX, bounds.BATCH_MAX),
    ).fetchall()
    return found


def delete_keys(transaction: Transaction, keys: list[tuple[int, str]]) -> None:
    """Delete keys that are still free: one may have been taken again since it was read."""
    transaction.connection.executemany(
        "DELETE FROM hf_keys WHERE queue = ? AND key = ? AND until <= ? AND NOT EXISTS"
        " (SELECT 1 FROM hf_jobs j WHERE j.id = hf_keys.id AND j.ns = hf_keys.ns AND j.state < 2)",
        [(queue_id, key, transaction.now) for queue_id, key in keys],
    )


class RecountCursor(NamedTuple):
    """The positions the recount has reached in lanes, groups, edges and jobs."""

    lane: int = 0
    group: tuple[int, str] = (0, "")
    edge: tuple[str, int] = ("", 0)
    job: tuple[int, lanes.WalkCursor] = (0, lanes.WALK_START)


class Discrepancies(NamedTuple):
    """Rows and jobs that looked wrong, and where the next recount continues."""

    slots: list[int]
    tenants: list[tuple[int, str]]
    lanes: list[int]
    groups: list[tuple[int, str]]
    parents: dict[str, State | None]
    misplaced: list[int]
    cursor: RecountCursor

    @property
    def any(self) -> bool:
        """True if there is something to repair."""
        return any(map(bool, self[:-1]))


def find_discrepancies(
    transaction: Transaction, cursor: RecountCursor, limit: int
) -> Discrepancies:
    """Compare the next `limit` rows of each kind with the jobs. Only reads."""
    wrong_lanes, lane = _wrong_lanes(transaction, cursor.lane, limit)
    wrong_groups, group = _wrong_groups(transaction, cursor.group, limit)
    parents, edge = _ended_parents(transaction, cursor.edge, limit)
    misplaced, job = _misplaced_jobs(transaction, cursor.job, limit)
    return Discrepancies(
        list(_wrong_slots(transaction)),
        list(_wrong_tenants(transaction)),
        wrong_lanes,
        wrong_groups,
        parents,
        misplaced,
        RecountCursor(lane, group, edge, job),
    )


def repair_discrepancies(transaction: Transaction, found: Discrepancies) -> int:
    """Correct rows and jobs that are still wrong; returns how many were."""
    deferred = transaction.effects
    repaired = 0
    if found.slots:
        used = _wrong_slots(transaction)
        for slot in set(found.slots) & used.keys():
            transaction.run("UPDATE hf_slots SET used = ? WHERE id = ?", (used[slot], slot))
            transaction.run("UPDATE hf_parks SET wake_us = 0 WHERE slot = ?", (slot,))
            repaired += 1
    if found.tenants:
        leased = _wrong_tenants(transaction)
        for key in set(found.tenants) & leased.keys():
            transaction.run(
                "INSERT INTO hf_tenants(leased, queue, tenant) VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET leased = excluded.leased",
                (leased[key], *key),
            )
            fairness.forget_usage(transaction, key[0])
            repaired += 1
    for lane in found.lanes:
        wrong, _ = _wrong_lanes(transaction, lane - 1, 1)
        if wrong == [lane]:
            transaction.run("UPDATE hf_lanes SET bar = 0 WHERE id = ?", (lane,))
            lanes.refresh(transaction, [lane])
            repaired += 1
    for group in found.groups:
        before = transaction.connection.total_changes()
        groups.refresh(transaction, *group)
        repaired += transaction.connection.total_changes() > before
    for parent, ended in found.parents.items():
        deferred.ended.append((0, parent, ended))
        repaired += 1
    still_misplaced = lanes.misplaced(transaction, found.misplaced)
    lanes.relane(transaction, still_misplaced)
    repaired += len(still_misplaced)
    transaction.notifies = transaction.notifies or repaired > 0
    if repaired:
        # Jobs of parents that ended may start: see `queues.count_revision`.
        transaction.allocate(1)
    return repaired


def _wrong_slots(transaction: Transaction) -> dict[int, int]:
    """Slots whose stored count differs from the leases that hold them, with the right count."""
    held: Counter[int] = Counter()
    for text, count in transaction.run(
        "SELECT l.slots, count(*) FROM hf_jobs j INDEXED BY hf_leased"
        " CROSS JOIN hf_lanes l ON l.id = j.lane WHERE j.ns = ? AND j.state IN (1, 5)"
        " GROUP BY l.id",
        (transaction.namespace_id,),
    ):
        for slot in read_slots(text):
            held[slot] += count
    known = dict(
        transaction.run(
            "SELECT id, used FROM hf_slots WHERE ns = ? AND (used <> 0 OR id IN"
            " (SELECT value FROM json_each(?)))",
            (transaction.namespace_id, str(list(held))),
        ).fetchall()
    )
    return {slot: held[slot] for slot, used in known.items() if used != held[slot]}


def _wrong_tenants(transaction: Transaction) -> dict[tuple[int, str], int]:
    """Tenants whose stored count of leases is wrong, with the right count."""
    leased: Counter[tuple[int, str]] = Counter()
    for queue_id, tenant, count in transaction.run(
        "SELECT queue, ifnull(tenant, ''), count(*) FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state IN (1, 5) AND flow & ? GROUP BY 1, 2",
        (transaction.namespace_id, FLOW_TENANT),
    ):
        leased[queue_id, tenant] = count
    known: Counter[tuple[int, str]] = Counter()
    for queue_id in transaction.queue_names:
        for tenant, count in transaction.run(
            "SELECT tenant, leased FROM hf_tenants WHERE queue = ? AND leased <> 0", (queue_id,)
        ):
            known[queue_id, tenant] = count
    return {
        key: leased[key]
        for key in leased.keys() | known.keys()
        if leased[key] != known[key] and key[0] in transaction.queue_names
    }


def _wrong_lanes(transaction: Transaction, after: int, limit: int) -> tuple[list[int], int]:
    """Lanes with a wrong first job, or that wait for a free slot and would never be woken."""
    found = transaction.run(_NEXT_LANES, (after, limit)).fetchall()
    wrong = []
    for id_, due_at, _, bar, queue_id, is_wrong in found:
        name = transaction.queue_names.get(queue_id)
        if name is None:
            continue
        if is_wrong or (
            bar > 0 and due_at is not None and _never_wakes(transaction, name, queue_id, bar)
        ):
            wrong.append(id_)
    return wrong, found[-1][0] if len(found) == limit else 0


def _never_wakes(transaction: Transaction, name: str, queue_id: int, slot: int) -> bool:
    """True if nothing would wake the lanes that wait for this slot."""
    known = transaction.run(
        "SELECT wake_us IS NULL FROM hf_parks WHERE queue = ? AND slot = ?", (queue_id, slot)
    ).fetchone()
    if known is None:
        return True
    capacity = SlotCapacity(transaction, transaction.queues[name].settings)
    capacity.load([slot])
    return bool(known[0]) and capacity.full((slot,)) is None


def _wrong_groups(
    transaction: Transaction, after: tuple[int, str], limit: int
) -> tuple[list[tuple[int, str]], tuple[int, str]]:
    """Groups whose exposed member is wrong."""
    wrong: list[tuple[int, str]] = []
    for _ in range(limit):
        found = transaction.run(_NEXT_GROUP, after).fetchone()
        if found is None:
            return wrong, (0, "")
        after = found
        if found[0] in transaction.queue_names and groups.is_misplaced(transaction, *found):
            wrong.append(found)
    return wrong, after


def _ended_parents(
    transaction: Transaction, after: tuple[str, int], limit: int
) -> tuple[dict[str, State | None], tuple[str, int]]:
    """Ended or deleted parents for which children still wait although they should not."""
    found = transaction.run(_NEXT_EDGES, (transaction.namespace_id, *after, limit)).fetchall()
    parents: dict[str, State | None] = {}
    for parent, _, code, extra, _ in found:
        ended = None if code is None else STATES[code]
        if ended is not None and not ended.finished:
            continue
        stored = rows.NO_EXTRA if extra is None else rows.decode_extra(extra)
        if (
            effects.parent_effect(stored.after_on, stored.parent_death, ended)
            is not ParentEffect.HELD
        ):
            parents[parent] = ended
    return parents, found[-1][:2] if len(found) == limit else ("", 0)


def _misplaced_jobs(
    transaction: Transaction, after: tuple[int, lanes.WalkCursor], limit: int
) -> tuple[list[int], tuple[int, lanes.WalkCursor]]:
    """Waiting jobs that are not in the lane that their queue's settings require."""
    seqs: list[int] = []
    for queue_id in sorted(
        queue_id for queue_id in transaction.queue_names if queue_id >= after[0]
    ):
        start = after[1] if queue_id == after[0] else lanes.WALK_START
        found, cursor = lanes.waiting_page(transaction, queue_id, start, limit - len(seqs))
        seqs += found
        if cursor is not None:
            return lanes.misplaced(transaction, seqs), (queue_id, cursor)
    return lanes.misplaced(transaction, seqs), (0, lanes.WALK_START)


def prune_flow(transaction: Transaction, limit: int) -> None:
    """Delete some unused lanes, tenants and slots."""
    leased = transaction.run(
        "SELECT DISTINCT lane FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state IN (1, 5) AND lane IS NOT NULL",
        (transaction.namespace_id,),
    ).fetchall()
    in_use = str([lane for (lane,) in leased])
    for queue_row in transaction.queues.values():
        values = _hold_values(transaction, queue_row.id)
        if len(values) <= HOLD_VALUES_MAX:
            found = transaction.run(
                _EMPTY_LANES, (queue_row.id, str(values), in_use, limit)
            ).fetchall()
            transaction.connection.executemany("DELETE FROM hf_lanes WHERE id = ?", found)
        _prune_tenants(transaction, queue_row.id, limit)
    _prune_slots(transaction, limit)
    if transaction.has_lost_parents and not transaction.run(_HAS_LOST_PARENTS).get:
        transaction.run("UPDATE hf_meta SET forsaken = 0")


def _hold_values(transaction: Transaction, queue_id: int) -> list[int]:
    """The different values of `holds` of a queue's held jobs, up to HOLD_VALUES_MAX + 1."""
    values: list[int] = []
    holds = 0
    while len(values) <= HOLD_VALUES_MAX:
        holds = transaction.run(
            "SELECT min(holds) FROM hf_jobs INDEXED BY hf_aside"
            " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds > ?",
            (queue_id, holds),
        ).get
        if holds is None:
            break
        values.append(holds)
    return values


def _prune_tenants(transaction: Transaction, queue_id: int, limit: int) -> None:
    """Delete tenants without lane, lease, turn to keep, or recent busy time."""
    vclock = transaction.run("SELECT vclock FROM hf_flows WHERE queue = ?", (queue_id,)).get or 0
    found = transaction.run(
        "SELECT tenant, busy_ms, busy_at FROM hf_tenants t WHERE queue = ?1 AND leased = 0"
        " AND turn <= ?2 AND NOT EXISTS (SELECT 1 FROM hf_lanes l WHERE l.queue = ?1"
        " AND l.tenant = t.tenant) LIMIT ?3",
        (queue_id, vclock - CREDIT, limit),
    ).fetchall()
    idle = [
        (queue_id, tenant)
        for tenant, busy_ms, busy_at in found
        if round(decayed(busy_ms, transaction.now - busy_at) * 1_000) == 0
    ]
    transaction.connection.executemany(
        "DELETE FROM hf_tenants WHERE queue = ? AND tenant = ?", idle
    )
    fairness.forget_usage(transaction, queue_id)


def _prune_slots(transaction: Transaction, limit: int) -> None:
    """Delete unused slots, but none whose rate is spent: it would come back full."""
    found = transaction.run(
        "SELECT id FROM hf_slots WHERE ns = ? AND used = 0 AND free_us <= ? LIMIT ?",
        (transaction.namespace_id, transaction.boot * 1_000, limit),
    ).fetchall()
    if not found:
        return
    needed = {
        slot
        for (slot,) in transaction.run(
            "SELECT DISTINCT s.value FROM hf_lanes, json_each(hf_lanes.slots) s"
        )
    }
    idle = [(slot,) for (slot,) in found if slot not in needed]
    transaction.connection.executemany("DELETE FROM hf_slots WHERE id = ?", idle)
    ids = msgspec.json.encode([slot for (slot,) in idle]).decode()
    transaction.run("DELETE FROM hf_parks WHERE slot IN (SELECT value FROM json_each(?))", (ids,))
