"""Emulators of SQS for the engine: moto and ministack, each started once."""

from collections.abc import Iterator

import pytest

from tests.engines.sqs import servers


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
