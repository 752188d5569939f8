"""`holdfast queue limit`, `unlimit`, `limits` and `tenants`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.queues import Name, one
from holdfast.cli.running import running
from holdfast.core import limits
from holdfast.core.flow import Flow, Slot
from holdfast.core.model import Queue
from holdfast.errors import UsageError
from holdfast.rates import show_limit

_LimitName = Annotated[str, Parameter(help="The limit's name; queues that say the same share it.")]


async def limit(
    queue: Name,
    name: _LimitName,
    /,
    *,
    concurrency: Annotated[int | None, Parameter(help="Jobs that are leased at a time.")] = None,
    rate: Annotated[str | None, Parameter(help='Starts: 100/m, or "100/m burst 20".')] = None,
    key: Annotated[
        str, Parameter(help="Each key has its own bound: {tenant}, or {tenant}:{region}.")
    ] = "",
    task: Annotated[str | None, Parameter(help="Only the jobs of this task.")] = None,
    common: Common = COMMON,
) -> None:
    """Bound the jobs of a queue: how many at a time, how many starts.

    It counts at once and for all workers. A key template takes the job's queue, task, tenant and
    group, its labels, and what its JSON payload says at the top.
    """
    if concurrency is None and rate is None:
        raise UsageError("a limit bounds something: give --concurrency, --rate or both")
    async with running(common) as app:
        await one(app, queue)
        changed = await app.limit(
            queue, name, concurrency=concurrency, rate=rate, key=key, task=task
        )
    if common.json:
        print_json(_limits_of(changed))
        return
    wanted = next(each for each in changed.limits if each.name == name)
    print(f"limit {name} of queue {queue}: {show_limit(wanted)}")


async def unlimit(queue: Name, name: _LimitName, /, *, common: Common = COMMON) -> None:
    """Take a limit of a queue away."""
    async with running(common) as app:
        view = await one(app, queue)
        if all(each.name != name for each in view.queue.limits):
            known = ", ".join(each.name for each in view.queue.limits) or "none"
            raise UsageError(f"queue {queue} has no limit {name[:80]!r}; it has {known}")
        changed = await app.unlimit(queue, name)
    if common.json:
        print_json(_limits_of(changed))
    else:
        print(f"queue {queue} is no longer bound by {name}")


async def show_limits(queue: Name, /, *, common: Common = COMMON) -> None:
    """Show the limits of a queue, and who holds their slots."""
    view, flow = await _read(queue, common)
    if common.json:
        print_json({"limits": _limits_of(view), "slots": msgspec.to_builtins(flow.slots)})
        return
    if not view.limits:
        say(f"queue {queue} has no limit: {program()} queue limit {queue} NAME --concurrency 10")
        return
    print_table(("limit", "bounds"), [(each.name, show_limit(each)) for each in view.limits])
    if flow.slots:
        print()
        print_table(
            ("limit", "key", "used", "of", "free in", "held by"),
            [_slot_row(slot) for slot in flow.slots],
        )


async def show_tenants(queue: Name, /, *, common: Common = COMMON) -> None:
    """Show the tenants of a queue, and what they get."""
    view, flow = await _read(queue, common)
    if common.json:
        print_json(msgspec.to_builtins(flow.tenants))
        return
    if view.fairness == "off":
        say(
            f"queue {queue} treats its tenants alike:"
            f" {program()} queue update {queue} --fairness shares"
        )
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


async def _read(queue: str, common: Common) -> tuple[Queue, Flow]:
    async with running(common) as app:
        view = await one(app, queue)
        return view.queue, await app.flow(queue, limit=limits.PAGE_MAX)


def _limits_of(queue: Queue) -> Any:
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
