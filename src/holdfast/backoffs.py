"""Backoff as people write it: "exponential(2s, max=10m)", "linear(5s)", "constant(1m, jitter=0)".

What is left out is as `Backoff` has it by default.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.core.backoff import Backoff
from holdfast.durations import show_ms, to_ms
from holdfast.errors import InvalidQueue, UsageError

_TEXT = re.compile(r"\s*(\w{1,20})\s*\(([^()]{0,200})\)\s*")
_EXAMPLES = '"exponential(2s, max=10m)", "linear(5s, max=1m)" or "constant(5s, jitter=0)"'
_KINDS = ("exponential", "linear", "constant")
_NUMBERS = ("factor", "jitter")


def to_backoff(name: str, value: Backoff | str, wrong: type[UsageError] = InvalidQueue) -> Backoff:
    """A text is read, a Backoff is itself; what is neither is refused as `wrong`, by its name."""
    given: object = value
    if isinstance(given, Backoff):
        return given
    if not isinstance(given, str):
        raise wrong(f"{name} is a {type(given).__name__}: give a Backoff or a text: {_EXAMPLES}")
    match = _TEXT.fullmatch(given)
    if match is None or match[1] not in _KINDS:
        raise wrong(f"{name} {given[:60]!r} is no backoff: write {_EXAMPLES}")
    first, *options = (part.strip() for part in match[2].split(","))
    if not first or "=" in first:
        raise wrong(f"{name} {given[:60]!r} does not begin with its first delay: write {_EXAMPLES}")
    settings: dict[str, Any] = {"kind": match[1], "first_ms": to_ms(name, first, wrong)}
    for option in options:
        key, setting = _option(name, option, wrong)
        if key in settings:
            raise wrong(f"{name} {given[:60]!r} says {option.partition('=')[0].strip()} twice")
        settings[key] = setting
    # The default bound is for the default delays: a longer first one is not cut down by it.
    cap_ms = settings.setdefault("cap_ms", max(Backoff().cap_ms, settings["first_ms"]))
    if cap_ms < settings["first_ms"]:
        raise wrong(f"{name} {given[:60]!r} has a max below its first delay")
    try:
        return Backoff(**settings)
    except InvalidQueue as error:
        raise wrong(f"{name} {given[:60]!r}: {error}") from None


def show_backoff(backoff: Backoff) -> str:
    """The text that `to_backoff` reads back."""
    parts = [show_ms(backoff.first_ms), f"max={show_ms(backoff.cap_ms)}"]
    parts += [
        f"{name}={getattr(backoff, name):g}"
        for name in _NUMBERS
        if getattr(backoff, name) != getattr(Backoff(), name)
    ]
    return f"{backoff.kind}({', '.join(parts)})"


def _option(name: str, option: str, wrong: type[UsageError]) -> tuple[str, int | float]:
    key, equals, text = (part.strip() for part in option.partition("="))
    if equals and key == "max":
        return "cap_ms", to_ms(f"max of {name}", text, wrong)
    if equals and key in _NUMBERS and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII):
        return key, float(text)
    raise wrong(f"{name} has no option {option[:40]!r}: it has max=10m, factor=2 and jitter=0.5")
