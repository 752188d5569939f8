"""What people say about a schedule: when it ticks, and the job of each tick."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import newjob
from holdfast.config import settings
from holdfast.core.model import NewJob
from holdfast.durations import Duration, to_ms
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, UsageError
from holdfast.upkeep import Schedule
from holdfast.upkeep.schedule import Missed, check_schedule

_SAID = ("zone", "missed", "missed_max")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When it ticks, and what becomes of ticks that were missed; None is left as it is."""

    cron: str | None = None
    every: Duration | None = None
    zone: str | None = None
    missed: Missed | None = None
    missed_max: int | None = None
    grace: Duration | None = None

    def fields(self) -> dict[str, Any]:
        """Of a Schedule; a new rule takes the place of the other one."""
        if self.cron is not None and self.every is not None:
            raise UsageError("a schedule has either a cron rule or an interval, not both")
        given = {name: value for name in _SAID if (value := getattr(self, name)) is not None}
        if self.cron is not None:
            given |= {"cron": self.cron, "every_ms": None}
        if self.every is not None:
            given |= {"every_ms": to_ms("every", self.every, ConfigError), "cron": None}
        if self.grace is not None:
            given["grace_ms"] = to_ms("grace", self.grace, ConfigError)
        return given

    @property
    def says_when(self) -> bool:
        return self.cron is not None or self.every is not None


async def new_schedule(engine: Engine, name: str, rule: Rule, line: newjob.Line) -> Schedule:
    """Not stored yet; what the job does not say is from the stored settings."""
    if not rule.says_when:
        raise UsageError("say when: a cron rule, or every so long")
    job = newjob.make(line, newjob.base_of(newjob.Line(), await settings(engine)))
    return Schedule(name=name, job=job, **rule.fields())


def changes_of(old: Schedule, rule: Rule, line: newjob.Line) -> dict[str, Any]:
    """The fields that differ; what is not given stays."""
    changes = rule.fields()
    job = changed_job(old.job, line)
    return changes if job == old.job else {**changes, "job": job}


def ruled(old: Schedule | None, rule: Rule) -> Schedule:
    """A schedule with another rule, or one that has nothing but a rule."""
    if old is None and not rule.says_when:
        raise UsageError("name a schedule, or give a rule")
    base = old or Schedule(name="preview", job=NewJob(id="preview", task="none"))
    schedule = replace(base, **rule.fields())
    check_schedule(schedule)
    return schedule


def changed_job(old: NewJob, line: newjob.Line) -> NewJob:
    """The old job with what is given; its overrides are settings of their own."""
    given = {name for name in newjob.FIELDS if getattr(line, name) not in (None, msgspec.UNSET)}
    if not given:
        return old
    new = given & {"command", "task", "webhook"}
    if not new:
        line.task = old.task
    made = newjob.make(line, newjob.Base({}))
    fields: dict[str, Any] = {
        name: getattr(made, name) for name in given & set(old.__struct_fields__)
    }
    if new:
        fields |= {"task": made.task, "payload": made.payload}
    for name in ("delay", "expires"):
        if name in given:
            fields[f"{name}_ms"] = getattr(made, f"{name}_ms")
    if "to" in given:
        fields |= {"queue": made.queue, "expires_ms": made.expires_ms}
    own = {
        name: value
        for name in made.overrides.__struct_fields__
        if (value := getattr(made.overrides, name)) is not None
    }
    return replace(old, **fields, overrides=replace(old.overrides, **own))
