"""An engine of each kind on a clock that only the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine
from holdfast.testing.clock import ManualClock


@pytest.fixture(params=["memory", "sqlite", "postgresql", "partitioned"])
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Engine]:
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/work.db"
        case "partitioned":
            url = "partitioned:" + ",".join(f"sqlite:///{tmp_path}/{name}.db" for name in "abc")
        case "postgresql":
            url = request.getfixturevalue("pg_url")
        case _:
            url = "memory:"
    engine = open_engine(url, clock=clock)
    await engine.open()
    yield engine
    await engine.close()
