"""A fleet on emulators: EC2, SSM, DynamoDB and CloudWatch of moto's server, SQS of our own."""

from collections.abc import Iterator
from pathlib import Path

import boto3.session
import pytest

from tests.engines.sqs import servers
from tests.fleet.cloud import Cloud


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of moto's server, started once."""
    with servers.running("moto") as url:
        yield url


@pytest.fixture
def cloud(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An empty account with the tables of a fleet."""
    found = Cloud(moto, tmp_path)
    found.reset()
    _use(found, monkeypatch)
    return found


@pytest.fixture
def atomic_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The same on ministack, whose conditional writes are atomic as those of AWS."""
    with servers.running("ministack") as url:
        found = Cloud(url, tmp_path)
        found.create_tables()
        _use(found, monkeypatch)
        yield found


def _use(found: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading the service models takes most of the time of a small test.
    monkeypatch.setattr(boto3.session, "Session", servers.session)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
