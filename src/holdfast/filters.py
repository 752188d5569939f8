"""Which jobs are meant, in people's words: what they write → what a `JobFilter` has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict

from holdfast.core.model import JobFilter
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.upkeep import wall_ms


def is_narrow(wanted: JobFilter) -> bool:
    """Does it name anything besides states?"""
    return any(value is not None for name, value in asdict(wanted).items() if name != "states")


def instant(name: str, text: str | None) -> int | None:
    """So long ago, or a moment by the calendar, with its time zone."""
    if text is None:
        return None
    if "-" not in text:
        return max(wall_ms() - to_ms(name, text.removesuffix(" ago"), UsageError), 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{name} {text[:40]!r} is no time: write 1h, or 2026-01-31T08:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f"{name} {text[:40]!r} has no time zone: add Z, or +01:00")
    return max(round(moment.timestamp() * 1000), 0)


def pairs(name: str, given: Sequence[str] | None) -> dict[str, str] | None:
    """name=value, as often as it was given."""
    if given is None:
        return None
    split = [each.partition("=") for each in given]
    for each, (key, equals, _) in zip(given, split, strict=True):
        if not key or not equals:
            raise UsageError(f"{name} {each[:80]!r} is not name=value")
    found: dict[str, str] = {}
    for key, _, value in split:
        if found.setdefault(key, value) != value:
            raise UsageError(f"{name} {key[:80]!r} is given two values: it has one")
    return found
