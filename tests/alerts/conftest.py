"""An engine of each sort on a clock that only the test moves."""

from tests.telemetry.conftest import clock, engine

__all__ = ["clock", "engine"]
