"""An SQS client on a memory engine and on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.sqs.sqs_client import SqsClient, sqs_server


@pytest.fixture(params=["memory", "sqlite"])
async def sqs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqsClient]:
    async with sqs_server(request.param, tmp_path) as client:
        yield client
