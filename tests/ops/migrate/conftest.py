"""Two open stores, and polling without sleeps."""

import pytest

from tests.ops.migrate.stores import Stores


@pytest.fixture
async def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setattr("holdfast.ops.migrate.steps._POLL_S", 0)
    stores = Stores()
    await stores.old.open()
    await stores.new.open()
    return stores
