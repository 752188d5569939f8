"""Durations and instants as people write them ↔ milliseconds, which is what all inside is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from holdfast.errors import InvalidJob, UsageError

Duration: TypeAlias = int | float | str | timedelta
"""Seconds, or a text such as "250ms", "30s", "5m", "2h", "1d", or a timedelta."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)?", re.ASCII)
_MS_MAX = 2**53
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(name: str, value: Duration, wrong: type[UsageError] = InvalidJob) -> int:
    """Milliseconds; what is no duration is refused as `wrong`, with its name in the text."""
    given: object = value
    if isinstance(given, str):
        match = _TEXT.fullmatch(given.strip())
        if match is None:
            raise wrong(
                f'{name} {given[:40]!r} is no duration: write 30, "30s", "5m", "2h" or "1d"'
            )
        number, unit = match.groups()
        ms = float(number) * _UNITS_MS[unit or "s"]
    elif isinstance(given, timedelta):
        ms = given / timedelta(milliseconds=1)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        ms = given * 1000.0 if abs(given) < _MS_MAX else float("inf")
    else:
        raise wrong(
            f"{name} is a {type(given).__name__}: give seconds, a timedelta, "
            'or a text such as "30s", "5m"'
        )
    if not 0 <= ms < _MS_MAX:
        raise wrong(f"{name} {str(value)[:40]} is negative, no number or too long for a duration")
    return round(ms)


def show_ms(ms: int) -> str:
    """The shortest exact text that `to_ms` reads back."""
    for unit in ("w", "d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def show_at(instant: int) -> str:
    """An instant in RFC 3339, in UTC."""
    precision = "milliseconds" if instant % 1000 else "seconds"
    moment = _EPOCH + timedelta(milliseconds=instant)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")
