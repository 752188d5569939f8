"""The engine contract through the server: the remote engine on each engine."""

from collections.abc import AsyncIterator
from functools import partial
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
from holdfast.conformance.contract.lease_wait import LeaseWaitContract
from holdfast.conformance.harness import Twin
from tests.engines import harnesses
from tests.engines.compositions import WHOLE, CompositionContract
from tests.engines.pg_connections import KeptConnections
from tests.server.loop_server import LoopServer, ServedEngine, single_server


@pytest.fixture(scope="module")
async def loop_server() -> AsyncIterator[LoopServer]:
    loop_server = LoopServer()
    async with loop_server.running():
        yield loop_server


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[KeptConnections]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with KeptConnections() as kept:
        yield kept


class TestRemoteMemory(ConcurrencyContract, LeaseWaitContract, SharedContract):
    """The whole of it is proven below; here several clients meet at one server."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def harness(self, loop_server: LoopServer) -> AsyncIterator[Harness]:
        async with Harness(single_server(loop_server)) as harness:
            yield harness

    @pytest.fixture
    async def twin(self, harness: Harness) -> AsyncIterator[Twin]:
        twin = await harness.twin()
        yield twin
        await twin.agree()


class TestRemoteSQLite(EngineContract, DurableContract, SharedContract, JumpContract):
    """Several servers on one file."""

    @pytest.fixture
    async def harness(self, quick_path: Path, loop_server: LoopServer) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(
            quick_path, partial(ServedEngine, loop_server=loop_server)
        ) as harness:
            yield harness


class _RemotePostgres:
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, kept: KeptConnections, loop_server: LoopServer
    ) -> AsyncIterator[Harness]:
        served = partial(ServedEngine, loop_server=loop_server)
        async with harnesses.postgres(shared_pg_dsn, served, kept=kept) as harness:
            yield harness


class TestRemotePostgres(_RemotePostgres, CompositionContract, LeaseWaitContract):
    """The whole contract passes on PostgreSQL, and through the server on SQLite."""


class TestWholeRemotePostgres(_RemotePostgres, EngineContract, DurableContract, SharedContract):
    __test__ = WHOLE
