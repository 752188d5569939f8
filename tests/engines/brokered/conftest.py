"""A broker for all tests of a module."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.engines.brokered.reused_brokers import ReusedBrokers


@pytest.fixture(scope="module")
async def brokers(amqp_url: str) -> AsyncIterator[ReusedBrokers]:
    reused = ReusedBrokers(amqp_url, uuid4().hex[:30])
    yield reused
    await reused.close()
