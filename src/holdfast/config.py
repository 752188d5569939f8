"""The settings that can be stored with the jobs: names, types, bounds, defaults, precedence. A
command-line flag overrides the environment (`max-retries` is HOLDFAST_MAX_RETRIES), which overrides
the stored value. Without any of them the default applies, or the queue's own setting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.text import show_ms
from holdfast.errors import ConfigError
from holdfast.notation.durations import to_ms
from holdfast.notation.key_patterns import read_key_patterns

Type = Literal[
    "number",
    "decimal",
    "duration",
    "switch",
    "queues",
    "level",
    "levels",
    "ages",
    "region",
    "keys",
]
"""Levels are numbers and ages are durations, or "off": one for all queues, or one per queue. Keys
are patterns of keys in JSON."""
Source = Literal["default", "stored", "environment"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. `default` is a text like those that are stored; it is "" if something else
    decides, as `does` explains. `low` and `high` bound a number, or a duration in milliseconds.
    """

    name: str
    type: Type
    default: str
    does: str
    feeds: str
    low: float = 0
    high: float = 1_000_000

    @property
    def variable(self) -> str:
        """The environment variable that overrides the stored value."""
        return "HOLDFAST_" + self.name.replace("-", "_").upper()

    def read(self, text: str) -> Any:
        """The value of a text: milliseconds, a number, a bool, weights by queue, levels, or
        patterns."""
        given = text.strip()
        match self.type:
            case "duration":
                value: float = to_ms(self.name, given, ConfigError)
            case "number" | "decimal":
                value = self._number(given)
            case "switch":
                if given.lower() not in _SWITCH:
                    raise ConfigError(f"{self.name} {given[:40]!r} is not valid: use yes or no")
                return _SWITCH[given.lower()]
            case "queues":
                return queue_weights(given)
            case "keys":
                return read_key_patterns(self.name, given)
            case "region":
                if not re.fullmatch(r"[a-z0-9-]{1,32}", given, re.ASCII):
                    raise ConfigError(
                        f"{self.name} {given[:40]!r} is not valid: expected a region such as"
                        " us-east-1"
                    )
                return given
            case "level" | "levels" | "ages":
                one = replace(self, type="duration" if self.type == "ages" else "number")
                by_queue = self.type != "level"
                return read_levels(self.name, given, one.read, by_queue=by_queue)
        if not self.low <= value <= self.high:
            show = show_ms if self.type == "duration" else "{:g}".format
            bounds = f"{show(int(self.low))} to {show(int(self.high))}"
            raise ConfigError(f"{self.name} {given[:40]!r} is out of range: expected {bounds}")
        return value

    def _number(self, given: str) -> float:
        pattern = r"\d{1,9}" if self.type == "number" else r"\d{1,9}(\.\d{1,6})?"
        if not re.fullmatch(pattern, given, re.ASCII):
            what = "a whole number" if self.type == "number" else "a number"
            bounds = f"{self.low:g} to {self.high:.0f}"
            raise ConfigError(f"{self.name} {given[:40]!r} is not valid: expected {what}, {bounds}")
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
        low=bounds.SECOND_MS,
        high=bounds.RETENTION_MS_MAX,
    )


