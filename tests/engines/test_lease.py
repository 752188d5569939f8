"""A waiting lease is woken rather than polled: here the polling interval is an hour. It ignores
rings only after it skipped many jobs of other tasks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.conformance.contract import Harness, lease_wait, store
from holdfast.conformance.contract.cases import a_job, a_queue, lease_one
from holdfast.conformance.contract.lease_wait import LeaseWaitContract, WakeContract
from holdfast.conformance.contract.store import SharedWaitContract
from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.lease import SKIPPED_MANY, Bell, LeaseAttempt, lease_with_wait
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.postgres import PostgresEngine
from tests.engines import harnesses
from tests.engines.postgres.until import until_notified

HOUR_MS = 3_600_000


class TestMemory(LeaseWaitContract, WakeContract):
    @pytest.fixture
    async def harness(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.memory.engine._POLL_NET_MS", HOUR_MS)
        async with harnesses.memory() as harness:
            yield harness


class TestSQLite(LeaseWaitContract, WakeContract, SharedWaitContract):
    @pytest.fixture
    async def harness(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.sqlite.engine._POLL_NET_MS", HOUR_MS)
        monkeypatch.setattr("holdfast.engines.sqlite.wait.POLL_S", HOUR_MS / 1_000)
        async with harnesses.sqlite(tmp_path) as harness:
            yield harness


class TestPostgres(LeaseWaitContract, WakeContract, SharedWaitContract):
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.postgres.engine._NET_MS", (HOUR_MS, HOUR_MS))
        async with harnesses.postgres(shared_pg_dsn) as harness:

            async def notified(task: asyncio.Task[list[Lease]]) -> None:
                await settled(task)
                waiting = harness.engines[-1]
                assert isinstance(waiting, PostgresEngine)
                if not task.done():
                    await until_notified(waiting)

            # A transaction that is open while a lease is registered as waiting may not notify it.
            # Without polling, a test must not change anything before that.
            settled = lease_wait.settled
            for module in (lease_wait, store):
                monkeypatch.setattr(module, "settled", notified)
            yield harness


REQUEST = LeaseRequest(queues=("default",), tasks=frozenset({"mine"}), wait_ms=HOUR_MS)


class SlowAttempts:
    """Each attempt takes a second of the loop's time, which does not pass otherwise. The first
    finds nothing, and the bell rings meanwhile; the second gets a lease."""

    def __init__(self, lease: Lease, skipped: int) -> None:
        self.bell = Bell()
        self.count = 0
        self._lease = lease
        self._skipped = skipped
        self._now = 0.0
        # Timers of the loop use this clock too.
        asyncio.get_running_loop().time = lambda: self._now  # type: ignore[method-assign]

    async def attempt(self, _request: LeaseRequest) -> LeaseAttempt:
        self.count += 1
        self.advance(1.0)
        self.bell.ring()
        return (
            LeaseAttempt([self._lease]) if self.count > 1 else LeaseAttempt([], None, self._skipped)
        )

    def begin(self) -> asyncio.Task[list[Lease]]:
        call = lease_with_wait(REQUEST, self.attempt, self.bell, net_ms=HOUR_MS, open_=lambda: True)
        return asyncio.create_task(call)

    def advance(self, seconds: float) -> None:
        self._now += seconds


async def turns_of_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def lease() -> Lease:
    engine = MemoryEngine()
    await engine.open()
    await engine.enqueue([a_job("a")])
    return await lease_one(engine)


@pytest.mark.parametrize("skipped", [0, SKIPPED_MANY - 1])
async def test_a_slow_attempt_that_skipped_few_jobs_is_repeated_at_a_ring(
    lease: Lease, skipped: int
) -> None:
    slow = SlowAttempts(lease, skipped)
    assert await slow.begin() == [lease]


async def test_a_slow_attempt_that_skipped_many_jobs_rests(lease: Lease) -> None:
    slow = SlowAttempts(lease, SKIPPED_MANY)
    call = slow.begin()
    await turns_of_the_loop()
    slow.advance(8.9)
    await turns_of_the_loop()
    assert slow.count == 1
    slow.advance(0.2)
    await turns_of_the_loop()
    assert slow.count == 2
    assert await call == [lease]


@pytest.mark.parametrize("fairness", ["off", "shares"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_only_due_jobs_of_other_tasks_count_as_skipped(
    kind: str, fairness: Any, tmp_path: Path
) -> None:
    async with harnesses.memory() if kind == "memory" else harnesses.sqlite(tmp_path) as harness:
        engine: Any = harness.engine
        await engine.declare(a_queue("q"))
        await engine.declare(a_queue("default", fairness=fairness))
        await engine.enqueue(
            [a_job(f"due{n}", task="other", tenant=f"t{n}", priority=n) for n in range(3)]
        )
        await engine.enqueue([a_job("late", task="other", delay_ms=60_000), a_job("q", queue="q")])
        await engine.enqueue([a_job("mine", task="mine")])
        assert (await engine._try_lease(REQUEST)).skipped == 0, "there was a lease"
        assert (await engine._try_lease(REQUEST)).skipped == 3
