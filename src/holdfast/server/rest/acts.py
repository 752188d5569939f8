"""Acts on many jobs over REST: count one, show it in words, run it in the background, stop it.

Only the server saves the records of acts, after it has checked what the caller may change, so
that nobody can store an act on jobs of others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import bounds, checks
from holdfast.core.model import JobFilter
from holdfast.errors import UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import to_ms
from holdfast.notation.job import JobId, Json, Pairs, Priority, QueueName, Seconds
from holdfast.ops.audit import with_reason
from holdfast.ops.jobs.act_views import ActDetails, act_details, read_acts, says
from holdfast.ops.jobs.acts import (
    ACT_OPTIONS,
    ActPlan,
    ActRecord,
    Acts,
    ActWord,
    read_act,
)
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.permissions import VisibleQueues, require_run_commands
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.shapes import FilterQuery, StateWords

ActId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,80}$")]

_OPTIONS = sorted({name for names in ACT_OPTIONS.values() for name in names})


class ActFilter(FilterQuery, forbid_unknown_fields=True, kw_only=True):
    """Jobs must match all given fields, which are those of GET /v1/jobs. Without any, all jobs
    match. For `contains`, at most 20,000 jobs are examined."""

    state: StateWords | None = None
    contains: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ActBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The act, and the jobs: those that match `filter`, or those with these `ids`. `text` is the
    reason, shown in the timelines. `retry` and `delay` take a `delay`; `move` a `queue` and how
    long the jobs may wait there (`expires`); `delete` a `force`, which also deletes running jobs.
    `edit` takes a `patch`, which is a JSON merge patch for each payload, `priority`, `expires`,
    and `labels` and `headers` to add. A `retry` without states or ids means dead letters."""

    act: ActWord
    filter: ActFilter | None = None
    ids: Annotated[list[JobId], Meta(min_length=1, max_length=bounds.BATCH_MAX)] | None = None
    text: Annotated[str, Meta(max_length=1_000)] = ""
    delay: Seconds | None = None
    queue: QueueName | None = None
    force: bool | None = None
    patch: Json | UnsetType = UNSET
    priority: Priority | None = None
    expires: Seconds | None = None
    labels: Pairs | None = None
    headers: Pairs | None = None

    def plan(self) -> ActPlan:
        """The plan of the act. UsageError if it has an option that it does not take."""
        for name in _OPTIONS:
            if getattr(self, name) not in (None, UNSET) and name not in ACT_OPTIONS[self.act]:
                raise UsageError(f'the act "{self.act}" takes no {name}')
        if self.act == "delay" and self.delay is None:
            raise UsageError('the act "delay" needs the delay until the jobs are due')
        if (self.filter is None) == (self.ids is None):
            raise UsageError("give either a filter or ids")
        chosen = self.filter or ActFilter()
        wanted = chosen.wanted(chosen.state)
        if self.ids is not None:
            wanted = JobFilter(ids=tuple(dict.fromkeys(self.ids)))
        patch = None if isinstance(self.patch, UnsetType) else job_lines.json_bytes(self.patch)
        return ActPlan(
            act=self.act,
            wanted=wanted,
            contains=chosen.contains or "",
            text=self.text,
            delay_ms=_ms("delay", self.delay) or 0,
            force=bool(self.force),
            queue=self.queue,
            expires_ms=_ms("expires", self.expires),
            patch=patch,
            priority=self.priority,
            labels=self.labels,
            headers=self.headers,
        )


class ActList(msgspec.Struct, frozen=True):
    """Acts, oldest first."""

    acts: list[ActDetails]


@operation("GET", "/v1/acts", needs=Scope.OBSERVE)
async def list_job_acts(call: ApiCall) -> ActList:
    """List acts on many jobs, and their progress."""
    return ActList(list((await read_acts(call.engine)).values()))


@operation("POST", "/v1/acts", needs=Scope.OPERATE, status=201)
async def count_act(call: ApiCall, body: ActBody) -> ActDetails:
    """Count the jobs of an act, newest first and at most 100,000, and store it. No job is changed
    before it is run; an act that is not run within an hour is removed."""
    plan = body.plan()
    await _check_target(call, plan)
    acts = Acts(call.app.engine, wall_ms)
    commands = call.caller.may(Scope.RUN_COMMANDS)
    act = await acts.count(plan, call.caller.name, seen=call.engine, commands=commands)
    return act_details(act)


@operation("GET", "/v1/acts/{id}", needs=Scope.OBSERVE)
async def show_act(call: ApiCall, id: ActId) -> ActDetails:
    """Show an act and its progress."""
    return act_details(await read_act(call.engine, id))


@operation("POST", "/v1/acts/{id}/run", needs=Scope.OPERATE, repeatable=True)
async def run_act(call: ApiCall, id: ActId) -> ActDetails:
    """Run an act in the background, or continue one that was stopped. It changes only jobs that
    have not changed since they were counted."""
    act = await read_act(call.engine, id)
    await _check_target(call, act.plan)
    if act.plan.act == "edit" and act.commands:
        require_run_commands(call.caller, f"act {id}, which edits jobs that run commands")
    async with call.noting("act.run", _described(act)):
        act = await Acts(call.app.engine, wall_ms).run(id, call.caller.name)
    return act_details(act)


@operation("POST", "/v1/acts/{id}/stop", needs=Scope.OPERATE, repeatable=True)
async def stop_act(call: ApiCall, id: ActId) -> ActDetails:
    """Stop an act. Jobs that it already changed stay changed, and it can be run again for the
    others. An act that has ended does not change."""
    act = await read_act(call.engine, id)
    if act.state.ended:
        return act_details(act)
    async with call.noting("act.stop", _described(act)):
        act = await Acts(call.app.engine, wall_ms).stop(id, call.caller.name)
    return act_details(act)


OPERATIONS: tuple[Operation, ...] = (list_job_acts, count_act, show_act, run_act, stop_act)


async def _check_target(call: ApiCall, plan: ActPlan) -> None:
    """Raise unless the caller may move jobs to the target of a move, and it exists."""
    if plan.act != "move" or plan.queue is None:
        return
    VisibleQueues(call.app.engine, call.caller).check_queue(plan.queue)
    if not await call.engine.queues(names=[plan.queue], counts=False):
        raise checks.unknown_queue(plan.queue)


def _described(act: ActRecord) -> str:
    return with_reason(f"{act.id}: {says(act)}", act.plan.text)


def _ms(name: str, given: float | str | None) -> int | None:
    return None if given is None else to_ms(name, given, UsageError)
