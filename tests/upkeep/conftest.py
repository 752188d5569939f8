"""An engine of each sort on a clock that only the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.engines.base import Engine
from holdfast.engines.url import open_engine
from holdfast.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/work.db"
        case "postgresql":
            dsn: str = request.getfixturevalue("shared_pg_dsn")
            return f"{dsn}{'&' if '?' in dsn else '?'}namespace={uuid4().hex}"
        case _:
            return "memory:"


@pytest.fixture
async def engine(url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = open_engine(url, clock=clock)
    await engine.open()
    yield engine
    await engine.close()
