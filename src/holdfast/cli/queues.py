"""`holdfast queue …`: create, show, change, pause, limit and empty queues."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import DryRun, States, Yes, confirm, option, switch
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
)
from holdfast.cli.session import open_app, person, server_of
from holdfast.cli.status import count_of, print_counts, queue_state, visible_queues
from holdfast.core import bounds
from holdfast.core.limits import Slot
from holdfast.core.model import Flow, Queue, QueueView
from holdfast.core.text import counted, printable, show_ms
from holdfast.engines.base import NO_RECORDS
from holdfast.errors import Exists, Forbidden, InvalidQueue, NotFound, UsageError
from holdfast.notation.durations import to_ms
from holdfast.notation.options import QueueOptions, changed_queue
from holdfast.notation.policies import show_backoff, show_limit
from holdfast.ops.jobs.bulk import count_jobs, delete_jobs
from holdfast.ops.queues import (
    Cleared,
    Drained,
    Dropped,
    Pause,
    count_all,
    count_unfinished,
    drop_queue,
    find_queue,
    jobs_to_clear,
    pause_queue,
    queue_details,
    resume_queue,
    update_queue,
    wait_until_empty,
)
from holdfast.ops.settings import save_setting
from holdfast.ops.views import plain, text_of
from holdfast.process import wall_ms

Name = Annotated[str, Parameter(help="Name of the queue.")]
LimitName = Annotated[
    str, Parameter(help="Name of the limit. Queues with a limit of the same name share it.")
]
NONE = "none"
"""The value that removes an optional setting of a queue."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class QueueFlags:
    """The settings of a queue; those that are left out stay as they are."""

    lease: Annotated[
        str | None,
        option("DURATION", "Take a job back from a worker that is silent for this long, e.g. 30s."),
    ] = None
    timeout: Annotated[
        str | None,
        option("DURATION", "Stop an attempt that runs longer than this; none removes the limit."),
    ] = None
    max_attempts: Annotated[
        int | None,
        option(
            "N",
            "Give up a job after this many failed attempts: it becomes a dead letter. 0 is "
            "unlimited.",
        ),
    ] = None
    max_crashes: Annotated[
        int | None, option("N", "Give up a job after it has crashed its worker this many times.")
    ] = None
    backoff: Annotated[
        str | None,
        option("BACKOFF", 'Wait this long between attempts, e.g. "exponential(2s, max=10m)".'),
    ] = None
    order: Annotated[
        Literal["tail", "keep"] | None,
        option(
            "ORDER",
            "Put a retried job behind the jobs that are due (tail), or keep its place (keep).",
        ),
    ] = None
    retention: Annotated[
        str | None, option("DURATION", "Delete done jobs after this long, e.g. 7d.")
    ] = None
    dead_retention: Annotated[
        str | None, option("DURATION", "Delete dead letters after this long, e.g. 30d.")
    ] = None
    dead_queue: Annotated[
        str | None, option("NAME", "Keep dead letters in this queue; none leaves them in place.")
    ] = None
    max_depth: Annotated[
        str | None, option("N", "Refuse new jobs while this many wait; none removes the limit.")
    ] = None
    payload_max: Annotated[int | None, option("BYTES", "Refuse jobs with a larger payload.")] = None
    accepting: Annotated[bool | None, Parameter(help="Accept new jobs, or refuse them.")] = None
    fairness: Annotated[
        Literal["off", "shares", "noisy"] | None,
        option(
            "POLICY",
            "Ignore tenants (off), serve them in turn by weight (shares), or put those that take "
            "too much behind the others (noisy).",
        ),
    ] = None
    weights: Annotated[
        list[str] | None,
        option(
            "TENANT=N...",
            "Weight of a tenant for --fairness; none removes all. Repeatable.",
            "--weights",
            "--weight",
        ),
    ] = None
    aging: Annotated[
        str | None,
        option(
            "DURATION",
            "Raise the priority of a waiting job by 1 after each such period; none turns it off.",
        ),
    ] = None
    group_batch: Annotated[
        int | None, option("N", "Give a worker up to this many jobs of a group together.")
    ] = None  # fmt: skip
    expires: Annotated[
        str | None,
        option(
            "DURATION",
            "Give up a job that has not started this long after it was due, e.g. 1h; none turns it "
            "off.",
        ),
    ] = None

    def options(self) -> QueueOptions:
        """The settings that were given. Raises UsageError."""
        given: dict[str, Any] = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        for name in ("timeout", "dead_queue", "max_depth", "aging", "expires"):
            if given.get(name) == NONE:
                given[name] = None
        if given.get("max_depth") is not None:
            given["max_depth"] = _whole("--max-depth", given["max_depth"])
        if "weights" in given:
            given["weights"] = _weights(given["weights"])
        options: QueueOptions = {**given}  # type: ignore[typeddict-item]
        return options


