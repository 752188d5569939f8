"""Leases due jobs with one statement; its rows become leases in the order of the request."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from holdfast.core import bounds
from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.postgres.rows import LEASE_COLUMNS, new_lease
from holdfast.engines.postgres.script import CallContext, Row, Script, Statement

_LEASE = f"""
SELECT {LEASE_COLUMNS}
FROM $schema.lease_jobs($1::int, $2::bigint, $3::text[], $4::int, $5::text, $6::bigint,
                        $7::text[]) h
"""
_LEASE_DEAD = f"""
SELECT {LEASE_COLUMNS}
FROM $schema.lease_dead(
    $1::int, $2::bigint, $3::text[], $8::text[], $4::int, $5::text, $6::bigint, $7::text[]) h
"""
_LEASE_IDS = _LEASE.replace("$schema.lease_jobs", "$schema.lease_jobs_by_id")
_LEASE_FLOW = _LEASE.replace("$schema.lease_jobs", "$schema.lease_lanes")
_LEASE_IDS_FLOW = _LEASE.replace("$schema.lease_jobs", "$schema.lease_lanes_by_id")

_HAS_LANES = -1
_SEQ = 1
_queue_of, _line_order, _dead_order = itemgetter(3), itemgetter(6, 10, 2), itemgetter(10, 1)
"""Of a row of LEASE_COLUMNS: its queue; its rank, due time and place; its due time and seq."""


def can_exist(lease: Lease) -> bool:
    """Whether id, number and token are valid values; other leases are not sent to the database."""
    job = lease.job
    is_in_range = 0 <= lease.token < 2**63 and 0 <= job.seq < 2**63
    return is_in_range and bounds.JOB_ID.match(job.id) is not None


def lease(context: CallContext, request: LeaseRequest) -> Script[list[Lease] | int]:
    """Lease due jobs; returns the leases, or the number of a queue whose jobs must be sorted into
    lanes first.
    """
    tasks = None
    if request.tasks is not None:
        tasks = [task for task in sorted(request.tasks) if bounds.TASK_NAME.match(task)]
    names = requested_names(request)
    worker = request.worker or None
    if request.dead:
        dead_values = (
            context.ns, context.given_ms, [] if request.ids else names, request.limit, worker,
            request.lease_ms, tasks, names if request.ids else [],
        )  # fmt: skip
        rows = yield Statement(_LEASE_DEAD, dead_values, alone=True)
        return [new_lease(row, worker) for row in _in_order(request, rows)]
    has_flow = not request.ids and not context.effects.laned.isdisjoint(names)
    while True:
        values = (
            context.ns, context.given_ms, names, request.limit, worker, request.lease_ms, tasks,
        )  # fmt: skip
        rows = yield Statement(_statement(request, has_flow=has_flow), values, alone=True)
        leased = [row for row in rows if row[0] is not None]
        if leased or not rows:
            # With flow control the rows come in the order in which they were leased.
            ordered = leased if has_flow else _in_order(request, leased)
            return [new_lease(row, worker) for row in ordered]
        # A row without an id means that more expired jobs may be in the way, or that there are
        # lanes, perhaps with jobs to be sorted into them first.
        sign: int | None = rows[0][_SEQ]
        if sign == _HAS_LANES:
            has_flow = True
            context.effects.laned.update(filter(None, (_queue_of(rows[0]) or "").split(",")))
        elif sign is not None:
            return sign


def requested_names(request: LeaseRequest) -> list[str]:
    """The ids or queues of a request that can exist."""
    if request.ids:
        return [id_ for id_ in dict.fromkeys(request.ids) if bounds.JOB_ID.match(id_)]
    return [name for name in request.queues if bounds.QUEUE_NAME.match(name)]


def _statement(request: LeaseRequest, *, has_flow: bool) -> str:
    if request.ids:
        return _LEASE_IDS_FLOW if has_flow else _LEASE_IDS
    return _LEASE_FLOW if has_flow else _LEASE


def _in_order(request: LeaseRequest, rows: Sequence[Row]) -> Sequence[Row]:
    if request.ids:
        wanted = {id_: position for position, id_ in reversed(list(enumerate(request.ids)))}
        return sorted(rows, key=lambda row: wanted[row[0]])
    ordered = sorted(rows, key=_dead_order if request.dead else _line_order)
    if len(request.queues) > 1:
        first = {name: position for position, name in reversed(list(enumerate(request.queues)))}
        ordered.sort(key=lambda row: first[_queue_of(row)])
    return ordered
