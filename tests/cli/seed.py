"""Puts jobs of every state and worker records into the store of a test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core.model import Failure, Lease, Note, Reason, Record, Renewal
from holdfast.core.verdict import Bury, Complete, Retry, Settlement, Verdict
from holdfast.core.workers import KIND, WorkerRecord

T = TypeVar("T")


def with_app(work: Callable[[Holdfast], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Holdfast("sqlite:///holdfast.db") as app:
            return await work(app)

    return asyncio.run(main())


def begin() -> None:
    """Create an empty store."""
    with_app(lambda app: app.queues())


def enqueue(id: str = "j", task: str = "t", payload: Any = None, **options: Any) -> None:
    with_app(lambda app: app.enqueue(task, payload, id=id, **options))


def lease(*queues: str, worker: str = "w") -> Lease:
    """Lease the next job; it is not settled."""

    async def take(app: Holdfast) -> Lease:
        [taken] = await app.lease(*queues, worker=worker)
        return taken

    return with_app(take)


def settle(taken: Lease, verdict: Verdict, note: Note | None = None) -> None:
    settlement = Settlement(lease=taken, verdict=verdict, note=note)
    with_app(lambda app: app.settle([settlement]))


def note(taken: Lease, output: bytes) -> None:
    with_app(lambda app: app.renew_many([Renewal(lease=taken, note=Note(output=output))]))


def done(id: str = "j", result: Any = None, output: bytes | None = None, **options: Any) -> None:
    encoded = None if result is None else msgspec.json.encode(result)
    ended(id, Complete(encoded), Note(output=output), **options)


def dead(id: str = "j", reason: Reason = Reason.ATTEMPTS, text: str = "boom", **more: Any) -> None:
    ended(id, Bury(reason, Failure(type="ValueError", message=text, exit_code=3)), **more)


def retried(id: str = "j", delay_ms: int = 60_000, text: str = "boom", **options: Any) -> None:
    ended(id, Retry(delay_ms, Failure(message=text)), **options)


def ended(id: str, verdict: Verdict, kept: Note | None = None, **options: Any) -> None:
    """Enqueue a job, lease it once and settle it; no other job may wait before it."""

    async def live(app: Holdfast) -> None:
        task, payload = options.pop("task", "t"), options.pop("payload", None)
        await app.enqueue(task, payload, id=id, **options)
        [taken] = await app.lease(options.get("queue", "default"), worker="w")
        assert taken.id == id
        await app.settle([Settlement(lease=taken, verdict=verdict, note=kept)])

    with_app(live)


def worker(name: str = "w", **fields: Any) -> None:
    with_app(lambda app: save_worker(app, name, **fields))


async def save_worker(app: Holdfast, name: str, **fields: Any) -> None:
    plain = {"queues": {"default": 1}, "tasks": ("t",), "capacity": 2}
    record = WorkerRecord(name=name, id="1", host="h", pid=7, started_at=1, **{**plain, **fields})
    saved = Record(kind=KIND, key=name, value=msgspec.json.encode(record))
    await app.engine.save([saved])