_TABLE = (
    _job("max-retries", "number", "3", "Retries of a job after its first attempt.", 0, 999_999),
    _job("max-crashes", "number", "3", "Worker crashes after which a job is buried.", 1, 1_000_000),
    _job(
        "backoff-base",
        "decimal",
        "2",
        "Retry delay: this many seconds to the power of the attempt.",
        1,
        100,
    ),
    _job("backoff-max", "duration", "5m", "The longest retry delay.", 0, bounds.DELAY_MS_MAX),
    _job("backoff-jitter", "decimal", "1", "The random share of a retry delay, 0 to 1.", 0, 1),
    _job("job-timeout", "duration", "", "How long an attempt may run.", 1, bounds.DELAY_MS_MAX),
    _job(
        "lease",
        "duration",
        "30s",
        "How long a worker keeps a job without renewing its lease.",
        bounds.LEASE_MS_MIN,
        bounds.LEASE_MS_MAX,
    ),
    _job(
        "addressed-ttl",
        "duration",
        "5m",
        "How long a job addressed to a worker waits for it.",
        1,
        bounds.DELAY_MS_MAX,
    ),
    Setting(
        name="create-queues",
        type="switch",
        default="no",
        does="Create a queue that does not exist when a job is enqueued in it.",
        feeds=_ENQUEUE,
    ),
    _worker(
        "worker-queues", "queues", "default", "Queues and their weights, e.g. mail:10,default."
    ),
    _worker(
        "worker-processes",
        "number",
        "",
        "Child processes of a worker; by default one per core.",
        0,
        256,
    ),
    _worker(
        "worker-concurrency",
        "number",
        "16",
        "Jobs each child process runs at the same time; if not set, 1 command.",
        1,
        10_000,
    ),
    _worker(
        "worker-prefetch",
        "number",
        "4000",
        "Maximum number of jobs that a worker leases ahead.",
        0,
        10_000,
    ),
    _worker(
        "worker-grace",
        "duration",
        "30s",
        "How long a stop waits for running jobs.",
        0,
        bounds.DAY_MS,
    ),
    _worker(
        "worker-shell",
        "switch",
        "yes",
        "Run a command that is one string in a shell.",
    ),
    _worker(
        "worker-output-max",
        "number",
        "65536",
        "Bytes of output stored per job.",
        1024,
        bounds.OUTPUT_MAX,
    ),
    _alert(
        "alert-dead",
        "levels",
        "10",
        "Alert if more than this many jobs of a queue die within a minute.",
        10**9,
    ),
    _alert(
        "alert-dead-depth",
        "levels",
        "100",
        "Alert if there are more than this many dead letters in a queue.",
        10**9,
    ),
    _alert(
        "alert-depth",
        "levels",
        "100",
        "Alert if more than this many jobs are ready in a queue.",
        10**9,
    ),
    _alert(
        "alert-age",
        "ages",
        "5m",
        "Alert if a ready job has been due for longer than this.",
        bounds.DELAY_MS_MAX,
    ),
    _alert(
        "alert-no-worker",
        "ages",
        "30s",
        "Alert if a ready job has been due for longer than this and no worker serves its queue.",
        bounds.DELAY_MS_MAX,
    ),
    _alert(
        "alert-retention",
        "levels",
        "80",
        "Alert if a ready job is older than this percentage of the age at which SQS deletes it.",
        100,
    ),
    _alert(
        "alert-in-flight",
        "levels",
        "90",
        "Alert if more than this percentage of the 120,000 messages that SQS allows are in flight.",
        100,
    ),
    _alert("alert-partition", "switch", "yes", "Alert if a partition is shut out.", 0),
    _alert(
        "alert-disk",
        "level",
        "1024",
        "Alert if less than this many MiB are free on the disk.",
        10**9,
    ),
    _alert(
        "alert-dead-messages",
        "levels",
        "10",
        "Alert if the broker gives up more than this many messages to a worker within a minute.",
        10**9,
    ),
    _alert(
        "alert-dead-message-depth",
        "level",
        "100",
        "Alert if more than this many dead messages wait at the broker.",
        10**9,
    ),
    _alert("alert-records", "switch", "yes", "Alert if a stored record cannot be read.", 0),
    _alert(
        "alert-cool-down",
        "duration",
        "5m",
        "Minimum time between two notices of the same alert.",
        bounds.DAY_MS,
    ),
    Setting(
        name="cleanup-days",
        type="decimal",
        default="7",
        does="The age in days at which `cleanup` deletes finished jobs.",
        feeds="cleanup",
        high=bounds.RETENTION_MS_MAX // bounds.DAY_MS,
    ),
    Setting(
        name="dead-letter-handler",
        type="switch",
        default="yes",
        does="Let upkeep handle the dead messages of a broker; if not, the reaper ends the jobs.",
        feeds="upkeep",
    ),
    Setting(
        name="sqs-region",
        type="region",
        default="us-east-1",
        does="The region whose SQS queues have plain names; read when a server starts.",
        feeds="serve, up",
    ),
    Setting(
        name="dashboard-redact",
        type="keys",
        default="",
        does="Hide values under these keys from callers without operate, e.g. password,*_token.",
        feeds="serve, up",
    ),
    _history("history-minutes", "1d", "How long counts per minute are stored, for charts."),
    _history("history-hours", "14d", "How long counts per hour are stored, for charts."),
    _history("history-days", "400d", "How long counts per day are stored, for charts."),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}


