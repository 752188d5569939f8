"""Templates such as `{header.kind|mail}`, which take text from a message or a job.

They are parsed here and never given to `str.format`: a value is not expanded again, and no
placeholder reaches into an object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from holdfast.errors import ConfigError, InvalidJob


class Placeholder(NamedTuple):
    """A field of a message or a job; `default` is used if it is missing."""

    name: str
    default: str | None


@lru_cache(maxsize=1_000)
def parse(template: str) -> tuple[str | Placeholder, ...]:
    """The texts and placeholders of a template; {{ and }} are braces. Raises ConfigError."""
    parts: list[str | Placeholder] = []
    text, at = "", 0
    while at < len(template):
        char = template[at]
        if template[at : at + 2] in ("{{", "}}"):
            text, at = text + char, at + 2
        elif char == "{":
            end = template.find("}", at)
            inside = template[at + 1 : end]
            name, bar, default = inside.partition("|")
            if end < 0 or not name or name.endswith(".") or "{" in inside:
                raise ConfigError(_malformed(template))
            parts += [text, Placeholder(name, default if bar else None)]
            text, at = "", end + 1
        elif char == "}":
            raise ConfigError(_malformed(template))
        else:
            text, at = text + char, at + 1
    return tuple(part for part in (*parts, text) if part != "")


def expand(template: str, find: Callable[[str], str | None]) -> str:
    """The text of a template. `find` returns the value of a placeholder, None or "" if it is
    missing. Raises InvalidJob if one without a default is missing."""
    found = ""
    for part in parse(template):
        if isinstance(part, str):
            found += part
            continue
        value = find(part.name) or part.default
        if value is None:
            raise InvalidJob(
                f"{part.name[:80]} is missing, which {template[:80]!r} needs: give a default, as in"
                f" {{{part.name[:80]}|unknown}}"
            )
        found += value
    return found


def is_literal(template: str) -> bool:
    """Whether a template has no placeholders."""
    return all(isinstance(part, str) for part in parse(template))


def _malformed(template: str) -> str:
    return (
        f"template {template[:80]!r} is malformed: write {{header.NAME}} or"
        f" {{header.NAME|default}}, and {'{{'} or {'}}'} for a brace"
    )
