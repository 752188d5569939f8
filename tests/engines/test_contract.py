"""The contract over every engine and wrapper."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.conformance.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
)
from holdfast.conformance.contract.concurrency import ConcurrencyContract
from tests.engines import harnesses
from tests.engines.compositions import WHOLE, CompositionContract
from tests.engines.pg_connections import ReusedConnections


class TestMemory(EngineContract, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory() as harness:
            yield harness


class TestWholeObservedMemory(EngineContract, JumpContract):
    """A server observes and coalesces the calls of its engine: see tests/server."""

    __test__ = WHOLE

    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory(harnesses.observed) as harness:
            yield harness


class TestWholeCoalescedMemory(EngineContract, JumpContract):
    __test__ = WHOLE

    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory(harnesses.coalesced) as harness:
            yield harness


class TestSQLite(EngineContract, DurableContract, SharedContract, JumpContract):
    @pytest.fixture
    async def harness(self, memory_path: Path) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(memory_path) as harness:
            yield harness


class _CoalescedSQLite:
    @pytest.fixture
    async def harness(self, memory_path: Path) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(memory_path, harnesses.coalesced) as harness:
            yield harness


class TestCoalescedSQLite(_CoalescedSQLite, CompositionContract, JumpContract):
    """The whole contract passes on SQLite, and coalesced through a server."""


class TestWholeCoalescedSQLite(
    _CoalescedSQLite, EngineContract, DurableContract, SharedContract, JumpContract
):
    __test__ = WHOLE


class TestPostgres(EngineContract, DurableContract, SharedContract):
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, reused: ReusedConnections
    ) -> AsyncIterator[Harness]:
        async with harnesses.postgres(shared_pg_dsn, reused=reused) as harness:
            yield harness


class TestCoalescedPostgres(ConcurrencyContract):
    """Coalescing is proven above; here it meets several connections at once."""

    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, reused: ReusedConnections
    ) -> AsyncIterator[Harness]:
        async with harnesses.postgres(shared_pg_dsn, harnesses.coalesced, reused=reused) as harness:
            yield harness


def test_no_theme_overrides_a_test_of_another() -> None:
    names = Counter(
        name
        for base in TestSQLite.__mro__
        for name in vars(base)
        if name.startswith("test_") or name in ("twin", "harness")
    )
    assert [name for name, times in names.items() if times > 1] == []
