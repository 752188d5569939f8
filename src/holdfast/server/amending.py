"""What people do to jobs that fit a filter."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from holdfast.acting import FINISHED, Changes
from holdfast.core import amend as policy
from holdfast.core.model import Failure, Job, JobFilter, Reason, State
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
from holdfast.durations import to_ms
from holdfast.engines.parts import told_in_part
from holdfast.errors import UsageError
from holdfast.filters import is_narrow
from holdfast.server.acts import checked, ms_of, payload_of
from holdfast.server.calls import Call
from holdfast.server.filters import Cursor, Filter, cursor_of
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Json, Pairs, Priority, QueueName, Seconds, Text

Act = Literal["cancel", "retry", "expedite", "delete", "edit", "move", "retime", "bury"]
_TAKES: dict[Act, tuple[str, ...]] = {
    "cancel": ("text",),
    "retry": ("text", "delay"),
    "expedite": (),
    "delete": ("force",),
    "edit": ("text", "payload", "priority", "expires", "labels", "headers"),
    "move": ("text", "queue", "expires"),
    "retime": ("delay",),
    "bury": ("text",),
}
_OPTIONS = sorted({name for names in _TAKES.values() for name in names})
_FITTING_MAX = 10_000
_PAGES_MAX = 400
_AT_ONCE = 50
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""


class AmendBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and to which jobs; with `all` to every one. `cancel`, `retry`, `edit`, `move`
    and `bury` take a `text` that says why; `retry` and `retime` a `delay`; `delete` a `force`;
    `move` a `queue`; `edit` what to change, to a payload of null if that is given. At most `limit`
    jobs are looked at, newest first: go on with `after` while that is not null. With `dry_run` they
    are only counted."""

    filter: Filter
    act: Act
    all: bool = False
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=_FITTING_MAX)] = 1_000
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


class Amended(msgspec.Struct, frozen=True, kw_only=True):
    """So many fitted, and so many of them were changed: another may have been faster."""

    matched: int
    changed: int
    dry_run: bool
    after: str | None


@operation("POST", "/v1/jobs/amend", needs=Scope.OPERATE)
async def amend_jobs(call: Call, body: AmendBody) -> Amended:
    """Act on every job that fits, a batch in one transaction."""
    for name in _OPTIONS:
        if getattr(body, name) not in (None, UNSET) and name not in _TAKES[body.act]:
            raise UsageError(f"the act {body.act} takes no {name}")
    wanted = body.filter.wanted()
    if is_narrow(wanted) == body.all:
        raise UsageError("say which jobs with a filter, or that you mean all of them: one of both")
    edits = _changes(body) if body.act == "edit" else None
    act = checked(_act(body, call.caller.name))
    states = policy.amendable(act, wanted)
    if body.act == "retry" and body.filter.states is None:
        states = FINISHED if body.filter.ids else (State.DEAD,)
    if not states:
        return Amended(matched=0, changed=0, dry_run=body.dry_run, after=None)
    return await _walk(call, body, replace(wanted, states=states), act, edits)


OPERATIONS: tuple[Operation, ...] = (amend_jobs,)


async def _walk(
    call: Call, body: AmendBody, wanted: JobFilter, act: Amendment, edits: Changes | None
) -> Amended:
    """With a cursor, so that what fits anew after the act is not met twice."""
    matched = changed = 0
    after = None if body.after is None else int(body.after)
    with told_in_part(lambda: changed):
        for _ in range(_PAGES_MAX):
            limit = min(_AT_ONCE, body.limit - matched)
            page = await call.engine.find(wanted, limit=limit, after=after)
            matched += len(page.jobs)
            if page.jobs and not body.dry_run:
                changed += await _act_on(call, wanted, page.jobs, act, edits)
            after = page.after
            if after is None or matched >= body.limit:
                break
    return Amended(matched=matched, changed=changed, dry_run=body.dry_run, after=cursor_of(after))


async def _act_on(
    call: Call, wanted: JobFilter, jobs: tuple[Job, ...], act: Amendment, edits: Changes | None
) -> int:
    if edits is None or (edits.labels is None and edits.headers is None):
        these = replace(wanted, ids=tuple(job.id for job in jobs))
        return await call.engine.amend(these, act, limit=len(jobs))
    changed = 0
    with told_in_part(lambda: changed):
        for job in jobs:
            own = edits.edit(job, call.caller.name)
            still = JobFilter(ids=(job.id,), version=job.version)
            if own is not None:
                changed += await call.engine.amend(still, own, limit=1)
    return changed


def _act(body: AmendBody, by: str) -> Amendment:
    text = body.text or ""
    match body.act:
        case "cancel":
            return Cancel(by=by, text=text)
        case "retry":
            return Redrive(by=by, text=text, delay_ms=ms_of("delay", body.delay) or 0)
        case "expedite":
            return Expedite(by=by)
        case "delete":
            return Delete(force=bool(body.force))
        case "edit":
            edit_ = _changes(body).edit(Job(id="-", task="-", queue="-"), by)
            if edit_ is None:
                raise UsageError("nothing to change: give payload, priority, expires, labels, …")
            return edit_
        case "move":
            if body.queue is None:
                raise UsageError("the act move needs the queue to go to")
            expires_ms = ms_of("expires", body.expires)
            return Move(queue=body.queue, by=by, text=text, expires_ms=expires_ms)
        case "retime":
            if body.delay is None:
                raise UsageError("the act retime needs the delay until they are due")
            return Retime(delay_ms=to_ms("delay", body.delay, UsageError), by=by)
        case "bury":
            failure = Failure(message=text) if text else None
            return BuryWaiting(by=by, reason=Reason.EXPLICIT, failure=failure)
        case never:
            assert_never(never)


def _changes(body: AmendBody) -> Changes:
    return Changes(
        payload=payload_of(body.payload),
        priority=body.priority,
        expires_ms=ms_of("expires", body.expires),
        labels=body.labels,
        headers=body.headers,
        text=body.text or "",
    )
