"""`holdfast dlq groups` and `dlq quarantine`: what kills jobs, and which jobs kill workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.checkup import examine
from holdfast.cli import jobs
from holdfast.cli.filters import WHICH, Which
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.core.model import Reason, State
from holdfast.dead_letters import (
    DeadGroup,
    Quarantined,
    dead_groups,
    is_quarantined,
    quarantined,
)
from holdfast.errors import UsageError
from holdfast.reading import some
from holdfast.views.dead import groups_view, quarantined_view
from holdfast.views.values import plain

_BARS = "▁▂▃▄▅▆▇█"
_GROUPS_MAX = 200
_TEXT_MAX = 100


async def groups(
    *,
    which: Which = WHICH,
    limit: Annotated[int, Parameter(help="At most so many groups.")] = 20,
    common: Common = COMMON,
) -> None:
    """Group dead letters by what killed them, the most frequent first."""
    if not 1 <= limit <= _GROUPS_MAX:
        raise UsageError(f"limit {limit} is not 1 to {_GROUPS_MAX}")
    async with running(common) as app:
        now = (await examine(app.home.store)).now
        found = await dead_groups(app.engine, which.wanted((State.DEAD,)), now=now, limit=limit)
    if common.json:
        print_json(plain(groups_view(found)))
        return
    rows = [_row(group, now) for group in found.groups]
    span = show_age(len(found.groups[0].trend) * found.bucket_ms) if found.groups else ""
    columns = ("fingerprint", "dead", "error", "tasks", "tenants", "workers", "first", "last")
    print_table((*columns, f"over {span}" if span else "trend"), rows)
    if not found.groups:
        say("no dead letter fits")
    if found.hidden:
        say(f"{found.hidden} others are in smaller groups: --limit shows more")
    if found.estimated or any(group.estimated for group in found.groups):
        say("numbers with a + are of the newest dead letters alone: there is more than they say")
    if found.groups:
        first = found.groups[0].fingerprint or ""
        say(f"see them: {program()} dlq list --fingerprint {first}")


async def quarantine(
    *,
    which: Which = WHICH,
    limit: jobs.Limit = None,
    after: jobs.After = None,
    common: Common = COMMON,
) -> None:
    """List jobs that were given up because they crashed their workers, newest first."""
    if which.reason not in (None, Reason.CRASHED):
        raise UsageError(f"those in quarantine are dead because they crashed, not {which.reason}")
    wanted = replace(which.wanted((State.DEAD,)), reason=Reason.CRASHED)
    async with running(common) as app:
        most = jobs.limit_of(limit, common)
        found, rest = await some(app.engine, wanted, most, after)
        now = (await examine(app.home.store)).now
        whole = await asyncio.gather(*(app.get(job.id) for job in found))
    views = [quarantined(job) for job in whole if job is not None and is_quarantined(job)]
    if common.json:
        print_json([plain(quarantined_view(each)) for each in views])
    else:
        columns = ("id", "queue", "task", "ended by", "crashes", "died", "last words")
        print_table(columns, [_crash(each, now) for each in views])
        if not views:
            say("no job is in quarantine")
    if rest is not None:
        say(f"there may be more: --after {rest}")
    if views and not common.json:
        say(f"look at one: {program()} dlq show {views[0].id}")
        say(f"put it back, to run alone in a process: {program()} dlq retry {views[0].id}")


def sparkline(counts: Sequence[int]) -> str:
    """A bar for each, as high as it is beside the highest; none for nothing."""
    most = max([1, *counts])
    return "".join(
        "·" if count == 0 else _BARS[-(-count * len(_BARS) // most) - 1] for count in counts
    )


def _row(group: DeadGroup, now: int) -> tuple[Any, ...]:
    more = "+" if group.estimated else ""
    error = ": ".join(filter(None, (group.type, group.text)))
    return (
        group.fingerprint or "",
        group.count,
        error if len(error) <= _TEXT_MAX else f"{error[: _TEXT_MAX - 1]}…",
        _names(group.tasks) + more,
        f"{len(group.tenants)}{more}",
        f"{len(group.workers)}{more}",
        f"{show_age(max(now - group.first_at, 0))}{more} ago" if group.ids else "",
        f"{show_age(max(now - group.last_at, 0))} ago" if group.ids else "",
        sparkline(group.trend),
    )


def _names(names: dict[str, int], most: int = 3) -> str:
    shown = list(names)[:most]
    return ", ".join([*shown, *(["…"] if len(names) > most else [])])


def _crash(each: Quarantined, now: int) -> tuple[Any, ...]:
    words = [line.strip() for line in (each.words or each.output).splitlines() if line.strip()]
    # What a dying interpreter says comes before its frames.
    fatal = [line for line in words if line.startswith("Fatal ")]
    return (
        each.id,
        each.queue,
        each.task,
        each.type if each.signal else f"exit code {each.exit_code}",
        each.crashes,
        f"{show_age(max(now - each.died_at, 0))} ago",
        (fatal or words or [""])[-1][:_TEXT_MAX],
    )
