"""Exports and imports whole jobs of the memory engine: see `core.transfer.Mover`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import transfer
from holdfast.core.model import Receipt, State, Status
from holdfast.core.transfer import HeldKey, Stretch, Whole
from holdfast.engines.memory.store import JobRow, MemoryStore


class MemoryMover:
    """See `Mover`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        rows = sorted(self._store.rows.values(), key=lambda row: row.job.seq)
        further = [row for row in rows if row.job.seq > after]
        wholes: list[Whole] = []
        size = 0
        for row in further[:limit]:
            job = replace(row.job, events=tuple(row.events))
            wholes.append(Whole(job, tuple(row.parents)))
            size += transfer.bytes_of(job)
            if size >= bytes_max:
                break
        more = len(wholes) < len(further)
        return Stretch(tuple(wholes), wholes[-1].job.seq if more and wholes else None)

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        return [self._adopt(whole) for whole in wholes]

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        found = [
            HeldKey(queue, key, id_, until)
            for (name, key), (id_, until) in self._store.keys.items()
            if name == queue and key.encode() > after.encode()
        ]
        return sorted(found, key=lambda held: held.key.encode())[:limit]

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        for held in keys:
            self._store.keys[held.queue, held.key] = (held.id, held.until_at)

    def _adopt(self, whole: Whole) -> Receipt:
        store, job = self._store, whole.job
        refused = transfer.refusal(job, is_known_queue=job.queue in store.queues)
        if refused is not None:
            return refused
        if job.id in store.rows:
            return Receipt(id=job.id, status=Status.DUPLICATE)
        number = store.number()
        row = JobRow(replace(job, seq=number, token=None, events=()), number)
        row.events += job.events
        store.rows[job.id] = row
        store.dependencies.wait_for(row, whole.awaits)
        if job.state is State.WAITING:
            store.waiting.join(row)
        store.groups.join(row)
        return Receipt(id=job.id, status=Status.NEW)
