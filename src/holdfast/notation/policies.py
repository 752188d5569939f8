"""Backoffs, circuit breakers, rates and limits as people write them.

Backoffs: "exponential(2s, max=10m)", "linear(5s)"; options that are left out have the defaults of
`core.backoff.Backoff`. Breakers: "5 failures, 30s", "50% of 20 in 1m, 30s to 10m". Rates: "100/m",
"100/m burst 20".
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.breaker import Breaker
from holdfast.core.checks import check_limit
from holdfast.core.limits import Limit, Rate
from holdfast.core.text import kind_of, show_ms
from holdfast.errors import InvalidQueue, UsageError
from holdfast.notation.durations import to_ms

_BACKOFF = re.compile(r"\s*(\w{1,20})\s*\(([^()]{0,200})\)\s*")
_BACKOFF_EXAMPLES = '"exponential(2s, max=10m)", "linear(5s, max=1m)" or "constant(5s, jitter=0)"'
_BACKOFF_KINDS = ("exponential", "linear", "constant")
_BACKOFF_NUMBERS = ("factor", "jitter")


def to_backoff(name: str, value: Backoff | str, error: type[UsageError] = InvalidQueue) -> Backoff:
    """Read a backoff; a Backoff is returned as it is. Raises `error`, which names it `name`."""
    given: object = value
    if isinstance(given, Backoff):
        return given
    if not isinstance(given, str):
        raise error(
            f"{name} is {kind_of(given)}: give a Backoff or a text such as {_BACKOFF_EXAMPLES}"
        )
    shown = f'{name} "{given[:60]}"'
    match = _BACKOFF.fullmatch(given)
    if match is None or match[1] not in _BACKOFF_KINDS:
        raise error(f"{shown}: expected a backoff such as {_BACKOFF_EXAMPLES}")
    first, *options = (part.strip() for part in match[2].split(","))
    if not first or "=" in first:
        raise error(f"{shown} must begin with its first delay, such as {_BACKOFF_EXAMPLES}")
    settings: dict[str, Any] = {"kind": match[1], "first_ms": to_ms(name, first, error)}
    for option in options:
        key, setting = _backoff_option(name, option, error)
        if key in settings:
            raise error(f"{shown} gives {option.partition('=')[0].strip()} twice")
        settings[key] = setting
    # A first delay above the default cap raises the cap instead of being cut down.
    cap_ms = settings.setdefault("cap_ms", max(Backoff().cap_ms, settings["first_ms"]))
    if cap_ms < settings["first_ms"]:
        raise error(f"{shown} has a max below its first delay")
    try:
        return Backoff(**settings)
    except InvalidQueue as invalid:
        raise error(f"{shown}: {invalid}") from None


def show_backoff(backoff: Backoff) -> str:
    """The text that `to_backoff` reads back."""
    parts = [show_ms(backoff.first_ms), f"max={show_ms(backoff.cap_ms)}"]
    parts += [
        f"{name}={getattr(backoff, name):g}"
        for name in _BACKOFF_NUMBERS
        if getattr(backoff, name) != getattr(Backoff(), name)
    ]
    return f"{backoff.kind}({', '.join(parts)})"


def _backoff_option(name: str, option: str, error: type[UsageError]) -> tuple[str, int | float]:
    key, equals, text = (part.strip() for part in option.partition("="))
    if equals and key == "max":
        return "cap_ms", to_ms(f"max of {name}", text, error)
    if equals and key in _BACKOFF_NUMBERS and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII):
        return key, float(text)
    raise error(f'unknown option "{option[:40]}" of {name}: use max=10m, factor=2 or jitter=0.5')


BreakerText: TypeAlias = Breaker | str
_BREAKER_CONDITION = re.compile(
    r"(?:(?P<failures>\d{1,6}) failures?"
    r"|(?P<percent>\d{1,3})% of (?P<calls>\d{1,6}) in (?P<window>[\w.]{1,20}))",
    re.ASCII,
)
_BREAKER_COOLDOWN = re.compile(r"(?P<first>[\w.]{1,20})(?: to (?P<longest>[\w.]{1,20}))?", re.ASCII)
_BREAKER_EXAMPLES = '"5 failures, 30s" or "50% of 20 in 1m, 30s to 10m"'


def to_breaker(name: str, value: BreakerText) -> Breaker:
    """Read a breaker's condition and cooldown. Raises UsageError, which names it `name`."""
    given: object = value
    if isinstance(given, Breaker):
        return checked_breaker(name, given)
    if not isinstance(given, str):
        raise UsageError(f"{name} is {kind_of(given)}: expected a text such as {_BREAKER_EXAMPLES}")
    condition_text, comma, cooldown_text = (part.strip() for part in given.partition(","))
    condition = _BREAKER_CONDITION.fullmatch(condition_text)
    cooldown = _BREAKER_COOLDOWN.fullmatch(cooldown_text)
    if condition is None or (comma and cooldown is None):
        raise UsageError(f'{name} "{given[:60]}": expected a breaker such as {_BREAKER_EXAMPLES}')
    breaker = Breaker()
    if condition["failures"]:
        breaker = replace(breaker, failures=int(condition["failures"]))
    else:
        breaker = replace(
            breaker,
            share=int(condition["percent"]) / 100,
            calls_min=int(condition["calls"]),
            window_ms=to_ms(name, condition["window"], UsageError),
        )
    if cooldown is not None:
        first_ms = to_ms(name, cooldown["first"], UsageError)
        longest = cooldown["longest"]
        longest_ms = to_ms(name, longest, UsageError) if longest else 20 * first_ms
        breaker = replace(breaker, cooldown_ms=first_ms, cooldown_ms_max=longest_ms)
    return checked_breaker(name, breaker)


