"""Dead letters over REST: list, group, retry and purge them, or redrive them gradually in the
background."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Reason, State
from holdfast.errors import NotFound, UsageError
from holdfast.notation.filters import is_narrow
from holdfast.notation.job import Json, QueueName, Seconds
from holdfast.ops.dead_letters import (
    DeadGroupsView,
    Purged,
    QuarantinedView,
    Retried,
    RetryOptions,
    dead_groups,
    groups_view,
    is_quarantined,
    quarantined,
    quarantined_view,
    retry_jobs,
)
from holdfast.ops.doctor import examine
from holdfast.ops.jobs.bulk import count_jobs, delete_jobs
from holdfast.ops.redrives import RedriveDetails, Redrives, redrive_details
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.jobs import JobPage, page_of
from holdfast.server.rest.shapes import Filter, FilterQuery, Many, PageQuery, Rate, cursor_text

_DEAD = (State.DEAD,)
_GROUPS_MAX = 200
_PAGE = 100
_BATCH = 10
"""Jobs are read with their payloads, and one may have two megabytes."""
_PAGES_MAX = 50
_EDITED_MAX = 1_000
"""Payloads are edited one by one, so fewer fit into one request."""

_RedriveCount = Annotated[int, Meta(ge=1, le=1_000_000)]


class GroupsQuery(FilterQuery, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to group."""

    limit: Annotated[int, Meta(ge=1, le=_GROUPS_MAX)] = 20


class QuarantineQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """A page of jobs in quarantine."""

    limit: Annotated[int, Meta(ge=1, le=_PAGE)] = _PAGE


class DeadBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters that match a `filter`, or `all`; at most `limit` in one call. With `dry_run`
    they are only counted."""

    filter: Filter | None = None
    all: bool = False
    limit: Many = bounds.COUNT_EXACT_MAX
    dry_run: bool = False


class RetryDeadBody(DeadBody, forbid_unknown_fields=True, kw_only=True):
    """`edit` is a JSON merge patch, applied to each payload first: null removes a field. Jobs that
    were redriven `max_redrives` times are skipped; the default is 3, or none if ids are given."""

    delay: Seconds = 0
    edit: Json | UnsetType = UNSET
    max_redrives: _RedriveCount | None = None


class Quarantine(msgspec.Struct, frozen=True):
    """Jobs, newest first. A page may be short or empty: continue while `after` is not null."""

    jobs: list[QuarantinedView]
    after: str | None


@operation("GET", "/v1/dead", needs=Scope.OBSERVE)
async def list_dead(call: ApiCall, query: PageQuery) -> JobPage:
    """List dead letters, newest first. A single one is at /v1/jobs/{id}."""
    return await page_of(call.engine, query, _DEAD)


@operation("GET", "/v1/dead/groups", needs=Scope.OBSERVE)
async def group_dead(call: ApiCall, query: GroupsQuery) -> DeadGroupsView:
    """Group dead letters by cause, largest group first."""
    now = (await examine(call.engine)).now
    found = await dead_groups(call.engine, query.wanted(_DEAD), now=now, limit=query.limit)
    return groups_view(found)


@operation("GET", "/v1/dead/quarantine", needs=Scope.OBSERVE)
async def list_quarantine(call: ApiCall, query: QuarantineQuery) -> Quarantine:
    """List jobs in quarantine: dead because they crashed their workers, newest first."""
    if query.reason not in (None, Reason.CRASHED):
        raise UsageError(
            f'jobs in quarantine have the reason "crashed", not "{query.reason}": leave reason out'
        )
    wanted = msgspec.structs.replace(query.wanted(_DEAD), reason=Reason.CRASHED)
    views: list[QuarantinedView] = []
    after = query.cursor
    for _ in range(_PAGES_MAX):
        limit = min(_BATCH, query.limit - len(views))
        page = await call.engine.find(wanted, limit=limit, after=after)
        jobs = await asyncio.gather(*(call.engine.get(job.id) for job in page.jobs))
        matching = (job for job in jobs if job is not None and is_quarantined(job))
        views += [quarantined_view(quarantined(job)) for job in matching]
        after = page.after
        if after is None or len(views) >= query.limit:
            break
    return Quarantine(views, cursor_text(after))


@operation("POST", "/v1/dead/retry", needs=Scope.OPERATE)
async def retry_dead(call: ApiCall, body: RetryDeadBody) -> Retried:
    """Retry dead letters at once, newest first; at most 1,000 with `edit`. Repeat the request while
    `more` is true, or start a redrive, which runs in the background.
    """
    pace = RetryOptions(
        delay=body.delay, edit=_patch_text(body.edit), max_redrives=body.max_redrives
    )
    plan = pace.plan(_dead_filter(body.filter, every=body.all), call.caller.name)
    most = body.limit if plan.patch is None else min(body.limit, _EDITED_MAX)
    found = await Redrives(call.engine, wall_ms).survey(plan, most=most)
    retried = 0 if body.dry_run else await retry_jobs(call.engine, plan, most=most)
    return Retried(
        found=min(found.fitting, most),
        more=found.more or found.fitting > most,
        capped=found.capped,
        retried=retried,
    )


@operation("POST", "/v1/dead/purge", needs=Scope.OPERATE)
async def purge_dead(call: ApiCall, body: DeadBody) -> Purged:
    """Delete dead letters permanently, oldest first. Repeat the request while `more` is true."""
    wanted = _dead_filter(body.filter, every=body.all)
    found = await count_jobs(call.engine, wanted, most=body.limit)
    purged = 0
    if not body.dry_run:
        purged = await delete_jobs(call.engine, wanted, most=body.limit)
    return Purged(found=found.number, more=found.more, purged=purged)


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters that match a `filter`, or `all`, and the `rate` to redrive them.

    With `canary` one job in a hundred goes first, and the redrive stops if one of them dies of the
    same cause within `canary_wait`. `edit` is a JSON merge patch, applied to each payload first.
    Jobs that were redriven `max_redrives` times are skipped; the default is 3, or none if ids are
    given. With `dry_run` the jobs are only counted.
    """

    filter: Filter | None = None
    all: bool = False
    rate: Rate | None = None
    canary: bool = False
    canary_wait: Seconds = "10m"
    max_redrives: _RedriveCount | None = None
    edit: Json | UnsetType = UNSET
    delay: Seconds = 0
    dry_run: bool = False


class RedriveStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`found` is the number of matching dead letters, a lower bound if `more` is true; `capped`
    others were already redriven too often. `redrive` is null after a dry run.
    """

    found: int
    more: bool
    capped: int
    redrive: RedriveDetails | None


class RedriveList(msgspec.Struct, frozen=True):
    """All redrives, oldest first."""

    redrives: list[RedriveDetails]


@operation("GET", "/v1/redrives", needs=Scope.OBSERVE)
async def list_redrives(call: ApiCall) -> RedriveList:
    """List redrives and their progress."""
    return RedriveList([redrive_details(view) for view in await _redrives(call).all()])


@operation("POST", "/v1/redrives", needs=Scope.OPERATE, status=201)
async def start_redrive(call: ApiCall, body: RedriveBody) -> RedriveStarted:
    """Start a redrive of dead letters. It is durable when the answer arrives."""
    pace = RetryOptions(
        delay=body.delay,
        edit=_patch_text(body.edit),
        max_redrives=body.max_redrives,
        rate=body.rate,
        canary=body.canary,
        canary_wait=body.canary_wait,
    )
    plan = pace.plan(_dead_filter(body.filter, every=body.all), call.caller.name)
    redrives = _redrives(call)
    found = await redrives.survey(plan)
    redrive = None
    if not body.dry_run:
        redrive = await _details(call, (await redrives.start(plan, found)).id)
    return RedriveStarted(
        found=found.fitting, more=found.more, capped=found.capped, redrive=redrive
    )


@operation("GET", "/v1/redrives/{id}", needs=Scope.OBSERVE)
async def show_redrive(call: ApiCall, id: QueueName) -> RedriveDetails:
    """Show a redrive and its progress."""
    return await _details(call, id)


@operation("POST", "/v1/redrives/{id}/cancel", needs=Scope.OPERATE, repeatable=True)
async def cancel_redrive(call: ApiCall, id: QueueName) -> RedriveDetails:
    """Cancel a redrive. Jobs that it already put back stay; a finished redrive does not change."""
    await _details(call, id)
    await _redrives(call).cancel(id, call.caller.name)
    return await _details(call, id)


OPERATIONS: tuple[Operation, ...] = (
    list_dead,
    group_dead,
    list_quarantine,
    retry_dead,
    purge_dead,
    list_redrives,
    start_redrive,
    show_redrive,
    cancel_redrive,
)


def _dead_filter(filter: Filter | None, *, every: bool) -> JobFilter:
    """The filter of a request, which must either select jobs or say `all`: never all by
    accident.
    """
    wanted = (filter or Filter()).wanted(_DEAD)
    if not wanted.states:
        raise UsageError("dead letters have the state dead: leave states out")
    if is_narrow(wanted) == every:
        raise UsageError("give either a filter that selects jobs, or all: true")
    return wanted


def _patch_text(edit: msgspec.Raw | UnsetType) -> str | None:
    """The merge patch as text; None if it is not given."""
    return None if isinstance(edit, UnsetType) else bytes(edit).decode()


def _redrives(call: ApiCall) -> Redrives:
    return Redrives(call.engine, wall_ms)


async def _details(call: ApiCall, id: str) -> RedriveDetails:
    view = await _redrives(call).get(id)
    if view is None:
        raise NotFound(f"unknown redrive {id[:80]!r}: see GET /v1/redrives")
    return redrive_details(view)