_NO_SETTINGS = QueueFlags()


async def list_all(*, common: Common = COMMON) -> None:
    """List queues with their settings and counts."""
    async with open_app(common) as app:
        views = await app.queues()
    if common.json:
        print_json([plain(queue_details(view)) for view in views])
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
        for view in visible_queues(views)
    ]
    columns = ("queue", "ready", "leased", "dead", "lease", "max attempts", "retention", "order")
    every = (*columns, "dead queue", "state")
    print_table(every, rows, less=("order", "retention", "lease", "max attempts"))


async def show(name: Name, /, *, common: Common = COMMON) -> None:
    """Show the settings and counts of a queue."""
    async with open_app(common) as app:
        view = await read_queue(app, name, counts=True)
    if common.json:
        print_json(plain(queue_details(view)))
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


async def create(
    name: Annotated[str | None, Parameter(help="Name of the queue.")] = None,
    /,
    *,
    auto: Annotated[
        bool,
        switch(
            "From now on, create a queue when the first job is enqueued in it. Stored as the"
            " setting create-queues."
        ),
    ] = False,
    settings: QueueFlags = _NO_SETTINGS,
    common: Common = COMMON,
) -> None:
    """Create a queue; with --auto, create every missing queue on first use."""
    if auto:
        if name is not None or settings != _NO_SETTINGS:
            raise UsageError("--auto is for all queues: give it without a name or settings")
        async with open_app(common, create=True) as app:
            await save_setting(app.engine, "create-queues", "yes")
        unset = f"{program()} config unset create-queues"
        text = f'queues are created on first use; "{unset}" turns this off'
        print_either({"setting": "create-queues", "value": "yes"}, text, common)
        return
    if name is None:
        raise UsageError("the name of the queue is missing; --auto creates queues on first use")
    queue = changed_queue(Queue(name=name), settings.options())
    async with open_app(common, create=True) as app:
        if not await _declared(app, queue):
            raise InvalidQueue(
                f'queue {name} exists already: change it with "{program()} queue update {name}"'
            )
    _print_queue(queue, "created queue", common)


async def _declared(app: Holdfast, queue: Queue) -> bool:
    ask = server_of(app)
    if ask is not None and queue == Queue(name=queue.name):
        # A queue without settings looks to the server like one that a program declared, which it
        # does not audit.
        try:
            await ask("POST", "/v1/queues", {"name": queue.name})
        except Exists:
            return False
        except Forbidden:
            # A token without the scope operate may still declare such a queue, as programs do.
            return await app.engine.declare(queue, instead_of=None)
        return True
    return await app.engine.declare(queue, instead_of=None)


async def update(
    name: Name, /, *, settings: QueueFlags = _NO_SETTINGS, common: Common = COMMON
) -> None:
    """Change settings of a queue.

    Settings that are not given stay as they are.
    """
    options = settings.options()
    if not options:
        raise UsageError("nothing to change: give --lease, --max-attempts, …")
    async with open_app(common) as app:
        before = (await read_queue(app, name)).queue
        queue = await update_queue(app.engine, name, options)
    _print_change(before, queue, "changed queue", common, dead_queue_given="dead_queue" in options)


async def pause(
    name: Name,
    /,
    *,
    text: Annotated[str, option("TEXT", "Reason, shown by explain and status.")] = "",
    common: Common = COMMON,
) -> None:
    """Stop starting jobs of a queue until it is resumed.

    Running jobs continue.
    """
    pause_ = Pause(by=person(), text=text[:1000], at=wall_ms())
    async with open_app(common) as app:
        before = (await read_queue(app, name)).queue
        queue = await pause_queue(app.engine, name, pause_)
        if text and not app.engine.traits.records:
            say(f"the reason is not stored: {NO_RECORDS}")
    _print_change(before, queue, "paused queue", common)


