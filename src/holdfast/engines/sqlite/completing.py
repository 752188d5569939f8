"""Many leases that end in success at once, of jobs with limits, groups, tenants or families."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import State
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import flow, groups, rows
from holdfast.engines.sqlite.flow_schema import FLOW_CHILDREN, FLOW_GROUP
from holdfast.engines.sqlite.unit import Unit

_FOUND = """
SELECT seq, id, token, state, grp, queue, lane, flow, tenant, leased_at
FROM (SELECT value AS at FROM json_each(?)) CROSS JOIN hf_jobs ON seq = at WHERE ns = ?
"""
_COMPLETE = """
UPDATE hf_jobs SET state = 2, deadline = NULL, finished_at = ?, version = version + 1, result = ?,
  flow = flow & 12, lane = NULL
WHERE seq = ?
"""


def complete_many(unit: Unit, settlements: Sequence[Settlement]) -> dict[int, Outcome]:
    """Those that could be completed, or were before, by their position; others must be judged."""
    seqs = str([one.lease.job.seq for one in settlements])
    found = {row[0]: row for row in unit.run(_FOUND, (seqs, unit.namespace_id))}
    known: dict[int, Outcome] = {}
    values: dict[int, tuple[int, bytes | None, int]] = {}
    exposed: dict[tuple[int, str], None] = {}
    aftermath = flow.aftermath_of(unit)
    now, give_back = unit.now, flow.give_back
    for place, one in enumerate(settlements):
        lease = one.lease
        row = found.get(lease.job.seq)
        if row is None:
            continue
        seq, id_, token, state, group, queue_id, lane, bits, tenant, leased_at = row
        if id_ != lease.job.id or token != lease.token:
            continue
        if state == rows.LEASED and seq not in values:
            assert isinstance(one.verdict, Complete)
            values[seq] = (now, one.verdict.result, seq)
            give_back(unit, aftermath, (queue_id, lane, bits, tenant, leased_at))
            if bits & FLOW_GROUP:
                exposed[queue_id, group] = None
            if bits & FLOW_CHILDREN:
                aftermath.ended.append((seq, id_, State.DONE))
        elif state != rows.DONE and seq not in values:
            continue
        known[place] = Outcome.SETTLED
    if values:
        unit.connection.executemany(_COMPLETE, values.values())
        unit.rings = True
    if exposed:
        aftermath.lanes.update(groups.expose_first(unit, exposed))
    return known
