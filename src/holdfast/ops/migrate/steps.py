"""The steps of a migration: close and drain the source, then copy its queues, jobs, keys and
records. Every step can be repeated: data that was already copied is skipped or written again
unchanged. `reopen` abandons a migration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, Queue, Record, State, Status
from holdfast.core.transfer import HeldKey, Stretch
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.ops.gates import GATE_KIND
from holdfast.ops.migrate.progress import (
    Phase,
    ProgressRecord,
    QueueSwitches,
    Side,
    SourceProgress,
    TargetProgress,
    source_progress,
)
from holdfast.ops.queues import DISTRIBUTION_KIND, PAUSE_KIND, Pause, queue_settings, save_pause
from holdfast.ops.records import scan
from holdfast.ops.schedules import SCHEDULE_KIND
from holdfast.ops.settings import SETTING_KIND
from holdfast.ops.sqs import SQS_QUEUE_KIND
from holdfast.ops.workers import end_overdue_and_expired

KINDS = (
    *(SCHEDULE_KIND, SETTING_KIND, PAUSE_KIND, DISTRIBUTION_KIND, GATE_KIND),
    SQS_QUEUE_KIND,
)
"""Records made by operators. Workers rewrite their own, and a redrive's cursor would be wrong in
another store.
"""

CopiedRecords = dict[str, dict[str, bytes | None]]
"""The copied values by kind and key."""

_OPEN = QueueSwitches(accepting=True, paused=False)

BATCH = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024

_POLL_S = 0.5
_LEASED = JobFilter(states=(State.LEASED,))
_EXPIRY_BATCH = 100
_SHOWN_MAX = 10
_TRIES_MAX = 100
_BY = "move-store"


async def close_queues(engine: Engine, progress: ProgressRecord[SourceProgress]) -> None:
    """Stop every queue from accepting and leasing jobs, after its switches were recorded."""
    for _ in range(_TRIES_MAX):
        known = progress.value
        assert known is not None
        queues = await queue_settings(engine)
        new = [queue for queue in queues.values() if queue.name not in known.queues]
        if new:
            switches = {each.name: QueueSwitches(each.accepting, each.paused) for each in new}
            await progress.write(replace(known, queues=known.queues | switches))
        open_queues = [queue for queue in queues.values() if queue != closed_queue(queue)]
        for queue in open_queues:
            await engine.declare(closed_queue(without_missing_dead_queue(queue, queues)))
            if not queue.paused:
                pause = Pause(by=_BY, text=f"everything was moved to {known.to}")
                await save_pause(engine, queue.name, pause)
        if not new and not open_queues:
            return
    raise EngineUnavailable(
        "another process keeps opening queues of the source: stop it, then run this again"
    )


async def drain(
    engine: Engine,
    progress: ProgressRecord[SourceProgress],
    *,
    wait_ms: int,
    tell: Callable[[int], None],
) -> list[Job]:
    """Wait until no job is leased or the timeout passes; return some of the jobs that still are.

    Overdue leases are ended here, since no upkeep may be running.
    """
    until = time.monotonic() + wait_ms / 1000
    quiet_looks = 0
    while True:
        # A starting worker declares its own queue, which has to be closed too.
        await close_queues(engine, progress)
        await end_overdue_and_expired(engine, _EXPIRY_BATCH)
        leased = sum(each.count for each in await engine.tally(_LEASED, "state", limit=1))
        quiet_looks = 0 if leased else quiet_looks + 1
        # Look twice: a lease may have been in progress while the queues were closed.
        if quiet_looks == 2:
            return []
        if leased:
            tell(leased)
            if time.monotonic() >= until:
                return list((await engine.find(_LEASED, limit=_SHOWN_MAX)).jobs)
        await asyncio.sleep(_POLL_S if leased else _POLL_S / 10)


async def reopen(engine: Engine) -> list[str]:
    """Abandon a migration: open the source's queues as they were, and return their names."""
    progress = source_progress(engine)
    known = await progress.read()
    if known is None:
        raise UsageError("move-store was not begun from this store, so it has closed no queue")
    opened = []
    queues = await queue_settings(engine)
    for name, queue in queues.items():
        if name in known.queues:
            await engine.declare(reopened_queue(without_missing_dead_queue(queue, queues), known))
            if not known.queues[name].paused:
                await save_pause(engine, name, None)
            opened.append(name)
    await progress.write(None)
    return opened


