"""Durations as people write them → milliseconds; instants → RFC 3339.
`core.text.show_ms` formats a duration.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from holdfast.core.text import UNITS_MS, kind_of
from holdfast.errors import InvalidJob, UsageError

Duration: TypeAlias = int | float | str | timedelta
"""Seconds, a text such as "250ms", "30s", "5m", "2h" or "1d", or a timedelta."""

_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)?", re.ASCII)
_MS_MAX = 2**53
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(name: str, value: Duration, error: type[UsageError] = InvalidJob) -> int:
    """Convert a duration to milliseconds. Raises `error`, which names the value `name`."""
    given: object = value
    if isinstance(given, str):
        match = _TEXT.fullmatch(given.strip())
        if match is None:
            raise error(
                f'{name} "{given[:40]}": expected a duration such as 30s, 5m, 2h or 1d,'
                " or a number of seconds"
            )
        number, unit = match.groups()
        ms = float(number) * UNITS_MS[unit or "s"]
    elif isinstance(given, timedelta):
        ms = given / timedelta(milliseconds=1)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        ms = given * 1000.0 if abs(given) < _MS_MAX else float("inf")
    else:
        raise error(
            f"{name} is {kind_of(given)}: expected a number of seconds, a timedelta"
            ' or a text such as "30s"'
        )
    if not 0 <= ms < _MS_MAX:
        raise error(f"{name} {str(value)[:40]} is out of range: expected 0 to 285,000 years")
    return round(ms)


def show_at(instant: int) -> str:
    """An instant in milliseconds since 1970 as RFC 3339 in UTC."""
    precision = "milliseconds" if instant % 1000 else "seconds"
    moment = _EPOCH + timedelta(milliseconds=instant)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")
