"""The machine's clocks, as an engine on this machine reads them; tests inject their own."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import time
from pathlib import Path
from typing import Protocol

from holdfast.errors import ConfigError

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Leases run on the boot clock, which no one can set; the wall clock is for due times.

    `boot_id` is `<boot>/<time namespace>`: boot clocks compare only where both are the same.
    """

    def wall_ms(self) -> int: ...

    def boot_ms(self) -> int: ...

    def boot_id(self) -> str: ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # CLOCK_BOOTTIME goes on through suspend; where it is missing, monotonic is the nearest.
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def boot_id(self) -> str:
        if sys.platform == "darwin":
            return f"{_sysctl(b'kern.bootsessionuuid')}/"
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"this system has no boot id to tell old leases by: {error}"
            ) from error
        try:
            namespace = str(Path("/proc/self/ns/time").readlink())
        except OSError:
            namespace = ""  # A kernel before 5.6 knows only one.
        return f"{boot}/{namespace}"


def _sysctl(name: bytes) -> str:
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(buffer))
    if library.sysctlbyname(name, buffer, ctypes.byref(size), None, 0) != 0:
        raise ConfigError(f"sysctl {name.decode()} failed: error {ctypes.get_errno()}")
    return buffer.value.decode()
