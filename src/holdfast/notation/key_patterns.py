"""Patterns of keys in JSON: `password`, `*_token`, `card.*`.

A pattern is one or more parts with dots between them; `*` in a part stands for any characters. It
matches a key, at any depth, whose last parts match: `card.*` every key of an object under `card`.
Lists add no part, and a key that contains dots counts as several parts. Upper and lower case of
ASCII letters are the same.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from holdfast.errors import ConfigError

PATTERNS_MAX = 100
PATTERN_LENGTH_MAX = 200
PARTS_MAX = 10

_PART = re.compile(r"[^\s.,?\[\]\"\\\x00-\x1f]+\Z")
_CACHED_LENGTH_MAX = 100


class KeyPattern(Struct, frozen=True):
    """One pattern. `fragment` is the longest text that every key it matches contains; it may be
    empty."""

    parts: tuple[str, ...]
    fragment: bytes

    def matches(self, path: Sequence[str]) -> bool:
        """True if the last parts of a path of keys match."""
        count = len(self.parts)
        return len(path) >= count and all(map(_matches, self.parts, path[-count:]))


def read_key_patterns(name: str, text: str) -> tuple[KeyPattern, ...]:
    """The patterns in a text, separated by commas; `name` is the setting. Raises ConfigError."""
    found = []
    for given in filter(None, (each.strip() for each in text.split(","))):
        parts = given.split(".")
        if (
            len(given) > PATTERN_LENGTH_MAX
            or len(parts) > PARTS_MAX
            or not all(map(_PART.match, parts))
        ):
            raise ConfigError(
                f"{name} {given[:40]!r} is not valid: expected keys with dots between them, such as"
                " password, *_token or card.*, where * stands for any characters"
            )
        fragments = (each.encode().lower() for part in parts for each in part.split("*"))
        found.append(KeyPattern(tuple(parts), max(fragments, key=len)))
    if not 1 <= len(found) <= PATTERNS_MAX:
        raise ConfigError(
            f"{name} has {len(found)} patterns: expected 1 to {PATTERNS_MAX}, separated by commas,"
            " such as password,*_token"
        )
    return tuple(found)


def _matches(part: str, key: str) -> bool:
    if len(key) > _CACHED_LENGTH_MAX:
        return _expression(part).match(key) is not None
    return _short_matches(part, key)


@lru_cache(maxsize=10_000)
def _short_matches(part: str, key: str) -> bool:
    return _expression(part).match(key) is not None


@lru_cache(maxsize=1_000)
def _expression(part: str) -> re.Pattern[str]:
    # Its expressions take linear time, however many stars there are.
    return re.compile(fnmatch.translate(part), re.IGNORECASE | re.ASCII)
