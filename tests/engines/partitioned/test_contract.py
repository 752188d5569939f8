"""The contract over one partition, without any gap, and over several."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.conformance.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
    TwinContract,
)
from holdfast.engines.partitioned.engine import common_traits
from holdfast.engines.support import FULL
from tests.engines.compositions import WHOLE, CompositionContract
from tests.engines.partitioned import harnesses
from tests.engines.pg_connections import ReusedConnections


class TestOneInMemory(EngineContract, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory(1) as harness:
            yield harness


class TestOneFile(TwinContract, DurableContract, SharedContract):
    @pytest.fixture
    async def harness(self, memory_path: Path) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(memory_path, 1) as harness:
            yield harness


class TestThreeInMemory(EngineContract, JumpContract):
    traits = common_traits([FULL] * 3)

    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory(3) as harness:
            yield harness


class TestWholeThreeFiles(EngineContract, DurableContract, SharedContract, JumpContract):
    """The whole contract passes on one file and on three partitions in memory, and `TestMixed` has
    files too."""

    __test__ = WHOLE
    traits = common_traits([FULL] * 3)

    @pytest.fixture
    async def harness(self, memory_path: Path) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(memory_path, 3) as harness:
            yield harness


class TestMixed(CompositionContract):
    """Two files and a database, which in tests has one clock, the wall's. The answers of
    the stores belong to their own contract; this is about the placement of jobs."""

    traits = common_traits([FULL] * 3)

    @pytest.fixture
    async def harness(
        self, memory_path: Path, shared_pg_dsn: str, reused: ReusedConnections
    ) -> AsyncIterator[Harness]:
        mixed = harnesses.partitioned(
            harnesses.file(memory_path / "a.db"),
            harnesses.database(shared_pg_dsn, reused, uuid4().hex),
            harnesses.file(memory_path / "b.db"),
            can_jump=False,
        )
        async with mixed as harness:
            yield harness
