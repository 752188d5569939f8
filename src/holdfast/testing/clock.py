"""ManualClock: a clock that moves only when a test advances it."""

from __future__ import annotations


class ManualClock:
    """Wall and boot time advance together; `jump` moves only the wall clock."""

    def __init__(self, wall_ms: int = 1_800_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self._boots = 1

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def boot_id(self) -> str:
        return f"boot-{self._boots}/"

    def advance(self, ms: int) -> None:
        assert ms >= 0
        self._wall_ms += ms
        self._boot_ms += ms

    def jump(self, ms: int) -> None:
        self._wall_ms += ms

    def reboot(self) -> None:
        """Restart the boot clock with a new boot id."""
        self._boots += 1
        self._boot_ms = 1_000
