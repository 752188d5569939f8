"""Callers, jobs and stores for tests of permissions."""

from typing import Any

from holdfast.core.model import (
    LeaseRequest,
    NewJob,
    Queue,
)
from holdfast.core.verdict import (
    Bury,
    Settlement,
)
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.server.access.caller import Caller, with_implied


def caller(*scopes: str, prefix: str = "") -> Caller:
    return Caller(name="t", scopes=with_implied(scopes), prefix=prefix, token="0")


def job(id: str, queue: str = "default", task: str = "t", **more: Any) -> NewJob:
    return NewJob(id=id, queue=queue, task=task, **more)


async def store(*queues: str) -> MemoryEngine:
    engine = MemoryEngine()
    await engine.open()
    for name in queues:
        await engine.declare(Queue(name=name))
    return engine


async def leased(engine: Engine, id: str) -> Any:
    [lease] = await engine.lease(LeaseRequest(ids=(id,)))
    return lease


async def dead(engine: Engine, *jobs: NewJob) -> None:
    await engine.enqueue(jobs)
    leases = await engine.lease(LeaseRequest(ids=tuple(each.id for each in jobs), limit=100))
    await engine.settle([Settlement(lease=each, verdict=Bury()) for each in leases])


async def payload(engine: Engine, id: str) -> bytes:
    found = await engine.get(id)
    assert found is not None
    return found.payload