async def resume(name: Name, /, *, common: Common = COMMON) -> None:
    """Start jobs of a paused queue again."""
    async with open_app(common) as app:
        before = (await read_queue(app, name)).queue
        queue = await resume_queue(app.engine, name)
    _print_change(before, queue, "resumed queue", common)
    if not queue.accepting:
        accept = f"{program()} queue update {queue.name} --accepting"
        say(f'it still refuses new jobs: accept them with "{accept}"')


async def limit(
    queue: Name,
    name: LimitName,
    /,
    *,
    concurrency: Annotated[int | None, option("N", "Run at most this many jobs at a time.")] = None,
    rate: Annotated[
        str | None,
        option("RATE", 'Start at most this many per period, e.g. 100/m or "100/m burst 20".'),
    ] = None,
    key: Annotated[
        str,
        option("TEMPLATE", "Limit each key separately, e.g. {tenant} or {tenant}:{region}."),
    ] = "",
    task: Annotated[str | None, option("NAME", "Limit only jobs of this task.")] = None,
    common: Common = COMMON,
) -> None:
    """Limit how many jobs of a queue run at a time, or start per period.

    The limit applies at once and to all workers. A key template can use the queue, task, tenant and
    group of a job, its labels, and the top-level fields of its JSON payload.
    """
    if concurrency is None and rate is None:
        raise UsageError("a limit needs a bound: give --concurrency, --rate or both")
    async with open_app(common) as app:
        await read_queue(app, queue)
        changed = await app.limit(
            queue, name, concurrency=concurrency, rate=rate, key=key, task=task
        )
    added = next(each for each in changed.limits if each.name == name)
    print_either(
        _limits_view(changed), f"limit {name} of queue {queue}: {show_limit(added)}", common
    )


async def unlimit(queue: Name, name: LimitName, /, *, common: Common = COMMON) -> None:
    """Remove a limit from a queue."""
    async with open_app(common) as app:
        view = await read_queue(app, queue)
        if all(each.name != name for each in view.queue.limits):
            known = ", ".join(each.name for each in view.queue.limits) or "none"
            raise UsageError(f'queue {queue} has no limit "{name[:80]}"; its limits: {known}')
        changed = await app.unlimit(queue, name)
    print_either(_limits_view(changed), f"removed limit {name} from queue {queue}", common)


async def show_limits(queue: Name, /, *, common: Common = COMMON) -> None:
    """Show the limits of a queue, and the jobs that use them."""
    view, flow = await _read_flow(queue, common)
    if common.json:
        print_json({"limits": _limits_view(view), "slots": msgspec.to_builtins(flow.slots)})
        return
    if not view.limits:
        add = f"{program()} queue limit {queue} NAME --concurrency 10"
        say(f'queue {queue} has no limits: add one with "{add}"')
        return
    print_table(("limit", "bounds"), [(each.name, show_limit(each)) for each in view.limits])
    if flow.slots:
        print()
        print_table(
            ("limit", "key", "used", "of", "free in", "held by"),
            [_slot_row(slot) for slot in flow.slots],
        )


async def show_tenants(queue: Name, /, *, common: Common = COMMON) -> None:
    """Show the tenants of a queue and their shares."""
    view, flow = await _read_flow(queue, common)
    if common.json:
        print_json(msgspec.to_builtins(flow.tenants))
        return
    if view.fairness == "off":
        turn_on = f"{program()} queue update {queue} --fairness shares"
        say(f'queue {queue} does not distinguish tenants: turn fairness on with "{turn_on}"')
        return
    rows = [
        (
            each.tenant or "(none)",
            each.weight,
            each.waiting,
            each.leased,
            f"{each.share:.0%}",
            show_age(each.oldest_age_ms),
            "noisy" if each.noisy else "",
        )
        for each in flow.tenants
    ]
    print_table(("tenant", "weight", "waiting", "leased", "share", "oldest", ""), rows)


