"""An engine of each kind on the clock of the test."""

from tests.telemetry.conftest import engine

__all__ = ["engine"]
