"""Reconciles SQS queues with their records, in bounded steps that any number of servers may run.

It deletes messages past their retention, continues purges, applies attributes that a killed server
left pending, follows dead-letter queues that were deleted or created, and removes old records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Queue, Record, State
from holdfast.core.verdict import Delete
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.ops.doctor import examine
from holdfast.ops.queues import queue_settings
from holdfast.ops.records import SkippedRecords, remove_records, scan
from holdfast.ops.sqs import SQS_QUEUE_KIND, SQS_QUEUES, SqsQueue
from holdfast.server.sqs.catalog import QueueCatalog
from holdfast.server.sqs.queue_settings import attributes_of
from holdfast.server.sqs.queues import (
    PAUSE_MS,
    PURGE_STEP,
    apply_settings,
    end_purge,
    purge_step,
    purged_states,
    wanted_settings,
)

PENDING_MS: Final = 5 * bounds.SECOND_MS
"""How long pending attributes are left to the server that saved them."""
DELETED_MS: Final = 10 * PAUSE_MS
"""How long the record of a deleted queue is kept."""
ORPHANED_MS: Final = bounds.DAY_MS
"""How long the record of a queue that another program dropped is kept."""
SWEEP_STEP: Final = 1_000

_STEPS_MAX: Final = 10
_SWEEPS_PER_RETENTION: Final = 20
_SWEEP_MS_MIN, _SWEEP_MS_MAX = 2 * bounds.SECOND_MS, 10 * bounds.MINUTE_MS
_REST: Final = 50
"""After a round, the pause is this many times as long as the round took."""

_log = logging.getLogger("holdfast.upkeep")


class QueueReconciler:
    """Reconciles the SQS queues of one namespace. Messages age by the clock of the store, which
    made their timestamps: a server with a wrong clock deletes none. Pauses are measured by
    `monotonic_ms`."""

    name = "sqs reconciler"

    def __init__(
        self,
        engine: Callable[[], Engine],
        find_catalog: Callable[[], Awaitable[QueueCatalog]],
        *,
        sleep_ms_max: int = 2 * bounds.SECOND_MS,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._find_catalog = find_catalog
        self._monotonic_ms = monotonic_ms
        self._skipped = SkippedRecords(_log)
        self._sweeps: dict[str, tuple[int, int]] = {}
        """By key of the record: its version, and the time of the next sweep."""
        self._rest_until = 0

    async def once(self) -> int | None:
        """Run one step for every queue. Returns 0 if there is more to do."""
        started_at = self._monotonic_ms()
        if started_at < self._rest_until:
            return self._rest_until - started_at
        engine = self._engine()
        catalog = await self._find_catalog()
        settings: Mapping[str, Queue] | None = None
        present: set[str] = set()
        has_more = False
        async for record in scan(engine, SQS_QUEUE_KIND):
            present.add(record.key)
            try:
                settings = await queue_settings(engine) if settings is None else settings
                known = SQS_QUEUES.require(record)
                has_more |= await self._step(record, known, settings, catalog)
            except EngineError:
                raise
            except Exception as error:  # noqa: BLE001 (it must not hold up the other queues)
                self._skipped.skip(record, error)
        self._skipped.end_round()
        for key in set(self._sweeps).difference(present):
            del self._sweeps[key]
        if has_more:
            return 0
        took_ms = self._monotonic_ms() - started_at
        self._rest_until = started_at + took_ms * _REST
        return None

    async def _step(
        self,
        record: Record,
        known: SqsQueue,
        settings: Mapping[str, Queue],
        catalog: QueueCatalog,
    ) -> bool:
        """Run one step for a queue. Returns True if there is more to do."""
        queue = settings.get(known.queue)
        if known.deleted_at is not None:
            if record.age_ms > DELETED_MS:
                await remove_records(self._engine(), [record])
            return False
        if queue is None and record.age_ms > ORPHANED_MS:
            await remove_records(self._engine(), [record])
            return False
        if known.pending:
            if record.age_ms > PENDING_MS:
                await apply_settings(self._engine(), catalog, known.region, known.name)
            return False
        if queue is None:
            return False
        if known.attributes.get("RedrivePolicy") and queue.dead_queue not in settings:
            await self._follow_dead_queue(known, queue, catalog)
        if known.purging:
            return await self._purge(known, catalog)
        return await self._sweep(record, known, queue, catalog.account)

    async def _follow_dead_queue(
        self, known: SqsQueue, queue: Queue, catalog: QueueCatalog
    ) -> None:
        """Apply the RedrivePolicy again if its target was deleted, or created again. A dead queue
        that an operator chose instead stays."""
        wanted = await wanted_settings(catalog, known, queue)
        now = replace(queue, dead_queue=wanted.dead_queue, max_attempts=wanted.max_attempts)
        if now != queue:
            # If another process has changed the queue, the next round reads it again.
            await self._engine().declare(now, instead_of=queue)
            catalog.forget(known.region, known.name)

    async def _purge(self, known: SqsQueue, catalog: QueueCatalog) -> bool:
        states = purged_states(known, is_dead_queue=known.queue in await catalog.dead_queues())
        for _ in range(_STEPS_MAX):
            deleted = await purge_step(self._engine(), known.queue, states, known.purged_at)
            if deleted < PURGE_STEP:
                await end_purge(self._engine(), known)
                return False
        return True

    async def _sweep(self, record: Record, known: SqsQueue, queue: Queue, account: str) -> bool:
        """Delete messages past their retention, now and then. A dead letter of a standard queue
        keeps the time when it was sent; the pruner deletes those of FIFO queues. No lease is
        ended."""
        if "MessageRetentionPeriod" not in known.attributes:
            # A program made the queue, and no client has set a retention.
            return False
        version, due_at = self._sweeps.get(record.key, (0, 0))
        if version == record.version and self._monotonic_ms() < due_at:
            return False
        attributes = attributes_of(known, queue, account)
        retention_ms = attributes.message_retention_period * bounds.SECOND_MS
        states = (State.WAITING,) if known.is_fifo else (State.WAITING, State.DEAD)
        now = (await examine(self._engine())).now
        old = JobFilter(queue=known.queue, states=states, created_before=now - retention_ms)
        for _ in range(_STEPS_MAX):
            if await self._engine().amend(old, Delete(), limit=SWEEP_STEP) < SWEEP_STEP:
                break
        else:
            return True
        pause_ms = min(max(retention_ms // _SWEEPS_PER_RETENTION, _SWEEP_MS_MIN), _SWEEP_MS_MAX)
        self._sweeps[record.key] = (record.version, self._monotonic_ms() + pause_ms)
        return False
