"""`holdfast breaker …`: see circuit breakers, open them and close them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from holdfast.breakers import show_breaker
from holdfast.cli.exits import Exit, NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.core import breaker as rules
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.text import printable
from holdfast.views.breakers import breaker_view
from holdfast.views.values import plain
from holdfast.worker.breaker_book import Change, Known, breakers_of, change_by_hand, key_of

Names = Annotated[
    list[str], Parameter(help="As the list has them: task:NAME, host:NAME:PORT.", negative=())
]
Name = Annotated[str, Parameter(help="As the list has it: task:NAME, host:NAME:PORT.")]
COLUMNS = ("breaker", "state", "failures", "tried in", "opens after", "last")


async def list_all(*, common: Common = COMMON) -> None:
    """List the breakers of tasks, and of hosts that fail."""
    async with running(common) as app:
        known = await breakers_of(app.engine)
    if common.json:
        print_json([plain(breaker_view(key, each)) for key, each in known.items()])
    elif known:
        print_breakers(known)
    else:
        say(
            "there is no breaker: a task with @app.task(breaker=…) has one as soon as a worker"
            " knows it, and a webhook's host while it fails"
        )


async def show(name: Name, /, *, common: Common = COMMON) -> None:
    """Show how a breaker stands."""
    async with running(common) as app:
        known = await breakers_of(app.engine)
        with _told():
            key = key_of(name, known)
    view = plain(breaker_view(key, known[key]))
    if common.json:
        print_json(view)
        return
    for field, value in view.items():
        if value not in (None, ""):
            print(f"{field:12}  {printable(str(value), one_line=True)}")


async def open_(names: Names, /, *, common: Common = COMMON) -> int:
    """Let no job start behind these breakers, until they are closed by hand."""
    by = person()
    return await _each(names, lambda record, _: rules.opened_by(record, by), "open", common)


async def close(names: Names, /, *, common: Common = COMMON) -> int:
    """Let jobs start again; failures are counted from none."""
    return await _each(names, lambda record, _: rules.closed(record), "closed", common)


def print_breakers(known: dict[str, Known]) -> None:
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


async def _each(names: list[str], change: Change, done: str, common: Common) -> int:
    async with running(common) as app:
        with _told():
            keys = await change_by_hand(app.engine, names, change)
    if common.json:
        print_json({done: keys})
    else:
        for key in keys:
            print(f"{printable(key, one_line=True)}: {done}")
    return Exit.DONE


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(f"{error}: see {program()} breaker list") from None
