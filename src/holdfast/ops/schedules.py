"""Schedules: add, edit, pause, run and preview them, and find the instants of their ticks.

Every change is a compare-and-set on the record that was read, so an edit and the scheduler's note
of its last tick never overwrite each other. A cron rule is in local time. A rule that names hours
fires once for each local time it names: a time in a daylight-saving gap moves to the end of the
gap, and a time that comes twice fires the first time. A rule with `*` for the hour fires in every
real hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import NewJob, Receipt, Record
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, Exists, UsageError
from holdfast.notation import lines
from holdfast.notation.durations import Duration, to_ms
from holdfast.ops.records import RecordKind, scan
from holdfast.ops.settings import read_settings
from holdfast.ops.views import at_of, value_of

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

SCHEDULE_KIND = "schedule"

_RULE_FIELDS = ("cron", "every_ms", "anchor_at", "zone", "paused")
_PREVIEW_MAX = 1_000

_INSTANT_MAX = 253_402_300_799_999
"""The end of the year 9999, the last that RFC 3339 can write."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OVERLAP_MAX = timedelta(hours=3)
_EVERY_MS_MIN = 100
_CRON_MAX = 200
_MISSED_MAX = bounds.BATCH_MAX


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule (`cron`, or `every_ms` counted from `anchor_at`) and the job that each tick enqueues;
    the job gets an id and key per tick.

    A tick is missed if no scheduler ran within `grace_ms`, or if the next tick is due as well:
    `skip` leaves it out, `once` enqueues one job for all missed ticks, `all` one for each, at most
    the latest `missed_max`. Every tick up to `passed_at` was handled.
    """

    name: str
    job: NewJob
    cron: str | None = None
    every_ms: int | None = None
    anchor_at: int = 0
    zone: str = "UTC"
    missed: Missed = "once"
    missed_max: int = 100
    grace_ms: int = bounds.MINUTE_MS
    paused: bool = False
    passed_at: int = 0
    last_tick: int | None = None


SCHEDULES = RecordKind(SCHEDULE_KIND, Schedule, remedy="remove it and add it again", strict=True)


class Schedules:
    """The schedules of one store. Cron rules go by `wall_ms`, this machine's wall clock."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms

    async def add(self, schedule: Schedule) -> None:
        """Store a new schedule; its first tick is the first one after now."""
        _check_type(schedule)
        fresh = _checked(replace(schedule, passed_at=self._wall_ms(), last_tick=None))
        if not await SCHEDULES.create(self._engine, fresh.name, fresh):
            raise Exists(f"schedule {schedule.name} exists already: edit or remove it")

    async def edit(self, name: str, /, **changes: Any) -> Schedule:
        """Change fields of a schedule. A changed rule starts from now."""
        refused = {"name", "passed_at", "last_tick"}.intersection(changes)
        unknown = set(changes).difference(Schedule.__struct_fields__)
        if refused or unknown:
            raise ConfigError(f"a schedule's {', '.join(sorted(refused | unknown))} cannot be set")

        def change(schedule: Schedule | None) -> Schedule:
            if schedule is None:
                raise _missing(name)
            edited = replace(schedule, **changes)
            same = all(getattr(edited, name) == getattr(schedule, name) for name in _RULE_FIELDS)
            return _checked(edited if same else replace(edited, passed_at=self._wall_ms()))

        if not _is_name(name):
            raise _missing(name)
        edited = await SCHEDULES.update(self._engine, name, change)
        assert edited is not None
        return edited

    async def pause(self, name: str) -> None:
        """Enqueue no more ticks until the schedule is resumed."""
        await self.edit(name, paused=True)

    async def resume(self, name: str) -> None:
        """Enqueue ticks from now on; ticks of the pause are not made up for."""
        await self.edit(name, paused=False)

    async def remove(self, name: str) -> bool:
        """Remove a schedule, readable or not; False if there is none."""
        return _is_name(name) and await SCHEDULES.remove(self._engine, name)

    async def run_now(self, name: str, job_id: str) -> Receipt:
        """Enqueue the schedule's job once, besides its ticks. Repeating it with the same id adds
        nothing."""
        schedule = await self.get(name)
        if schedule is None:
            raise _missing(name)
        [receipt] = await self._engine.enqueue([schedule_job(schedule, job_id)])
        return receipt

    async def get(self, name: str) -> Schedule | None:
        """One schedule; None if there is none. ConfigError if it cannot be read."""
        found = await SCHEDULES.read(self._engine, name) if _is_name(name) else None
        return None if found is None else SCHEDULES.require(found.record)

    async def all(self) -> list[Schedule]:
        """All schedules by name. ConfigError if one cannot be read."""
        return [decode_schedule(record) async for record in scan(self._engine, SCHEDULE_KIND)]

    def preview(self, schedule: Schedule, count: int = 5, after: int | None = None) -> list[int]:
        """The instants of the next ticks."""
        _check_type(schedule)
        ticks: list[int] = []
        last = self._wall_ms() if after is None else after
        while len(ticks) < min(count, _PREVIEW_MAX):
            tick = next_tick(schedule, last)
            if tick is None or tick > _INSTANT_MAX:
                break
            ticks.append(tick)
            last = tick
        return ticks


