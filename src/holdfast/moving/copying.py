"""What is moved: queues, jobs, keys, and the records of people's making. Every step may be done
again: what is there already is passed over or written once more as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from holdfast.config import KIND as SETTING_KIND
from holdfast.core import limits
from holdfast.core.model import Record, State, Status
from holdfast.core.moving import HeldKey, Stretch
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable
from holdfast.explaining import PAUSE_KIND
from holdfast.moving.closing import closed, fitting, opened_as
from holdfast.moving.records import Coming, Leaving, Opening, Phase, Side, Slate
from holdfast.upkeep.distributions import RECORD_KIND as DISTRIBUTION_KIND
from holdfast.upkeep.paging import records
from holdfast.upkeep.schedules import RECORD_KIND as SCHEDULE_KIND

KINDS = (SCHEDULE_KIND, SETTING_KIND, PAUSE_KIND, DISTRIBUTION_KIND)
"""Workers write their own anew, and a redrive's would count by numbers of the other store."""

Copied = dict[str, dict[str, bytes | None]]
"""The values that were copied, by kind and key."""

_OPEN = Opening(accepting=True, paused=False)
BATCH = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024


async def declare_queues(source: Side, target: Side, known: Leaving, *, shut: bool) -> None:
    """As they were in the source, but shut until all is in."""
    queues = [opened_as(view.queue, known) for view in await source.engine.queues(counts=False)]
    names = {queue.name for queue in queues}
    there = {view.queue.name for view in await target.engine.queues(counts=False)}
    for queue in queues:
        # First without, because a dead queue must be there before it is named.
        if queue.name not in there:
            await target.engine.declare(closed(replace(queue, dead_queue=None)))
    for queue in queues:
        whole = fitting(queue, names)
        await target.engine.declare(closed(whole) if shut else whole)


async def copy_jobs(
    source: Side, target: Side, slate: Slate[Coming], tell: Callable[[int], None]
) -> None:
    """From where it was left; the place is written down after every batch."""
    while (at := slate.value) is not None and at.phase is Phase.JOBS:
        stretch = await source.mover.jobs(after=at.after, limit=BATCH, bytes_max=BATCH_BYTES_MAX)
        await _adopt(stretch, target)
        tell(len(stretch.wholes))
        await slate.write(
            replace(
                at,
                jobs=at.jobs + len(stretch.wholes),
                after=at.after if stretch.after is None else stretch.after,
                phase=Phase.REST if stretch.after is None else Phase.JOBS,
            )
        )


async def _adopt(stretch: Stretch, target: Side) -> None:
    leased = [whole.job.id for whole in stretch.wholes if whole.job.state is State.LEASED]
    if leased:
        raise EngineUnavailable(f"job {leased[0]} was leased meanwhile: run this once more")
    for receipt in await target.mover.adopt(stretch.wholes) if stretch.wholes else ():
        if receipt.status is Status.REFUSED:
            raise EngineUnavailable(f"job {receipt.id} cannot be moved: {receipt.text}")


async def copy_keys(source: Side, target: Side) -> int:
    count = 0
    for view in await source.engine.queues(counts=False):
        async for page in key_pages(source, view.queue.name):
            await target.mover.hold(page)
            count += len(page)
    return count


async def key_pages(side: Side, queue: str) -> AsyncIterator[list[HeldKey]]:
    after = ""
    while page := await side.mover.keys(queue, after=after, limit=limits.PAGE_MAX):
        yield page
        after = page[-1].key


async def copy_records(source: Engine, target: Engine, known: Leaving) -> Copied:
    """The words about a pause go along with those that are older. A schedule that an earlier run
    copied and that is gone since goes too, or it would tick for ever."""
    copied: Copied = {}
    for kind in KINDS:
        there = {record.key: record.version async for record in records(target, kind)}
        copied[kind] = {}
        async for record in records(source, kind):
            if kind == PAUSE_KIND and not known.queues.get(record.key, _OPEN).paused:
                continue
            await _save(target, replace(record, version=there.pop(record.key, 0)))
            copied[kind][record.key] = record.value
        if kind == SCHEDULE_KIND:
            for key, version in there.items():
                await _save(target, Record(kind=kind, key=key, value=None, version=version))
    return copied


async def _save(target: Engine, record: Record) -> None:
    if (await target.save([record]))[0] is Saved.STALE:
        raise EngineUnavailable(
            f"the {record.kind} {record.key} is being changed in the target: leave it alone until"
            " all is moved"
        )
