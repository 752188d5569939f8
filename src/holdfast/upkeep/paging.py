"""Every record of a kind, read in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine


async def records(engine: Engine, kind: str, after: str | None = None) -> AsyncIterator[Record]:
    """Every record of the kind, by key."""
    while True:
        page = await engine.load(kind, after=after, limit=limits.PAGE_MAX)
        for record in page:
            yield record
        if len(page) < limits.PAGE_MAX:
            return
        after = page[-1].key
