"""The parts of a job filter as people write them: instants, and NAME=VALUE pairs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict

from holdfast.core.model import JobFilter
from holdfast.errors import UsageError
from holdfast.notation.durations import to_ms
from holdfast.process import wall_ms


def is_narrow(wanted: JobFilter) -> bool:
    """True if the filter restricts anything besides the state."""
    return any(value is not None for name, value in asdict(wanted).items() if name != "states")


def instant(name: str, text: str | None) -> int | None:
    """Read an age such as "1h" or a time in RFC 3339: milliseconds since 1970."""
    if text is None:
        return None
    if "-" not in text:
        return max(wall_ms() - to_ms(name, text.removesuffix(" ago"), UsageError), 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f'{name} "{text[:40]}": expected an age such as 1h, or a time such as'
            " 2026-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f'{name} "{text[:40]}" has no time zone: add Z, or an offset like +01:00')
    return max(round(moment.timestamp() * 1000), 0)


def pairs(name: str, given: Sequence[str] | None) -> dict[str, str] | None:
    """Read NAME=VALUE pairs. Raises UsageError if one name has two values."""
    if given is None:
        return None
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f'{name} "{text[:80]}": expected NAME=VALUE')
        if found.setdefault(key, value) != value:
            raise UsageError(f'{name} "{key[:80]}" is given two different values')
    return found
