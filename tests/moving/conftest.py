"""Two stores, open and in no hurry."""

import pytest

from tests.moving.stores import Stores


@pytest.fixture
async def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setattr("holdfast.moving.closing._LOOK_S", 0)
    stores = Stores()
    await stores.old.open()
    await stores.new.open()
    return stores
