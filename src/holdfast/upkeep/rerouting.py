"""Jobs that are addressed to one worker → another one: when they expire, or because a person said.

Each is one write, guarded by the version that was read: killed before it, nothing has happened;
of two at once, one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import routing
from holdfast.core.explain import Seen
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.policy import ttl_ms
from holdfast.core.verdict import Move
from holdfast.core.workers import (
    KIND,
    ORDER_KIND,
    Order,
    WorkerRecord,
    addressee,
    worker_queue,
)
from holdfast.engines.base import Engine
from holdfast.errors import NotFound, UsageError, WrongState
from holdfast.upkeep.paging import records

Kind = TypeVar("Kind", bound=msgspec.Struct)

_ROUNDS_MAX = 10


class Choice:
    """The workers as they stand now; each job that one of them is given counts for the next."""

    def __init__(self, workers: list[Seen], waiting: dict[str, int]) -> None:
        self._workers = workers
        self._waiting = waiting

    @classmethod
    async def read(cls, engine: Engine) -> Choice:
        cordoned = set()
        async for record in records(engine, ORDER_KIND):
            order = _decoded(record.value, Order)
            if order is not None and order.cordoned:
                cordoned.add(record.key)
        workers = []
        async for record in records(engine, KIND):
            known = _decoded(record.value, WorkerRecord)
            if known is not None:
                known = replace(known, cordoned=known.name in cordoned)
                workers.append(Seen(record=known, age_ms=record.age_ms))
        waiting = {
            name: view.ready + view.delayed + view.blocked
            for view in await engine.queues()
            if (name := addressee(view.queue.name)) is not None
        }
        return cls(workers, waiting)

    def next(self, job: Job, labels: Mapping[str, str]) -> str | None:
        name = routing.choose(job, self._workers, labels, self._waiting)
        if name is not None:
            self._waiting[name] += 1
        return name


def is_rerouted(job: Job) -> bool:
    """Does it want another worker when this one does not take it? In a queue that is no worker's
    own, that means nothing."""
    return job.overrides.reroute is not None and addressee(job.queue) is not None


async def reroute_expired(engine: Engine, jobs: Iterable[Job]) -> tuple[int, dict[str, str]]:
    """How many went on to another worker; and, by id, why others that wanted to could not."""
    choice: Choice | None = None
    moved, stuck = 0, {}
    for job in jobs:
        policy = job.overrides.reroute
        if policy is None or not is_rerouted(job):
            continue
        if choice is None:
            choice = await Choice.read(engine)
        name = choice.next(job, policy.labels) if routing.left_of(policy) else None
        if name is None:
            stuck[job.id] = routing.why_not(policy)
            continue
        still = JobFilter(ids=(job.id,), states=(State.WAITING,), expired=True, version=job.version)
        moved += await engine.amend(still, routing.onward(job, policy, name), limit=1)
    return moved, stuck


async def reroute(
    engine: Engine,
    id: str,
    *,
    to: str | None = None,
    labels: Mapping[str, str] | None = None,
    expires_ms: int | None = None,
    by: str = "",
) -> str:
    """The name of the worker that has the job now. A person's reroute does not count against the
    job's own; UsageError says why it stays where it is."""
    for _ in range(_ROUNDS_MAX):
        job = await engine.get(id)
        _check(job, id)
        assert job is not None
        policy = job.overrides.reroute
        wanted = labels if labels is not None else policy.labels if policy is not None else {}
        name = to or (await Choice.read(engine)).next(job, wanted)
        if name is None:
            raise UsageError("no other worker that is well knows its task and has those labels")
        act = Move(
            queue=worker_queue(name),
            by=by,
            text="rerouted",
            expires_ms=ttl_ms(job) if expires_ms is None else expires_ms,
        )
        still = JobFilter(ids=(id,), states=(State.WAITING,), version=job.version)
        if await engine.amend(still, act, limit=1):
            return name
    raise UsageError("it is being changed by others all the time: try again")


def _check(job: Job | None, id: str) -> None:
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}")
    if job.state is not State.WAITING:
        raise WrongState(f"it is {job.state}, and must be waiting")
    if addressee(job.queue) is None:
        raise UsageError(
            f"it is in queue {job.queue}, and not addressed to a worker: move it with job edit"
        )


def _decoded(value: bytes | None, kind: type[Kind]) -> Kind | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None
