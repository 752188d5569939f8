"""Schedules as records beside the jobs: add, edit, remove, pause, resume, run now, preview.

Every change is a compare-and-set on the record that was read, so that an edit and a scheduler's
note of its last tick never overwrite each other. Each takes effect within seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import NewJob, Receipt, Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable, Exists
from holdfast.upkeep.paging import records
from holdfast.upkeep.schedule import Schedule, check_schedule, next_tick

RECORD_KIND = "schedule"
_RULE = ("cron", "every_ms", "anchor_at", "zone", "paused")
_ROUNDS_MAX = 20
_PREVIEW_MAX = 1_000
_INSTANT_MAX = 253_402_300_799_999
"""The end of the year 9999, after which nobody can write it."""


class Schedules:
    """`wall_ms` is this machine's wall clock: cron rules are about people's time."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms

    async def add(self, schedule: Schedule) -> None:
        """Its first tick is the first one after now."""
        _schedule(schedule)
        fresh = _checked(replace(schedule, passed_at=self._wall_ms(), last_tick=None))
        if await self._save(fresh, version=0) is Saved.STALE:
            raise Exists(f"schedule {schedule.name} exists already: edit or remove it")

    async def edit(self, name: str, /, **changes: Any) -> Schedule:
        """Change some fields of the Schedule. A rule that is changed starts afresh from now."""
        refused = {"name", "passed_at", "last_tick"}.intersection(changes)
        unknown = set(changes).difference(Schedule.__struct_fields__)
        if refused or unknown:
            raise ConfigError(f"a schedule's {', '.join(sorted(refused | unknown))} cannot be set")

        def changed(schedule: Schedule) -> Schedule:
            edited = replace(schedule, **changes)
            same = all(getattr(edited, name) == getattr(schedule, name) for name in _RULE)
            return edited if same else replace(edited, passed_at=self._wall_ms())

        return await self._change(name, changed)

    async def pause(self, name: str) -> None:
        await self.edit(name, paused=True)

    async def resume(self, name: str) -> None:
        """What would have ticked in the meantime is not made up for."""
        await self.edit(name, paused=False)

    async def remove(self, name: str) -> bool:
        """False when it was not there."""
        for _ in range(_ROUNDS_MAX):
            record = await self._record(name)
            if record is None:
                return False
            gone = replace(record, value=None)
            if (await self._engine.save([gone]))[0] is Saved.SAVED:
                return True
        raise _busy(name)

    async def run_now(self, name: str, job_id: str) -> Receipt:
        """Enqueue its job once, besides its ticks; repeating it with the same id adds nothing."""
        schedule = await self.get(name)
        if schedule is None:
            raise _missing(name)
        [receipt] = await self._engine.enqueue([job_of(schedule, job_id)])
        return receipt

    async def get(self, name: str) -> Schedule | None:
        record = await self._record(name)
        return None if record is None else decode(record)

    async def all(self) -> list[Schedule]:
        """All of them, by name."""
        return [decode(record) async for record in self._records()]

    def preview(self, schedule: Schedule, count: int = 5, after: int | None = None) -> list[int]:
        """The instants of the next ticks."""
        _schedule(schedule)
        ticks: list[int] = []
        last = self._wall_ms() if after is None else after
        while len(ticks) < min(count, _PREVIEW_MAX):
            tick = next_tick(schedule, last)
            if tick is None or tick > _INSTANT_MAX:
                break
            ticks.append(tick)
            last = tick
        return ticks

    async def _change(self, name: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        for _ in range(_ROUNDS_MAX):
            record = await self._record(name)
            if record is None:
                raise _missing(name)
            changed = _checked(change(decode(record)))
            if await self._save(changed, record.version) is Saved.SAVED:
                return changed
        raise _busy(name)

    async def _save(self, schedule: Schedule, version: int) -> Saved:
        return (await self._engine.save([encode(schedule, version)]))[0]

    async def _record(self, name: str) -> Record | None:
        given: object = name
        if not isinstance(given, str) or not limits.QUEUE_NAME.match(given):
            return None
        # Everything but its last character sorts before a name, and little lies between.
        async for record in self._records(after=name[:-1] or None):
            if record.key == name:
                return record
            if record.key.encode() > name.encode():
                break
        return None

    def _records(self, after: str | None = None) -> AsyncIterator[Record]:
        return records(self._engine, RECORD_KIND, after)


def encode(schedule: Schedule, version: int) -> Record:
    value = msgspec.json.encode(schedule)
    return Record(kind=RECORD_KIND, key=schedule.name, value=value, version=version)


def decode(record: Record) -> Schedule:
    try:
        return msgspec.json.decode(record.value or b"", type=Schedule)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the record of schedule {record.key} cannot be read ({error}): remove and add it anew"
        ) from None


def job_of(schedule: Schedule, job_id: str, **fields: Any) -> NewJob:
    """The schedule's job under an id of its own, with its origin in the headers."""
    headers = {**schedule.job.headers, "schedule": schedule.name}
    return replace(schedule.job, **{"id": job_id, "key": None, "headers": headers, **fields})


def _checked(schedule: Schedule) -> Schedule:
    """As it will be read back, so that a value of a wrong type is refused here and not there."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ConfigError(f"schedule {schedule.name} cannot be kept: {error}") from None
    check_schedule(read)
    return read


def _schedule(schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"a {type(schedule).__name__} is no schedule: give a Schedule")


def _missing(name: str) -> ConfigError:
    return ConfigError(f"schedule {str(name)[:100]!r} does not exist")


def _busy(name: str) -> EngineUnavailable:
    return EngineUnavailable(f"schedule {name} is being changed by others all the time: try again")
