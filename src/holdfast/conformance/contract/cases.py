"""The parts of a contract test: jobs, queues and requests, and the mark of the traits it needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from holdfast.conformance.harness import Twin
from holdfast.core import retry_policy
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Failure, FailureKind, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement, Verdict
from holdfast.engines.base import Engine, Traits
from holdfast.engines.support import FULL, lacks

ERROR = Failure(type="ValueError", message="no such thing", trace="line 1")
CRASH = Failure(kind=FailureKind.CRASH, message="signal 11", signal=11)


@contextlib.contextmanager
def case(*given: object) -> Iterator[None]:
    """One of many cases in one test: a failure names the case."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"case: {', '.join(map(repr, given))[:500]}")
        raise


def a_job(id: str = "a", **fields: Any) -> NewJob:
    """A small job; `fields` replace its defaults."""
    return NewJob(**{"id": id, "task": "work", "payload": b"{}"} | fields)


def jobs(ids: str, **fields: Any) -> list[NewJob]:
    """One job for each letter."""
    return [a_job(id_, **fields) for id_ in ids]


def from_default(limit: int = 1, **fields: Any) -> LeaseRequest:
    """A lease request for the queue `default`."""
    defaults: dict[str, Any] = {"queues": ("default",), "limit": limit, "worker": "w"}
    return LeaseRequest(**defaults | fields)


async def lease_one(engine: Engine | Twin, **fields: Any) -> Lease:
    """Lease the only due job."""
    (lease,) = await engine.lease(from_default(**fields))
    return lease


async def leased(engine: Engine | Twin, **fields: Any) -> Lease:
    """A new job `a`, leased."""
    await engine.enqueue([a_job(**fields)])
    return await lease_one(engine, queues=(fields.get("queue", "default"),))


async def settle(engine: Engine | Twin, lease: Lease, verdict: Verdict) -> Outcome:
    """Settle one lease."""
    (outcome,) = await engine.settle([Settlement(lease=lease, verdict=verdict)])
    return outcome


async def lease_ids(engine: Engine | Twin, limit: int = 100, **fields: Any) -> list[str]:
    """Lease jobs and return their ids."""
    return [lease.id for lease in await engine.lease(from_default(limit, **fields))]


async def reap(engine: Engine | Twin) -> list[Outcome]:
    """Settle every overdue lease by the policy, as the reaper does."""
    queues = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
    overdue = await engine.overdue(100)
    return await engine.settle(
        [
            Settlement(
                lease=lease, verdict=retry_policy.after_overdue(queues[lease.job.queue], lease.job)
            )
            for lease in overdue.leases
        ]
    )


def a_queue(name: str = "default", **settings: Any) -> Queue:
    """A queue; `settings` replace its defaults."""
    return Queue(name=name, **settings)


def a_limit(name: str = "l", *, rate: str = "", **fields: Any) -> Limit:
    """`rate` is written as "2/1000": two starts in 1,000 ms."""
    if rate:
        count, _, per_ms = rate.partition("/")
        burst = fields.pop("burst", 1)
        fields["rate"] = Rate(count=int(count), per_ms=int(per_ms), burst=burst)
    return Limit(name=name, **fields)


async def end(engine: Engine | Twin, *leases: Lease) -> None:
    """Complete the jobs of these leases."""
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(done) == [Outcome.SETTLED] * len(leases)


async def work_off(engine: Engine | Twin, **fields: Any) -> list[str]:
    """Lease and complete one job after the other; returns their ids in that order."""
    worked: list[str] = []
    while leases := await engine.lease(from_default(**fields)):
        await end(engine, *leases)
        worked += [lease.id for lease in leases]
    return worked


Marked = TypeVar("Marked", bound=Callable[..., Any])

TRAITS = {"atomic"} | frozenset(Traits.__struct_fields__) - {
    *("name", "durable", "shared", "transactional", "fifo_groups")
}
"""The traits that tests can need. A durable or shared store has contracts of its own; a
transactional engine, and one with groups in FIFO queues only, has tests of its own."""


def needs(*traits: str) -> Callable[[Marked], Marked]:
    """Mark a test, or every test of a class, as one for engines with these traits only."""
    assert TRAITS.issuperset(traits), f"{set(traits) - TRAITS} cannot be needed"

    def mark(marked: Marked) -> Marked:
        tests: list[Any] = (
            list(_tests_in(marked).values()) if isinstance(marked, type) else [marked]
        )
        for test in tests:
            test.needs = frozenset(traits) | needs_of(test)
        return marked

    return mark


def needs_of(test: Any) -> frozenset[str]:
    """The traits that a test is marked with."""
    found: frozenset[str] = getattr(test, "needs", frozenset())
    return found


def missing(traits: Traits) -> frozenset[str]:
    """The traits that an engine does not have, or has with a lower bound."""
    return frozenset(name for name in TRAITS if lacks(traits, name))


def deselected(contract: type, traits: Traits) -> dict[str, frozenset[str]]:
    """The tests of a contract that an engine with these traits leaves out, each with the traits
    that it lacks."""
    gaps = missing(traits)
    return {
        name: needs_of(test) & gaps
        for base in reversed(contract.__mro__)
        for name, test in _tests_in(base).items()
        if needs_of(test) & gaps
    }


class SelectedByTraits:
    """Base of a contract. A class that sets `traits` runs the tests for an engine with those
    traits; without it, all of them."""

    traits: ClassVar[Traits] = FULL

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in deselected(cls, cls.traits):
            # pytest collects only callables.
            setattr(cls, name, None)


def _tests_in(class_: type) -> dict[str, Any]:
    return {
        name: test
        for name, test in vars(class_).items()
        if name.startswith("test_") and callable(test)
    }
