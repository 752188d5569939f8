"""A worker's own entry in the registry: its stable name, its heartbeat, the orders to it.

The name belongs to whoever wrote the record last, under a guard of its version; a worker that
slept through its time finds the name taken and goes on under another.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Queue, Record
from holdfast.core.workers import (
    KIND,
    ORDER_KIND,
    UNHEALTHY_AGE_MS,
    Order,
    WorkerRecord,
    worker_queue,
)
from holdfast.engines.base import Engine, Saved
from holdfast.errors import UsageError
from holdfast.worker.registry import decode, encode, load_all

_FORGET_MS = limits.DAY_MS


class Registration:
    """`told` gives the facts for each heartbeat; the name is filled in here."""

    def __init__(self, engine: Engine, told: Callable[[], WorkerRecord]) -> None:
        self._engine = engine
        self._told = told
        self._version = 0
        self.name = ""
        self.before = ""
        """The id of the start that had this name before, on this host."""

    async def enter(self, wanted: str | None) -> str:
        """Take the wanted name, or the first free one after this host's."""
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "worker"
        names = [wanted] if wanted else (f"{host}-{number}" for number in itertools.count(1))
        if wanted and not limits.QUEUE_NAME.fullmatch(worker_queue(wanted)):
            raise UsageError(
                f"{wanted[:80]!r} is no name for a worker: use at most 73 of A-Z a-z 0-9 _ . -"
            )
        for name in names:
            known = await self._find(name)
            if known is not None and not _is_gone(known):
                continue
            self.name, self._version = name, known.version if known else 0
            self.before = _earlier_id(known)
            if await self._save():
                await self._own_queue()
                return name
        raise UsageError(
            f"a worker called {wanted} is running already; stop it first, or choose another name"
        )

    async def heartbeat(self) -> None:
        """If the name was taken over, this worker goes on under another. One that nobody has is
        still its own: the store may have been made anew."""
        if await self._save():
            return
        if await self._find(self.name) is None:
            self._version = 0
            if await self._save():
                await self._own_queue()
                return
        await self.enter(None)

    async def order(self) -> Order:
        for record in await load_all(self._engine, ORDER_KIND):
            if record.key == self.name:
                return decode(record.value, Order) or Order()
        return Order()

    async def leave(self) -> None:
        """A worker that ends well leaves nothing to be found dead."""
        await self._write(None)

    async def tidy(self) -> None:
        """Entries of workers that have been gone for a day, and orders that nobody will read. A
        cordon is kept: it waits for its worker to come back."""
        workers = await load_all(self._engine, KIND)
        old = [one for one in workers if one.age_ms > _FORGET_MS]
        present = {one.key for one in workers if one.age_ms <= _FORGET_MS}
        for one in await load_all(self._engine, ORDER_KIND):
            known = decode(one.value, Order)
            if one.age_ms > _FORGET_MS and one.key not in present:
                old += [] if known is not None and known.cordoned else [one]
        if old:
            await self._engine.save([replace(one, value=None) for one in old[: limits.BATCH_MAX]])

    async def dead_here(self) -> list[str]:
        """The ids of earlier starts on this host whose processes are gone, and perhaps not all that
        they had started."""
        records = (decode(one.value, WorkerRecord) for one in await load_all(self._engine, KIND))
        host = socket.gethostname()
        dead = [one.id for one in records if one is not None and one.host == host and _is_dead(one)]
        return [self.before, *dead] if self.before else dead

    async def _save(self) -> bool:
        return await self._write(encode(replace(self._told(), name=self.name)))

    async def _write(self, value: bytes | None) -> bool:
        record = Record(kind=KIND, key=self.name, value=value, version=self._version)
        if await self._engine.save([record]) == [Saved.SAVED]:
            self._version += 1
            return True
        # An answer may have been lost on its way: then what is there is our own.
        known = await self._find(self.name)
        theirs = decode(known.value, WorkerRecord) if known else None
        if known is None or theirs is None or theirs.id != self._told().id:
            return False
        again = replace(record, version=known.version)
        saved = await self._engine.save([again]) == [Saved.SAVED]
        self._version = known.version + saved
        return saved

    async def _find(self, name: str) -> Record | None:
        return next((one for one in await load_all(self._engine, KIND) if one.key == name), None)

    async def _own_queue(self) -> None:
        await self._engine.declare(Queue(name=worker_queue(self.name)), instead_of=None)


def _earlier_id(record: Record | None) -> str:
    known = decode(record.value, WorkerRecord) if record else None
    return known.id if known is not None and known.host == socket.gethostname() else ""


def _is_gone(record: Record) -> bool:
    """By the age of its heartbeat, or, on this very host, because its process is not there."""
    if record.age_ms > UNHEALTHY_AGE_MS:
        return True
    known = decode(record.value, WorkerRecord)
    if known is None:
        return True
    if known.host != socket.gethostname():
        return False
    return _is_dead(known)


def _is_dead(known: WorkerRecord) -> bool:
    """A number can be another's by now: in a container that starts again they all are."""
    try:
        os.kill(known.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    ticks = start_ticks(known.pid)
    return ticks is None or known.start_ticks not in (0, ticks)


def start_ticks(pid: int) -> int | None:
    """When the process with this number was started; None if there is none that lives."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state == b"Z" else int(fields[18])
