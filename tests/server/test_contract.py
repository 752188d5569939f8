"""The engine contract through the server: the remote engine on each engine."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.testing.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
)
from holdfast.testing.contract.concurrency import Concurrency
from holdfast.testing.contract.waiting import Waiting
from holdfast.testing.twin import Twin
from tests.engines import harnesses
from tests.engines.kept import Kept
from tests.server.serving import Hall, Served, one_server


@pytest.fixture(scope="module")
async def hall() -> AsyncIterator[Hall]:
    hall = Hall()
    async with hall.running():
        yield hall


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[Kept]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with Kept() as kept:
        yield kept


class TestRemoteMemory(Concurrency, Waiting, SharedContract):
    """The whole of it is proven below; here several clients meet at one server."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def harness(self, hall: Hall) -> AsyncIterator[Harness]:
        async with Harness(one_server(hall)) as harness:
            yield harness

    @pytest.fixture
    async def twin(self, harness: Harness) -> AsyncIterator[Twin]:
        twin = await harness.twin()
        yield twin
        await twin.agree()


class TestRemoteSQLite(EngineContract, DurableContract, SharedContract, JumpContract):
    """Several servers on one file."""

    @pytest.fixture
    async def harness(self, quick_path: Path, hall: Hall) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(quick_path, partial(Served, hall=hall)) as harness:
            yield harness


class TestRemotePostgres(EngineContract, DurableContract, SharedContract):
    @pytest.fixture
    async def harness(self, shared_pg_dsn: str, kept: Kept, hall: Hall) -> AsyncIterator[Harness]:
        served = partial(Served, hall=hall)
        async with harnesses.postgres(shared_pg_dsn, served, kept=kept) as harness:
            yield harness
