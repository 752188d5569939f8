"""Settings that are stored beside the jobs: their names, what they may be, and who wins.

A stored value loses to the environment (`max-retries` is HOLDFAST_MAX_RETRIES), which loses to a
flag of the command line. What nobody said has a default, or is left to the queue.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.backoff import Backoff
from holdfast.core.levels import read_levels
from holdfast.core.model import Record
from holdfast.durations import show_ms, to_ms
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable

KIND = "setting"
_ROUNDS_MAX = 10

Type = Literal["number", "share", "duration", "switch", "queues", "level", "levels", "ages"]
"""Levels are numbers and ages durations, or off: one for all queues and others for single ones."""
Source = Literal["default", "stored", "environment"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """`default` is only told: "" where something else decides, as `does` says. `low` and `high`
    bound a number, or a duration in milliseconds."""

    name: str
    type: Type
    default: str
    does: str
    feeds: str
    low: float = 0
    high: float = 1_000_000

    @property
    def variable(self) -> str:
        return "HOLDFAST_" + self.name.replace("-", "_").upper()

    def read(self, text: str) -> Any:
        """What the text means: milliseconds, a number, a bool, queues by weight or levels."""
        given = text.strip()
        match self.type:
            case "duration":
                value: float = to_ms(self.name, given, ConfigError)
            case "number" | "share":
                value = self._number(given)
            case "switch":
                if given.lower() not in _SWITCH:
                    raise ConfigError(f"{self.name} {given[:40]!r} is not yes or no")
                return _SWITCH[given.lower()]
            case "queues":
                return queue_weights(given)
            case "level" | "levels" | "ages":
                one = replace(self, type="duration" if self.type == "ages" else "number")
                by_queue = self.type != "level"
                return read_levels(self.name, given, one.read, by_queue=by_queue)
        if not self.low <= value <= self.high:
            show = show_ms if self.type == "duration" else "{:g}".format
            bounds = f"{show(int(self.low))} to {show(int(self.high))}"
            raise ConfigError(f"{self.name} {given[:40]!r} is not {bounds}")
        return value

    def _number(self, given: str) -> float:
        pattern = r"\d{1,9}" if self.type == "number" else r"\d{1,9}(\.\d{1,6})?"
        if not re.fullmatch(pattern, given, re.ASCII):
            what = "a whole number" if self.type == "number" else "a number"
            bounds = f"{self.low:g} to {self.high:.0f}"
            raise ConfigError(f"{self.name} {given[:40]!r} is not {what}, {bounds}")
        return int(given) if self.type == "number" else float(given)


_SWITCH = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}
_ENQUEUE = "enqueue"
_WORKERS = "worker start, worker run, up"
_ALERTS = "serve, up"


def _job(name: str, type: Type, default: str, does: str, low: float, high: float) -> Setting:
    return Setting(
        name=name, type=type, default=default, does=does, feeds=_ENQUEUE, low=low, high=high
    )


def _worker(
    name: str, type: Type, default: str, does: str, low: float = 0, high: float = 0
) -> Setting:
    return Setting(
        name=name, type=type, default=default, does=does, feeds=_WORKERS, low=low, high=high
    )


def _alert(name: str, type: Type, default: str, does: str, high: float) -> Setting:
    return Setting(name=name, type=type, default=default, does=does, feeds=_ALERTS, high=high)


def _history(name: str, default: str, does: str) -> Setting:
    return Setting(
        name=name,
        type="duration",
        default=default,
        does=does,
        feeds="upkeep",
        low=limits.SECOND_MS,
        high=limits.RETENTION_MS_MAX,
    )


_TABLE = (
    _job("max-retries", "number", "3", "Runs of a job after its first one.", 0, 999_999),
    _job("max-crashes", "number", "3", "Crashes of a worker under a job.", 1, 1_000_000),
    _job("backoff-base", "share", "2", "Delay: this many seconds to the power of the run.", 1, 100),
    _job("backoff-max", "duration", "5m", "The longest such delay.", 0, limits.DELAY_MS_MAX),
    _job("backoff-jitter", "share", "0", "The share of such a delay that is random.", 0, 1),
    _job("job-timeout", "duration", "", "How long a run may take.", 1, limits.DELAY_MS_MAX),
    _job(
        "lease",
        "duration",
        "30s",
        "How long a worker that went silent keeps a job.",
        limits.LEASE_MS_MIN,
        limits.LEASE_MS_MAX,
    ),
    _job(
        "addressed-ttl",
        "duration",
        "5m",
        "How long a job addressed to a worker waits for it.",
        1,
        limits.DELAY_MS_MAX,
    ),
    _worker("worker-queues", "queues", "default", "Queues by weight: mail:10,default."),
    _worker("worker-processes", "number", "", "Child processes; by default one a core.", 0, 256),
    _worker("worker-concurrency", "number", "16", "Jobs at once in each of them.", 1, 10_000),
    _worker("worker-prefetch", "number", "1000", "Jobs leased ahead, at most.", 0, 1_000),
    _worker("worker-grace", "duration", "30s", "How long a stop waits.", 0, limits.DAY_MS),
    _worker("worker-shell", "switch", "", "Run a text by the shell; by default on a local file."),
    _worker(
        "worker-output-max", "number", "65536", "Bytes of output kept.", 1024, limits.OUTPUT_MAX
    ),
    _alert("alert-dead", "levels", "10", "Alert: more dead letters of a queue in a minute.", 10**9),
    _alert("alert-depth", "levels", "100", "Alert: more ready jobs in a queue.", 10**9),
    _alert("alert-age", "ages", "5m", "Alert: a ready job is due for longer.", limits.DELAY_MS_MAX),
    _alert(
        "alert-no-worker",
        "ages",
        "30s",
        "Alert: a ready job is due for longer, and no worker serves its queue.",
        limits.DELAY_MS_MAX,
    ),
    _alert("alert-partition", "switch", "yes", "Alert: a partition is shut out.", 0),
    _alert("alert-disk", "level", "1024", "Alert: fewer MiB are free on the disk.", 10**9),
    _alert("alert-cool-down", "duration", "5m", "The same alert is not told again.", limits.DAY_MS),
    _history("history-minutes", "1d", "How long charts go back by minutes."),
    _history("history-hours", "14d", "How long by hours."),
    _history("history-days", "400d", "How long by days."),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}


class Given(msgspec.Struct, frozen=True):
    text: str
    source: Source


class Settings:
    """What holds now."""

    def __init__(self, stored: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._given: dict[str, Given] = {}
        for setting in SETTINGS.values():
            if environment.get(setting.variable):
                self._given[setting.name] = Given(environment[setting.variable], "environment")
            elif setting.name in stored:
                self._given[setting.name] = Given(stored[setting.name], "stored")

    def shown(self, name: str) -> Given:
        return self._given.get(name) or Given(known(name).default, "default")

    def value(self, name: str) -> Any:
        """As the setting reads it; None where nobody said anything."""
        setting = known(name)
        given = self._given.get(name)
        if given is None:
            return None
        try:
            return setting.read(given.text)
        except ConfigError as error:
            where = setting.variable if given.source == "environment" else "the stored setting"
            raise ConfigError(f"{where}: {error}") from None

    def backoff(self) -> Backoff | None:
        """Of the three settings about it; None when none of them is given."""
        base, cap_ms, jitter = (self.value(f"backoff-{part}") for part in ("base", "max", "jitter"))
        if base is None and cap_ms is None and jitter is None:
            return None
        base = 2.0 if base is None else base
        return Backoff(
            first_ms=round(base * 1000),
            factor=base,
            cap_ms=Backoff().cap_ms if cap_ms is None else cap_ms,
            jitter=jitter or 0.0,
        )


def known(name: str) -> Setting:
    setting = SETTINGS.get(name.replace("_", "-"))
    if setting is None:
        close = difflib.get_close_matches(name.replace("_", "-"), SETTINGS, 1)
        remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        raise ConfigError(f"there is no setting {name[:80]!r}: {remedy}")
    return setting


async def settings(engine: Engine, environment: Mapping[str, str] | None = None) -> Settings:
    """What is stored, under what the environment says."""
    records = await engine.load(KIND, limit=limits.PAGE_MAX)
    stored = {each.key: each.value.decode() for each in records if each.value is not None}
    return Settings(stored, os.environ if environment is None else environment)


async def store(engine: Engine, name: str, text: str | None) -> bool:
    """Keep a value, or forget it; False when that changed nothing."""
    setting = known(name)
    if text is not None:
        setting.read(text)
    value = None if text is None else text.strip().encode()
    for _ in range(_ROUNDS_MAX):
        records = await engine.load(KIND, limit=limits.PAGE_MAX)
        there = next((each for each in records if each.key == setting.name), None)
        if value == (there.value if there else None):
            return False
        record = Record(
            kind=KIND, key=setting.name, value=value, version=there.version if there else 0
        )
        [saved] = await engine.save([record])
        if saved is Saved.SAVED:
            return True
    raise EngineUnavailable(f"{setting.name} is being changed by others: try again")


def queue_weights(text: str) -> dict[str, int]:
    """`mail:10,default` → how much each counts; 1 where nothing is said."""
    weights: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, colon, weight = part.rpartition(":")
        name = name if colon else part
        if not limits.QUEUE_NAME.match(name) or (colon and not re.fullmatch(r"\d{1,6}", weight)):
            raise ConfigError(f"{part[:80]!r} is not a queue, nor a queue and its weight: mail:10")
        if name in weights:
            raise ConfigError(f"queue {name} is named twice")
        weights[name] = int(weight) if colon else 1
        if not weights[name]:
            raise ConfigError(f"queue {name} has the weight 0: leave it out")
    if not weights:
        raise ConfigError("no queue is named: write mail:10,default")
    return weights
