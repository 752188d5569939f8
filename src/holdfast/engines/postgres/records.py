"""Small versioned values beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Record
from holdfast.engines.base import Saved
from holdfast.engines.postgres.rows import columns
from holdfast.engines.postgres.steps import Ask, Steps, Store, only

_LOAD = """
SELECT key, value, version, greatest(0, $schema.now_ms($5::bigint) - saved_at)
FROM $schema.records
WHERE ns = $1::int AND kind = $2::text AND key > $3::text ORDER BY key LIMIT $4::bigint
"""
_SAVE = """
SELECT $schema.save($1::int, $2::bigint, $3::text[], $4::text[], $5::bigint[], $6::bytea[])
"""


def load(store: Store, kind: str, *, after: str | None, limit: int) -> Steps[list[Record]]:
    rows = yield Ask(_LOAD, (store.ns, kind, after or "", limit, store.given_ms), alone=True)
    return [
        Record(kind=kind, key=key, value=value, version=version, age_ms=age_ms)
        for key, value, version, age_ms in rows
    ]


def save(store: Store, records: Sequence[Record]) -> Steps[list[Saved]]:
    if not records:
        return []
    given = ((one.kind, one.key, one.version, one.value) for one in records)
    values = (store.ns, store.given_ms, *columns(given, 4))
    answers = only((yield Ask(_SAVE, values, alone=True)))
    return [Saved.SAVED if saved else Saved.STALE for saved in answers]
