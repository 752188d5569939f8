"""Backoff: attempt number → delay before the next attempt. The random number is passed in."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from holdfast.core.bounds import DELAY_MS_MAX
from holdfast.errors import InvalidQueue

Kind = Literal["exponential", "linear", "constant"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The delay between attempts: `first_ms` after the first, then growing by `kind` to `cap_ms`.

    `jitter` is the share of the delay that is drawn at random: 1 spreads it over the whole delay,
    0 makes it exact.
    """

    kind: Kind = "exponential"
    """How the delay grows."""
    first_ms: int = 2_000
    """The delay after the first attempt."""
    factor: float = 2.0
    """The growth of an exponential delay."""
    cap_ms: int = 300_000
    """The longest delay."""
    jitter: float = 1.0
    """The random share of the delay, from 0 to 1."""

    def __post_init__(self) -> None:
        # Types too: a stored value of a wrong type would make its queue unreadable.
        if self.kind not in get_args(Kind):
            raise InvalidQueue(f"backoff kind is {self.kind!r}; use {', '.join(get_args(Kind))}")
        for name, value, low, high, kinds in (
            ("first_ms", self.first_ms, 0, DELAY_MS_MAX, (int,)),
            ("cap_ms", self.cap_ms, 0, DELAY_MS_MAX, (int,)),
            ("factor", self.factor, 1, 100, (int, float)),
            ("jitter", self.jitter, 0, 1, (int, float)),
        ):
            if type(value) not in kinds or not low <= value <= high:
                what = "a whole number " if kinds == (int,) else ""
                raise InvalidQueue(f"backoff {name} is {value!r}; use {what}{low} to {high}")

    def delay_ms(self, attempt: int, draw: float) -> int:
        """The delay after `attempt` runs; `draw` is a random number in [0, 1)."""
        assert attempt >= 1
        assert 0.0 <= draw < 1.0
        full = min(self._full_ms(attempt), self.cap_ms)
        return round(full * (1.0 - self.jitter * draw))

    def _full_ms(self, attempt: int) -> float:
        match self.kind:
            case "constant":
                return self.first_ms
            case "linear":
                return self.first_ms * attempt
            case "exponential":
                # Bounded, because a float power overflows; every cap is reached long before.
                steps = min(attempt - 1, 100)
                return min(self.first_ms * self.factor**steps, float(DELAY_MS_MAX))
