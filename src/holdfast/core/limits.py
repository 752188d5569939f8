"""Concurrency limits and rates of a queue: the values and their arithmetic.

Rates count in microseconds, so that a thousand starts a second are evenly spaced. An engine stores
the counters; these functions compute what they allow.
"""

from __future__ import annotations

import msgspec


class Rate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most `count` leases in any `per_ms`, evenly spaced, with up to `burst` at once.

    With a burst above 1, a window may contain `burst - 1` more.
    """

    count: int
    per_ms: int
    burst: int = 1

    @property
    def apart_us(self) -> int:
        """The time between two evenly spaced starts."""
        return -(-self.per_ms * 1_000 // self.count)


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit on the jobs of a queue, or of one task in it, that share a key.

    `key` is a template such as "{tenant}:{region}"; all jobs share an empty one. Queues whose
    limits have the same `name` share its slots.
    """

    name: str
    task: str | None = None
    key: str = ""
    concurrency: int | None = None
    rate: Rate | None = None


class SlotKey(msgspec.Struct, frozen=True, order=True):
    """One counter of one limit: the limit's name, and the key its template gives for a job."""

    limit: str
    key: str


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of one counter. `free_ms` is the time until its rate allows another start;
    `holders` are the first jobs that hold it, by id."""

    limit: str
    key: str
    concurrency: int | None
    rate: Rate | None
    used: int
    free_ms: int = 0
    holders: tuple[str, ...] = ()


def starts_now(rate: Rate, free_us: int, now_us: int) -> int:
    """How many jobs may start now if the next evenly spaced start is at `free_us`."""
    ahead = max(0, free_us - now_us)
    return max(0, rate.burst * rate.apart_us - ahead) // rate.apart_us


def after_starts(rate: Rate, free_us: int, now_us: int, count: int) -> int:
    """The next `free_us` after `count` more starts."""
    return max(free_us, now_us) + count * rate.apart_us


def free_ms(rate: Rate, free_us: int, now_us: int) -> int:
    """Milliseconds until one more job may start; 0 means now."""
    ahead = free_us - now_us - (rate.burst - 1) * rate.apart_us
    return max(0, -(-ahead // 1_000))


def clamp_free_us(rate: Rate, free_us: int, now_us: int) -> int:
    """`free_us`, bounded by what the rate can reach. A later value was stored before the clock was
    set back or the rate was changed."""
    return min(free_us, now_us + rate.burst * rate.apart_us)
