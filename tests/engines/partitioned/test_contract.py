"""The contract over one partition, where nothing may be missing, and over several."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.testing.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
)
from holdfast.testing.contract.concurrency import Concurrency
from holdfast.testing.contract.depending import Depending
from holdfast.testing.contract.fencing import Fencing
from holdfast.testing.contract.grouping import Grouping
from holdfast.testing.contract.whole import Twinned, WithoutFlow
from tests.engines.kept import Kept
from tests.engines.partitioned import making
from tests.engines.partitioned.apart import APART


class TestOneInMemory(EngineContract, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with making.memory(1) as harness:
            yield harness


class TestOneFile(Twinned, DurableContract, SharedContract):
    @pytest.fixture
    async def harness(self, quick_path: Path) -> AsyncIterator[Harness]:
        async with making.sqlite(quick_path, 1) as harness:
            yield harness


class TestThreeInMemory(WithoutFlow, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with making.memory(3) as harness:
            yield harness


class TestThreeFiles(WithoutFlow, DurableContract, SharedContract, JumpContract):
    @pytest.fixture
    async def harness(self, quick_path: Path) -> AsyncIterator[Harness]:
        async with making.sqlite(quick_path, 3) as harness:
            yield harness


class TestMixed(
    Twinned, Fencing, Concurrency, Grouping, Depending, DurableContract, SharedContract
):
    """Two files and a database. In tests that has one clock, the wall's. What the stores answer is
    their own contract's; this is about where jobs go."""

    @pytest.fixture
    async def harness(
        self, quick_path: Path, shared_pg_dsn: str, kept: Kept
    ) -> AsyncIterator[Harness]:
        mixed = making.partitioned(
            making.file(quick_path / "a.db"),
            making.database(shared_pg_dsn, kept, uuid4().hex),
            making.file(quick_path / "b.db"),
            can_jump=False,
        )
        async with mixed as harness:
            yield harness


for _contract in (TestThreeInMemory, TestThreeFiles, TestMixed):
    for _name in APART:
        setattr(_contract, _name, None)


def test_what_is_not_asked_of_partitions_is_in_the_contract() -> None:
    asked = (TestOneInMemory, TestOneFile)
    missing = [n for n in APART if not any(callable(getattr(each, n, None)) for each in asked)]
    assert missing == []