def without_missing_dead_queue(queue: Queue, names: Container[str]) -> Queue:
    """The queue without a dead queue that was dropped, which no engine would accept."""
    return queue if queue.dead_queue in names else replace(queue, dead_queue=None)


def closed_queue(queue: Queue) -> Queue:
    """The queue with its switches off."""
    return replace(queue, accepting=False, paused=True)


def reopened_queue(queue: Queue, known: SourceProgress) -> Queue:
    """The queue with the switches it had before the migration."""
    before = known.queues[queue.name]
    return replace(queue, accepting=before.accepting, paused=before.paused)


async def declare_queues(source: Side, target: Side, known: SourceProgress, *, shut: bool) -> None:
    """Declare the source's queues in the target, as they were before the migration; closed if
    `shut`.
    """
    settings = await queue_settings(source.engine)
    queues = [reopened_queue(queue, known) for queue in settings.values()]
    names = {queue.name for queue in queues}
    present = await queue_settings(target.engine)
    for queue in queues:
        # A dead queue must exist before another queue names it.
        if queue.name not in present:
            await target.engine.declare(closed_queue(replace(queue, dead_queue=None)))
    for queue in queues:
        full = without_missing_dead_queue(queue, names)
        await target.engine.declare(closed_queue(full) if shut else full)


async def copy_jobs(
    source: Side,
    target: Side,
    progress: ProgressRecord[TargetProgress],
    tell: Callable[[int], None],
) -> None:
    """Copy jobs from where the last run stopped; the cursor is stored after every batch."""
    while (at := progress.value) is not None and at.phase is Phase.JOBS:
        batch = await source.mover.jobs(after=at.after, limit=BATCH, bytes_max=BATCH_BYTES_MAX)
        await _adopt(batch, target)
        tell(len(batch.wholes))
        await progress.write(
            replace(
                at,
                jobs=at.jobs + len(batch.wholes),
                after=at.after if batch.after is None else batch.after,
                phase=Phase.REST if batch.after is None else Phase.JOBS,
            )
        )


async def _adopt(batch: Stretch, target: Side) -> None:
    leased = [whole.job.id for whole in batch.wholes if whole.job.state is State.LEASED]
    if leased:
        raise EngineUnavailable(f"job {leased[0]} was leased during the move: run this again")
    for receipt in await target.mover.adopt(batch.wholes) if batch.wholes else ():
        if receipt.status is Status.REFUSED:
            raise EngineUnavailable(f"job {receipt.id} cannot be moved: {receipt.text}")


async def copy_keys(source: Side, target: Side) -> int:
    """Copy the once-only keys of all queues, and return how many there are."""
    count = 0
    for queue in await queue_settings(source.engine):
        async for page in key_pages(source, queue):
            await target.mover.hold(page)
            count += len(page)
    return count


async def key_pages(side: Side, queue: str) -> AsyncIterator[list[HeldKey]]:
    """The once-only keys of a queue, in pages."""
    after = ""
    while page := await side.mover.keys(queue, after=after, limit=bounds.PAGE_MAX):
        yield page
        after = page[-1].key


async def copy_records(source: Engine, target: Engine, known: SourceProgress) -> CopiedRecords:
    """Copy operators' records, without the pauses that the migration itself made. A schedule that
    an earlier run copied and that was removed since is removed in the target too, where it would
    otherwise tick forever.
    """
    copied: CopiedRecords = {}
    for kind in KINDS:
        versions = {record.key: record.version async for record in scan(target, kind)}
        copied[kind] = {}
        async for record in scan(source, kind):
            if kind == PAUSE_KIND and not known.queues.get(record.key, _OPEN).paused:
                continue
            await _save(target, replace(record, version=versions.pop(record.key, 0)))
            copied[kind][record.key] = record.value
        if kind == SCHEDULE_KIND:
            for key, version in versions.items():
                await _save(target, Record(kind=kind, key=key, value=None, version=version))
    return copied


async def _save(target: Engine, record: Record) -> None:
    if (await target.save([record]))[0] is Saved.STALE:
        raise EngineUnavailable(
            f"the {record.kind} {record.key} is being changed in the target: do not use the"
            " target until everything is moved"
        )
