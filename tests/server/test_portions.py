"""What would be too large to be told at once comes in portions, and nothing is left out."""

from collections.abc import AsyncIterator

import pytest

from holdfast.core.model import JobFilter, LeaseRequest, Queue
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.server import portions
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.making import a_job
from tests.server.serving import Served

LARGE = 200 * 1024


@pytest.fixture
async def store() -> MemoryEngine:
    engine = MemoryEngine(clock=ManualClock())
    await engine.open()
    return engine


@pytest.fixture
async def remote(store: MemoryEngine) -> AsyncIterator[Served]:
    served = Served(store)
    await served.open()
    yield served
    await served.close()


async def fill(store: MemoryEngine, size: int) -> None:
    for first in range(0, 300, 100):
        jobs = [a_job(f"j{first + n:03}", payload=bytes(size)) for n in range(100)]
        await store.enqueue(jobs)


@pytest.mark.parametrize(("size", "most"), [(10, 300), (LARGE, 100)])
async def test_leases(store: MemoryEngine, size: int, most: int) -> None:
    await fill(store, size)
    request = LeaseRequest(queues=("default",), limit=1_000, worker="w")
    ids: list[str] = []
    while leases := await portions.lease(store, request):
        assert len(leases) <= most
        ids += [lease.id for lease in leases]
    assert ids == [f"j{n:03}" for n in range(300)]


@pytest.mark.parametrize("size", [10, LARGE])
async def test_pages(store: MemoryEngine, remote: Served, size: int) -> None:
    """The server says less; the remote engine goes on until it has what was asked for."""
    await fill(store, size)
    page = await portions.find(store, JobFilter(), limit=250, after=None)
    assert len(page.jobs) == (250 if size == 10 else 100)
    whole = await remote.find(JobFilter(), limit=250)
    assert whole == await store.find(JobFilter(), limit=250)
    assert [job.id for job in whole.jobs] == [f"j{n:03}" for n in range(299, 49, -1)]


@pytest.mark.parametrize(("size", "most"), [(10, 300), (LARGE, 81)])
async def test_finished_jobs(store: MemoryEngine, size: int, most: int) -> None:
    await store.declare(Queue(name="default", retention_ms=0))
    await fill(store, size)
    request = LeaseRequest(queues=("default",), limit=1_000, worker="w")
    leases = await store.lease(request)
    await store.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    found = await portions.finished(store, 1_000)
    assert [job.id for job in found] == [f"j{n:03}" for n in range(most)]
