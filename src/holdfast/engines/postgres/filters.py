"""JobFilter in SQL: one constant condition whose parts are off while their value is NULL.

Every scan is bounded before the condition is applied, so that a filter which matches nothing
reads `limits.SCAN_MAX` rows and no more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from holdfast.core import limits
from holdfast.core.model import JobFilter, State
from holdfast.engines.postgres.rows import CODES

SCAN_MAX = str(limits.SCAN_MAX)

# $1 namespace, $2 instant, $3 … $19 the filter, as `values_of` gives them.
CONDITION = """
    q.name IS NOT NULL
    AND ($3::text[] IS NULL OR j.id = ANY ($3::text[]))
    AND ($4::text IS NULL OR q.name = $4::text)
    AND ($5::smallint[] IS NULL OR j.state = ANY ($5::smallint[]))
    AND ($6::text IS NULL OR j.task = $6::text)
    AND ($7::text IS NULL OR j.tenant = $7::text)
    AND ($8::text IS NULL OR j.grp = $8::text)
    AND ($9::text IS NULL OR j.key = $9::text)
    AND ($10::text IS NULL OR j.worker = $10::text)
    AND ($11::text IS NULL OR j.reason = $11::text)
    AND ($12::text IS NULL
         OR convert_from(j.extra, 'UTF8')::jsonb -> 'labels' @> ($12::text)::jsonb)
    AND ($13::text IS NULL OR position($13::text IN j.id) > 0 OR position($13::text IN j.task) > 0
         OR position($13::text IN coalesce(j.key, '')) > 0
         OR position($13::text IN coalesce(j.tenant, '')) > 0)
    AND ($14::bigint IS NULL OR j.created_at >= $14::bigint)
    AND ($15::bigint IS NULL OR j.created_at < $15::bigint)
    AND ($16::bigint IS NULL OR j.finished_at <= $schema.now_ms($2::bigint) - $16::bigint)
    AND ($17::boolean IS NULL
         OR (j.state = 0 AND coalesce(j.expires_at <= $schema.now_ms($2::bigint), false))
            = $17::boolean)
    AND ($18::bigint IS NULL OR j.version = $18::bigint)
    AND ($19::text IS NULL OR j.fingerprint = $19::text)
"""

QUEUE_NAME = """
    CROSS JOIN LATERAL (SELECT x.name FROM $schema.queues x WHERE x.number = j.queue OFFSET 0) q
"""
"""The job's queue as `q`, looked up row by row: a join of another kind would lose the order."""

_ALL = "true"
_BY_ID = "j.id = ANY ($3::text[])"
_BY_STATE = {
    frozenset({State.WAITING}): "j.state = 0",
    frozenset({State.LEASED}): "j.state = 1",
    frozenset({State.DONE}): "j.state = 2",
    frozenset({State.DEAD}): "j.state >= 3",
    frozenset({State.CANCELLED}): "j.state >= 3",
    frozenset({State.DEAD, State.CANCELLED}): "j.state >= 3",
    frozenset({State.WAITING, State.LEASED}): "j.state < 2",
}
SOURCES = (_ALL, _BY_ID, *dict.fromkeys(_BY_STATE.values()))
"""What a scan may be narrowed to before it is bounded; each has an index."""


def source_of(wanted: JobFilter, states: Collection[State] | None) -> str:
    if wanted.ids is not None:
        return _BY_ID
    return _ALL if states is None else _BY_STATE.get(frozenset(states), _ALL)


def values_of(wanted: JobFilter, states: Collection[State] | None) -> tuple[Any, ...]:
    """The values from $3 on."""
    return (
        None if wanted.ids is None else [id_ for id_ in wanted.ids if limits.JOB_ID.match(id_)],
        wanted.queue,
        None if states is None else [CODES[state] for state in states],
        wanted.task, wanted.tenant, wanted.group, wanted.key, wanted.worker,
        None if wanted.reason is None else str(wanted.reason),
        msgspec.json.encode(wanted.labels).decode() if wanted.labels else None,
        wanted.search or None, wanted.created_from, wanted.created_before,
        wanted.finished_before_ms, wanted.expired, wanted.version, wanted.fingerprint,
    )  # fmt: skip