async def drain(
    name: Name,
    /,
    *,
    wait: Annotated[bool, Parameter(help="Wait until the queue is empty.")] = True,
    wait_max: Annotated[
        str | None, option("DURATION", "Wait at most this long, e.g. 10m.", "--timeout")
    ] = None,
    common: Common = COMMON,
) -> int:
    """Refuse new jobs, and wait until the queue is empty."""
    wait_ms_max = None if wait_max is None else to_ms("--timeout", wait_max, UsageError)
    async with open_app(common) as app:
        view = await read_queue(app, name)
        await app.declare(name, accepting=False)
        if view.queue.paused:
            say(
                f"queue {name} is paused: its jobs do not start until "
                f'"{program()} queue resume {name}"'
            )
        engine = app.engine
        if not engine.traits.exact_counts:
            say("the counts of this store are estimates: jobs may show up within a minute")
        left = (
            await wait_until_empty(engine, name, wait_ms_max)
            if wait
            else await count_unfinished(engine, name)
        )
    if common.json:
        print_json(plain(Drained(queue=name, accepting=False, left=left)))
    elif left:
        print(f"queue {name} refuses new jobs; {counted(left, 'job')} left")
    else:
        print(f"queue {name} is empty and refuses new jobs")
    if not common.json:
        say(f'open it again with "{program()} queue update {name} --accepting"')
    return Exit.WAITING if wait and left else Exit.DONE


async def clear(
    name: Name,
    /,
    *,
    state: States = None,
    force: Annotated[bool, switch("Also delete running jobs; their workers lose them.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete the waiting jobs of a queue, or those in the given states."""
    wanted = jobs_to_clear(name, state, force=force)
    async with open_app(common) as app:
        await read_queue(app, name)
        found = await count_jobs(app.engine, wanted)
        deleted = 0
        if not dry_run and found.number:
            confirm(f"Delete {found} of queue {name} permanently?", yes=yes)
            with progress("deleting", found.number) as advance:
                # No more than were counted: jobs may arrive all the time.
                most = None if found.more else found.number
                deleted = await delete_jobs(
                    app.engine, wanted, force=force, most=most, advance=advance
                )
    number, more = found
    view = plain(Cleared(queue=name, found=number, more=more, deleted=deleted))
    done = f"would delete {found}" if dry_run else f"deleted {counted(deleted, 'job')}"
    print_either(view, f"{done} of queue {name}", common)


async def delete(
    name: Name,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete a queue and every job in it, running ones too."""
    async with open_app(common) as app:
        view = await read_queue(app, name, counts=True)
        held = count_all(view)
        if not dry_run:
            if held:
                confirm(
                    f"Delete queue {name} with its {counted(held, 'job')} permanently?", yes=yes
                )
            await drop_queue(app.engine, name)
    done = "would delete" if dry_run else "deleted"
    jobs = f" and its {counted(held, 'job')}" if held else ""
    dropped = plain(Dropped(queue=name, jobs=held, deleted=not dry_run))
    print_either(dropped, f"{done} queue {name}{jobs}", common)


async def read_queue(app: Holdfast, name: str, *, counts: bool = False) -> QueueView:
    """The queue. Raises NotFound."""
    view = await find_queue(app.engine, name, counts=counts)
    if view is None:
        raise NotFound(f'queue "{name[:80]}" does not exist; see "{program()} queue list"')
    return view


async def _read_flow(queue: str, common: Common) -> tuple[Queue, Flow]:
    async with open_app(common) as app:
        view = await read_queue(app, queue)
        return view.queue, await app.flow(queue, limit=bounds.PAGE_MAX)


def _limits_view(queue: Queue) -> Any:
    return msgspec.to_builtins(queue.limits)


def _slot_row(slot: Slot) -> tuple[object, ...]:
    held = ", ".join(slot.holders[:3])
    more = slot.used - min(3, len(slot.holders))
    return (
        slot.limit,
        slot.key,
        slot.used,
        "" if slot.concurrency is None else slot.concurrency,
        show_age(slot.free_ms) if slot.free_ms else "",
        f"{held} and {more} more" if held and more > 0 else held,
    )


def _print_change(
    before: Queue, queue: Queue, done: str, common: Common, *, dead_queue_given: bool = False
) -> None:
    _print_queue(queue, done, common)
    if queue.dead_queue != before.dead_queue and not dead_queue_given:
        say(
            f"its dead queue {before.dead_queue} no longer exists and was removed from its settings"
        )


def _print_queue(queue: Queue, done: str, common: Common) -> None:
    print_either(plain(queue), f"{done} {queue.name}", common)


def _weights(given: list[str]) -> dict[str, int]:
    if given == [NONE]:
        return {}
    pairs = [pair.rpartition("=") for pair in given]
    for tenant, _, weight in pairs:
        if not tenant:
            raise UsageError(f'--weight "{weight[:80]}": expected TENANT=N such as acme=5')
    return {tenant: _whole(f"weight of {tenant}", weight) for tenant, _, weight in pairs}


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f'{name} "{text[:40]}": expected a number or {NONE}')
    return int(text)
