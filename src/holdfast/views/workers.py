"""A worker: what it says of itself, and how well it is."""

from __future__ import annotations

import msgspec

from holdfast.core.workers import Health
from holdfast.durations import show_at
from holdfast.worker.registry import WorkerView


class WorkerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker wrote of itself `heartbeat_age_ms` ago, and what follows from it."""

    name: str
    id: str
    host: str
    pid: int
    started_at: str
    start_ticks: int
    version: str
    queues: dict[str, int]
    tasks: tuple[str, ...]
    labels: dict[str, str]
    capacity: int
    running: int
    prefetched: int
    done: int
    failed: int
    consecutive_failures: int
    failure_rate: float
    blocked: str
    cordoned: bool
    stopping: bool
    health: Health
    why: str
    heartbeat_age_ms: int


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that were asked, and those of the names that are not there."""

    workers: tuple[str, ...]
    missing: tuple[str, ...]


def worker_view(view: WorkerView) -> WorkerDetails:
    record = view.record
    said = {name: getattr(record, name) for name in record.__struct_fields__}
    return WorkerDetails(
        **{**said, "started_at": show_at(record.started_at)},
        health=view.health,
        why=view.why,
        heartbeat_age_ms=view.age_ms,
    )
