"""A server over REST, on a memory engine and on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.server.rest import leases
from tests.server.rest_client import RestClient, rest_server


@pytest.fixture(params=["memory", "sqlite"])
async def rest(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RestClient]:
    async with rest_server(request.param, tmp_path) as rest:
        yield rest


@pytest.fixture(params=["remembered", "forgotten"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the server still knows the leases it handed out: one that was restarted does not."""
    if request.param == "forgotten":
        monkeypatch.setattr(leases, "_CACHED_MAX", 0)
    return str(request.param)
