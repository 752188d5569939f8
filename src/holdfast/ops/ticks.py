"""Schedules: the rule of a schedule, and the instants of its ticks. Pure.

A cron rule is in local time. A rule that names hours fires once for each local time it names: a
time in a daylight-saving gap moves to the end of the gap, and a time that comes twice fires the
first time. A rule with `*` for the hour fires in every real hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import NewJob
from holdfast.core.text import show_ms
from holdfast.errors import ConfigError

Missed = Literal["skip", "once", "all"]

CRON_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

TICK_HEADERS = {"schedule": "x" * 80, "tick": "x" * 24}
"""The headers that each tick adds to the job, at their longest."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OVERLAP_MAX = timedelta(hours=3)
_EVERY_MS_MIN = 100
_CRON_MAX = 200
_MISSED_MAX = bounds.BATCH_MAX


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule (`cron`, or `every_ms` counted from `anchor_at`, the first tick) and the job that each
    tick enqueues; the job gets an id and key per tick.

    A tick is missed if no scheduler ran within `grace_ms`, or if the next tick is due as well:
    `skip` leaves it out, `once` enqueues one job for all missed ticks, `all` one for each, at most
    the latest `missed_max`. Every tick up to `passed_at` was handled. `enqueueing` is the last of
    the ticks that a scheduler enqueues just now, on an engine without once-only keys. `program` is
    the program whose code declares the schedule; None if a person added it.
    """

    name: str
    job: NewJob
    """The job that each tick enqueues."""
    cron: str | None = None
    """A cron rule, e.g. `0 2 * * *`."""
    every_ms: int | None = None
    """An interval, instead of a cron rule."""
    anchor_at: int = 0
    """The first tick of an interval."""
    zone: str = "UTC"
    """Time zone of the cron rule."""
    missed: Missed = "once"
    """Policy for missed ticks."""
    missed_max: int = 100
    """With `all`, the latest this many."""
    grace_ms: int = bounds.MINUTE_MS
    """How late a tick may be before it counts as missed."""
    paused: bool = False
    """True enqueues nothing."""
    passed_at: int = 0
    """Every tick up to this instant was handled."""
    last_tick: int | None = None
    """The last tick that enqueued a job."""
    enqueueing: int | None = None
    program: str | None = None
    """The program whose code declares it; None if a person added it."""


def check_schedule(schedule: Schedule) -> None:
    """Raise ConfigError or InvalidJob unless the schedule can tick and its job be enqueued."""
    name = schedule.name
    if not bounds.QUEUE_NAME.match(name):
        raise ConfigError(
            f"schedule name {name[:100]!r} is not valid: use 1 to 80 characters of A-Z a-z 0-9 _"
            " . -"
        )
    if schedule.program is not None and not bounds.QUEUE_NAME.match(schedule.program):
        raise ConfigError(
            f"program {schedule.program[:100]!r} of schedule {name} is not valid: use 1 to 80"
            " characters of A-Z a-z 0-9 _ . -"
        )
    if len(schedule.cron or "") > _CRON_MAX:
        raise ConfigError(f"the cron rule of schedule {name} is longer than {_CRON_MAX} characters")
    if (schedule.cron is None) == (schedule.every_ms is None):
        raise ConfigError(f"schedule {name} needs either a cron rule or an interval")
    if schedule.missed not in ("skip", "once", "all"):
        raise ConfigError(
            f"missed {schedule.missed!r} of schedule {name} is not valid: use skip, once or all"
        )
    for field, value, low, high in (
        ("every_ms", schedule.every_ms, _EVERY_MS_MIN, bounds.DELAY_MS_MAX),
        ("anchor_at", schedule.anchor_at, 0, bounds.DELAY_MS_MAX),
        ("missed_max", schedule.missed_max, 1, _MISSED_MAX),
        ("grace_ms", schedule.grace_ms, 0, bounds.DAY_MS),
        ("passed_at", schedule.passed_at, 0, bounds.INSTANT_MAX),
        ("last_tick", schedule.last_tick, 0, bounds.INSTANT_MAX),
        ("enqueueing", schedule.enqueueing, 0, bounds.INSTANT_MAX),
    ):
        if value is not None and not low <= value <= high:
            raise ConfigError(
                f"{field} {value} of schedule {name} is out of range: expected {low} to {high}"
            )
    checks.check_job(replace(schedule.job, headers={**schedule.job.headers, **TICK_HEADERS}))
    if schedule.cron is not None and not _fires(schedule.cron, schedule.zone):
        raise ConfigError(f"the cron rule {schedule.cron!r} of schedule {name} never fires")


@lru_cache(maxsize=4_096)
def _fires(rule: str, zone: str) -> bool:
    """True if the rule fires at all. Stored schedules are checked at every read."""
    return _next_cron(rule, _zone(zone), 0) is not None


def next_tick(schedule: Schedule, after: int) -> int | None:
    """The first tick later than `after`; None when there is none in the next 50 years, or before
    the year 10000."""
    if schedule.every_ms is not None:
        tick: int | None = _next_every(schedule.every_ms, schedule.anchor_at, after)
    else:
        assert schedule.cron is not None
        tick = _next_cron(schedule.cron, _zone(schedule.zone), after)
    return None if tick is None or tick > bounds.INSTANT_MAX else tick


def _next_every(every_ms: int, anchor_at: int, after: int) -> int:
    if after < anchor_at:
        return anchor_at
    return after + every_ms - (after - anchor_at) % every_ms


def due_ticks(schedule: Schedule, now: int) -> tuple[list[int], int]:
    """The ticks to enqueue now, oldest first, and the new `passed_at`."""
    most = schedule.missed_max if schedule.missed == "all" else 1
    ticks = _latest_ticks(schedule, now, most)
    if not ticks:
        return [], schedule.passed_at
    if schedule.missed == "skip" and now - ticks[-1] > schedule.grace_ms:
        return [], ticks[-1]
    return ticks, ticks[-1]


def past_ticks(schedule: Schedule, now: int, most: int) -> list[int]:
    """The last ticks of the rule up to `now`, handled or not, oldest first."""
    return _latest_ticks(replace(schedule, passed_at=0), now, most)


def rule_words(schedule: Schedule) -> str:
    """The rule of a schedule in words, such as "At 03:00 every day (Europe/Berlin)"."""
    if schedule.every_ms is not None:
        return f"Every {show_ms(schedule.every_ms)}"
    assert schedule.cron is not None
    return f"{_cron_words(schedule.cron)} ({schedule.zone})"


@lru_cache(maxsize=4_096)
def _cron_words(rule: str) -> str:
    try:
        return _simulate(rule, _EPOCH.replace(tzinfo=None)).explain()
    except Exception:  # noqa: BLE001 (a rule that it cannot explain must not hide the schedule)
        return rule


def _latest_ticks(schedule: Schedule, now: int, most: int) -> list[int]:
    """The last unhandled ticks up to `now`, oldest first, found without walking through years of
    ticks.
    """
    if schedule.every_ms is not None:
        first = _next_every(schedule.every_ms, schedule.anchor_at, schedule.passed_at)
        return list(range(first, now + 1, schedule.every_ms)[-most:])
    back = most
    while schedule.passed_at < now:
        start = max(schedule.passed_at, _before_latest(schedule, now, back))
        found: deque[int] = deque(maxlen=most)
        tick = next_tick(schedule, start)
        while tick is not None and tick <= now:
            found.append(tick)
            tick = next_tick(schedule, tick)
        if len(found) == most or start == schedule.passed_at:
            return list(found)
        # Several local times in a daylight-saving gap are one tick.
        back *= 4
    return []


def _before_latest(schedule: Schedule, now: int, count: int) -> int:
    """An instant before the last `count` local times that a cron rule names up to `now`; 0 if fewer
    were not handled yet.
    """
    assert schedule.cron is not None
    zone = _zone(schedule.zone)
    handled = _local(schedule.passed_at, zone) - timedelta(days=2)
    for number, time in enumerate(_simulate(schedule.cron, _local(now, zone), reverse=True), 1):
        if time < handled:
            break
        if number == count:
            return (_first_instant(time, zone) - _EPOCH) // _MILLISECOND - 1
    return 0


def _local(instant: int, zone: ZoneInfo) -> datetime:
    """The time that clocks of the zone show."""
    return _shown(_EPOCH + instant * _MILLISECOND, zone)


def _next_cron(rule: str, zone: ZoneInfo, after: int) -> int | None:
    try:
        return _next_local(rule, zone, _EPOCH + after * _MILLISECOND)
    except OverflowError:
        # Calendars end with the year 9999.
        return None


def _next_local(rule: str, zone: ZoneInfo, instant: datetime) -> int | None:
    local = instant.astimezone(zone)
    start = local.replace(tzinfo=None, fold=0)
    if local.fold == 0 and len(_instants(start, zone)) == 2:
        # The local times of this overlap before now come a second time.
        start -= _OVERLAP_MAX
    simulated = _simulate(rule, start)
    every_hour = len(simulated.hours) == 24
    best: datetime | None = None
    for naive in simulated:
        instants = _instants(naive, zone) if every_hour else [_first_instant(naive, zone)]
        later = [each for each in instants if each > instant]
        best = min([*later, best] if best else later, default=None)
        if best is not None and instants and instants[0] >= best:
            return (best - _EPOCH) // _MILLISECOND
    return None


def _instants(naive: datetime, zone: ZoneInfo) -> list[datetime]:
    """The instants at which clocks of the zone show this time: one, two or none."""
    folds = {naive.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(each for each in folds if _shown(each, zone) == naive)


def _first_instant(naive: datetime, zone: ZoneInfo) -> datetime:
    """The first instant at which clocks show this time, or the end of the gap it falls into."""
    for minute in _minutes(naive):
        instants = _instants(minute, zone)
        if instants:
            return instants[0]
    raise AssertionError("a gap in a time zone ends")


def _minutes(naive: datetime) -> Iterator[datetime]:
    yield naive
    minute = naive.replace(second=0)
    while True:
        minute += timedelta(minutes=1)
        yield minute


def _shown(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _simulate(rule: str, start: datetime, *, reverse: bool = False) -> CronSim:
    try:
        return CronSim(CRON_ALIASES.get(rule.strip().lower(), rule), start, reverse)
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        # cronsim raises other errors than its own for some invalid rules.
        raise ConfigError(
            f"the cron rule {rule[:80]!r} cannot be read ({error}): write minute hour day month"
            f" weekday, optionally with seconds first, or one of {', '.join(CRON_ALIASES)}"
        ) from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"unknown time zone {name[:80]!r}: use an IANA name such as Europe/Berlin"
        ) from None
