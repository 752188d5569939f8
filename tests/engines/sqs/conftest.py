"""SQS servers for the engine: our own endpoint, moto and ministack, each started once."""

from collections.abc import Iterator

import boto3.session
import pytest

from holdfast.testing.sqs import KEY, sqs_server
from tests.engines.sqs import servers


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that no server here verifies."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setattr(boto3.session, "Session", servers.session)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of our own endpoint. It is not there for longer, because its thread draws random
    numbers, which Hypothesis forbids while it draws its own."""
    with sqs_server() as url:
        yield url


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
