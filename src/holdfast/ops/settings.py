"""Settings stored with the jobs: read them, overridden by the environment, and change them. Also
the options that tasks declare in code: workers publish them, for jobs that are enqueued elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from holdfast.config import SETTINGS as KNOWN
from holdfast.config import Setting, Settings, Source, find_setting
from holdfast.core import bounds, checks
from holdfast.core.model import NewJob
from holdfast.core.workers import DECLARED_KIND, TaskRecord
from holdfast.engines.base import Engine
from holdfast.notation.job import JobLine
from holdfast.notation.job_lines import JobDefaults, job_defaults
from holdfast.notation.options import new_id
from holdfast.ops.records import RecordKind, Stored

SETTING_KIND = "setting"
_TEXT_MAX = 10_000


class _TextKind(RecordKind[str]):
    """Plain text instead of JSON."""

    def encode_value(self, value: str) -> bytes:
        return value.encode()

    def decode_value(self, data: bytes) -> str:
        return data.decode()


def _check_stored(name: str, text: str) -> None:
    """A later version may know more settings; the text of a known one must be valid."""
    if len(text) > _TEXT_MAX:
        raise ValueError(f"its text is longer than {_TEXT_MAX} characters")
    setting = KNOWN.get(name)
    if setting is not None:
        setting.read(text)


def _check_task(_: str, record: TaskRecord) -> None:
    """The options must be within the bounds of a job."""
    checks.check_job(
        NewJob(
            id="-",
            task="-",
            queue=record.queue or "default",
            priority=record.priority or 0,
            expires_ms=record.expires_ms,
            overrides=record.overrides,
        )
    )


SETTINGS = _TextKind(SETTING_KIND, str, check=_check_stored)
TASKS = RecordKind(DECLARED_KIND, TaskRecord, check=_check_task)
TASKS_MAX = 5_000
"""Tasks of one store whose options are read, the first in alphabetical order."""


async def read_settings(engine: Engine, environment: Mapping[str, str] | None = None) -> Settings:
    """The stored settings that are valid, overridden by the environment; none are stored without
    records."""
    stored = await SETTINGS.values(engine) if engine.traits.records else {}
    return Settings(stored, os.environ if environment is None else environment)


async def declared_tasks(engine: Engine) -> dict[str, TaskRecord]:
    """The options that tasks declare in code, by the name of the task."""
    if not engine.traits.records:
        return {}
    return {
        name: stored.value
        for name, stored in (await _stored_tasks(engine)).items()
        if stored.value is not None
    }


async def read_job_defaults(
    engine: Engine, flags: JobLine | None = None, make_id: Callable[[], str] = new_id
) -> JobDefaults:
    """The defaults of new jobs: the flags, else the options that their task declares, else the
    stored settings.
    """
    stored, declared = await read_settings(engine), await declared_tasks(engine)
    return job_defaults(flags or JobLine(), stored, declared, make_id)


async def save_declared(engine: Engine, tasks: Mapping[str, TaskRecord | None]) -> None:
    """Store the options of these tasks, and remove those of tasks that declare none any more. If
    workers of several versions run, those of the last one that started stand.
    """
    known = await _stored_tasks(engine)
    changes = []
    for name, declared in tasks.items():
        stored = known.get(name)
        if stored is None and declared is not None:
            changes.append(TASKS.record(name, declared))
        elif stored is not None and (stored.value != declared or declared is None):
            changes.append(TASKS.record(name, declared, stored.version))
    for start in range(0, len(changes), bounds.BATCH_MAX):
        # Stale: another worker has just published the same task.
        await engine.save(changes[start : start + bounds.BATCH_MAX])


async def _stored_tasks(engine: Engine) -> dict[str, Stored[TaskRecord]]:
    found: dict[str, Stored[TaskRecord]] = {}
    async for stored in TASKS.read_all(engine):
        found[stored.key] = stored
        if len(found) >= TASKS_MAX:
            break
    return found


async def save_setting(engine: Engine, name: str, text: str | None) -> bool:
    """Store a value, or remove it with None; False if nothing changed."""
    setting = find_setting(name)
    if text is not None:
        setting.read(text)
        text = text.strip()
    changed = False

    def change(stored: str | None) -> str | None:
        nonlocal changed
        changed = stored != text
        return text if changed else stored

    await SETTINGS.update(engine, setting.name, change)
    return changed


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, its current value, and where the value comes from."""

    name: str
    value: str | None
    source: Source
    default: str | None
    variable: str
    used_by: str
    does: str


def setting_view(setting: Setting, held: Settings) -> SettingView:
    """A setting as people read it."""
    present = held.shown(setting.name)
    return SettingView(
        name=setting.name,
        value=present.text or None,
        source=present.source,
        default=setting.default or None,
        variable=setting.variable,
        used_by=setting.feeds,
        does=setting.does,
    )
