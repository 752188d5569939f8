"""Runs `holdfast chaos` on a store that acknowledges the first job of each batch and drops it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.cli import main
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.engines.sqlite import enqueue
from holdfast.engines.sqlite.transaction import Transaction

write = enqueue.enqueue


def losing_enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Acknowledge the first job of a batch without storing it."""
    stored = write(transaction, jobs[1:])
    return [Receipt(id=jobs[0].id, status=Status.NEW), *stored]


if __name__ == "__main__":
    setattr(enqueue, "enqueue", losing_enqueue)  # noqa: B010 (mypy forbids it)
    sys.argv[0] = "holdfast"
    main()
