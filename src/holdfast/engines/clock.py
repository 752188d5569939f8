"""The clocks of this machine, for engines that run on it; tests inject their own."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from pathlib import Path
from typing import Protocol

from holdfast import process
from holdfast.errors import ConfigError


class Clock(Protocol):
    """Leases use the boot clock, which cannot be set; due times use the wall clock.

    `boot_id` is `<boot>/<time namespace>`: boot clocks are comparable only if both are equal.
    """

    def wall_ms(self) -> int: ...

    def boot_ms(self) -> int: ...

    def boot_id(self) -> str: ...


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return process.wall_ms()

    def boot_ms(self) -> int:
        return process.boot_ns() // 1_000_000

    def boot_id(self) -> str:
        if sys.platform == "darwin":
            return f"{_sysctl(b'kern.bootsessionuuid')}/"
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"cannot read the boot id of this system, which dates leases: {error}"
            ) from error
        try:
            namespace = str(Path("/proc/self/ns/time").readlink())
        except OSError:
            namespace = ""  # Kernels before 5.6 have no time namespaces.
        return f"{boot}/{namespace}"


def _sysctl(name: bytes) -> str:
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(buffer))
    if library.sysctlbyname(name, buffer, ctypes.byref(size), None, 0) != 0:
        raise ConfigError(f"sysctl {name.decode()} failed: error {ctypes.get_errno()}")
    return buffer.value.decode()
