"""A waiting lease is woken, not found by polling: here the net under it is an hour wide."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.testing.contract import Harness
from holdfast.testing.contract.sharing import SharedWaiting
from holdfast.testing.contract.waiting import Waiting
from holdfast.testing.contract.waking import Waking
from tests.engines import harnesses

HOUR_MS = 3_600_000


class TestMemory(Waiting, Waking):
    @pytest.fixture
    async def harness(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.memory.engine._POLL_NET_MS", HOUR_MS)
        async with harnesses.memory() as harness:
            yield harness


class TestSQLite(Waiting, Waking, SharedWaiting):
    @pytest.fixture
    async def harness(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.sqlite.engine._POLL_NET_MS", HOUR_MS)
        monkeypatch.setattr("holdfast.engines.sqlite.bell.LOOK_S", HOUR_MS / 1_000)
        async with harnesses.sqlite(tmp_path) as harness:
            yield harness


class TestPostgres(Waiting, Waking, SharedWaiting):
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr("holdfast.engines.postgres.engine._NET_MS", (HOUR_MS, HOUR_MS))
        async with harnesses.postgres(shared_pg_dsn) as harness:
            yield harness
