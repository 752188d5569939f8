"""Is a partition in use, and when is one that was shut out asked again? Pure: `now` is given.

A partition that fails again soon after it was let back in goes on where its back-off was, so that
one that comes and goes is not asked for work every moment.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast.errors import HoldfastError, StorageFull

RETRY_MS_FIRST, RETRY_MS_MAX = 100, 30_000
WELL_MS = 60_000
"""Who was well for so long has its failures forgotten."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`out_at` None means in use; `error` is what it was shut out for, or met last."""

    out_at: int | None = None
    well_at: int = 0
    failures: int = 0
    error: HoldfastError | None = None

    @property
    def is_out(self) -> bool:
        return self.out_at is not None

    @property
    def settles(self) -> bool:
        """A full disk takes no new work, but what is in hand can still be settled there."""
        return not self.is_out or isinstance(self.error, StorageFull)


def after_failure(health: Health, error: HoldfastError, now: int) -> Health:
    if health.is_out:
        return replace(health, failures=health.failures + 1, error=error)
    forgotten = now - health.well_at >= WELL_MS
    return replace(
        health, out_at=now, failures=1 if forgotten else health.failures + 1, error=error
    )


def after_clean_read(health: Health, now: int) -> Health:
    return replace(health, out_at=None, well_at=now, error=None)


def retry_ms(health: Health) -> int:
    """The time to the next try, without the jitter."""
    return min(RETRY_MS_MAX, RETRY_MS_FIRST << min(max(health.failures - 1, 0), 20))