class SettingValue(msgspec.Struct, frozen=True):
    """The text of a setting, and where it comes from."""

    text: str
    source: Source


class Settings:
    """The current values of all settings."""

    def __init__(self, stored: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._given: dict[str, SettingValue] = {}
        for setting in SETTINGS.values():
            if environment.get(setting.variable):
                self._given[setting.name] = SettingValue(
                    environment[setting.variable], "environment"
                )
            elif setting.name in stored:
                self._given[setting.name] = SettingValue(stored[setting.name], "stored")

    def shown(self, name: str) -> SettingValue:
        """The text of a setting, the default included."""
        return self._given.get(name) or SettingValue(find_setting(name).default, "default")

    def value(self, name: str) -> Any:
        """The value of a setting; None if it is neither stored nor in the environment."""
        setting = find_setting(name)
        given = self._given.get(name)
        if given is None:
            return None
        try:
            return setting.read(given.text)
        except ConfigError as error:
            where = setting.variable if given.source == "environment" else "the stored setting"
            raise ConfigError(f"{where}: {error}") from None

    def value_or_default(self, name: str) -> Any:
        """The value of a setting that has a default."""
        given = self.value(name)
        setting = find_setting(name)
        assert setting.default
        return setting.read(setting.default) if given is None else given

    def backoff(self) -> Backoff | None:
        """The backoff that the three settings describe; None if none of them is given."""
        base, cap_ms, jitter = (self.value(f"backoff-{part}") for part in ("base", "max", "jitter"))
        if base is None and cap_ms is None and jitter is None:
            return None
        usual = Backoff()
        base = usual.factor if base is None else base
        return Backoff(
            first_ms=round(base * 1000),
            factor=base,
            cap_ms=usual.cap_ms if cap_ms is None else cap_ms,
            jitter=usual.jitter if jitter is None else jitter,
        )


def find_setting(name: str) -> Setting:
    """The setting with this name. ConfigError suggests a similar one."""
    setting = SETTINGS.get(name.replace("_", "-"))
    if setting is None:
        close = difflib.get_close_matches(name.replace("_", "-"), SETTINGS, 1)
        remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        raise ConfigError(f"unknown setting {name[:80]!r}: {remedy}")
    return setting


def queue_weights(text: str) -> dict[str, int]:
    """The weights in `mail:10,default` by queue; 1 where none is given."""
    weights: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, colon, weight = part.rpartition(":")
        name = name if colon else part
        if not bounds.QUEUE_NAME.match(name) or (colon and not re.fullmatch(r"\d{1,6}", weight)):
            raise ConfigError(
                f"{part[:80]!r} is not valid: expected a queue, or a queue and its weight such as"
                " mail:10"
            )
        if name in weights:
            raise ConfigError(f"queue {name} is given twice")
        weights[name] = int(weight) if colon else 1
        if not weights[name]:
            raise ConfigError(f"queue {name} has the weight 0: leave it out")
    if not weights:
        raise ConfigError("no queue is given: write e.g. mail:10,default")
    return weights


class Levels(msgspec.Struct, frozen=True):
    """Alert levels: `usual` applies to every queue that has no level of its own. None is off."""

    usual: int | None
    queues: dict[str, int | None] = {}

    def of(self, queue: str) -> int | None:
        """The level of one queue."""
        return self.queues.get(queue, self.usual)


def read_levels(name: str, text: str, read: Callable[[str], int], *, by_queue: bool) -> Levels:
    """Read one level for all queues, then others by queue: `100,mail:5000,old:off`. `read` converts
    a single one. Raises ConfigError."""
    usual: list[int | None] = []
    queues: dict[str, int | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        queue, colon, given = part.rpartition(":")
        level = None if given.strip().lower() == "off" else read(given.strip())
        if not colon:
            usual.append(level)
        elif not by_queue or not bounds.QUEUE_NAME.match(queue) or queue in queues:
            raise ConfigError(f'{name} "{part[:80]}": {_expected_levels(by_queue)}')
        else:
            queues[queue] = level
    if len(usual) != 1:
        expected = _expected_levels(by_queue)
        raise ConfigError(f'{name} "{text[:80]}" has {len(usual)} values: {expected}')
    return Levels(usual[0], queues)


def _expected_levels(by_queue: bool) -> str:
    if by_queue:
        return "expected one level for all queues, then others by queue: 100,mail:5000,old:off"
    return "expected one level, or off"