def encode_schedule(schedule: Schedule, version: int) -> Record:
    """The record to save on `version`."""
    return SCHEDULES.record(schedule.name, schedule, version)


def decode_schedule(record: Record) -> Schedule:
    """The schedule in a record. ConfigError if it cannot be read."""
    return SCHEDULES.require(record)


def schedule_job(schedule: Schedule, job_id: str, **fields: Any) -> NewJob:
    """The schedule's job under an id of its own, with the schedule's name in the headers."""
    headers = {**schedule.job.headers, "schedule": schedule.name}
    return replace(schedule.job, **{"id": job_id, "key": None, "headers": headers, **fields})


def _checked(schedule: Schedule) -> Schedule:
    """The schedule as it will be read back, so that a value of a wrong type is refused now."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ConfigError(f"schedule {schedule.name} cannot be stored: {error}") from None
    check_schedule(read)
    return read


def _check_type(schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"expected a Schedule, not a {type(schedule).__name__}")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bounds.QUEUE_NAME.match(name) is not None


def _missing(name: str) -> ConfigError:
    return ConfigError(f"schedule {str(name)[:100]!r} does not exist")


class ScheduleRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule ticks, and how it treats missed ticks, as people give it; None leaves a
    field as it is."""

    cron: str | None = None
    every: Duration | None = None
    zone: str | None = None
    missed: Missed | None = None
    missed_max: int | None = None
    grace: Duration | None = None

    def fields(self) -> dict[str, Any]:
        """The given fields of a Schedule; a cron rule and an interval replace each other."""
        if self.cron is not None and self.every is not None:
            raise UsageError("a schedule has either a cron rule or an interval, not both")
        plain = ("zone", "missed", "missed_max")
        given = {name: value for name in plain if (value := getattr(self, name)) is not None}
        if self.cron is not None:
            given |= {"cron": self.cron, "every_ms": None}
        if self.every is not None:
            given |= {"every_ms": to_ms("every", self.every, ConfigError), "cron": None}
        if self.grace is not None:
            given["grace_ms"] = to_ms("grace", self.grace, ConfigError)
        return given

    @property
    def says_when(self) -> bool:
        """True if it has a cron rule or an interval."""
        return self.cron is not None or self.every is not None


async def new_schedule(
    engine: Engine, name: str, rule: ScheduleRule, line: lines.JobLine
) -> Schedule:
    """Build a schedule without storing it; stored settings fill what the job leaves open."""
    if not rule.says_when:
        raise UsageError("a schedule needs a cron rule or an interval: give one of them")
    job = lines.make_job(line, lines.job_defaults(lines.JobLine(), await read_settings(engine)))
    return Schedule(name=name, job=job, **rule.fields())


def schedule_changes(old: Schedule, rule: ScheduleRule, line: lines.JobLine) -> dict[str, Any]:
    """The fields that differ from the old schedule."""
    changes = rule.fields()
    job = changed_job(old.job, line)
    return changes if job == old.job else {**changes, "job": job}


def with_rule(old: Schedule | None, rule: ScheduleRule) -> Schedule:
    """The old schedule with another rule, or a schedule for a preview that has only the rule."""
    if old is None and not rule.says_when:
        raise UsageError("name a schedule, or give a rule")
    base = old or Schedule(name="preview", job=NewJob(id="preview", task="none"))
    schedule = replace(base, **rule.fields())
    check_schedule(schedule)
    return schedule


