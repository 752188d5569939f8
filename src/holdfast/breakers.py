"""Breakers as people write them: "5 failures, 30s", "50% of 20 in 1m, 30s to 10m"."""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.breaker import Breaker
from holdfast.durations import show_ms, to_ms
from holdfast.errors import UsageError

BreakerText: TypeAlias = Breaker | str
_WHEN = re.compile(
    r"(?:(?P<failures>\d{1,6}) failures?"
    r"|(?P<percent>\d{1,3})% of (?P<calls>\d{1,6}) in (?P<window>[\w.]{1,20}))",
    re.ASCII,
)
_HOW_LONG = re.compile(r"(?P<first>[\w.]{1,20})(?: to (?P<most>[\w.]{1,20}))?", re.ASCII)
_EXAMPLES = '"5 failures, 30s" or "50% of 20 in 1m, 30s to 10m"'


def to_breaker(name: str, value: BreakerText) -> Breaker:
    """A text is read, a Breaker is itself; what is neither is refused, by its name."""
    given: object = value
    if isinstance(given, Breaker):
        return checked_breaker(name, given)
    if not isinstance(given, str):
        raise UsageError(f"{name} is a {type(given).__name__}: give a text: {_EXAMPLES}")
    when_text, comma, how_long_text = (part.strip() for part in given.partition(","))
    when, how_long = _WHEN.fullmatch(when_text), _HOW_LONG.fullmatch(how_long_text)
    if when is None or (comma and how_long is None):
        raise UsageError(f"{name} {given[:60]!r} is no breaker: write {_EXAMPLES}")
    breaker = Breaker()
    if when["failures"]:
        breaker = replace(breaker, failures=int(when["failures"]))
    else:
        breaker = replace(
            breaker,
            share=int(when["percent"]) / 100,
            calls_min=int(when["calls"]),
            window_ms=to_ms(name, when["window"], UsageError),
        )
    if how_long is not None:
        first_ms = to_ms(name, how_long["first"], UsageError)
        most_ms = to_ms(name, how_long["most"], UsageError) if how_long["most"] else 20 * first_ms
        breaker = replace(breaker, cooldown_ms=first_ms, cooldown_ms_max=most_ms)
    return checked_breaker(name, breaker)


def checked_breaker(name: str, breaker: Breaker) -> Breaker:
    """Raise UsageError with the value and the bound."""
    bounds = (
        ("failures", breaker.failures, 1, limits.ATTEMPTS_MAX),
        ("calls_min", breaker.calls_min, 1, limits.ATTEMPTS_MAX),
        ("window", breaker.window_ms, limits.SECOND_MS, limits.DAY_MS),
        ("cooldown", breaker.cooldown_ms, 100, limits.DAY_MS),
        ("longest cooldown", breaker.cooldown_ms_max, breaker.cooldown_ms, 30 * limits.DAY_MS),
    )
    for what, number, low, high in bounds:
        if type(number) is not int or not low <= number <= high:
            raise UsageError(f"{name}: {what} {number!r} is not {low} to {high}")
    share = breaker.share
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"{name}: a share of {share!r} is not over 0 and at most 1")
    return breaker


def show_breaker(breaker: Breaker) -> str:
    """The text that `to_breaker` reads back."""
    if breaker.share is None:
        when = f"{breaker.failures} failure{'' if breaker.failures == 1 else 's'}"
    else:
        window = show_ms(breaker.window_ms)
        when = f"{breaker.share * 100:.0f}% of {breaker.calls_min} in {window}"
    return f"{when}, {show_ms(breaker.cooldown_ms)} to {show_ms(breaker.cooldown_ms_max)}"
