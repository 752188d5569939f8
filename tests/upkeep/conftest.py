"""Redrives and a redriver on the engine of the test."""

import pytest

from holdfast.engines.base import Engine
from holdfast.ops.redrives import Redrives
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Redriver
from tests.upkeep.redrive_steps import redriver_on


@pytest.fixture
def redrives(engine: Engine, clock: ManualClock) -> Redrives:
    return Redrives(engine, clock.wall_ms)


@pytest.fixture
def redriver(engine: Engine, clock: ManualClock) -> Redriver:
    return redriver_on(engine, clock)
