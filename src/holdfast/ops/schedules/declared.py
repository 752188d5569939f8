"""Schedules that the code of a program declares: store them, and remove those that it declares no
more.

Several versions of a program may run side by side. The one that started last decides: its start is
in the program's record, and one that started earlier changes nothing. Schedules that a person or
another program added are never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.bounds import Instant
from holdfast.core.model import Queue
from holdfast.engines.base import Engine
from holdfast.ops.records import RecordKind
from holdfast.ops.schedules import RULE_FIELDS, SCHEDULES, checked_schedule, started
from holdfast.ops.ticks import Schedule

PROGRAM_KIND = "program"
_AHEAD_MS_MAX = 15 * bounds.MINUTE_MS
"""A start further in the future than this was noted by a wrong clock, and does not count."""


class DeclaredSchedules(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules that the code of a program declares. With `keep`, those that it declares no
    more stay in the store."""

    program: str
    schedules: tuple[Schedule, ...] = ()
    keep: bool = False


class ProgramRecord(msgspec.Struct, frozen=True, kw_only=True):
    """When the process was started that published the schedules of a program last, by the wall
    clock of its machine."""

    started_at: Instant


PROGRAMS = RecordKind(PROGRAM_KIND, ProgramRecord)


class ScheduleSync(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the schedules that were changed in the store. Those in `refused` belong to a
    person or to another program. `superseded`: a process of the program that started later has
    published its schedules, so nothing was changed."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    superseded: bool = False


class _Change(NamedTuple):
    """A schedule before and after this process changed it; None if there was or is none."""

    name: str
    before: Schedule | None
    after: Schedule | None


async def save_schedules(
    engine: Engine, declared: DeclaredSchedules, started_at: int, wall_ms: Callable[[], int]
) -> ScheduleSync:
    """Store what the code declares. Unchanged schedules are not written, so that no tick is lost; a
    schedule that a person paused stays paused. `started_at` is when this process was started.
    """
    now = wall_ms()
    program = declared.program

    def claim(known: ProgramRecord | None) -> ProgramRecord | None:
        if known is None and not declared.schedules:
            return None
        if known is not None and (
            known.started_at == started_at or _is_later(known, started_at, now)
        ):
            return known
        return ProgramRecord(started_at=started_at)

    claimed = await PROGRAMS.update(engine, program, claim)
    if claimed is None:
        return ScheduleSync()
    if claimed.started_at != started_at:
        return ScheduleSync(superseded=True)
    wanted = {
        each.name: checked_schedule(replace(each, program=program)) for each in declared.schedules
    }
    changes: list[_Change] = []
    refused: list[str] = []
    async for stored in SCHEDULES.read_all(engine):
        known, own = stored.value, wanted.pop(stored.key, None)
        if known is None or known.program != program:
            if own is not None:
                refused.append(stored.key)
        elif own is not None:
            if _merged(known, own, now) != known:
                changes += await _write(engine, own, now)
        elif not declared.keep:
            changes += await _remove(engine, stored.key, program)
    for own in wanted.values():
        changes += await _write(engine, own, now)
    latest = await PROGRAMS.read(engine, program)
    if latest is not None and latest.value and _is_later(latest.value, started_at, now):
        await _undo(engine, changes)
        return ScheduleSync(superseded=True)
    return _summary(changes, refused)


def _is_later(known: ProgramRecord, started_at: int, now: int) -> bool:
    """True if a process that started after this one has published."""
    return started_at < known.started_at <= now + _AHEAD_MS_MAX


def _merged(known: Schedule, own: Schedule, now: int) -> Schedule:
    """The declared schedule with the pause and the ticks of the stored one. A changed rule starts
    from now."""
    same = all(getattr(known, name) == getattr(own, name) for name in RULE_FIELDS)
    return replace(
        own,
        paused=known.paused,
        passed_at=known.passed_at if same else now,
        last_tick=known.last_tick,
        enqueueing=known.enqueueing,
    )


async def _write(engine: Engine, own: Schedule, now: int) -> list[_Change]:
    """Add or change a schedule, unless someone else has added one of its name meanwhile."""
    if bounds.QUEUE_NAME.match(own.job.queue):
        # Its ticks would be refused otherwise.
        await engine.declare(Queue(name=own.job.queue), instead_of=None)
    before: Schedule | None = None

    def change(known: Schedule | None) -> Schedule:
        nonlocal before
        before = known
        if known is None:
            return started(own, now)
        if known.program != own.program:
            return known
        merged = _merged(known, own, now)
        return known if merged == known else merged

    after = await SCHEDULES.update(engine, own.name, change)
    return [] if after is before else [_Change(own.name, before, after)]


async def _remove(engine: Engine, name: str, program: str) -> list[_Change]:
    before: Schedule | None = None

    def change(known: Schedule | None) -> Schedule | None:
        nonlocal before
        before = known
        return None if known is None or known.program == program else known

    after = await SCHEDULES.update(engine, name, change)
    return [] if after is before else [_Change(name, before, after)]


async def _undo(engine: Engine, changes: list[_Change]) -> None:
    """Take back changes that a process which started later could not see: it may have found the
    schedules as it wanted them, and written nothing."""
    for each in changes:

        def change(known: Schedule | None, each: _Change = each) -> Schedule | None:
            if known is None or each.after is None:
                return each.before if known is each.after else known
            if _merged(known, each.after, known.passed_at) != known:
                return known
            return None if each.before is None else replace(each.before, paused=known.paused)

        await SCHEDULES.update(engine, each.name, change)


def _summary(changes: list[_Change], refused: list[str]) -> ScheduleSync:
    return ScheduleSync(
        added=tuple(sorted(each.name for each in changes if each.before is None)),
        changed=tuple(sorted(each.name for each in changes if each.before and each.after)),
        removed=tuple(sorted(each.name for each in changes if each.after is None)),
        refused=tuple(sorted(refused)),
    )


def describe_sync(sync: ScheduleSync, program: str) -> list[tuple[int, str]]:
    """The changes in words, each with its log level."""
    lines = [
        (logging.INFO, f"{done} {_named(names)}, to match the code of {program}")
        for done, names in (
            ("added", sync.added),
            ("changed", sync.changed),
            ("removed", sync.removed),
        )
        if names
    ]
    if sync.refused:
        text = (
            f"the code of {program} cannot store {_named(sync.refused)}: a person or another"
            " program added one of this name; rename or remove one of the two"
        )
        lines.append((logging.WARNING, text))
    return lines


def _named(names: tuple[str, ...]) -> str:
    return f"{'schedule' if len(names) == 1 else 'schedules'} {', '.join(names)}"
