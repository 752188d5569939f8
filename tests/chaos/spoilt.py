"""`holdfast chaos` over a store that loses jobs: its answer comes before anything is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.cli import main
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.engines.sqlite import SQLiteEngine

enqueue = SQLiteEngine.enqueue


async def forgetful(engine: SQLiteEngine, jobs: Sequence[NewJob]) -> list[Receipt]:
    """The first of each batch is acknowledged and forgotten."""
    kept = await enqueue(engine, jobs[1:])
    return [Receipt(id=jobs[0].id, status=Status.NEW), *kept]


if __name__ == "__main__":
    setattr(SQLiteEngine, "enqueue", forgetful)  # noqa: B010 (as a fault would be)
    sys.argv[0] = "holdfast"
    main()
