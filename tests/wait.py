"""Waiting for what other processes do."""

import time
from collections.abc import Callable

TIMEOUT_S = 60


def wait_until(holds: Callable[[], object]) -> None:
    """Returns as soon as it does. Only what never comes to be takes long."""
    ends_at = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < ends_at, "it never came to be"
        time.sleep(0.01)
