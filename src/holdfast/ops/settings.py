"""Settings stored with the jobs: read them, overridden by the environment, and change them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from holdfast.config import SETTINGS as KNOWN
from holdfast.config import Setting, Settings, Source, find_setting
from holdfast.engines.base import Engine
from holdfast.ops.records import RecordKind

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


SETTINGS = _TextKind(SETTING_KIND, str, check=_check_stored)


async def read_settings(engine: Engine, environment: Mapping[str, str] | None = None) -> Settings:
    """The stored settings that are valid, overridden by the environment."""
    stored = await SETTINGS.values(engine)
    return Settings(stored, os.environ if environment is None else environment)


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
