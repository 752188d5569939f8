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
from holdfast.conformance.contract.lease_wait import LeaseWaitContract
from tests.engines import harnesses
from tests.engines.compositions import WHOLE, CompositionContract
from tests.engines.pg_connections import ReusedConnections
from tests.server.loop_server import LoopServer, ServedEngine, single_server


@pytest.fixture(scope="module")
async def loop_server() -> AsyncIterator[LoopServer]:
    loop_server = LoopServer()
    async with loop_server.running():
        yield loop_server


class TestRemoteMemory(EngineContract, SharedContract, JumpContract):
    """Several clients of one server."""

    @pytest.fixture
    async def harness(self, loop_server: LoopServer) -> AsyncIterator[Harness]:
        async with Harness(single_server(loop_server)) as harness:
            yield harness


class _RemoteSQLite:
    """Several servers on one file."""

    @pytest.fixture
    async def harness(self, memory_path: Path, loop_server: LoopServer) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(
            memory_path, partial(ServedEngine, loop_server=loop_server)
        ) as harness:
            yield harness


class TestRemoteSQLite(_RemoteSQLite, CompositionContract, LeaseWaitContract, JumpContract):
    """The whole contract passes on SQLite, and through the server in memory."""


class TestWholeRemoteSQLite(
    _RemoteSQLite, EngineContract, DurableContract, SharedContract, JumpContract
):
    __test__ = WHOLE


class _RemotePostgres:
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, reused: ReusedConnections, loop_server: LoopServer
    ) -> AsyncIterator[Harness]:
        served = partial(ServedEngine, loop_server=loop_server)
        async with harnesses.postgres(shared_pg_dsn, served, reused=reused) as harness:
            yield harness


class TestRemotePostgres(_RemotePostgres, CompositionContract, LeaseWaitContract):
    """The whole contract passes on PostgreSQL, and through the server in memory."""


class TestWholeRemotePostgres(_RemotePostgres, EngineContract, DurableContract, SharedContract):
    __test__ = WHOLE
