"""Settings that are stored with the queues."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.config import SETTINGS, Setting, settings, store
from holdfast.config import known as setting_of
from holdfast.errors import ConfigError, NotFound
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Name
from holdfast.views.config import SettingView, setting_view


class SettingBody(msgspec.Struct, forbid_unknown_fields=True):
    """What it shall be, as text: 5, 30s, yes."""

    value: Annotated[str, Meta(min_length=1, max_length=2000)]


class SettingList(msgspec.Struct, frozen=True):
    settings: list[SettingView]


@operation("GET", "/v1/config", needs=Scope.OPERATE)
async def list_settings(call: Call) -> SettingList:
    """Every setting, its value and where that is from: the environment is the server's."""
    held = await settings(call.engine)
    return SettingList([setting_view(setting, held) for setting in SETTINGS.values()])


@operation("GET", "/v1/config/{name}", needs=Scope.OPERATE)
async def show_setting(call: Call, name: Name) -> SettingView:
    """The value of a setting that holds now."""
    return setting_view(_known(name), await settings(call.engine))


@operation("PUT", "/v1/config/{name}", needs=Scope.OPERATE)
async def store_setting(call: Call, name: Name, body: SettingBody) -> SettingView:
    """Store a setting with the queues, for whoever uses them."""
    return await _changed(call, _known(name), body.value)


@operation("POST", "/v1/config/{name}/unset", needs=Scope.OPERATE, repeatable=True)
async def unset_setting(call: Call, name: Name) -> SettingView:
    """Forget a stored setting: what was there before it holds again."""
    return await _changed(call, _known(name), None)


OPERATIONS: tuple[Operation, ...] = (
    list_settings,
    show_setting,
    store_setting,
    unset_setting,
)


async def _changed(call: Call, setting: Setting, value: str | None) -> SettingView:
    await store(call.engine, setting.name, value)
    return setting_view(setting, await settings(call.engine))


def _known(name: str) -> Setting:
    try:
        return setting_of(name)
    except ConfigError as error:
        raise NotFound(str(error)) from None
