"""Emulators of SQS for the engine: moto and ministack, each started once; and an engine on our own
endpoint."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.engines.sqs import servers
from tests.engines.sqs.place import Place


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of moto's server."""
    with servers.running("moto") as url:
        yield url


@pytest.fixture(scope="session")
def ministack() -> Iterator[str]:
    """The URL of ministack."""
    with servers.running("ministack") as url:
        yield url


@pytest.fixture
async def place(endpoint: str) -> AsyncIterator[Place]:
    made = Place(endpoint)
    await made.open()
    yield made
    await made.engine.close()
