"""A broker between two processes: RabbitMQ is the only one that tells of a job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import Lease, LeaseRequest, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.extras import Brokered, extra
from holdfast.engines.registry import open_engine
from tests.engines.postgres.until import until

OWN = "worker.w1"
WAIT_MS = 600_000
TTL_MS = 60_000


@pytest.fixture
def broker_url(amqp_url: str) -> str:
    return f"{amqp_url}?prefix={uuid4().hex[:30]}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = open_engine(url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def _deaf_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.wait._inotify", lambda _: None)
    monkeypatch.setattr("holdfast.engines.sqlite.wait.POLL_S_UNWATCHED", 1_000)
    monkeypatch.setattr("holdfast.engines.sqlite.engine._POLL_NET_MS", WAIT_MS)


@pytest.fixture
def pooled_url(broker_url: str, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Behind a pooler PostgreSQL cannot notify; here it does not poll either."""
    monkeypatch.setattr("holdfast.engines.postgres.engine._NET_MS", (WAIT_MS, WAIT_MS))
    monkeypatch.setattr("holdfast.engines.postgres.wait._RECHECKS_MS", ())
    return f"brokered:{broker_url},{pg_url}&pooled=true"


async def waiting(engine: Engine, *queues: str) -> asyncio.Task[list[Lease]]:
    """A lease that waits, and hears what other processes tell."""
    request = LeaseRequest(queues=queues, wait_ms=WAIT_MS)
    lease = asyncio.create_task(engine.lease(request))
    found = extra(engine, Brokered)
    assert found is not None
    broker = found.broker()
    ledger = engine._engine  # type: ignore[attr-defined]

    async def is_waiting() -> bool:
        own = {queue for queue in queues if queue.startswith("worker.")}
        return (
            bool(ledger._bell.awaited)
            and set(queues) <= broker._bound  # type: ignore[attr-defined]
            and own <= set(broker._workers)  # type: ignore[attr-defined]
        )

    await until(is_waiting)
    return lease


@pytest.mark.parametrize("queue", ["default", OWN])
async def test_a_job_ends_the_wait_in_another_process(pooled_url: str, queue: str) -> None:
    async with opened(pooled_url) as producer, opened(pooled_url) as worker:
        await producer.declare(Queue(name=OWN))
        lease = await waiting(worker, OWN, "default")
        await producer.enqueue([a_job("a", queue=queue, expires_ms=TTL_MS)])
        assert [one.id for one in await lease] == ["a"]


async def test_a_child_that_is_released_ends_the_wait(pooled_url: str) -> None:
    """Its queue is not known to the call that completes the parent."""
    async with opened(pooled_url) as one, opened(pooled_url) as other:
        await one.declare(Queue(name="children"))
        await one.enqueue([a_job("p"), a_job("c", queue="children", after=("p",))])
        (parent,) = await one.lease(LeaseRequest(queues=("default",)))
        lease = await waiting(other, "children")
        outcomes = await one.settle([Settlement(lease=parent, verdict=Complete())])
        assert outcomes == [Outcome.SETTLED]
        assert [each.id for each in await lease] == ["c"]


@pytest.mark.usefixtures("_deaf_sqlite")
async def test_two_processes_on_one_file(broker_url: str, memory_path: Path) -> None:
    url = f"brokered:{broker_url},sqlite:///{memory_path}/work.db"
    code = (
        "import asyncio, sys\n"
        "from holdfast.core.model import NewJob\n"
        "from holdfast.engines.registry import open_engine\n"
        "async def main():\n"
        "    engine = open_engine(sys.argv[1])\n"
        "    await engine.open()\n"
        "    await engine.enqueue([NewJob(id='a', task='work')])\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
    )
    async with opened(url) as worker:
        lease = await waiting(worker, "default")
        command = [sys.executable, "-c", code, url]
        await asyncio.to_thread(subprocess.run, command, check=True)
        assert [one.id for one in await lease] == ["a"]


async def test_an_addressed_job_expires_at_the_broker(pooled_url: str) -> None:
    async with opened(pooled_url) as engine:
        found = extra(engine, Brokered)
        assert found is not None
        await engine.declare(Queue(name=OWN))
        await engine.enqueue([a_job("a", queue=OWN, expires_ms=50)])
        broker = found.broker()
        await until(lambda: _is_connected(engine))
        (dead,) = await broker.take_dead(10, WAIT_MS)
        assert (dead.id, dead.queue, dead.reason) == ("a", OWN, "expired")
        await broker.settle_dead([dead])


async def test_with_the_broker_down_polling_finds_the_job(memory_path: Path) -> None:
    url = f"brokered:amqp://127.0.0.1:1,sqlite:///{memory_path}/work.db"
    async with opened(url) as producer, opened(url) as worker:
        request = LeaseRequest(queues=("default",), wait_ms=WAIT_MS)
        lease = asyncio.create_task(worker.lease(request))
        await producer.enqueue([a_job("a")])
        assert [one.id for one in await lease] == ["a"]


async def _is_connected(engine: Engine) -> bool:
    found = extra(engine, Brokered)
    assert found is not None
    return not (await found.broker().status()).error
