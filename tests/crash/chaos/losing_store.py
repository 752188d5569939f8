"""Runs `holdfast chaos` on a store that acknowledges the first job of each batch and drops it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.cli import main
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.engines.sqlite import SQLiteEngine

enqueue = SQLiteEngine.enqueue


async def losing_enqueue(engine: SQLiteEngine, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Acknowledge the first job of a batch without storing it."""
    kept = await enqueue(engine, jobs[1:])
    return [Receipt(id=jobs[0].id, status=Status.NEW), *kept]


if __name__ == "__main__":
    setattr(SQLiteEngine, "enqueue", losing_enqueue)  # noqa: B010 (mypy forbids it)
    sys.argv[0] = "holdfast"
    main()
