"""A worker's own record in the registry: its stable name, its heartbeat, the orders to it.

The name belongs to the worker that wrote the record last, guarded by its version. A worker that was
frozen for long may find its name taken, and continues under another.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Queue, Record
from holdfast.core.workers import UNHEALTHY_AGE_MS, WorkerOrder, WorkerRecord, worker_queue
from holdfast.engines.base import Engine
from holdfast.errors import UsageError
from holdfast.ops.records import Stored, remove_records
from holdfast.ops.workers import ORDERS, WORKERS

_FORGET_MS = bounds.DAY_MS


class Registration:
    """`facts` returns the record for each heartbeat; the name is filled in here."""

    def __init__(self, engine: Engine, facts: Callable[[], WorkerRecord]) -> None:
        self._engine = engine
        self._facts = facts
        self._version = 0
        self.name: str = ""
        self.before: str = ""
        """The id of an earlier start with this name on this host."""

    async def enter(self, wanted: str | None) -> str:
        """Take the wanted name, or the first free one made of the host's name and a number."""
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "worker"
        names = [wanted] if wanted else (f"{host}-{number}" for number in itertools.count(1))
        if wanted and not bounds.QUEUE_NAME.fullmatch(worker_queue(wanted)):
            raise UsageError(
                f"{wanted[:80]!r} is not a valid worker name: use at most 73 characters of A-Z"
                " a-z 0-9 _ . -"
            )
        for name in names:
            known = await WORKERS.read(self._engine, name)
            if known is not None and not _is_gone(known):
                continue
            self.name, self._version = name, known.version if known else 0
            self.before = _earlier_id(known)
            if await self._save():
                await self._own_queue()
                return name
        raise UsageError(
            f"a worker named {wanted} is already running; stop it first, or choose another name"
        )

    async def heartbeat(self) -> None:
        """Write the record. If another worker took the name, this one continues under a new name.
        If the record is missing, it is written again: the store may have been recreated.
        """
        if await self._save():
            return
        if await WORKERS.read(self._engine, self.name) is None:
            self._version = 0
            if await self._save():
                await self._own_queue()
                return
        await self.enter(None)

    async def order(self) -> WorkerOrder:
        """The current orders of operators to this worker."""
        stored = await ORDERS.read(self._engine, self.name)
        return (stored and stored.value) or WorkerOrder()

    async def leave(self) -> None:
        """Remove the record: a worker that ends normally must not be reported as dead."""
        await self._write(None)

    async def tidy(self) -> None:
        """Remove records of workers that have been gone for a day, and orders to them. A cordon is
        kept: it applies when its worker comes back."""
        old: list[Record] = []
        present: set[str] = set()
        async for worker in WORKERS.read_all(self._engine):
            if worker.age_ms > _FORGET_MS:
                old.append(worker.record)
            else:
                present.add(worker.key)
        async for order in ORDERS.read_all(self._engine):
            cordoned = order.value is not None and order.value.cordoned
            if order.age_ms > _FORGET_MS and order.key not in present and not cordoned:
                old.append(order.record)
        await remove_records(self._engine, old[: bounds.BATCH_MAX])

    async def dead_here(self) -> list[str]:
        """The ids of earlier starts on this host whose process has ended. Processes that they
        started may still run.
        """
        host = socket.gethostname()
        records = (await WORKERS.values(self._engine)).values()
        dead = [record.id for record in records if record.host == host and _is_dead(record)]
        return [self.before, *dead] if self.before else dead

    async def _save(self) -> bool:
        return await self._write(replace(self._facts(), name=self.name))

    async def _write(self, value: WorkerRecord | None) -> bool:
        if await WORKERS.save(self._engine, self.name, value, self._version):
            self._version += 1
            return True
        # The answer to an earlier write may have been lost: then the record there is our own.
        known = await WORKERS.read(self._engine, self.name)
        if known is None or known.value is None or known.value.id != self._facts().id:
            return False
        saved = await WORKERS.save(self._engine, self.name, value, known.version)
        self._version = known.version + saved
        return saved

    async def _own_queue(self) -> None:
        await self._engine.declare(Queue(name=worker_queue(self.name)), instead_of=None)


def _earlier_id(stored: Stored[WorkerRecord] | None) -> str:
    known = stored.value if stored else None
    return known.id if known is not None and known.host == socket.gethostname() else ""


def _is_gone(stored: Stored[WorkerRecord]) -> bool:
    """True if its heartbeat is too old or, on this host, its process does not exist."""
    if stored.age_ms > UNHEALTHY_AGE_MS or stored.value is None:
        return True
    return stored.value.host == socket.gethostname() and _is_dead(stored.value)


def _is_dead(known: WorkerRecord) -> bool:
    """A process id may have been reused; in a restarted container they all are."""
    try:
        os.kill(known.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    ticks = start_ticks(known.pid)
    return ticks is None or known.start_ticks not in (0, ticks)


def start_ticks(pid: int) -> int | None:
    """The start time of the process with this id; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state == b"Z" else int(fields[18])
