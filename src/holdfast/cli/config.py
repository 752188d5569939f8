"""`holdfast config`: settings that are stored with the queues."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.running import running
from holdfast.config import SETTINGS, Setting, settings, store
from holdfast.config import known as setting_of
from holdfast.core.text import printable
from holdfast.errors import ConfigError
from holdfast.views.config import setting_view
from holdfast.views.values import plain

Name = Annotated[str, Parameter(help="The setting, such as max-retries.")]


async def get(name: Name, /, *, common: Common = COMMON) -> None:
    """Print the value of a setting that holds now."""
    setting = _known(name)
    async with running(common) as app:
        held = await settings(app.engine)
    if common.json:
        print_json(plain(setting_view(setting, held)))
    else:
        print(printable(held.shown(setting.name).text, one_line=True))


async def set_(
    name: Name,
    value: Annotated[str, Parameter(help="What it shall be, such as 5 or 30s.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Store a setting with the queues, for whoever uses them."""
    await _change(_known(name), value, common)


async def unset(name: Name, /, *, common: Common = COMMON) -> None:
    """Forget a stored setting."""
    await _change(_known(name), None, common)


async def show_all(*, common: Common = COMMON) -> None:
    """Show every setting, its value and where that is from."""
    async with running(common) as app:
        held = await settings(app.engine)
    if common.json:
        print_json([plain(setting_view(setting, held)) for setting in SETTINGS.values()])
        return
    rows = [
        (name, held.shown(name).text or "-", held.shown(name).source, setting.does)
        for name, setting in SETTINGS.items()
    ]
    print_table(("setting", "value", "from", "what it does"), rows)


async def _change(setting: Setting, value: str | None, common: Common) -> None:
    async with running(common, create=value is not None) as app:
        await store(app.engine, setting.name, value)
        held = await settings(app.engine)
    if common.json:
        print_json(plain(setting_view(setting, held)))
    else:
        print(printable(_told(setting, value), one_line=True))
    if held.shown(setting.name).source == "environment":
        now = held.shown(setting.name).text
        say(f"here the variable {setting.variable} wins over what is stored, and says {now}")


def _told(setting: Setting, value: str | None) -> str:
    if value is not None:
        whom = {"enqueue": "for jobs enqueued ", "serve, up": ""}
        for_whom = whom.get(setting.feeds, "for workers started ")
        return f"{setting.name} is {value.strip()} {for_whom}from now on"
    default = f"{setting.default} by default" if setting.default else "not set"
    return f"{setting.name} is {default}"


def _known(name: str) -> Setting:
    try:
        return setting_of(name)
    except ConfigError as error:
        raise NotFound(str(error)) from None
