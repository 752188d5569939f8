"""A scripted broker for the gates of a test."""

import pytest

from holdfast.gates import outlet
from tests.gates.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease answers at once if no job is due: the clock of the store does not move meanwhile."""
    monkeypatch.setattr(outlet, "WAIT_MS", 0)