def checked_breaker(name: str, breaker: Breaker) -> Breaker:
    """The breaker, if its numbers are in bounds. Raises UsageError with the value and the bound."""
    ranges = (
        ("failures", breaker.failures, 1, bounds.ATTEMPTS_MAX),
        ("calls_min", breaker.calls_min, 1, bounds.ATTEMPTS_MAX),
        ("window", breaker.window_ms, bounds.SECOND_MS, bounds.DAY_MS),
        ("cooldown", breaker.cooldown_ms, 100, bounds.DAY_MS),
        ("longest cooldown", breaker.cooldown_ms_max, breaker.cooldown_ms, 30 * bounds.DAY_MS),
    )
    for what, number, low, high in ranges:
        if type(number) is not int or not low <= number <= high:
            raise UsageError(f"{name}: {what} {number!r} is out of range: expected {low} to {high}")
    share = breaker.share
    if share is not None and not 0 < share <= 1:
        raise UsageError(
            f"{name}: share {share!r} is out of range: expected more than 0 and at most 1"
        )
    return breaker


def show_breaker(breaker: Breaker) -> str:
    """The text that `to_breaker` reads back."""
    if breaker.share is None:
        condition = f"{breaker.failures} failure{'' if breaker.failures == 1 else 's'}"
    else:
        window = show_ms(breaker.window_ms)
        condition = f"{breaker.share * 100:.0f}% of {breaker.calls_min} in {window}"
    return f"{condition}, {show_ms(breaker.cooldown_ms)} to {show_ms(breaker.cooldown_ms_max)}"


RateText: TypeAlias = Rate | str
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*([\w.]{1,20})(?:\s+burst\s+(\d{1,9}))?\s*", re.ASCII)
_RATE_EXAMPLES = '"100/m", "5/s", "1000/10m" or "100/m burst 20"'
_BARE_UNITS = ("ms", "s", "m", "h", "d", "w")


def to_rate(name: str, value: RateText, error: type[UsageError] = InvalidQueue) -> Rate:
    """Read a rate; a Rate is returned as it is. Raises `error`, which names the value `name`."""
    given: object = value
    if isinstance(given, Rate):
        return given
    if not isinstance(given, str):
        raise error(f"{name} is {kind_of(given)}: give a Rate or a text such as {_RATE_EXAMPLES}")
    match = _RATE.fullmatch(given)
    if match is None:
        raise error(f'{name} "{given[:60]}": expected a rate such as {_RATE_EXAMPLES}')
    count, per, burst = match.groups()
    per_ms = to_ms(name, f"1{per}" if per in _BARE_UNITS else per, error)
    if int(count) < 1 or per_ms < 1 or (burst is not None and int(burst) < 1):
        raise error(f'{name} "{given[:60]}" allows no start at all: to stop a queue, pause it')
    if per_ms > bounds.DAY_MS or int(count) > bounds.RATE_COUNT_MAX:
        raise error(
            f'{name} "{given[:60]}": expected at most {bounds.RATE_COUNT_MAX} per period, and a'
            f" period of at most a day, such as {_RATE_EXAMPLES}"
        )
    return Rate(count=int(count), per_ms=per_ms, burst=int(burst or 1))


def show_rate(rate: Rate) -> str:
    """The text that `to_rate` reads back."""
    per = show_ms(rate.per_ms)
    text = f"{rate.count}/{per[1:] if per[1:] in _BARE_UNITS and per[0] == '1' else per}"
    return text if rate.burst == 1 else f"{text} burst {rate.burst}"


def show_limit(limit: Limit) -> str:
    """A limit in a line: "10 at a time, 100/m for each {tenant} of mail:send"."""
    parts = []
    if limit.concurrency is not None:
        parts.append(f"{limit.concurrency} at a time")
    if limit.rate is not None:
        parts.append(show_rate(limit.rate))
    text = ", ".join(parts)
    if limit.key:
        text += f" for each {limit.key}"
    return text if limit.task is None else f"{text} of {limit.task}"


def task_limits(task: str, rate: object, concurrency: object) -> tuple[Limit, ...]:
    """The limits of `@app.task(rate=…, concurrency=…)`: each a bound, or (bound, key template)."""
    found = []
    if concurrency is not None:
        jobs, key = _bound_and_key("concurrency", task, concurrency)
        if type(jobs) is not int:
            raise UsageError(f"concurrency of task {task} is {jobs!r}: give a number of jobs")
        found.append(Limit(name=f"{task}/concurrency", task=task, key=key, concurrency=jobs))
    if rate is not None:
        text, key = _bound_and_key("rate", task, rate)
        starts = to_rate(f"rate of task {task}", text, UsageError)
        found.append(Limit(name=f"{task}/rate", task=task, key=key, rate=starts))
    try:
        for limit in found:
            check_limit(limit)
    except InvalidQueue as error:
        raise UsageError(f"task {task}: {error}") from None
    return tuple(found)


def _bound_and_key(name: str, task: str, given: object) -> tuple[Any, str]:
    if not isinstance(given, tuple):
        return given, ""
    if len(given) != 2 or not isinstance(given[1], str):
        raise UsageError(
            f"{name} of task {task} is {given!r}: give a bound, or a bound and a key"
            ' such as (10, "{tenant}")'
        )
    return given[0], given[1]
