"""A server over REST, on an engine in memory and on a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.server import hand
from tests.server.asking import Rest, serving


@pytest.fixture(params=["memory", "sqlite"])
async def rest(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rest]:
    async with serving(request.param, tmp_path) as rest:
        yield rest


@pytest.fixture(params=["remembered", "forgotten"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the server still knows the leases it handed out: one that was restarted does not."""
    if request.param == "forgotten":
        monkeypatch.setattr(hand, "_KEPT_MAX", 0)
    return str(request.param)
