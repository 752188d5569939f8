"""A waiting lease is woken rather than polled: here the polling interval is an hour."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.conformance.contract import Harness, lease_wait, store
from holdfast.conformance.contract.lease_wait import LeaseWaitContract, WakeContract
from holdfast.conformance.contract.store import SharedWaitContract
from holdfast.core.model import Lease
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
