"""Schedules: add, edit, pause, run and preview them. `ticks` finds the instants of ticks.

Every change is a compare-and-set on the record that was read, so an edit and the scheduler's note
of its last tick never overwrite each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, NewJob, Receipt, State
from holdfast.core.text import kind_of
from holdfast.engines.base import Engine
from holdfast.engines.extras import find_rows
from holdfast.errors import ConfigError, Exists, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import Duration, show_at, to_ms
from holdfast.ops.jobs.views import duration_ms
from holdfast.ops.records import RecordKind, check_same
from holdfast.ops.settings import read_job_defaults
from holdfast.ops.ticks import (
    Missed,
    Schedule,
    check_schedule,
    next_tick,
    past_ticks,
    rule_words,
)
from holdfast.ops.views import at_of, value_of

SCHEDULE_KIND = "schedule"

RULE_FIELDS = ("cron", "every_ms", "anchor_at", "zone")
_PREVIEW_MAX = 1_000


def _check_stored(key: str, schedule: Schedule) -> None:
    check_same("name", schedule.name, key)
    check_schedule(schedule)


SCHEDULES = RecordKind(
    SCHEDULE_KIND,
    Schedule,
    remedy="remove it and add it again",
    strict=True,
    check=_check_stored,
)


class Schedules:
    """The schedules of one store. Cron rules go by `wall_ms`, this machine's wall clock."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms

    async def add(self, schedule: Schedule) -> None:
        """Store a new schedule; it starts with the first tick after now."""
        _check_type(schedule)
        fresh = checked_schedule(started(replace(schedule, program=None), self._wall_ms()))
        if not await SCHEDULES.create(self._engine, fresh.name, fresh):
            raise Exists(f"schedule {schedule.name} exists already: edit or remove it")

    async def edit(self, name: str, /, **changes: Any) -> Schedule:
        """Change fields of a schedule. A changed rule starts from now."""
        refused = {"name", "passed_at", "last_tick", "enqueueing", "program"}.intersection(changes)
        unknown = set(changes).difference(Schedule.__struct_fields__)
        if refused or unknown:
            raise ConfigError(
                f"these fields of a schedule cannot be set: {', '.join(sorted(refused | unknown))}"
            )

        def change(schedule: Schedule | None) -> Schedule:
            if schedule is None:
                raise _missing(name)
            edited = replace(schedule, **changes)
            fields = (*RULE_FIELDS, "paused")
            same = all(getattr(edited, name) == getattr(schedule, name) for name in fields)
            return checked_schedule(edited if same else replace(edited, passed_at=self._wall_ms()))

        if not _is_name(name):
            raise _missing(name)
        edited = await SCHEDULES.update(self._engine, name, change)
        assert edited is not None
        return edited

    async def pause(self, name: str) -> None:
        """Pause a schedule until it is resumed."""
        await self.edit(name, paused=True)

    async def resume(self, name: str) -> None:
        """Resume the ticks from now on; those of the pause are skipped."""
        await self.edit(name, paused=False)

    async def remove(self, name: str) -> bool:
        """Remove a schedule, readable or not; False if there is none."""
        return _is_name(name) and await SCHEDULES.remove(self._engine, name)

    async def run_now(self, name: str, job_id: str) -> Receipt:
        """Enqueue the schedule's job once, in addition to its ticks. Repeating it with the same id
        adds nothing.
        """
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
        """Every readable schedule, by name."""
        return list((await SCHEDULES.values(self._engine)).values())

    def preview(self, schedule: Schedule, count: int = 5, after: int | None = None) -> list[int]:
        """The instants of the next ticks."""
        _check_type(schedule)
        ticks: list[int] = []
        last = self._wall_ms() if after is None else after
        while len(ticks) < min(count, _PREVIEW_MAX):
            tick = next_tick(schedule, last)
            if tick is None:
                break
            ticks.append(tick)
            last = tick
        return ticks


def tick_id(schedule: str, tick: int) -> str:
    """The id of the job that a tick of a schedule enqueues."""
    return f"schedule:{schedule}:{show_at(tick)}"


def schedule_job(schedule: Schedule, job_id: str, **fields: Any) -> NewJob:
    """The schedule's job under an id of its own, with the schedule's name in the headers."""
    headers = {**schedule.job.headers, "schedule": schedule.name}
    return replace(schedule.job, **{"id": job_id, "key": None, "headers": headers, **fields})


