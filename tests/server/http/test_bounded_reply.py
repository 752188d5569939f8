"""Large replies come in portions, and nothing is left out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import JobFilter, Lease, LeaseRequest, Note, Queue, Renewal
from holdfast.core.verdict import Cancel, Complete, Retry, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.server.http import bounded_reply
from holdfast.testing.clock import ManualClock
from tests.server.loop_server import ServedEngine

LARGE = 200 * 1024


@pytest.fixture
async def store() -> MemoryEngine:
    engine = MemoryEngine(clock=ManualClock())
    await engine.open()
    return engine


@pytest.fixture
async def remote(store: MemoryEngine) -> AsyncIterator[ServedEngine]:
    served = ServedEngine(store)
    await served.open()
    yield served
    await served.close()


async def fill(store: MemoryEngine, size: int) -> None:
    for first in range(0, 300, 100):
        jobs = [a_job(f"j{first + n:03}", payload=bytes(size)) for n in range(100)]
        await store.enqueue(jobs)


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        (10, [10, 90, 200]),
        (LARGE, [10, 30, 40, 40, 40, 40, 40, 40, 20]),
    ],
)
async def test_leases(
    store: MemoryEngine, monkeypatch: pytest.MonkeyPatch, size: int, counts: list[int]
) -> None:
    """The first portion is ten jobs; known sizes let the next call start with more."""
    await fill(store, size)
    taken = noted(store, monkeypatch)
    request = LeaseRequest(queues=("default",), limit=1_000, worker="w")
    known = bounded_reply.LeaseSizes()
    ids: list[str] = []
    while leases := await bounded_reply.lease(store, request, known):
        assert sum(len(lease.job.payload) for lease in leases) <= 8 * 1024 * 1024
        ids += [lease.id for lease in leases]
    assert ids == [f"j{n:03}" for n in range(300)]
    assert taken == counts


def noted(store: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many each lease of the store gave."""
    take, taken = store.lease, list[int]()

    async def lease(request: LeaseRequest) -> list[Lease]:
        leases = await take(request)
        if leases:
            taken.append(len(leases))
        return leases

    monkeypatch.setattr(store, "lease", lease)
    return taken


@pytest.mark.parametrize("how", ["payload", "checkpoint", "headers", "after"])
async def test_all_large_fields_count(
    store: MemoryEngine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """For any large field: never ten times as many jobs as were seen."""
    monkeypatch.setattr(bounded_reply, "_BYTES_MAX", 40 * 1024)
    await store.declare(Queue(name="other"))
    await store.enqueue([a_job(f"p{n:03}", queue="other") for n in range(200)])
    fields: dict[str, Any] = {
        "payload": {"payload": bytes(8_000)},
        "checkpoint": {},
        "headers": {"headers": {"x": "y" * 4_000, "z": "y" * 4_000}},
        "after": {"after": tuple(f"p{n:03}" for n in range(200)), "after_on": "either"},
    }
    await store.enqueue([a_job(f"j{n:03}", **fields[how]) for n in range(50)])
    await store.amend(JobFilter(queue="other"), Cancel(), limit=1_000)
    request = LeaseRequest(queues=("default",), limit=50, worker="w")
    if how == "checkpoint":
        leases = await store.lease(request)
        note = Note(checkpoint=bytes(8_000))
        await store.renew([Renewal(lease=lease, note=note) for lease in leases])
        await store.settle([Settlement(lease=lease, verdict=Retry()) for lease in leases])
    assert len(await bounded_reply.lease(store, request, bounded_reply.LeaseSizes())) == 10


async def test_known_sizes_are_bounded_and_fade(store: MemoryEngine) -> None:
    known = bounded_reply.LeaseSizes()
    asked = [LeaseRequest(queues=(f"q{n}",), limit=500, worker="w") for n in range(1_001)]
    assert await known.first_portion(store, asked[0]) == 10
    for request in asked:
        known.add(request, [1])
    assert await known.first_portion(store, asked[0]) == 10
    assert await known.first_portion(store, asked[-1]) == 100
    known.add(asked[-1], [1, 1024 * 1024])
    assert await known.first_portion(store, asked[-1]) == 10
    for _ in range(5):
        known.add(asked[-1], [1])
    assert await known.first_portion(store, asked[-1]) == 100
    by_ids = LeaseRequest(ids=("a",), limit=500, worker="w")
    known.add(by_ids, [1])
    assert await known.first_portion(store, by_ids) == 10


@pytest.mark.parametrize("settings", [{"fairness": "shares"}, {"group_batch": 2}])
async def test_fair_queues_are_leased_in_one_call(
    store: MemoryEngine, settings: dict[str, Any]
) -> None:
    await store.declare(Queue(name="default", **settings))
    request = LeaseRequest(queues=("default",), limit=60, worker="w")
    assert await bounded_reply.LeaseSizes().first_portion(store, request) == 60


async def test_a_disconnect_between_portions_releases_all(
    store: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 10)
    take = store.lease
    asked: list[int] = []
    second = asyncio.Event()

    async def lease(request: LeaseRequest) -> list[Lease]:
        asked.append(request.limit)
        if len(asked) == 2:
            second.set()
            await asyncio.Event().wait()
        return await take(request)

    monkeypatch.setattr(store, "lease", lease)
    request = LeaseRequest(queues=("default",), limit=50, worker="w")
    leaving = asyncio.create_task(bounded_reply.lease(store, request, bounded_reply.LeaseSizes()))
    await second.wait()
    assert (await store.tally(JobFilter(), "state", limit=5))[1].count == 10
    leaving.cancel()
    await asyncio.wait([leaving])
    assert [each.value for each in await store.tally(JobFilter(), "state", limit=5)] == ["waiting"]


@pytest.mark.parametrize("size", [10, LARGE])
async def test_pages(store: MemoryEngine, remote: ServedEngine, size: int) -> None:
    """The server returns fewer; the remote engine asks again until it has all."""
    await fill(store, size)
    page = await bounded_reply.find(store, JobFilter(), limit=250, after=None)
    assert len(page.jobs) == (250 if size == 10 else 40)
    whole = await remote.find(JobFilter(), limit=250)
    assert whole == await store.find(JobFilter(), limit=250)
    assert [job.id for job in whole.jobs] == [f"j{n:03}" for n in range(299, 49, -1)]


@pytest.mark.parametrize(("size", "most"), [(10, 300), (LARGE, 40)])
async def test_finished_jobs(store: MemoryEngine, size: int, most: int) -> None:
    await store.declare(Queue(name="default", retention_ms=0))
    await fill(store, size)
    request = LeaseRequest(queues=("default",), limit=1_000, worker="w")
    leases = await store.lease(request)
    await store.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    found = await bounded_reply.finished(store, 1_000)
    assert [job.id for job in found] == [f"j{n:03}" for n in range(most)]
