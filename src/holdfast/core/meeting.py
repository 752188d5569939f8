"""New jobs and what is there already: held keys, jobs that follow another, parents in one call.

The rules that every engine asks; what is there it looks up itself, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from msgspec.structs import replace

from holdfast.core import admission, checks, codec, graph, lifecycle
from holdfast.core.lanes import lane_of
from holdfast.core.model import Job, NewJob, Queue, State
from holdfast.errors import UsageError

Arrangement = tuple[list[int], dict[int, str]]
"""The order in which jobs come in, and which of them wait for themselves."""


def arrange(jobs: Sequence[NewJob], known: Container[str]) -> Arrangement:
    """Parents first; what is known already waits for nobody anew."""
    if not any(new.after for new in jobs):
        return list(range(len(jobs))), {}
    return graph.arrange([replace(new, after=()) if new.id in known else new for new in jobs])


def meet(job: Job, new: NewJob, queue: Queue, now: int) -> lifecycle.Change | None:
    """A later job under a held key: what it says goes to the job that still waits."""
    if job.state is not State.WAITING or not admission.gives_way(job, new):
        return None
    if new.key_policy == "replace":
        change = lifecycle.replace_waiting(job, new, now)
    else:
        payload = codec.merge_patch(job.payload, new.payload)
        checks.check_job(replace(new, payload=payload), queue.payload_max)
        change = lifecycle.merge_waiting(job, payload, now)
    if change.job is not job:
        lane_of(change.job, queue, strict=True)
    return change


def may_follow(
    then: Sequence[NewJob],
    arrangement: Arrangement,
    *,
    queue_of: Callable[[str], Queue],
    is_known: Callable[[str], bool],
    is_held: Callable[[NewJob], bool],
    is_orphan: Callable[[NewJob, Container[str]], bool],
) -> bool:
    """Could all of them come in, once the job that they follow is done? `is_orphan` is whether a
    parent is neither there nor among those that come in before."""
    order, circular = arrangement
    coming: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for place in order:
        new = then[place]
        if new.id in coming or is_known(new.id):
            continue
        if place in circular:
            return False
        key = None if new.key is None else (new.queue, new.key)
        if key in keys or is_held(new):
            continue
        if is_orphan(new, coming):
            return False
        try:
            lane_of(new, queue_of(new.queue), strict=True)
        except UsageError:
            return False
        coming.add(new.id)
        if key is not None:
            keys.add(key)
    return True
