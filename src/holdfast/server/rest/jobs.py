"""Jobs over REST: show, list and count them, and change one job or all that match a filter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated, Any, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.amend import amendable
from holdfast.core.model import Failure, Job, JobFilter, Reason, State, Tally, TallyBy
from holdfast.core.verdict import (
    Amendment,
    BuryWaiting,
    Cancel,
    Delete,
    Expedite,
    Move,
    Redrive,
    Retime,
)
from holdfast.engines.base import Engine, unknown_if_partial
from holdfast.engines.extras import find_rows
from holdfast.errors import NotFound, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import show_at, to_ms
from holdfast.notation.filters import is_narrow
from holdfast.notation.job import JobId, Json, Name, Pairs, Priority, QueueName, Seconds
from holdfast.ops.doctor import examine
from holdfast.ops.jobs import amend
from holdfast.ops.jobs.amend import FINISHED, JobChanges, amend_job, edit_job
from holdfast.ops.jobs.explain import explain_job
from holdfast.ops.jobs.text_search import EXAMINED_MAX, TextSearch
from holdfast.ops.jobs.views import (
    Explanation,
    JobRowView,
    JobView,
    OutputView,
    Timeline,
    explanation,
    job_view,
    output_view,
    read_rows,
    read_views,
    require_job,
    timeline_view,
)
from holdfast.ops.queues import queue_settings
from holdfast.ops.views import raw_of
from holdfast.ops.workers import reroute as reroute_one
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.shapes import (
    Cursor,
    Filter,
    FilterQuery,
    PageQuery,
    StateWords,
    Text,
    cursor_text,
)

_FIRST_PAGE = 4
_PAGE = 20
"""Jobs are read with their payloads, and one may have two megabytes."""
_ROWS = 250
_IDS_MAX = 200
_PAGES_MAX = 60
_BYTES_MAX = 4 * 1024 * 1024
_EXAMINED_BYTES_MAX = 32 * 1024 * 1024
_POLL_S_FIRST, _POLL_S_GROWTH, _POLL_S_MAX = 0.01, 1.5, 1.0

View = Literal["full", "row"]
Act = Literal["cancel", "retry", "expedite", "delete", "edit", "move", "retime", "bury"]
_AMEND_OPTIONS_OF: dict[Act, tuple[str, ...]] = {
    "cancel": ("text",),
    "retry": ("text", "delay"),
    "expedite": (),
    "delete": ("force",),
    "edit": ("text", "payload", "priority", "expires", "labels", "headers"),
    "move": ("text", "queue", "expires"),
    "retime": ("delay",),
    "bury": ("text",),
}

_AMEND_OPTIONS = sorted({name for names in _AMEND_OPTIONS_OF.values() for name in names})

_AMEND_JOBS_MAX = 10_000
_AMEND_PAGES_MAX = 400
_AMEND_BATCH = 50
"""Jobs are read with their payloads: a thousand at once could be a gigabyte."""


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`wait` is how long to wait until the job has ended, up to the server's bound. Then the job is
    shown in its current state.
    """

    wait: Seconds = 0


class OutputQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The attempt whose output is wanted, from 1; by default the last output that is stored."""

    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class JobsQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """A page of jobs, in any of these states, and with any of these ids. With the view `row`,
    payloads, results and outputs are neither read nor sent. `contains` is a text in the payload or
    in an error; jobs are read to find it, at most 2,000 for one page, so that a page may be empty:
    continue with `after`."""

    id: Annotated[list[JobId], Meta(min_length=1, max_length=_IDS_MAX)] | None = None
    state: StateWords | None = None
    view: View = "full"
    contains: Annotated[str, Meta(min_length=1, max_length=200)] | None = None

    def wanted(self, state: Iterable[str] | None = None) -> JobFilter:
        """The engine's filter, for jobs in any of these states."""
        wanted = super().wanted(state)
        return wanted if self.id is None else replace(wanted, ids=tuple(dict.fromkeys(self.id)))


