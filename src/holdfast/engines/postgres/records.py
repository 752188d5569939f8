"""Small versioned values beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Record
from holdfast.engines.base import Saved
from holdfast.engines.postgres.rows import columns
from holdfast.engines.postgres.steps import Ask, Steps, Store, only

_LOAD = """
SELECT key, value, version FROM $schema.records
WHERE ns = $1::int AND kind = $2::text AND key > $3::text ORDER BY key LIMIT $4::bigint
"""
_SAVE = "SELECT $schema.save($1::int, $2::text[], $3::text[], $4::bigint[], $5::bytea[])"


def load(store: Store, kind: str, *, after: str | None, limit: int) -> Steps[list[Record]]:
    rows = yield Ask(_LOAD, (store.ns, kind, after or "", limit), alone=True)
    return [Record(kind=kind, key=row[0], value=row[1], version=row[2]) for row in rows]


def save(store: Store, records: Sequence[Record]) -> Steps[list[Saved]]:
    if not records:
        return []
    given = ((one.kind, one.key, one.version, one.value) for one in records)
    answers = only((yield Ask(_SAVE, (store.ns, *columns(given, 4)), alone=True)))
    return [Saved.SAVED if saved else Saved.STALE for saved in answers]
