"""`holdfast breaker …`: inspect, open and close circuit breakers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.help_pages import program
from holdfast.cli.output import COMMON, Common, Exit, print_json, print_table, say, show_age
from holdfast.cli.session import open_app, person
from holdfast.core import breaker as rules
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.text import printable
from holdfast.errors import NotFound
from holdfast.notation.policies import show_breaker
from holdfast.ops.breakers import (
    BreakerChange,
    StoredBreaker,
    breaker_key,
    breaker_view,
    change_breakers,
    read_breakers,
)
from holdfast.ops.views import plain

Name = Annotated[str, Parameter(help="Name of the breaker: task:NAME or host:NAME:PORT.")]
Names = Annotated[
    list[str],
    Parameter(help="Names of the breakers: task:NAME or host:NAME:PORT.", negative=()),
]
COLUMNS = ("breaker", "state", "failures", "tried in", "opens after", "last")


async def list_all(*, common: Common = COMMON) -> None:
    """List circuit breakers of tasks and webhook hosts.

    A host has a breaker while webhooks to it fail.
    """
    async with open_app(common) as app:
        known = await read_breakers(app.engine)
    if common.json:
        print_json([plain(breaker_view(key, each)) for key, each in known.items()])
    elif known:
        print_breakers(known)
    else:
        say(
            "there are no breakers: a task with @app.task(breaker=…) has one once a worker has"
            " registered it, and a webhook host has one while it fails"
        )


async def show(name: Name, /, *, common: Common = COMMON) -> None:
    """Show the state of a circuit breaker."""
    async with open_app(common) as app:
        known = await read_breakers(app.engine)
        with _hint_at_list():
            key = breaker_key(name, known)
    view = plain(breaker_view(key, known[key]))
    if common.json:
        print_json(view)
        return
    for field, value in view.items():
        if value not in (None, ""):
            print(f"{field:12}  {printable(str(value), one_line=True)}")


async def open_(names: Names, /, *, common: Common = COMMON) -> int:
    """Open circuit breakers, so that their jobs do not start.

    They stay open until an operator closes them.
    """
    by = person()
    return await _change_each(names, lambda record, _: rules.opened_by(record, by), "open", common)


async def close(names: Names, /, *, common: Common = COMMON) -> int:
    """Close circuit breakers, so that their jobs start again.

    Their failure counts start again from 0.
    """
    return await _change_each(names, lambda record, _: rules.closed(record), "closed", common)


def print_breakers(known: dict[str, StoredBreaker]) -> None:
    """Print breakers as a table."""
    rows = [
        (
            key,
            _state(each.record),
            each.record.streak,
            show_age(rules.left_ms(each.record, each.age_ms)),
            show_breaker(each.record.policy),
            each.record.last,
        )
        for key, each in known.items()
    ]
    print_table(COLUMNS, rows)


def _state(record: BreakerRecord) -> str:
    shown = str(record.state).replace("_", " ")
    by_hand = record.state is BreakerState.OPEN and record.by
    return f"{shown} by {record.by}" if by_hand else shown


async def _change_each(names: list[str], change: BreakerChange, done: str, common: Common) -> int:
    async with open_app(common) as app:
        with _hint_at_list():
            keys = await change_breakers(app.engine, names, change)
    if common.json:
        print_json({done: keys})
    else:
        for key in keys:
            print(f"{printable(key, one_line=True)}: {done}")
    return Exit.DONE


@contextmanager
def _hint_at_list() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(f'{error}; see "{program()} breaker list"') from None