class TallyQuery(FilterQuery, forbid_unknown_fields=True, kw_only=True):
    """The jobs to count, and the field to count by."""

    by: TallyBy = "state"
    state: StateWords | None = None
    limit: Annotated[int, Meta(ge=1, le=bounds.PAGE_MAX)] = 100


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first; with the view `row` they are in `rows`. A page may be short or empty:
    continue while `after` is not null. With `contains`, `examined` jobs were read for this page,
    the last of them created at `examined_to`."""

    jobs: list[JobView]
    after: str | None
    rows: list[JobRowView] | UnsetType = UNSET
    examined: int | UnsetType = UNSET
    examined_to: str | UnsetType | None = UNSET


class Tallies(msgspec.Struct, frozen=True):
    """The most frequent values first. `more`: there may be more values than requested, or more jobs
    than were counted.
    """

    by: TallyBy
    tallies: list[Tally]
    more: bool


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """`text` is the reason, shown in the timeline. With `force` the worker ends a running attempt
    at once."""

    text: Text = ""
    force: bool = False


class RetryJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """The `delay` before it runs again, and the reason as `text`, shown in the timeline."""

    delay: Seconds = 0
    text: Text = ""


class RerouteBody(msgspec.Struct, forbid_unknown_fields=True):
    """`to` names the worker; with `labels` a worker that has them is chosen, otherwise one with the
    labels that the job requires. `expires` replaces the job's own time limit to start.
    """

    to: Name | None = None
    labels: Pairs | None = None
    expires: Seconds | None = None


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `force` a running job is deleted too, and its lease is lost."""

    force: bool = False


class ChangesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A field that is left out or null stays as it is; only the payload may be set to null. Labels
    and headers are added to the current ones.
    """

    payload: Json | UnsetType = UNSET
    priority: Priority | None = None
    expires: Seconds | None = None
    delay: Seconds | None = None
    queue: QueueName | None = None
    labels: Pairs | None = None
    headers: Pairs | None = None
    text: Text = ""


class Rerouted(msgspec.Struct, frozen=True, kw_only=True):
    """The job, and the worker that gets it."""

    id: str
    worker: str


@operation("GET", "/v1/jobs/{id}", needs=Scope.KNOWN, waits=True)
async def show_job(call: ApiCall, id: JobId, query: WaitQuery) -> JobView:
    """Show a job."""
    job = await _ended(call, id, to_ms("wait", query.wait, UsageError))
    waits = await call.engine.waits(id) if job.state is State.WAITING else None
    queue = (await queue_settings(call.engine, [job.queue])).get(job.queue)
    return job_view(job, queue, waits, value=raw_of)


@operation("GET", "/v1/jobs/{id}/timeline", needs=Scope.KNOWN)
async def show_timeline(call: ApiCall, id: JobId) -> Timeline:
    """Show the timeline of a job, oldest event first."""
    job = await read_job(call.engine, id)
    return Timeline(id=job.id, state=job.state, events=timeline_view(job))


@operation("GET", "/v1/jobs/{id}/explain", needs=(Scope.CONSUME, Scope.OBSERVE))
async def explain(call: ApiCall, id: JobId) -> Explanation:
    """Explain why a job is not running, and what would change that."""
    job = await read_job(call.engine, id)
    now = (await examine(call.engine)).now
    # The state of the broker is about the whole namespace.
    broker_of = None if call.caller.prefix else call.app.engine
    return explanation(job, await explain_job(call.engine, job, now, broker_of=broker_of))


@operation("GET", "/v1/jobs/{id}/output", needs=Scope.KNOWN)
async def show_output(call: ApiCall, id: JobId, query: OutputQuery) -> OutputView:
    """Show the stored output of a job, or of one of its attempts."""
    return output_view(await read_job(call.engine, id), query.attempt)


@operation("GET", "/v1/jobs", needs=Scope.OBSERVE)
async def list_jobs(call: ApiCall, query: JobsQuery) -> JobPage:
    """List jobs that match, newest first. Ask for the view `row` to show many of them."""
    if query.contains is not None:
        return await _text_page(call.engine, query, query.contains)
    if query.view == "row":
        return await _row_page(call.engine, query, query.state)
    return await page_of(call.engine, query, query.state)


@operation("GET", "/v1/tally", needs=Scope.OBSERVE)
async def tally_jobs(call: ApiCall, query: TallyQuery) -> Tallies:
    """Count jobs that match, by one of their values."""
    wanted = query.wanted(query.state)
    # One value more than asked for shows whether there are more, up to the engine's bound.
    limit = min(query.limit + 1, bounds.PAGE_MAX)
    found = await call.engine.tally(wanted, query.by, limit=limit)
    jobs = sum(each.count for each in found)
    more = len(found) > query.limit or len(found) == bounds.PAGE_MAX or jobs >= bounds.SCAN_MAX
    return Tallies(query.by, found[: query.limit], more)


@operation("POST", "/v1/jobs/{id}/cancel", needs=Scope.OPERATE)
async def cancel_job(call: ApiCall, id: JobId, body: CancelBody) -> JobView:
    """Cancel a job. A running job is asked to stop or, with `force`, ended by its worker."""
    act = Cancel(by=call.caller.name, text=body.text)
    job = await amend.cancel_job(call.engine, id, act, force=body.force)
    return await _view(call.engine, job)


@operation("POST", "/v1/jobs/{id}/retry", needs=Scope.OPERATE)
async def retry_job(call: ApiCall, id: JobId, body: RetryJobBody) -> JobView:
    """Retry a dead, cancelled or done job, with its attempts reset to zero."""
    delay_ms = to_ms("delay", body.delay, UsageError)
    act = Redrive(by=call.caller.name, text=body.text, delay_ms=delay_ms)
    await amend_job(call.engine, id, _checked(act), FINISHED)
    return await _view(call.engine, await require_job(call.engine, id))


@operation("POST", "/v1/jobs/{id}/expedite", needs=Scope.OPERATE, repeatable=True)
async def expedite_job(call: ApiCall, id: JobId) -> JobView:
    """Expedite a waiting job: due now, ahead of all others."""
    await amend_job(call.engine, id, Expedite(by=call.caller.name), (State.WAITING,))
    return await _view(call.engine, await require_job(call.engine, id))


@operation("POST", "/v1/jobs/{id}/reroute", needs=Scope.OPERATE)
async def reroute_job(call: ApiCall, id: JobId, body: RerouteBody) -> Rerouted:
    """Reroute a job that waits for one worker to another. Without `to` it goes to the healthiest,
    then the least loaded worker that knows its task."""
    if body.to is not None and body.labels:
        raise UsageError("give either to, the name of a worker, or labels to choose one by")
    await require_job(call.engine, id)
    name = await reroute_one(
        call.engine,
        id,
        to=body.to,
        labels=body.labels,
        expires_ms=_ms("expires", body.expires),
        by=call.caller.name,
    )
    return Rerouted(id=id, worker=name)


@operation("PATCH", "/v1/jobs/{id}", needs=Scope.OPERATE)
async def edit(call: ApiCall, id: JobId, body: ChangesBody) -> JobView:
    """Edit a waiting or dead job."""
    changes = JobChanges(
        payload=_payload(body.payload),
        priority=body.priority,
        expires_ms=_ms("expires", body.expires),
        delay_ms=_ms("delay", body.delay),
        queue=body.queue,
        labels=body.labels,
        headers=body.headers,
        text=body.text,
    )
    await edit_job(call.engine, id, changes, call.caller.name)
    return await _view(call.engine, await require_job(call.engine, id))


@operation("DELETE", "/v1/jobs/{id}", needs=Scope.OPERATE, status=204)
async def delete_job(call: ApiCall, id: JobId, query: DeleteQuery) -> None:
    """Delete a job permanently."""
    states = tuple(state for state in State if query.force or state is not State.LEASED)
    await amend_job(call.engine, id, Delete(force=query.force), states)


class AmendBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The act, and the jobs: those that match `filter`, or `all`. `cancel`, `retry`, `edit`, `move`
    and `bury` take a `text` with the reason; `retry` and `retime` a `delay`; `delete` a `force`;
    `move` a `queue`; `edit` the fields to change, where the payload may be null. At most `limit`
    jobs are read, newest first: continue with `after` while it is not null. With `dry_run` they are
    only counted."""

    filter: Filter
    act: Act
    all: bool = False
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=_AMEND_JOBS_MAX)] = 1_000
    after: Cursor | None = None
    text: Text | None = None
    delay: Seconds | None = None
    force: bool | None = None
    queue: QueueName | None = None
    payload: Json | UnsetType = UNSET
    priority: Priority | None = None
    expires: Seconds | None = None
    labels: Pairs | None = None
    headers: Pairs | None = None


class AmendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of matching and changed jobs. Some may have been changed by others first."""

    matched: int
    changed: int
    dry_run: bool
    after: str | None


@operation("POST", "/v1/jobs/amend", needs=Scope.OPERATE)
async def amend_jobs(call: ApiCall, body: AmendBody) -> AmendResult:
    """Amend all jobs that match a filter, in batches of one transaction each."""
    for name in _AMEND_OPTIONS:
        if getattr(body, name) not in (None, UNSET) and name not in _AMEND_OPTIONS_OF[body.act]:
            raise UsageError(f'the act "{body.act}" takes no {name}')
    wanted = body.filter.wanted()
    if is_narrow(wanted) == body.all:
        raise UsageError("give either a filter that selects jobs, or all: true")
    edits = _job_changes(body) if body.act == "edit" else None
    act = _checked(_amendment(body, call.caller.name))
    states = amendable(act, wanted)
    if body.act == "retry" and body.filter.states is None:
        states = FINISHED if body.filter.ids else (State.DEAD,)
    if not states:
        return AmendResult(matched=0, changed=0, dry_run=body.dry_run, after=None)
    return await _amend_pages(call, body, replace(wanted, states=states), act, edits)


OPERATIONS: tuple[Operation, ...] = (
    show_job,
    show_timeline,
    explain,
    show_output,
    list_jobs,
    tally_jobs,
    cancel_job,
    retry_job,
    expedite_job,
    reroute_job,
    edit,
    delete_job,
    amend_jobs,
)


async def read_job(engine: Engine, id: str) -> Job:
    """The job. Raises NotFound."""
    job = await engine.get(id)
    if job is None:
        raise NotFound(f"unknown job {id[:128]!r}: it was deleted or never existed")
    return job


async def page_of(engine: Engine, query: PageQuery, state: Iterable[str] | None) -> JobPage:
    """A page of jobs, bounded in number, in bytes and in pages read."""
    wanted = query.wanted(state)
    views: list[JobView] = []
    size, room, after = 0, _FIRST_PAGE, query.cursor
    for _ in range(_PAGES_MAX):
        limit = min(_PAGE, room, query.limit - len(views))
        page = await engine.find(wanted, limit=limit, after=after)
        after = page.after
        found = await read_views(engine, page.jobs, raw_of) if page.jobs else []
        views += found
        size += sum(map(_size, found))
        if after is None or len(views) >= query.limit or size >= _BYTES_MAX:
            break
        # The number of further jobs that fit, if they are as large as these.
        room = max(1, (_BYTES_MAX - size) * len(views) // max(size, 1)) if views else _FIRST_PAGE
    return JobPage(views, cursor_text(after))


async def _row_page(engine: Engine, query: PageQuery, state: Iterable[str] | None) -> JobPage:
    """A page of rows, with the same bounds; their labels can be long."""
    wanted = query.wanted(state)
    rows: list[JobRowView] = []
    size, after = 0, query.cursor
    for _ in range(_PAGES_MAX):
        limit = min(_ROWS, query.limit - len(rows))
        page = await find_rows(engine, wanted, limit=limit, after=after)
        after = page.after
        rows += await read_rows(engine, page.jobs) if page.jobs else []
        size += sum(
            len(name) + len(value) for job in page.jobs for name, value in job.labels.items()
        )
        if after is None or len(rows) >= query.limit or size >= _BYTES_MAX:
            break
    return JobPage([], cursor_text(after), rows)


async def _text_page(engine: Engine, query: JobsQuery, text: str) -> JobPage:
    """A page of jobs that contain a text, bounded also in the jobs and bytes that are examined."""
    wanted = query.wanted(query.state)
    search = TextSearch(engine, text)
    views: list[JobView] = []
    rows: list[JobRowView] = []
    size, room, after = 0, _FIRST_PAGE, query.cursor
    for _ in range(_PAGES_MAX + EXAMINED_MAX // _PAGE):
        found = len(views) + len(rows)
        limit = min(_PAGE, room, query.limit - found, EXAMINED_MAX - search.examined)
        page = await engine.find(wanted, limit=limit, after=after)
        after = page.after
        jobs = await search.matching(page.jobs)
        if query.view == "row":
            rows += await read_rows(engine, jobs) if jobs else []
        else:
            new = await read_views(engine, jobs, raw_of) if jobs else []
            views += new
            size += sum(map(_size, new))
        found = len(views) + len(rows)
        if after is None or found >= query.limit or search.examined >= EXAMINED_MAX:
            break
        left = min(_EXAMINED_BYTES_MAX - search.size, _BYTES_MAX - size)
        if left <= 0:
            break
        # The number of further jobs that fit, if they are as large as these.
        room = max(1, left * search.examined // max(search.size, 1)) if search.examined else _PAGE
    last = search.last
    return JobPage(
        views,
        cursor_text(after),
        rows if query.view == "row" else UNSET,
        examined=search.examined,
        examined_to=None if last is None else show_at(last.created_at),
    )


def _size(view: JobView) -> int:
    encoded = 0 if isinstance(view.payload_base64, UnsetType) else len(view.payload_base64)
    return _bytes(view.payload) + encoded + _bytes(view.result) + len(view.output or "")


def _bytes(value: Any) -> int:
    return memoryview(value).nbytes if isinstance(value, msgspec.Raw) else len(str(value))


async def _ended(call: ApiCall, id: str, wait_ms: int) -> Job:
    """The job once it has ended, or when the wait is over."""
    until = time.monotonic() + min(wait_ms, call.server.settings.wait_ms_max) / 1000
    poll_s = _POLL_S_FIRST
    while True:
        job = await read_job(call.engine, id)
        left_s = until - time.monotonic()
        if job.state.finished or left_s <= 0 or call.server.stopping.is_set():
            return job
        await asyncio.sleep(min(poll_s, left_s))
        # Most jobs end quickly; one that does not may take long.
        poll_s = min(poll_s * _POLL_S_GROWTH, _POLL_S_MAX)


def _checked(act: Amendment) -> Amendment:
    """The amendment, if it is within its bounds."""
    checks.check_amendment(act)
    return act


def _payload(given: msgspec.Raw | UnsetType) -> bytes | None:
    """The payload as stored; None if it is not given."""
    return None if isinstance(given, UnsetType) else job_lines.json_bytes(given)


def _ms(name: str, given: float | str | None) -> int | None:
    """A duration in milliseconds; None if it is not given."""
    return None if given is None else to_ms(name, given, UsageError)


async def _view(engine: Engine, job: Job) -> JobView:
    return job_view(job, (await queue_settings(engine, [job.queue])).get(job.queue), value=raw_of)


async def _amend_pages(
    call: ApiCall, body: AmendBody, wanted: JobFilter, act: Amendment, edits: JobChanges | None
) -> AmendResult:
    """Amend page by page with a cursor, so that a job that still matches is not amended twice."""
    matched = changed = 0
    after = None if body.after is None else int(body.after)
    with unknown_if_partial(lambda: changed):
        for _ in range(_AMEND_PAGES_MAX):
            limit = min(_AMEND_BATCH, body.limit - matched)
            page = await call.engine.find(wanted, limit=limit, after=after)
            matched += len(page.jobs)
            if page.jobs and not body.dry_run:
                changed += await _amend_page(call, wanted, page.jobs, act, edits)
            after = page.after
            if after is None or matched >= body.limit:
                break
    return AmendResult(
        matched=matched, changed=changed, dry_run=body.dry_run, after=cursor_text(after)
    )


async def _amend_page(
    call: ApiCall,
    wanted: JobFilter,
    jobs: tuple[Job, ...],
    act: Amendment,
    edits: JobChanges | None,
) -> int:
    if edits is None or (edits.labels is None and edits.headers is None):
        page_filter = replace(wanted, ids=tuple(job.id for job in jobs))
        return await call.engine.amend(page_filter, act, limit=len(jobs))
    changed = 0
    with unknown_if_partial(lambda: changed):
        for job in jobs:
            amendment = edits.edit(job, call.caller.name)
            unchanged = JobFilter(ids=(job.id,), version=job.version)
            if amendment is not None:
                changed += await call.engine.amend(unchanged, amendment, limit=1)
    return changed


def _amendment(body: AmendBody, by: str) -> Amendment:
    text = body.text or ""
    match body.act:
        case "cancel":
            return Cancel(by=by, text=text)
        case "retry":
            return Redrive(by=by, text=text, delay_ms=_ms("delay", body.delay) or 0)
        case "expedite":
            return Expedite(by=by)
        case "delete":
            return Delete(force=bool(body.force))
        case "edit":
            amendment = _job_changes(body).edit(Job(id="-", task="-", queue="-"), by)
            if amendment is None:
                raise UsageError("nothing to change: give payload, priority, expires, labels, …")
            return amendment
        case "move":
            if body.queue is None:
                raise UsageError('the act "move" needs the queue to move to')
            expires_ms = _ms("expires", body.expires)
            return Move(queue=body.queue, by=by, text=text, expires_ms=expires_ms)
        case "retime":
            if body.delay is None:
                raise UsageError('the act "retime" needs the delay until the jobs are due')
            return Retime(delay_ms=to_ms("delay", body.delay, UsageError), by=by)
        case "bury":
            failure = Failure(message=text) if text else None
            return BuryWaiting(by=by, reason=Reason.EXPLICIT, failure=failure)
        case never:
            assert_never(never)


def _job_changes(body: AmendBody) -> JobChanges:
    return JobChanges(
        payload=_payload(body.payload),
        priority=body.priority,
        expires_ms=_ms("expires", body.expires),
        labels=body.labels,
        headers=body.headers,
        text=body.text or "",
    )
