"""Dead letters put back to work as they were read, and what came of each.

A job that somebody changed since is left as it is. Doing it twice is doing it once: after any
number of passes over the same jobs, by anybody, all that could be put back are, and no pass that
comes later changes anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.model import EventKind, Job, JobFilter, State
from holdfast.core.verdict import Edit, Redrive
from holdfast.engines.base import Engine
from holdfast.engines.parts import told_in_part
from holdfast.errors import UsageError
from holdfast.upkeep.redrive import Taken

_DEAD = (State.DEAD,)
_ROUNDS_MAX = 5


class Fates(NamedTuple):
    """Of jobs that were to be put back. The others were changed by somebody else."""

    retried: tuple[Taken, ...]
    unfit: int = 0


def taken_of(jobs: Sequence[Job]) -> tuple[Taken, ...]:
    return tuple(Taken(job.id, job.version, job.fingerprint) for job in jobs)


async def put_back(
    engine: Engine,
    taken: Sequence[Taken],
    act: Redrive,
    patch: bytes | None = None,
    *,
    among: JobFilter | None = None,
) -> int:
    """How many were put back by this very call. With `among` none that is of another queue or task
    than that names, whatever a record says was taken."""
    changed = 0
    where = JobFilter() if among is None else JobFilter(queue=among.queue, task=among.task)
    with told_in_part(lambda: changed):
        if patch is not None:
            for each in taken:
                changed += await _edit_and_put_back(engine, where, each, act, patch)
            return changed
        # Jobs that went the same way have the same version, so the groups are few.
        versions: dict[int, list[str]] = defaultdict(list)
        for each in taken:
            versions[each.version].append(each.id)
        for version, ids in versions.items():
            unchanged = replace(where, ids=tuple(ids), states=_DEAD, version=version)
            changed += await engine.amend(unchanged, act, limit=len(ids))
    return changed


async def fates(
    engine: Engine, taken: Sequence[Taken], act: Redrive, patch: bytes | None = None
) -> Fates:
    """Read from their timelines, after `put_back`, whoever did it; `act` has a text of its own."""
    retried = []
    unfit = 0
    for each in taken:
        job = await engine.get(each.id)
        if job is None:
            continue
        if any(event.kind is EventKind.REDRIVEN and event.text == act.text for event in job.events):
            retried.append(each)
        elif patch is not None and job.state is State.DEAD and patched(job, patch) is None:
            unfit += 1
    return Fates(tuple(retried), unfit)


def patched(job: Job, patch: bytes) -> bytes | None:
    """Its payload with the patch: the very same bytes if that changes nothing that it says; None
    where there is nothing that could be patched."""
    if job.content_type != codec.JSON:
        return None
    try:
        merged = codec.merge_patch(job.payload, patch)
        same = job.payload and codec.encode(codec.decode(job.payload)) == merged
    except UsageError:
        return None
    return job.payload if same else merged


async def _edit_and_put_back(
    engine: Engine, where: JobFilter, taken: Taken, act: Redrive, patch: bytes
) -> int:
    """Two writes, each on the version that the one before left: whoever was killed between them
    left an edited dead letter, which is recognised by the patch that changes nothing."""
    wanted = replace(where, ids=(taken.id,), states=_DEAD)
    for _ in range(_ROUNDS_MAX):
        found = (await engine.find(wanted, limit=1)).jobs
        payload = patched(found[0], patch) if found else None
        if payload is None or found[0].version > taken.version + 1:
            return 0
        version = found[0].version
        unchanged = replace(wanted, version=version)
        if payload == found[0].payload:
            return await engine.amend(unchanged, act, limit=1)
        if version > taken.version:
            return 0
        edit = Edit(by=act.by, text=act.text, payload=payload)
        try:
            await engine.amend(unchanged, edit, limit=1)
        except UsageError:
            # The payload is too large now.
            return 0
    return 0