def changed_job(old: NewJob, line: lines.JobLine) -> NewJob:
    """The old job with the given fields; its other overrides stay."""
    given = {name for name in lines.FIELDS if getattr(line, name) not in (None, msgspec.UNSET)}
    if not given:
        return old
    is_new_work = bool(given & {"command", "task", "webhook"})
    if not is_new_work:
        line.task = old.task
    made = lines.make_job(line, lines.JobDefaults({}))
    fields: dict[str, Any] = {
        name: getattr(made, name) for name in given & set(old.__struct_fields__)
    }
    if is_new_work:
        fields |= {"task": made.task, "payload": made.payload}
    for name in ("delay", "expires"):
        if name in given:
            fields[f"{name}_ms"] = getattr(made, f"{name}_ms")
    if "to" in given:
        fields |= {"queue": made.queue, "expires_ms": made.expires_ms}
    overrides = {
        name: value
        for name in made.overrides.__struct_fields__
        if (value := getattr(made.overrides, name)) is not None
    }
    return replace(old, **fields, overrides=replace(old.overrides, **overrides))


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, and the job that each tick enqueues. A paused schedule has no next tick."""

    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    missed: Missed
    missed_max: int
    grace_ms: int
    paused: bool
    last_tick: str | None
    next_tick: str | None
    queue: str
    task: str
    payload: Any
    priority: int
    tenant: str | None


def schedule_view(
    schedule: Schedule,
    next_tick: int | None,
    *,
    value: Callable[[bytes, str], Any] = value_of,
) -> ScheduleView:
    """A schedule as people read it. `value` converts the payload."""
    job = schedule.job
    return ScheduleView(
        name=schedule.name,
        cron=schedule.cron,
        every_ms=schedule.every_ms,
        zone=schedule.zone,
        missed=schedule.missed,
        missed_max=schedule.missed_max,
        grace_ms=schedule.grace_ms,
        paused=schedule.paused,
        last_tick=at_of(schedule.last_tick),
        next_tick=None if schedule.paused else at_of(next_tick),
        queue=job.queue,
        task=job.task,
        payload=value(job.payload, job.content_type),
        priority=job.priority,
        tenant=job.tenant,
    )


def check_schedule(schedule: Schedule) -> None:
    """Raise ConfigError or InvalidJob unless the schedule can tick and its job be enqueued."""
    name = schedule.name
    if not bounds.QUEUE_NAME.match(name):
        raise ConfigError(f"schedule name {name[:100]!r} is not 1 to 80 of A-Z a-z 0-9 _ . -")
    if len(schedule.cron or "") > _CRON_MAX:
        raise ConfigError(f"the cron rule of schedule {name} is over {_CRON_MAX} characters")
    if (schedule.cron is None) == (schedule.every_ms is None):
        raise ConfigError(f"schedule {name} needs either a cron rule or an interval")
    if schedule.missed not in ("skip", "once", "all"):
        raise ConfigError(f"missed {schedule.missed!r} of schedule {name} is not skip, once or all")
    for field, value, low, high in (
        ("every_ms", schedule.every_ms, _EVERY_MS_MIN, bounds.DELAY_MS_MAX),
        ("anchor_at", schedule.anchor_at, 0, bounds.DELAY_MS_MAX),
        ("missed_max", schedule.missed_max, 1, _MISSED_MAX),
        ("grace_ms", schedule.grace_ms, 0, bounds.DAY_MS),
    ):
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{field} {value} of schedule {name} is not {low} to {high}")
    checks.check_job(replace(schedule.job, headers={**schedule.job.headers, **TICK_HEADERS}))
    if next_tick(schedule, schedule.passed_at) is None:
        raise ConfigError(f"the cron rule {schedule.cron!r} of schedule {name} never fires")


def next_tick(schedule: Schedule, after: int) -> int | None:
    """The first tick later than `after`; None when there is none in the next 50 years."""
    if schedule.every_ms is not None:
        return after + schedule.every_ms - (after - schedule.anchor_at) % schedule.every_ms
    assert schedule.cron is not None
    return _next_cron(schedule.cron, _zone(schedule.zone), after)


def due_ticks(schedule: Schedule, now: int) -> tuple[list[int], int]:
    """The ticks to enqueue now, oldest first, and the new `passed_at`."""
    most = schedule.missed_max if schedule.missed == "all" else 1
    ticks = _latest_ticks(schedule, now, most)
    if not ticks:
        return [], schedule.passed_at
    if schedule.missed == "skip" and now - ticks[-1] > schedule.grace_ms:
        return [], ticks[-1]
    return ticks, ticks[-1]


def _latest_ticks(schedule: Schedule, now: int, most: int) -> list[int]:
    """The last unhandled ticks up to `now`, found without walking through years of ticks."""
    span = bounds.MINUTE_MS
    while True:
        start = max(schedule.passed_at, now - span)
        found: deque[int] = deque(maxlen=most)
        tick = next_tick(schedule, start)
        while tick is not None and tick <= now:
            found.append(tick)
            tick = next_tick(schedule, tick)
        if len(found) == most or start == schedule.passed_at:
            return list(found)
        span *= 4


def _next_cron(rule: str, zone: ZoneInfo, after: int) -> int | None:
    instant = _EPOCH + after * _MILLISECOND
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


def _simulate(rule: str, start: datetime) -> CronSim:
    try:
        return CronSim(CRON_ALIASES.get(rule.strip().lower(), rule), start)
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        # cronsim raises other errors than its own for some invalid rules.
        raise ConfigError(
            f"the cron rule {rule[:80]!r} cannot be read ({error}): write minute hour day month "
            f"weekday, seconds before them if wanted, or one of {', '.join(CRON_ALIASES)}"
        ) from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"time zone {name[:80]!r} is not known: use an IANA name such as Europe/Berlin"
        ) from None
