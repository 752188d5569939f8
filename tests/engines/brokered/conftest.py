"""A broker for all tests of a module."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.engines.brokered.kept_brokers import KeptBrokers


@pytest.fixture(scope="module")
async def brokers(amqp_url: str) -> AsyncIterator[KeptBrokers]:
    kept = KeptBrokers(amqp_url, uuid4().hex[:30])
    yield kept
    await kept.close()
