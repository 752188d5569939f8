"""Oversized calls of the remote engine: refused by the server, split by the engine."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from holdfast.conformance.contract.cases import a_job
from holdfast.core import bounds
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue, State, Status
from holdfast.core.verdict import Cancel, Complete, Outcome, Settlement
from holdfast.engines import wire
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UsageError
from holdfast.testing.clock import ManualClock
from tests.server.loop_server import ServedEngine

PARENTS = tuple(f"p{n:03}" for n in range(101))
HELD = wire.SentLease("a", 1, 1_000, "default", "t")


@pytest.fixture
async def store() -> MemoryEngine:
    engine = MemoryEngine(clock=ManualClock())
    await engine.open()
    await engine.declare(Queue(name="other"))
    await engine.enqueue([a_job(id_, queue="other") for id_ in PARENTS])
    return engine


@pytest.fixture
async def remote(store: MemoryEngine) -> AsyncIterator[ServedEngine]:
    served = ServedEngine(store)
    await served.open()
    yield served
    await served.close()


def children(count: int, first: int = 0) -> list[NewJob]:
    """Each of them after a hundred others."""
    return [a_job(f"c{first + n:03}", after=PARENTS[:100]) for n in range(count)]


def completed(jobs: list[NewJob]) -> wire.SentSettlement:
    return wire.SentSettlement(HELD, Complete(None, tuple(jobs)))


@pytest.mark.parametrize(
    ("verb", "carried", "text"),
    [
        ("enqueue", wire.EnqueueCall(children(101)), "101 jobs with 10100 dependencies"),
        ("enqueue", wire.EnqueueCall([a_job("a")] * 1_001), "1001 items in one call"),
        ("settle", wire.SettleCall([completed([a_job("a")] * 1_000)] * 11), "11000 jobs"),
        (
            "settle",
            wire.SettleCall([completed(children(101))]),
            "101 jobs with 10100 dependencies",
        ),
        ("settle", wire.SettleCall([completed([])] * 1_001), "1001 items in one call"),
        ("amend", wire.AmendCall(JobFilter(), Cancel(), 0), "limit 0 is out of range"),
        ("amend", wire.AmendCall(JobFilter(), Cancel(), -1), "limit -1 is out of range"),
        ("renew", wire.RenewCall([wire.SentRenewal(HELD)] * 1_001), "1001 items in one call"),
        ("find", wire.FindCall(JobFilter(ids=("a",) * 1_001), 10), "1001 items in one call"),
        (
            "tally",
            wire.TallyCall(JobFilter(ids=("a",) * 1_001), "queue", 10),
            "1001 items in one call",
        ),
    ],
)
async def test_oversized_calls_are_refused_before_the_store_is_asked(
    store: MemoryEngine,
    remote: ServedEngine,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    carried: msgspec.Struct,
    text: str,
) -> None:
    """Of any client, which need not be ours."""

    async def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(store, verb, never)
    with pytest.raises(UsageError, match=text):
        await remote._call(verb, carried)


async def test_calls_at_the_bound_are_accepted(remote: ServedEngine) -> None:
    receipts = await remote._call("enqueue", wire.EnqueueCall(children(100)))
    assert {each.status for each in receipts} == {Status.NEW}


async def test_many_parents_are_sent_in_parts_and_children_last(
    store: MemoryEngine, remote: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that comes before its parent in the call comes after it in the store."""
    sent = sizes_of(store, "enqueue", monkeypatch)
    last = a_job("last", after=(*PARENTS, *(f"c{n:03}" for n in range(150))))
    too_many = a_job("too-many", after=tuple(f"x{n}" for n in range(bounds.PARENTS_MAX + 1)))
    receipts = await remote.enqueue([last, too_many, *children(150)])
    assert [each.id for each in receipts[:2]] == ["last", "too-many"]
    assert receipts[1].status is Status.REFUSED
    assert {each.status for each in (receipts[0], *receipts[2:])} == {Status.NEW}
    assert sent == [100, 51]


async def test_one_job_with_too_many_parents_is_refused(remote: ServedEngine) -> None:
    job = a_job("a", after=tuple(f"x{n}" for n in range(bounds.PARENTS_MAX + 1)))
    [receipt] = await remote.enqueue([job])
    assert (receipt.status, receipt.code) == (Status.REFUSED, "invalid_job")


async def test_many_follow_ups_are_sent_in_parts(
    store: MemoryEngine, remote: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = await leased(remote, 4)
    sent = sizes_of(store, "settle", monkeypatch)
    settlements = [
        Settlement(lease=lease, verdict=Complete(None, tuple(children(60, first=60 * n))))
        for n, lease in enumerate(leases[:3])
    ]
    settlements.append(Settlement(lease=leases[3], verdict=Complete()))
    assert await remote.settle(settlements) == [Outcome.SETTLED] * 4
    assert sent == [1, 1, 2]
    assert [job.id for job in (await remote.find(JobFilter(queue="default"), limit=1)).jobs] == [
        "c179"
    ]


async def test_an_oversized_verdict_does_not_affect_the_others(
    remote: ServedEngine,
) -> None:
    """Nothing of the call is sent, so that the caller can send the others without it."""
    leases = await leased(remote, 2)
    settlements = [
        Settlement(lease=leases[0], verdict=Complete()),
        Settlement(lease=leases[1], verdict=Complete(None, tuple(children(101)))),
    ]
    with pytest.raises(UsageError, match="j1 depend on 10100 jobs; through a server the maximum"):
        await remote.settle(settlements)
    states = [(await remote.get(lease.id)) for lease in leases]
    assert [job.state for job in states if job is not None] == [State.LEASED, State.LEASED]
    refused = Complete(None, (a_job("f"),) * (bounds.PARENTS_MAX + 1))
    settlements[1] = Settlement(lease=leases[1], verdict=refused)
    assert await remote.settle(settlements) == [Outcome.SETTLED, Outcome.REFUSED]


@pytest.mark.parametrize("failing", [1, 2])
async def test_a_failed_part_reports_the_parts_before_it(
    remote: ServedEngine, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    fit = remote._fitting
    calls: list[int] = []

    async def broken(verb: str, carry: Callable[..., Any], batch: Any, judge: Any) -> list[Any]:
        calls.append(len(batch))
        if len(calls) == failing:
            raise EngineUnavailable("not now")
        return await fit(verb, carry, batch, judge)

    monkeypatch.setattr(remote, "_fitting", broken)
    if failing == 1:
        with pytest.raises(EngineUnavailable):
            await remote.enqueue(children(150))
        return
    with pytest.raises(OutcomeUnknown, match="not now") as caught:
        await remote.enqueue(children(150))
    assert {at: each.id for at, each in caught.value.known.items()} == {
        at: f"c{at:03}" for at in range(100)
    }


async def leased(engine: ServedEngine, count: int) -> list[Lease]:
    await engine.enqueue([a_job(f"j{n}") for n in range(count)])
    return await engine.lease(LeaseRequest(queues=("default",), limit=count, worker="w"))


def sizes_of(store: MemoryEngine, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much comes in each call of the store."""
    made, sizes = getattr(store, verb), list[int]()

    async def noted(batch: Any) -> Any:
        sizes.append(len(batch))
        return await made(batch)

    monkeypatch.setattr(store, verb, noted)
    return sizes
