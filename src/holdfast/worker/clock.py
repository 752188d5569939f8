"""The clock on which a worker measures its leases: it goes on while the machine is suspended, as
the store's does, so that no lease is thought to hold because its holder slept.
"""

from __future__ import annotations

import time

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    return time.clock_gettime(_BOOT_CLOCK)


def boot_ns() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK)


def wall_ms() -> int:
    """What people and the store call the time: it may be set."""
    return time.time_ns() // 1_000_000
