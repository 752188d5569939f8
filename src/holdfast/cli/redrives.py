"""`holdfast redrive list`, `show` and `cancel`, and how `dlq retry` starts and watches one."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from holdfast import retrying
from holdfast.app import Holdfast
from holdfast.cli.exits import Exit, NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.cli.running import progress, running
from holdfast.core.model import JobFilter
from holdfast.core.text import printable
from holdfast.upkeep import RedrivePlan, RedriveState, RedriveView, wall_ms
from holdfast.upkeep.redrive import is_late
from holdfast.views.redrives import redrive_view
from holdfast.views.values import plain

_LOOK_S = 0.5
_QUIET_MS = 20_000

Id = Annotated[str, Parameter(help="The id of the redrive.")]
Watch = Annotated[bool, Parameter(help="Watch it until it ends. Ctrl-C ends the watching alone.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Pace:
    """How dead letters are put back."""

    delay: Annotated[str, Parameter(help="Not before so long from now.")] = "0s"
    edit: Annotated[
        str | None,
        Parameter(help="A JSON merge patch for each payload, first: null takes a field away."),
    ] = None
    max_redrives: Annotated[
        int | None,
        Parameter(help="Leave alone what was redriven so often; 3, unless ids are given."),
    ] = None
    rate: Annotated[str | None, Parameter(help="Bit by bit, done by upkeep: 10/s, or 100/m.")] = (
        None
    )
    canary: Annotated[
        bool,
        Parameter(
            help="A hundredth first, done by upkeep; stop if one dies of the same.", negative=()
        ),
    ] = False
    canary_wait: Annotated[str, Parameter(help="How long to wait for those.")] = "10m"
    watch: Annotated[
        bool | None,
        Parameter(help="Watch a redrive until it ends; by default at a terminal."),
    ] = None

    @property
    def is_durable(self) -> bool:
        return self.canary or self.rate is not None

    def plan(self, wanted: JobFilter) -> RedrivePlan:
        said = retrying.Pace(
            delay=self.delay,
            edit=self.edit,
            max_redrives=self.max_redrives,
            rate=self.rate,
            canary=self.canary,
            canary_wait=self.canary_wait,
        )
        return said.plan(wanted, person())


PACE = Pace()


async def list_all(*, common: Common = COMMON) -> None:
    """List redrives, oldest first."""
    async with running(common) as app:
        views = await app.redrives.all()
    if common.json:
        print_json([plain(redrive_view(view)) for view in views])
        return
    print_redrives(views)
    if not views:
        say(f"there is no redrive: {program()} dlq retry --all --rate 10/s starts one")


def print_redrives(views: list[RedriveView]) -> None:
    now = wall_ms()
    rows = [
        (
            view.redrive.id,
            str(view.redrive.state),
            view.redrive.retried,
            view.redrive.left,
            view.done,
            view.died,
            view.redrive.plan.by,
            f"{show_age(max(now - view.redrive.started_at, 0))} ago",
            view.redrive.text,
        )
        for view in views
    ]
    columns = ("redrive", "state", "retried", "left", "done", "died again", "by", "started", "why")
    print_table(columns, rows)


async def show(id: Id, /, *, watch: Watch = False, common: Common = COMMON) -> int:
    """Show a redrive, and how far it is."""
    async with running(common) as app:
        if watch:
            return await watched(app, id, common)
        view = await one(app, id)
    tell(view, common)
    return Exit.DONE


async def cancel(id: Id, /, *, common: Common = COMMON) -> None:
    """Put back no more; what was put back stays."""
    async with running(common) as app:
        before = await one(app, id)
        await app.redrives.cancel(id, person())
        view = await one(app, id)
    if before.redrive.state.ended:
        say(f"redrive {id} had ended already")
    if common.json:
        print_json(plain(redrive_view(view)))
    else:
        print(f"redrive {id} is {view.redrive.state}: {view.redrive.retried} retried")


async def start(app: Holdfast, plan: RedrivePlan, watch: bool | None, common: Common) -> int:
    """Of a plan that upkeep shall do."""
    redrive = await app.redrives.start(plan)
    seen = watch if watch is not None else sys.stderr.isatty() and not common.json
    if seen:
        return await watched(app, redrive.id, common)
    if common.json:
        print_json(plain(redrive_view(await one(app, redrive.id))))
    else:
        print(redrive.id)
        say(f"upkeep does it; see {program()} redrive show {redrive.id}")
    return Exit.DONE


async def watched(app: Holdfast, id: str, common: Common) -> int:
    """A bar until it ends, then how it ended."""
    view = await one(app, id)
    met = 0
    hinted = False
    with progress(f"redrive {id}", view.redrive.total) as advance:
        try:
            while not view.redrive.state.ended:
                now = view.redrive.total - view.redrive.left
                advance(now - met)
                met = now
                if not hinted and is_late(view.redrive, view.age_ms, _QUIET_MS):
                    hinted = True
                    say(f"nothing has happened for a while: is upkeep running? {program()} up")
                await asyncio.sleep(_LOOK_S)
                view = await one(app, id)
        except asyncio.CancelledError:
            say(f"redrive {id} goes on: {program()} redrive show {id}, or redrive cancel {id}")
            raise
    tell(view, common)
    return Exit.DONE if view.redrive.state is RedriveState.FINISHED else Exit.FAILED


async def one(app: Holdfast, id: str) -> RedriveView:
    view = await app.redrives.get(id)
    if view is None:
        raise NotFound(f"no redrive has the id {id[:80]!r}: see {program()} redrive list")
    return view


def tell(view: RedriveView, common: Common) -> None:
    shown = plain(redrive_view(view))
    if common.json:
        print_json(shown)
        return
    for name, value in shown.items():
        if value not in (None, "", "0ms", 0, False, {}) or name in ("retried", "left"):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"{name:16}  {printable(text, one_line=True)}")
