"""A setting that is stored with the queues, and what holds now."""

from __future__ import annotations

import msgspec

from holdfast.config import Setting, Settings, Source


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    source: Source
    default: str | None
    variable: str
    used_by: str
    does: str


def setting_view(setting: Setting, held: Settings) -> SettingView:
    now = held.shown(setting.name)
    return SettingView(
        name=setting.name,
        value=now.text or None,
        source=now.source,
        default=setting.default or None,
        variable=setting.variable,
        used_by=setting.feeds,
        does=setting.does,
    )
