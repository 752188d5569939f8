"""Jobs as they stand: one of them, what happened to it and why it waits; many, and how many."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.checkup import examine
from holdfast.core import limits
from holdfast.core.model import Job, State, Tally, TallyBy
from holdfast.durations import to_ms
from holdfast.engines.base import Engine
from holdfast.errors import NotFound, UsageError
from holdfast.explaining import explain_job
from holdfast.reading import queues_of, views_of
from holdfast.server.calls import Call
from holdfast.server.filters import PageQuery, WhichQuery, cursor_of
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import JobId, Seconds
from holdfast.views.jobs import (
    Explanation,
    JobView,
    OutputView,
    Timeline,
    explanation,
    job_view,
    output_view,
    timeline_view,
)
from holdfast.views.values import raw_of

_FIRST = 4
_PAGE = 20
"""Jobs are read whole, and a whole one may be two megabytes."""

_PAGES_MAX = 60
_BYTES_MAX = 4 * 1024 * 1024
_LOOK_S_FIRST, _LOOK_S_GROWTH, _LOOK_S_MAX = 0.01, 1.5, 1.0


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`wait` is how long to wait until the job has ended, at most as long as the server lets
    anybody wait; then it is told as it stands."""

    wait: Seconds = 0


class JobsQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    state: Annotated[list[State], Meta(max_length=len(State))] | None = None


class TallyQuery(WhichQuery, forbid_unknown_fields=True, kw_only=True):
    by: TallyBy = "state"
    state: Annotated[list[State], Meta(max_length=len(State))] | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX)] = 100


class JobPage(msgspec.Struct, frozen=True):
    """Newest first. A page may be short or even empty: go on while `after` is not null."""

    jobs: list[JobView]
    after: str | None


class Tallies(msgspec.Struct, frozen=True):
    """Most first. With `more` there are, or may be, more values than were asked for or more jobs
    than were counted."""

    by: TallyBy
    tallies: list[Tally]
    more: bool


@operation("GET", "/v1/jobs/{id}", needs=Scope.KNOWN, waits=True)
async def show_job(call: Call, id: JobId, query: WaitQuery) -> JobView:
    """One job, whole."""
    job = await _ended(call, id, to_ms("wait", query.wait, UsageError))
    waits = await call.engine.waits(id) if job.state is State.WAITING else None
    queue = (await queues_of(call.engine)).get(job.queue)
    return job_view(job, queue, waits, value=raw_of)


@operation("GET", "/v1/jobs/{id}/timeline", needs=Scope.KNOWN)
async def show_timeline(call: Call, id: JobId) -> Timeline:
    """What happened to a job, oldest first."""
    job = await read_job(call.engine, id)
    return Timeline(id=job.id, state=job.state, events=timeline_view(job))


@operation("GET", "/v1/jobs/{id}/explain", needs=Scope.CONSUME)
async def explain(call: Call, id: JobId) -> Explanation:
    """Why a job is not running, and what would change it."""
    job = await read_job(call.engine, id)
    now = (await examine(call.engine)).now
    return explanation(job, await explain_job(call.engine, job, now))


@operation("GET", "/v1/jobs/{id}/output", needs=Scope.KNOWN)
async def show_output(call: Call, id: JobId) -> OutputView:
    """What a job printed, as far as it is kept."""
    return output_view(await read_job(call.engine, id))


@operation("GET", "/v1/jobs", needs=Scope.OPERATE)
async def list_jobs(call: Call, query: JobsQuery) -> JobPage:
    """Jobs that fit, whole and newest first."""
    return await page_of(call.engine, query, _states(query.state))


@operation("GET", "/v1/tally", needs=Scope.OPERATE)
async def tally_jobs(call: Call, query: TallyQuery) -> Tallies:
    """How many jobs fit, by one of their values."""
    wanted = query.wanted(_states(query.state))
    # One more tells whether there are more, but where that is more than an engine says at once.
    most = min(query.limit + 1, limits.PAGE_MAX)
    found = await call.engine.tally(wanted, query.by, limit=most)
    counted = sum(each.count for each in found)
    more = len(found) > query.limit or len(found) == limits.PAGE_MAX or counted >= limits.SCAN_MAX
    return Tallies(query.by, found[: query.limit], more)


OPERATIONS: tuple[Operation, ...] = (
    show_job,
    show_timeline,
    explain,
    show_output,
    list_jobs,
    tally_jobs,
)


async def read_job(engine: Engine, id: str) -> Job:
    job = await engine.get(id)
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}: it was deleted, or never was")
    return job


async def page_of(engine: Engine, query: PageQuery, states: tuple[State, ...] | None) -> JobPage:
    """Bounded in number, in bytes and in how far it looks."""
    wanted = query.wanted(states)
    views: list[JobView] = []
    size, room, after = 0, _FIRST, query.cursor
    for _ in range(_PAGES_MAX):
        limit = min(_PAGE, room, query.limit - len(views))
        page = await engine.find(wanted, limit=limit, after=after)
        after = page.after
        some = await views_of(engine, page.jobs, raw_of) if page.jobs else []
        views += some
        size += sum(map(_size, some))
        if after is None or len(views) >= query.limit or size >= _BYTES_MAX:
            break
        # So many more, if they are as large as these.
        room = max(1, (_BYTES_MAX - size) * len(views) // max(size, 1)) if views else _FIRST
    return JobPage(views, cursor_of(after))


def _size(view: JobView) -> int:
    return _bytes(view.payload) + _bytes(view.result) + len(view.output or "")


def _bytes(value: Any) -> int:
    return memoryview(value).nbytes if isinstance(value, msgspec.Raw) else len(str(value))


async def _ended(call: Call, id: str, wait_ms: int) -> Job:
    """The job when it is over, or when the wait is."""
    until = time.monotonic() + min(wait_ms, call.server.settings.wait_ms_max) / 1000
    pause_s = _LOOK_S_FIRST
    while True:
        job = await read_job(call.engine, id)
        left_s = until - time.monotonic()
        if job.state.finished or left_s <= 0 or call.server.stopping.is_set():
            return job
        await asyncio.sleep(min(pause_s, left_s))
        # Most jobs are over at once; one that is not may take long.
        pause_s = min(pause_s * _LOOK_S_GROWTH, _LOOK_S_MAX)


def _states(given: list[State] | None) -> tuple[State, ...] | None:
    return None if given is None else tuple(dict.fromkeys(given))
