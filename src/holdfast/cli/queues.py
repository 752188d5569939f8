"""`holdfast queue list`, `show`, `create`, `update`, `pause` and `resume`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.backoffs import show_backoff
from holdfast.cli.admin import server_of
from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.cli.status import count_of, print_counts, queue_state, shown
from holdfast.core.model import Queue, QueueView
from holdfast.core.pauses import Pause
from holdfast.core.text import printable
from holdfast.durations import show_ms
from holdfast.errors import Exists, Forbidden, InvalidQueue, UsageError
from holdfast.options import QueueOptions, changed_queue
from holdfast.queues import alter_queue, find_queue, pause_queue, resume_queue
from holdfast.rates import show_limit
from holdfast.upkeep import wall_ms
from holdfast.views.queues import details_view
from holdfast.views.values import plain, text_of

Name = Annotated[str, Parameter(help="The name of the queue.")]
NONE = "none"
"""What a setting is told that a queue may be without."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a queue can be told; what is left out stays as it is."""

    lease: Annotated[str | None, Parameter(help="How long a lease lasts: 30s.")] = None
    timeout: Annotated[str | None, Parameter(help="How long one run may take, or none.")] = None
    max_attempts: Annotated[int | None, Parameter(help="Runs in all; 0 is unlimited.")] = None
    max_crashes: Annotated[int | None, Parameter(help="Deaths of its process.")] = None
    backoff: Annotated[
        str | None, Parameter(help="How long a failed job waits: exponential(2s, max=10m).")
    ] = None
    order: Annotated[
        Literal["tail", "keep"] | None, Parameter(help="Where a retried job goes in the line.")
    ] = None
    retention: Annotated[str | None, Parameter(help="How long done jobs are kept: 7d.")] = None
    dead_retention: Annotated[str | None, Parameter(help="How long dead letters are kept.")] = None
    dead_queue: Annotated[str | None, Parameter(help="Where dead letters move to, or none.")] = None
    max_depth: Annotated[
        str | None, Parameter(help="Refuse more waiting jobs than this, or none.")
    ] = None
    payload_max: Annotated[int | None, Parameter(help="Bytes of a payload at most.")] = None
    accepting: Annotated[bool | None, Parameter(help="Does it take new jobs?")] = None
    fairness: Annotated[
        Literal["off", "shares", "noisy"] | None,
        Parameter(help="Tenants in turn by weight, or those that take too much behind the others."),
    ] = None
    weights: Annotated[
        list[str] | None,
        Parameter(name=["--weights", "--weight"], help="TENANT=WEIGHT, again for more, or none."),
    ] = None
    aging: Annotated[
        str | None, Parameter(help="Waiting so long counts as one more of priority, or none.")
    ] = None
    group_batch: Annotated[
        int | None, Parameter(help="Jobs of one group that are leased together.")
    ] = None

    def options(self) -> QueueOptions:
        given: dict[str, Any] = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        for name in ("timeout", "dead_queue", "max_depth", "aging"):
            if given.get(name) == NONE:
                given[name] = None
        if given.get("max_depth") is not None:
            given["max_depth"] = _whole("max-depth", given["max_depth"])
        if "weights" in given:
            given["weights"] = _weights(given["weights"])
        options: QueueOptions = {**given}  # type: ignore[typeddict-item]
        return options


_SETTINGS = Settings()


async def create(name: Name, /, *, settings: Settings = _SETTINGS, common: Common = COMMON) -> None:
    """Create a queue."""
    queue = changed_queue(Queue(name=name), settings.options())
    async with running(common, create=True) as app:
        if not await _declared(app, queue):
            raise InvalidQueue(
                f"queue {name} exists already: change it with {program()} queue update {name}"
            )
    _tell(queue, "created queue", common)


async def _declared(app: Holdfast, queue: Queue) -> bool:
    ask = server_of(app)
    if ask is not None and queue == Queue(name=queue.name):
        # As it is by default a server would take it for a program's, and nobody's act.
        try:
            await ask("POST", "/v1/queues", {"name": queue.name})
        except Exists:
            return False
        except Forbidden:
            # Who does not operate may make such a one, as programs do.
            return await app.engine.declare(queue, instead_of=None)
        return True
    return await app.engine.declare(queue, instead_of=None)


