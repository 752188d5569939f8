"""`holdfast redrive …`: list, follow and cancel redrives; `dlq retry` starts them."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.cli.flags import option, switch
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    Exit,
    print_either,
    print_json,
    print_table,
    progress,
    say,
    show_age,
    show_percent,
)
from holdfast.cli.session import open_app, person
from holdfast.core.model import JobFilter
from holdfast.core.text import printable
from holdfast.errors import NotFound
from holdfast.ops import dead_letters
from holdfast.ops.redrives import (
    RedrivePlan,
    RedriveRecord,
    RedriveState,
    RedriveView,
    is_late,
    redrive_details,
)
from holdfast.ops.views import plain
from holdfast.process import wall_ms

_POLL_S = 0.5
_QUIET_MS = 20_000

RedriveId = Annotated[str, Parameter(help="Id of the redrive.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PaceFlags:
    """Flags for the pace and the conditions of a redrive."""

    delay: Annotated[str, option("DURATION", "Wait at least this long before the jobs start.")] = (
        "0s"
    )
    edit: Annotated[
        str | None,
        option("JSON", "Apply this JSON merge patch to each payload; null removes a field."),
    ] = None
    max_redrives: Annotated[
        int | None,
        option(
            "N",
            "Skip dead letters that were already retried this many times. "
            "[default: 3, unless ids are given]",
        ),
    ] = None
    rate: Annotated[
        str | None, option("RATE", "Retry them gradually, at this rate, e.g. 10/s or 100/m.")
    ] = None
    canary: Annotated[
        bool,
        switch("Retry 1 in 100 first, and stop if one dies of the same error."),
    ] = False
    canary_wait: Annotated[
        str, option("DURATION", "Wait at most this long for the jobs of --canary to end.")
    ] = "10m"
    watch: Annotated[
        bool | None,
        Parameter(help="Show the progress of the redrive until it ends. [default: at a terminal]"),
    ] = None

    @property
    def is_durable(self) -> bool:
        """True if upkeep carries it out, so that it survives this command."""
        return self.canary or self.rate is not None

    def plan(self, wanted: JobFilter) -> RedrivePlan:
        """The plan for these dead letters. Raises UsageError."""
        pace = dead_letters.RetryOptions(
            delay=self.delay,
            edit=self.edit,
            max_redrives=self.max_redrives,
            rate=self.rate,
            canary=self.canary,
            canary_wait=self.canary_wait,
        )
        return pace.plan(wanted, person())


PACE = PaceFlags()


async def list_all(*, common: Common = COMMON) -> None:
    """List redrives, oldest first."""
    async with open_app(common) as app:
        views = await app.redrives.all()
    if common.json:
        print_json([plain(redrive_details(view)) for view in views])
        return
    print_redrives(views)
    if not views:
        say(f'there are no redrives: start one with "{program()} dlq retry --all --rate 10/s"')


async def show(
    id: RedriveId,
    /,
    *,
    watch: Annotated[
        bool, Parameter(help="Show the progress until it ends. Ctrl-C ends only the display.")
    ] = False,
    common: Common = COMMON,
) -> int:
    """Show the progress of a redrive."""
    async with open_app(common) as app:
        if watch:
            return await watch_redrive(app, id, common)
        view = await read_redrive(app, id)
    print_redrive(view, common)
    return Exit.DONE


async def cancel(id: RedriveId, /, *, common: Common = COMMON) -> None:
    """Cancel a redrive. It does not affect jobs that were already retried."""
    async with open_app(common) as app:
        before = await read_redrive(app, id)
        await app.redrives.cancel(id, person())
        view = await read_redrive(app, id)
    if before.redrive.state.ended:
        say(f"redrive {id} has already ended")
    text = f"redrive {id} is {view.redrive.state}: {view.redrive.retried} retried"
    print_either(plain(redrive_details(view)), text, common)


async def start_redrive(
    app: Holdfast, plan: RedrivePlan, watch: bool | None, common: Common
) -> int:
    """Store a redrive for upkeep, and watch it with --watch or at a terminal."""
    redrive = await app.redrives.start(plan)
    if watch if watch is not None else sys.stderr.isatty() and not common.json:
        return await watch_redrive(app, redrive.id, common)
    if common.json:
        print_json(plain(redrive_details(await read_redrive(app, redrive.id))))
    else:
        print(redrive.id)
        say(f'upkeep carries it out: see "{program()} redrive show {redrive.id}"')
    return Exit.DONE


async def start_moves(app: Holdfast, plan: RedrivePlan, pace: PaceFlags, common: Common) -> int:
    """Let the store move the dead letters of one queue back, or of each that has some."""
    only = plan.wanted.queue
    names = [only] if only else [view.queue.name for view in await app.queues() if view.dead]
    moves = []
    for name in names:
        each = replace(plan, wanted=JobFilter(queue=name))
        moves.append(await app.redrives.start(each))
    if pace.watch:
        codes = [await watch_redrive(app, move.id, common) for move in moves]
        return max(codes, default=Exit.DONE)
    views = [await read_redrive(app, move.id) for move in moves]
    if common.json:
        print_json([plain(redrive_details(view)) for view in views])
        return Exit.DONE
    for move in moves:
        print(printable(move.id, one_line=True))
        say(f'the store carries it out: see "{program()} redrive show {move.id}"')
    if not moves:
        say("there are no dead letters")
    return Exit.DONE


async def watch_redrive(app: Holdfast, id: str, common: Common) -> int:
    """Show a progress bar until the redrive ends, then its result."""
    view = await read_redrive(app, id)
    shown = 0
    hinted = False
    with progress(f"redrive {id}", view.redrive.total) as advance:
        try:
            while not view.redrive.state.ended:
                finished = view.redrive.total - view.redrive.left
                advance(finished - shown)
                shown = finished
                if not hinted and is_late(view.redrive, view.age_ms, _QUIET_MS):
                    hinted = True
                    say(f'no progress for a while: start upkeep with "{program()} up"')
                await asyncio.sleep(_POLL_S)
                view = await read_redrive(app, id)
        except asyncio.CancelledError:
            see = f"{program()} redrive show {id}"
            say(f'redrive {id} continues: see "{see}", or stop it with "redrive cancel {id}"')
            raise
    print_redrive(view, common)
    return Exit.DONE if view.redrive.state is RedriveState.FINISHED else Exit.FAILED


async def read_redrive(app: Holdfast, id: str) -> RedriveView:
    """The redrive. Raises NotFound."""
    view = await app.redrives.get(id)
    if view is None:
        raise NotFound(f'no redrive has the id "{id[:80]}"; see "{program()} redrive list"')
    return view


def print_redrives(views: list[RedriveView]) -> None:
    """Print redrives as a table."""
    now = wall_ms()
    rows = [
        (
            view.redrive.id,
            str(view.redrive.state),
            _share(view.redrive),
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
    columns = (
        "redrive",
        "state",
        "handled",
        "retried",
        "left",
        "done",
        "died again",
        "by",
        "started",
        "why",
    )
    print_table(columns, rows, less=("by", "started"), prose=("why",))


def _share(redrive: RedriveRecord) -> str:
    """The part of its dead letters that a redrive has handled."""
    return show_percent(1 - redrive.left / redrive.total) if redrive.total else ""


def print_redrive(view: RedriveView, common: Common) -> None:
    """Print the fields of one redrive."""
    fields = plain(redrive_details(view))
    if common.json:
        print_json(fields)
        return
    fields["handled"] = _share(view.redrive)
    for name, value in fields.items():
        if value not in (None, "", "0ms", 0, False, {}) or name in ("retried", "left"):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"{name:16}  {printable(text, one_line=True)}")