def started(schedule: Schedule, now: int) -> Schedule:
    """A new schedule: it starts with the first tick after now."""
    return replace(schedule, passed_at=now, last_tick=None, enqueueing=None)


def checked_schedule(schedule: Schedule) -> Schedule:
    """The schedule as it will be read back, so that a value of a wrong type is refused now."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ConfigError(f"schedule {schedule.name} cannot be stored: {error}") from None
    check_schedule(read)
    return read


def _check_type(schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"expected a Schedule, not {kind_of(schedule)}")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bounds.QUEUE_NAME.match(name) is not None


def _missing(name: str) -> ConfigError:
    return ConfigError(f"schedule {str(name)[:100]!r} does not exist")


class ScheduleRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a schedule and its policy for missed ticks, as people write them; None leaves a
    field as it is.
    """

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
    def has_rule(self) -> bool:
        """True if it has a cron rule or an interval."""
        return self.cron is not None or self.every is not None


async def new_schedule(
    engine: Engine, name: str, rule: ScheduleRule, line: job_lines.JobLine
) -> Schedule:
    """Build a schedule without storing it; stored settings fill in fields that the job leaves
    out.
    """
    if not rule.has_rule:
        raise UsageError("a schedule needs a cron rule or an interval: give one of them")
    job = job_lines.make_job(line, await read_job_defaults(engine))
    return Schedule(name=name, job=job, **rule.fields())


def schedule_changes(old: Schedule, rule: ScheduleRule, line: job_lines.JobLine) -> dict[str, Any]:
    """The fields that differ from the old schedule."""
    changes = rule.fields()
    job = changed_job(old.job, line)
    return changes if job == old.job else {**changes, "job": job}


def with_rule(old: Schedule | None, rule: ScheduleRule) -> Schedule:
    """The old schedule with another rule, or a schedule for a preview that has only the rule."""
    if old is None and not rule.has_rule:
        raise UsageError("name a schedule, or give a rule")
    base = old or Schedule(name="preview", job=NewJob(id="preview", task="none"))
    schedule = replace(base, **rule.fields())
    check_schedule(schedule)
    return schedule


def changed_job(old: NewJob, line: job_lines.JobLine) -> NewJob:
    """The old job with the given fields; its other overrides stay."""
    given = {name for name in job_lines.FIELDS if getattr(line, name) not in (None, msgspec.UNSET)}
    if not given:
        return old
    is_new_work = bool(given & {"command", "task", "webhook"})
    if not is_new_work:
        line.task = old.task
    made = job_lines.make_job(line, job_lines.JobDefaults({}))
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


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A past tick and its job. Without a `state` there is no job: the tick was missed or refused,
    or its job was deleted since."""

    tick: str
    id: str
    state: State | None
    attempts: int
    leased_at: str | None
    finished_at: str | None
    duration_ms: int | None


async def past_runs(engine: Engine, schedule: Schedule, now: int, count: int) -> list[PastRun]:
    """The last ticks of a schedule up to `now`, newest first, as far back as there are jobs. The
    ids of their jobs follow from the rule, so that no job is searched for."""
    ticks = set(past_ticks(schedule, now, count))
    if schedule.last_tick is not None:
        # The rule may have been another one then.
        ticks.add(schedule.last_tick)
    by_id = {tick_id(schedule.name, tick): tick for tick in sorted(ticks, reverse=True)[:count]}
    jobs: dict[str, Job] = {}
    after: int | None = None
    while by_id:
        wanted = JobFilter(ids=tuple(by_id))
        page = await find_rows(engine, wanted, limit=len(by_id), after=after)
        jobs |= {job.id: job for job in page.jobs}
        after = page.after
        if after is None:
            break
    runs = [_past_run(id_, tick, jobs.get(id_)) for id_, tick in by_id.items()]
    while runs and runs[-1].state is None:
        runs.pop()
    return runs


def _past_run(id_: str, tick: int, job: Job | None) -> PastRun:
    return PastRun(
        tick=show_at(tick),
        id=id_,
        state=None if job is None else job.state,
        attempts=0 if job is None else job.attempt,
        leased_at=None if job is None else at_of(job.leased_at),
        finished_at=None if job is None else at_of(job.finished_at),
        duration_ms=None if job is None else duration_ms(job),
    )


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, also in `words`, and the job that each tick enqueues. A paused schedule has no next
    tick. `program` is the program whose code declares the schedule, and restores it when its
    workers start; without one, a person added it."""

    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    words: str
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
    program: str | None


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
        words=rule_words(schedule),
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
        program=schedule.program,
    )
