"""Short ways to make what the contract's tests need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.core import policy
from holdfast.core.flow import Limit, Rate
from holdfast.core.model import Failure, FailureKind, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.testing.twin import Twin

ERROR = Failure(type="ValueError", message="no such thing", trace="line 1")
CRASH = Failure(kind=FailureKind.CRASH, message="signal 11", signal=11)


@contextlib.contextmanager
def case(*given: object) -> Iterator[None]:
    """One of many in one test: what fails says which it was."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"case: {', '.join(map(repr, given))[:500]}")
        raise


def a_job(id: str = "a", **fields: Any) -> NewJob:
    return NewJob(**{"id": id, "task": "work", "payload": b"{}"} | fields)


def jobs(ids: str, **fields: Any) -> list[NewJob]:
    """One job for each letter."""
    return [a_job(id_, **fields) for id_ in ids]


def from_default(limit: int = 1, **fields: Any) -> LeaseRequest:
    asked: dict[str, Any] = {"queues": ("default",), "limit": limit, "worker": "w"}
    return LeaseRequest(**asked | fields)


async def lease_one(engine: Engine | Twin, **fields: Any) -> Lease:
    (lease,) = await engine.lease(from_default(**fields))
    return lease


async def leased(engine: Engine | Twin, **fields: Any) -> Lease:
    """A new job `a`, leased."""
    await engine.enqueue([a_job(**fields)])
    return await lease_one(engine, queues=(fields.get("queue", "default"),))


async def settle(engine: Engine | Twin, lease: Lease, verdict: Verdict) -> Outcome:
    (outcome,) = await engine.settle([Settlement(lease=lease, verdict=verdict)])
    return outcome


async def lease_ids(engine: Engine | Twin, limit: int = 100, **fields: Any) -> list[str]:
    return [lease.id for lease in await engine.lease(from_default(limit, **fields))]


async def reap(engine: Engine | Twin) -> list[Outcome]:
    """What the reaper does: every lapsed lease gets the verdict that the policy gives."""
    queues = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
    overdue = await engine.overdue(100)
    return await engine.settle(
        [
            Settlement(
                lease=lease, verdict=policy.after_overdue(queues[lease.job.queue], lease.job)
            )
            for lease in overdue.leases
        ]
    )


def a_queue(name: str = "default", **settings: Any) -> Queue:
    return Queue(name=name, **settings)


def a_limit(name: str = "l", *, rate: str = "", **fields: Any) -> Limit:
    """`rate` as "2/1000": so many in so many milliseconds."""
    if rate:
        count, _, per_ms = rate.partition("/")
        burst = fields.pop("burst", 1)
        fields["rate"] = Rate(count=int(count), per_ms=int(per_ms), burst=burst)
    return Limit(name=name, **fields)


async def end(engine: Engine | Twin, *leases: Lease) -> None:
    """All of them are done."""
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(done) == [Outcome.SETTLED] * len(leases)


async def work_off(engine: Engine | Twin, **fields: Any) -> list[str]:
    """Lease and complete one job after the other; their ids in that order."""
    worked: list[str] = []
    while leases := await engine.lease(from_default(**fields)):
        await end(engine, *leases)
        worked += [lease.id for lease in leases]
    return worked
