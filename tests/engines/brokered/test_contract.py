"""The contract over `brokered`: all of it in memory, and with a real RabbitMQ the themes in which
processes meet.

There the ledger is a SQLite file, or a PostgreSQL behind a pooler that gives each transaction
another session.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.conformance.contract import (
    DurableContract,
    EngineContract,
    Harness,
    JumpContract,
    SharedContract,
    TwinContract,
)
from holdfast.conformance.contract.concurrency import ConcurrencyContract
from holdfast.conformance.contract.follow_ups import FollowUpContract
from holdfast.conformance.contract.lease_wait import LeaseWaitContract, WakeContract
from holdfast.conformance.contract.settle import FenceContract
from holdfast.engines.base import Engine
from holdfast.engines.brokered import BrokeredEngine
from tests.engines import harnesses
from tests.engines.brokered.reused_brokers import ReusedBrokers
from tests.engines.compositions import WHOLE, CompositionContract
from tests.engines.pg_connections import ForgetfulConnections


def with_broker(brokers: ReusedBrokers) -> harnesses.Wrap:
    def wrap(engine: Engine) -> Engine:
        return BrokeredEngine(engine, brokers.broker())

    return wrap


class TestBrokeredMemory(EngineContract, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with harnesses.memory(harnesses.brokered) as harness:
            yield harness


class _OnSQLite:
    @pytest.fixture
    async def harness(self, memory_path: Path, brokers: ReusedBrokers) -> AsyncIterator[Harness]:
        async with harnesses.sqlite(memory_path, with_broker(brokers)) as harness:
            yield harness


class TestBrokeredSQLite(
    _OnSQLite,
    CompositionContract,
    LeaseWaitContract,
    WakeContract,
    FollowUpContract,
    JumpContract,
):
    """The whole contract passes on SQLite."""


class TestWholeBrokeredSQLite(
    _OnSQLite, EngineContract, DurableContract, SharedContract, JumpContract
):
    __test__ = WHOLE


@pytest.fixture(scope="module")
async def pooled() -> AsyncIterator[ForgetfulConnections]:
    with ForgetfulConnections() as reused:
        yield reused


class _OnPostgres:
    @pytest.fixture
    async def harness(
        self, shared_pg_dsn: str, pooled: ForgetfulConnections, brokers: ReusedBrokers
    ) -> AsyncIterator[Harness]:
        wrap = with_broker(brokers)
        async with harnesses.postgres(shared_pg_dsn, wrap, reused=pooled) as harness:
            yield harness


class TestBrokeredPostgres(
    _OnPostgres,
    TwinContract,
    LeaseWaitContract,
    WakeContract,
    FenceContract,
    FollowUpContract,
    ConcurrencyContract,
    SharedContract,
):
    """The themes in which processes meet: without state in a session every statement is planned
    anew, and the whole contract takes minutes."""


class TestWholeBrokeredPostgres(_OnPostgres, EngineContract, DurableContract, SharedContract):
    __test__ = WHOLE
