"""The rules of the alerts, as data: what is measured, when it is too much, how bad that is.

Pure. The levels are settings that are stored with the queues, and may differ by queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from holdfast.config import SETTINGS, Settings
from holdfast.core import limits
from holdfast.core.levels import Levels
from holdfast.errors import ConfigError

Severity = Literal["warn", "critical"]
Unit = Literal["jobs", "ms", "bytes"]

COOL_DOWN: Final = "alert-cool-down"
WINDOW_MS: Final = limits.MINUTE_MS


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An alert is raised beyond the level of the rule's `setting`, and ends when the value is back
    at `clear` of that level: one that wavers around it is one alert. What is counted is counted
    over `window_ms`. With `floor` it is too little that is bad. `own` says that each server sees
    it for itself, and that it is about the whole store."""

    name: str
    setting: str
    severity: Severity
    unit: Unit
    says: str
    window_ms: int = 0
    clear: float = 0.8
    floor: bool = False
    own: bool = False
    scale: int = 1


RULES: Final[dict[str, Rule]] = {
    rule.name: rule
    for rule in (
        Rule(
            name="dead_letters",
            setting="alert-dead",
            severity="warn",
            unit="jobs",
            window_ms=WINDOW_MS,
            says="Jobs of the queue that died within the last minute.",
        ),
        Rule(
            name="depth",
            setting="alert-depth",
            severity="critical",
            unit="jobs",
            says="Ready jobs of the queue: due, and not leased.",
        ),
        Rule(
            name="oldest_age",
            setting="alert-age",
            severity="warn",
            unit="ms",
            says="How long the longest-due ready job of the queue has been due.",
        ),
        Rule(
            name="no_worker",
            setting="alert-no-worker",
            severity="critical",
            unit="ms",
            clear=0,
            says="The same, of a queue that no worker serves and nobody leases from.",
        ),
        Rule(
            name="partition_out",
            setting="alert-partition",
            severity="critical",
            unit="ms",
            clear=0,
            own=True,
            says="How long a partition has been shut out.",
        ),
        Rule(
            name="disk_floor",
            setting="alert-disk",
            severity="critical",
            unit="bytes",
            clear=1.1,
            floor=True,
            own=True,
            scale=1024**2,
            says="Bytes that are free on the disk of the store.",
        ),
    )
}


class Thresholds:
    """What holds now. A setting that cannot be read is as if nobody had set it, and `wrong` hears
    of it."""

    def __init__(self, held: Settings, wrong: Callable[[str], None]) -> None:
        self.cool_down_ms: int = _read(held, COOL_DOWN, wrong)
        self._levels: dict[str, Levels] = {}
        for rule in RULES.values():
            value = _read(held, rule.setting, wrong)
            if isinstance(value, bool):
                value = Levels(0 if value else None)
            self._levels[rule.name] = value

    def of(self, rule: Rule, queue: str = "") -> int | None:
        """None is off."""
        level = self._levels[rule.name].of(queue)
        return None if level is None else level * rule.scale


def _read(held: Settings, name: str, wrong: Callable[[str], None]) -> Any:
    try:
        value = held.value(name)
    except ConfigError as error:
        wrong(str(error))
        value = None
    return SETTINGS[name].read(SETTINGS[name].default) if value is None else value
