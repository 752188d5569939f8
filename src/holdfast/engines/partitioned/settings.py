"""Keeps queue settings equal in every partition, even if one is shut out during a change.

Each partition also stores the latest version of the settings of each queue. The highest
version wins; a partition that was shut out reads it before it comes back. If a process is killed
halfway, the next opening completes the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Queue, Record
from holdfast.engines.base import ANY, Engine, Known, Saved
from holdfast.engines.partitioned.partition import Partition
from holdfast.errors import EngineError, EngineUnavailable, SchemaMismatch, UnknownQueue

KIND = "partition-queue"
_ROUNDS_MAX = 20


class SettingsVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a queue's settings; `queue` is None if it was dropped."""

    number: int
    queue: Queue | None = None

    @property
    def rank(self) -> tuple[int, bytes]:
        """Sort key of versions; two made at once with the same number have an arbitrary but fixed
        order.
        """
        return self.number, msgspec.json.encode(self)


async def latest_number(engine: Engine, name: str) -> int:
    """The number of the queue's latest version, 0 if it has none."""
    known = (await _versions(engine)).get(name)
    return 0 if known is None else known[0].number


async def decide(
    engine: Engine, name: str, queue: Queue | None, *, instead_of: Known, floor: int
) -> SettingsVersion | None:
    """Write the queue's next version; None if `instead_of` is not current. One partition decides
    for all, so that concurrent changes are not lost; `floor` is the highest number in the
    others.
    """
    for _ in range(_ROUNDS_MAX):
        known, version = (await _versions(engine)).get(name, (None, 0))
        if instead_of is not ANY and instead_of != await _current(engine, name, known):
            return None
        latest = SettingsVersion(1 + max(floor, known.number if known else 0), queue)
        record = Record(kind=KIND, key=name, value=msgspec.json.encode(latest), version=version)
        if await engine.save([record]) == [Saved.SAVED]:
            return latest
    raise EngineUnavailable(
        f"queue {name} is being changed by others continuously: try again later"
    )


async def apply_version(engine: Engine, name: str, latest: SettingsVersion) -> None:
    """Apply a version to a partition, then record it; a higher recorded version wins.

    Another process may apply another version at the same time: each reads again after it acted
    and applies the highest, so the last one to act applies that.
    """
    done: SettingsVersion | None = None
    for _ in range(_ROUNDS_MAX):
        known, version = (await _versions(engine)).get(name, (None, 0))
        if known is not None and known.rank >= latest.rank:
            latest = known
        if done != latest:
            await _do(engine, name, latest)
            done = latest
            continue
        if known == latest:
            return
        record = Record(kind=KIND, key=name, value=msgspec.json.encode(latest), version=version)
        await engine.save([record])
    raise EngineUnavailable(
        f"queue {name} is being changed by others continuously: try again later"
    )


async def catch_up(partition: Partition, others: Iterable[Partition]) -> None:
    """Apply changes made while the partition was out, or left unfinished by a killed process."""
    engine = partition.engine
    known = await _versions(engine)
    versions = {name: latest for name, (latest, _) in known.items()}
    for other in others:
        # A failure of another partition is noticed when that one is called.
        with contextlib.suppress(EngineError):
            for name, (latest, _) in (await _versions(other.engine)).items():
                if name not in versions or latest.rank > versions[name].rank:
                    versions[name] = latest
    if not versions:
        return
    there = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
    behind = {
        name: latest
        for name, latest in versions.items()
        if there.get(name) != latest.queue or name not in known or known[name][0] != latest
    }
    for name, latest in behind.items():
        if latest.queue is not None and name not in there:
            # A dead queue may come later in the list, or two may name each other.
            await engine.declare(replace(latest.queue, dead_queue=None))
    for name, latest in behind.items():
        await apply_version(engine, name, latest)


async def _current(engine: Engine, name: str, known: SettingsVersion | None) -> Queue | None:
    """The current settings; queues without a version have only the engine's own."""
    if known is not None:
        return known.queue
    views = await engine.queues(names=[name], counts=False)
    return views[0].queue if views else None


async def _do(engine: Engine, name: str, latest: SettingsVersion) -> None:
    if latest.queue is None:
        await engine.drop(name)
    else:
        try:
            await engine.declare(latest.queue)
        except UnknownQueue:
            # Its dead queue was dropped in the meantime.
            await engine.declare(replace(latest.queue, dead_queue=None))


async def _versions(engine: Engine) -> dict[str, tuple[SettingsVersion, int]]:
    found: dict[str, tuple[SettingsVersion, int]] = {}
    after: str | None = None
    while page := await engine.load(KIND, after=after, limit=bounds.PAGE_MAX):
        for record in page:
            found[record.key] = (_decode(record), record.version)
        after = page[-1].key
    return found


def _decode(record: Record) -> SettingsVersion:
    try:
        return msgspec.json.decode(record.value or b"", type=SettingsVersion)
    except msgspec.DecodeError as error:
        raise SchemaMismatch(
            f"the stored settings of queue {record.key} cannot be read ({error}): run the version"
            " of"
            " Holdfast that wrote it"
        ) from None
