"""Everything about queues, dead letters, schedules and workers, in one list."""

from __future__ import annotations

from holdfast.server import (
    batches,
    breakers,
    config,
    dead,
    distributions,
    flow,
    queues,
    redrives,
    scaling,
    schedules,
    status,
    workers,
)
from holdfast.server.operations import Operation

OPERATIONS: tuple[Operation, ...] = (
    *status.OPERATIONS,
    *queues.OPERATIONS,
    *flow.OPERATIONS,
    *batches.OPERATIONS,
    *dead.OPERATIONS,
    *redrives.OPERATIONS,
    *schedules.OPERATIONS,
    *workers.OPERATIONS,
    *scaling.OPERATIONS,
    *breakers.OPERATIONS,
    *distributions.OPERATIONS,
    *config.OPERATIONS,
)