async def update(name: Name, /, *, settings: Settings = _SETTINGS, common: Common = COMMON) -> None:
    """Change settings of a queue; those that are not given stay."""
    options = settings.options()
    if not options:
        raise UsageError("nothing to change: give --lease, --max-attempts, …")
    async with running(common) as app:
        before = (await one(app, name)).queue
        queue = await alter_queue(app.engine, name, options)
    _tell_change(before, queue, "changed queue", common, named="dead_queue" in options)


async def pause(
    name: Name,
    /,
    *,
    text: Annotated[str, Parameter(help="Why, for those who wonder.")] = "",
    common: Common = COMMON,
) -> None:
    """Let no job of a queue start, until it is resumed; those that run go on."""
    pause_ = Pause(by=person(), text=text[:1000], at=wall_ms())
    async with running(common) as app:
        before = (await one(app, name)).queue
        queue = await pause_queue(app.engine, name, pause_)
    _tell_change(before, queue, "paused queue", common)


async def resume(name: Name, /, *, common: Common = COMMON) -> None:
    """Let the jobs of a queue start again."""
    async with running(common) as app:
        before = (await one(app, name)).queue
        queue = await resume_queue(app.engine, name)
    _tell_change(before, queue, "resumed queue", common)
    if not queue.accepting:
        say(f"it accepts no new job yet: {program()} queue update {queue.name} --accepting")


async def show(name: Name, /, *, common: Common = COMMON) -> None:
    """Show one queue: its settings and how it stands."""
    async with running(common) as app:
        view = await one(app, name, counts=True)
    if common.json:
        print_json(plain(details_view(view)))
        return
    queue = view.queue
    settings = {
        **plain(queue),
        "backoff": show_backoff(queue.backoff),
        "limits": "; ".join(f"{each.name}: {show_limit(each)}" for each in queue.limits) or None,
        "weights": ", ".join(f"{name}={weight}" for name, weight in queue.weights.items()) or None,
    }
    for setting, value in settings.items():
        shown = show_ms(value) if setting.endswith("_ms") and value is not None else value
        if shown is not None:
            print(f"{setting.removesuffix('_ms'):15} {printable(text_of(shown), one_line=True)}")
    print()
    print_counts([view])


async def list_all(*, common: Common = COMMON) -> None:
    """List the queues: their settings and how they stand."""
    async with running(common) as app:
        views = await app.queues()
    if common.json:
        print_json([plain(details_view(view)) for view in views])
        return
    rows = [
        (
            view.queue.name,
            count_of(view, "ready"),
            count_of(view, "leased"),
            count_of(view, "dead"),
            show_ms(view.queue.lease_ms),
            view.queue.max_attempts,
            show_ms(view.queue.retention_ms),
            view.queue.order,
            view.queue.dead_queue or "",
            queue_state(view) or "open",
        )
        for view in shown(views)
    ]
    columns = ("queue", "ready", "leased", "dead", "lease", "max attempts", "retention", "order")
    print_table((*columns, "dead queue", "state"), rows)


async def one(app: Holdfast, name: str, *, counts: bool = False) -> QueueView:
    view = await find_queue(app.engine, name, counts=counts)
    if view is None:
        raise NotFound(f"queue {name[:80]!r} does not exist: see {program()} queue list")
    return view


def _tell_change(
    before: Queue, queue: Queue, done: str, common: Common, *, named: bool = False
) -> None:
    """With `named` a dead queue was asked for."""
    _tell(queue, done, common)
    if queue.dead_queue != before.dead_queue and not named:
        say(f"its dead queue {before.dead_queue} is gone, and was taken from its settings")


def _tell(queue: Queue, done: str, common: Common) -> None:
    if common.json:
        print_json(plain(queue))
    else:
        print(f"{done} {queue.name}")


def _weights(given: list[str]) -> dict[str, int]:
    if given == [NONE]:
        return {}
    pairs = [pair.rpartition("=") for pair in given]
    for tenant, _, weight in pairs:
        if not tenant:
            raise UsageError(f"weight {weight[:80]!r} is not TENANT=WEIGHT, such as acme=5")
    return {tenant: _whole(f"weight of {tenant}", weight) for tenant, _, weight in pairs}


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name} {text[:40]!r} is neither a number nor {NONE}")
    return int(text)
