"""Rates as people write them: "100/m", "5/s", "1000/10m", "100/m burst 20"."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from holdfast.core import limits
from holdfast.core.flow import Limit, Rate
from holdfast.core.flowing import check_limit
from holdfast.durations import show_ms, to_ms
from holdfast.errors import InvalidQueue, UsageError

RateText: TypeAlias = Rate | str
_TEXT = re.compile(r"\s*(\d{1,9})\s*/\s*([\w.]{1,20})(?:\s+burst\s+(\d{1,9}))?\s*", re.ASCII)
_EXAMPLES = '"100/m", "5/s", "1000/10m" or "100/m burst 20"'
_NO_NUMBER = ("ms", "s", "m", "h", "d", "w")


def to_rate(name: str, value: RateText, wrong: type[UsageError] = InvalidQueue) -> Rate:
    """A text is read, a Rate is itself; what is neither is refused as `wrong`, by its name."""
    given: object = value
    if isinstance(given, Rate):
        return given
    if not isinstance(given, str):
        raise wrong(f"{name} is a {type(given).__name__}: give a Rate or a text: {_EXAMPLES}")
    match = _TEXT.fullmatch(given)
    if match is None:
        raise wrong(f"{name} {given[:60]!r} is no rate: write {_EXAMPLES}")
    count, per, burst = match.groups()
    per_ms = to_ms(name, f"1{per}" if per in _NO_NUMBER else per, wrong)
    if int(count) < 1 or per_ms < 1 or (burst is not None and int(burst) < 1):
        raise wrong(f"{name} {given[:60]!r} lets nothing start: to stop a queue, pause it")
    if per_ms > limits.DAY_MS or int(count) > limits.RATE_COUNT_MAX:
        raise wrong(
            f"{name} {given[:60]!r} is over {limits.RATE_COUNT_MAX}, or per more than a day:"
            f" write {_EXAMPLES}"
        )
    return Rate(count=int(count), per_ms=per_ms, burst=int(burst or 1))


def task_limits(task: str, rate: object, concurrency: object) -> tuple[Limit, ...]:
    """The limits of a task, from what `@app.task` was told: a bound, or (bound, key template)."""
    found = []
    if concurrency is not None:
        most, key = _with_key("concurrency", task, concurrency)
        if type(most) is not int:
            raise UsageError(f"concurrency of task {task} is {most!r}: give a number of jobs")
        found.append(Limit(name=f"{task}/concurrency", task=task, key=key, concurrency=most))
    if rate is not None:
        text, key = _with_key("rate", task, rate)
        wanted = to_rate(f"rate of task {task}", text, UsageError)
        found.append(Limit(name=f"{task}/rate", task=task, key=key, rate=wanted))
    try:
        for limit in found:
            check_limit(limit)
    except InvalidQueue as error:
        raise UsageError(f"task {task}: {error}") from None
    return tuple(found)


def _with_key(name: str, task: str, given: object) -> tuple[Any, str]:
    if not isinstance(given, tuple):
        return given, ""
    if len(given) != 2 or not isinstance(given[1], str):
        raise UsageError(
            f"{name} of task {task} is {given!r}: give a bound, or a bound and a key,"
            ' such as (10, "{tenant}")'
        )
    return given[0], given[1]


def show_rate(rate: Rate) -> str:
    """The text that `to_rate` reads back."""
    per = show_ms(rate.per_ms)
    text = f"{rate.count}/{per[1:] if per[1:] in _NO_NUMBER and per[0] == '1' else per}"
    return text if rate.burst == 1 else f"{text} burst {rate.burst}"


def show_limit(limit: Limit) -> str:
    """What it bounds, in a line."""
    parts = []
    if limit.concurrency is not None:
        parts.append(f"{limit.concurrency} at a time")
    if limit.rate is not None:
        parts.append(show_rate(limit.rate))
    text = ", ".join(parts)
    if limit.key:
        text += f" for each {limit.key}"
    return text if limit.task is None else f"{text} of {limit.task}"
