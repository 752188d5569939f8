"""Dead letters: which there are, what killed them, and what is done about them at once."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.bulk import count, delete_all, retry_all
from holdfast.checkup import examine
from holdfast.core import limits
from holdfast.core.model import JobFilter, Reason, State
from holdfast.dead_letters import dead_groups, is_quarantined, quarantined
from holdfast.errors import UsageError
from holdfast.filters import is_narrow
from holdfast.retrying import Pace
from holdfast.server.calls import Call
from holdfast.server.filters import Filter, PageQuery, WhichQuery, cursor_of
from holdfast.server.jobs import JobPage, page_of
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Json, Many, Seconds
from holdfast.upkeep import Redrives, wall_ms
from holdfast.views.dead import (
    DeadGroupsView,
    Purged,
    QuarantinedView,
    Retried,
    groups_view,
    quarantined_view,
)

_DEAD = (State.DEAD,)
_GROUPS_MAX = 200
_PAGE = 100
_AT_ONCE = 10
"""They are read whole, and a whole one may be two megabytes."""
_LOOKS_MAX = 50
_EDITED_MAX = 1_000
"""Payloads are edited one by one."""

Redriven = Annotated[int, Meta(ge=1, le=1_000_000)]


class GroupsQuery(WhichQuery, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=_GROUPS_MAX)] = 20


class QuarantineQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=_PAGE)] = _PAGE


class DeadBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: those that fit a `filter`, or `all`; at most `limit` in one call. With
    `dry_run` they are only counted."""

    filter: Filter | None = None
    all: bool = False
    limit: Many = limits.COUNT_EXACT_MAX
    dry_run: bool = False


class RetryBody(DeadBody, forbid_unknown_fields=True, kw_only=True):
    """`edit` is a JSON merge patch for each payload, first: null takes a field away. What was
    redriven `max_redrives` times is left alone: 3, unless ids are given."""

    delay: Seconds = 0
    edit: Json | UnsetType = UNSET
    max_redrives: Redriven | None = None


class Quarantine(msgspec.Struct, frozen=True):
    """Newest first. It may be short or even empty: go on while `after` is not null."""

    jobs: list[QuarantinedView]
    after: str | None


@operation("GET", "/v1/dead", needs=Scope.OPERATE)
async def list_dead(call: Call, query: PageQuery) -> JobPage:
    """Dead letters, whole and newest first. One of them is at /v1/jobs/{id}."""
    return await page_of(call.engine, query, _DEAD)


@operation("GET", "/v1/dead/groups", needs=Scope.OPERATE)
async def group_dead(call: Call, query: GroupsQuery) -> DeadGroupsView:
    """Dead letters grouped by what killed them, the most frequent first."""
    now = (await examine(call.engine)).now
    found = await dead_groups(call.engine, query.wanted(_DEAD), now=now, limit=query.limit)
    return groups_view(found)


@operation("GET", "/v1/dead/quarantine", needs=Scope.OPERATE)
async def list_quarantine(call: Call, query: QuarantineQuery) -> Quarantine:
    """Jobs that were given up because they crashed their workers, newest first."""
    if query.reason not in (None, Reason.CRASHED):
        raise UsageError(f"those in quarantine are dead because they crashed, not {query.reason}")
    wanted = msgspec.structs.replace(query.wanted(_DEAD), reason=Reason.CRASHED)
    views: list[QuarantinedView] = []
    after = query.cursor
    for _ in range(_LOOKS_MAX):
        limit = min(_AT_ONCE, query.limit - len(views))
        page = await call.engine.find(wanted, limit=limit, after=after)
        whole = await asyncio.gather(*(call.engine.get(job.id) for job in page.jobs))
        fitting = (job for job in whole if job is not None and is_quarantined(job))
        views += [quarantined_view(quarantined(job)) for job in fitting]
        after = page.after
        if after is None or len(views) >= query.limit:
            break
    return Quarantine(views, cursor_of(after))


@operation("POST", "/v1/dead/retry", needs=Scope.OPERATE)
async def retry_dead(call: Call, body: RetryBody) -> Retried:
    """Put dead letters back to work at once, newest first; with `edit`, 1,000 at most. While
    `more` is true, there are others: call it again, or let /v1/redrives see to them bit by bit."""
    pace = Pace(delay=body.delay, edit=text_of(body.edit), max_redrives=body.max_redrives)
    plan = pace.plan(which(body.filter, every=body.all), call.caller.name)
    most = body.limit if plan.patch is None else min(body.limit, _EDITED_MAX)
    found = await Redrives(call.engine, wall_ms).survey(plan, most=most)
    retried = 0 if body.dry_run else await retry_all(call.engine, plan, most=most)
    return Retried(
        found=min(found.fitting, most),
        more=found.more or found.fitting > most,
        capped=found.capped,
        retried=retried,
    )


@operation("POST", "/v1/dead/purge", needs=Scope.OPERATE)
async def purge_dead(call: Call, body: DeadBody) -> Purged:
    """Delete dead letters for good, oldest first. While `more` is true, there are others: call it
    again."""
    wanted = which(body.filter, every=body.all)
    found = await count(call.engine, wanted, most=body.limit)
    purged = 0
    if not body.dry_run:
        purged = await delete_all(call.engine, wanted, most=body.limit)
    return Purged(found=found.number, more=found.more, purged=purged)


OPERATIONS: tuple[Operation, ...] = (
    list_dead,
    group_dead,
    list_quarantine,
    retry_dead,
    purge_dead,
)


def which(filter: Filter | None, *, every: bool) -> JobFilter:
    """One way of saying which, and exactly one: nobody means all of them by accident."""
    wanted = (filter or Filter()).wanted(_DEAD)
    if not wanted.states:
        raise UsageError("dead letters are in the state dead, and in no other")
    if is_narrow(wanted) == every:
        said = "say only one of these" if every else "say which"
        raise UsageError(f"{said}: a filter that names something, or all")
    return wanted


def text_of(edit: msgspec.Raw | UnsetType) -> str | None:
    return None if isinstance(edit, UnsetType) else bytes(edit).decode()
