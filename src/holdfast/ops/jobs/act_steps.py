"""Carry out one step of an act: change the jobs of its list that are still as they were counted.

A step may be repeated by another process after a crash. Each job is changed by one write on the
version that was counted, so it is changed once, and the timelines show which jobs the act changed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from holdfast.core.model import EventKind, Job, JobFilter, State
from holdfast.core.verdict import Amendment, Edit
from holdfast.engines.base import Engine
from holdfast.engines.extras import Partitioned, extra, find_rows
from holdfast.errors import UnknownQueue, UsageError
from holdfast.ops.dead_letters import patched
from holdfast.ops.jobs.acts import ActJobs, ActRecord, ActWord, CountedJob, StepResult
from holdfast.ops.workers import Workers

_READ_AT_ONCE = 20
"""Jobs are read with their payloads, and one may have two megabytes."""
_NUDGED_MAX = 50

_MARKED: dict[ActWord, tuple[EventKind, ...]] = {
    "cancel": (EventKind.CANCELLED, EventKind.CANCEL_REQUESTED),
    "retry": (EventKind.REDRIVEN,),
    "expedite": (EventKind.EXPEDITED,),
    "move": (EventKind.MOVED,),
    "delay": (EventKind.RETIMED,),
    "edit": (EventKind.EDITED,),
    "delete": (),
}
"""The events that an act leaves in the timeline of a job."""


async def carry_out(engine: Engine, act: ActRecord, step: ActJobs) -> StepResult | None:
    """Change the jobs of the step that was begun, and count them. None: some of them may be in a
    partition that is shut out, so the step must be repeated. UnknownQueue: the target of a move
    does not exist."""
    if act.plan.act == "edit" and act.plan.edits_each:
        result = await _edit_each(engine, act, step)
    else:
        amendment = act.plan.amendment(act.by, act.mark)
        result = await _amend_unchanged(engine, act, step, amendment)
    if act.plan.act == "cancel" and act.states.get(State.LEASED):
        await _nudge_workers(engine, step)
    if (result is None or result.done < len(step.jobs)) and _is_partly_out(engine):
        return None
    if result is None or (act.repeated and result.done < len(step.jobs)):
        return await step_result(engine, act, step)
    return result


async def step_result(engine: Engine, act: ActRecord, step: ActJobs) -> StepResult:
    """The outcome of a step that was carried out, by any process, from the stored jobs. A job that
    is gone counts as deleted by the act if that deletes jobs, otherwise as changed."""
    done = changed = failed = 0
    for part in _parts(step.jobs):
        jobs = await asyncio.gather(*(engine.get(each.id) for each in part))
        for each, job in zip(part, jobs, strict=True):
            if _is_done(act, job, each, step):
                done += 1
            elif job is not None and _is_unchanged(job, each, step):
                failed += 1
            else:
                changed += 1
    return StepResult(done, changed, failed)


async def _amend_unchanged(
    engine: Engine, act: ActRecord, step: ActJobs, amendment: Amendment
) -> StepResult | None:
    """Amend the jobs that are unchanged; None if it is not known how many were changed."""
    # Jobs with the same history have the same version, so there are few groups.
    versions: dict[int, list[str]] = defaultdict(list)
    for each in step.jobs:
        versions[each.version].append(each.id)
    done = 0
    is_known = True
    for version, ids in versions.items():
        changed = await _amend(engine, _unchanged(act, step, version, ids), amendment)
        is_known = is_known and changed is not None
        done += changed or 0
    return StepResult(done, len(step.jobs) - done) if is_known else None


async def _edit_each(engine: Engine, act: ActRecord, step: ActJobs) -> StepResult | None:
    """Edit the jobs that are unchanged, those that get the same values in one write."""
    done = failed = 0
    is_known = True
    for part in _parts(step.jobs):
        found = await _read(engine, act, part)
        edits: dict[tuple[int, bytes], tuple[Edit, list[str]]] = {}
        for each in part:
            job = found.get(each.id)
            if job is None or not _is_unchanged(job, each, step):
                continue
            try:
                edit = _edit(act, job)
            except UsageError:
                failed += 1
                continue
            if edit is None:
                done += 1
            else:
                key = (each.version, msgspec.json.encode(edit))
                edits.setdefault(key, (edit, []))[1].append(each.id)
        for (version, _), (edit, ids) in edits.items():
            changed = await _amend(engine, _unchanged(act, step, version, ids), edit)
            is_known = is_known and changed is not None
            done += changed or 0
    return StepResult(done, len(step.jobs) - done - failed, failed) if is_known else None


async def _amend(engine: Engine, unchanged: JobFilter, amendment: Amendment) -> int | None:
    """Amend these jobs; if one of them cannot be changed this way, the others one by one. Then the
    number of changed ones is not known: None."""
    ids = unchanged.ids or ()
    try:
        return await engine.amend(unchanged, amendment, limit=len(ids))
    except UnknownQueue:
        raise
    except UsageError:
        for id_ in ids if len(ids) > 1 else ():
            with suppress(UsageError):
                await engine.amend(replace(unchanged, ids=(id_,)), amendment, limit=1)
        return None


def _unchanged(act: ActRecord, step: ActJobs, version: int, ids: Sequence[str]) -> JobFilter:
    """The filter for those of the counted jobs that are still as they were."""
    return JobFilter(
        ids=tuple(ids),
        queue=act.plan.wanted.queue,
        states=act.plan.states,
        version=version,
        created_before=step.created_before,
    )


async def _read(engine: Engine, act: ActRecord, part: Sequence[CountedJob]) -> dict[str, Job]:
    find = engine.find if act.plan.patch is not None else partial(find_rows, engine)
    page = await find(JobFilter(ids=tuple(each.id for each in part)), limit=len(part))
    return {job.id: job for job in page.jobs}


def _edit(act: ActRecord, job: Job) -> Edit | None:
    """The edit of one job; None if the patch changes nothing. UsageError: it cannot be patched."""
    patch = act.plan.patch
    payload = None
    if patch is not None:
        payload = patched(job, patch)
        if payload is None:
            raise UsageError("the payload is not JSON")
        payload = None if payload == job.payload else payload
    return act.plan.changes(payload, act.mark).edit(job, act.by)


def _is_done(act: ActRecord, job: Job | None, each: CountedJob, step: ActJobs) -> bool:
    if act.plan.act == "delete":
        return job is None
    if job is None:
        return False
    kinds = _MARKED[act.plan.act]
    for event in job.events:
        if event.kind in kinds and (event.text == act.mark or event.text.endswith(f": {act.mark}")):
            return True
    if act.plan.act != "edit" or not act.plan.edits_each or not _is_unchanged(job, each, step):
        return False
    with suppress(UsageError):
        return _edit(act, job) is None
    return False


def _is_partly_out(engine: Engine) -> bool:
    partitioned = extra(engine, Partitioned)
    if partitioned is None:
        return False
    return any(each.out_ms is not None for each in partitioned.partitions())


def _is_unchanged(job: Job, each: CountedJob, step: ActJobs) -> bool:
    return job.version == each.version and job.created_at < step.created_before


async def _nudge_workers(engine: Engine, step: ActJobs) -> None:
    """Let the workers of running jobs learn of the cancel requests now, not at the next renewal."""
    wanted = JobFilter(ids=tuple(each.id for each in step.jobs), states=(State.LEASED,))
    page = await find_rows(engine, wanted, limit=len(step.jobs))
    names = {job.worker for job in page.jobs if job.worker and job.cancel_requested}
    for name in sorted(names)[:_NUDGED_MAX]:
        with suppress(UsageError):
            await Workers(engine).nudge(name)


def _parts(jobs: Sequence[CountedJob]) -> Iterator[Sequence[CountedJob]]:
    for start in range(0, len(jobs), _READ_AT_ONCE):
        yield jobs[start : start + _READ_AT_ONCE]
