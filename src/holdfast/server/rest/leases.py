"""Lease and renew jobs over REST, and the cache of leases that clients hold.

A client settles or renews with a job id and a token only. The cache keeps the leases that this
server handed out, without payloads; any other lease, such as one from before a restart, is read
from the store. The engine always compares the client's own token, so the cache is never trusted.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core import bounds, checks
from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Note, Queue, Renewal
from holdfast.engines.base import Engine
from holdfast.errors import UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import to_ms
from holdfast.notation.job import JobId, Json, QueueName, Seconds, TaskName
from holdfast.ops.jobs.views import LeaseView, lease_view
from holdfast.ops.queues import queue_settings
from holdfast.server.access.admission import ApiCall
from holdfast.server.http import bounded_reply
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.enqueue import EntryError
from holdfast.server.rest.shapes import MaybeName, Token

_CACHED_MAX = 20_000
_READ_BATCH = 50
"""Jobs are read with their payloads: a thousand at once could be a gigabyte."""
_MANY = Meta(min_length=1, max_length=bounds.BATCH_MAX)

LeaseKey = tuple[str, int]
"""A job id and a token."""


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs of `queues` in that order, or only those with the given `ids`; of any task, or only of
    `tasks`. `wait` is how long to wait for the first job, up to the server's bound. `lease` is the
    time until the deadline; the default is the job's or the queue's. With `dead`, dead letters are
    leased instead of jobs that wait: completing one deletes it, and after any other end of the
    lease it is dead again."""

    queues: Annotated[list[QueueName], _MANY] | None = None
    ids: Annotated[list[JobId], _MANY] | None = None
    limit: Annotated[int, Meta(ge=1, le=bounds.BATCH_MAX)] = 1
    worker: MaybeName = ""
    wait: Seconds = 0
    lease: Seconds | None = None
    tasks: Annotated[list[TaskName], Meta(max_length=bounds.BATCH_MAX)] | None = None
    dead: bool = False


class Leased(msgspec.Struct, frozen=True):
    """The leased jobs, with their tokens."""

    leases: list[LeaseView]


class RenewalBody(msgspec.Struct, forbid_unknown_fields=True):
    """`lease` is the time until the new deadline; the default is the job's or the queue's. The
    other fields are stored with the job: `progress` from 0 to 1, a `checkpoint` for its next
    attempt, and the `output` so far, of which the head and the tail are stored."""

    id: JobId
    token: Token
    lease: Seconds | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    checkpoint: Json | UnsetType = UNSET
    output: str | None = None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """The leases to renew."""

    renewals: Annotated[list[RenewalBody], _MANY]


class RenewResult(msgspec.Struct, frozen=True, kw_only=True):
    """`lost`: stop working on the job. `cancel_requested`: an operator asked to stop the job;
    release it, and it is cancelled.
    """

    id: str
    outcome: Literal["renewed", "lost", "refused"]
    lease_ms: int | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    error: EntryError | UnsetType = UNSET


class RenewResults(msgspec.Struct, frozen=True):
    """One result for each renewal, in the same order."""

    renewals: list[RenewResult]


@operation("POST", "/v1/lease", needs=Scope.CONSUME, waits=True)
async def lease(call: ApiCall, body: LeaseBody) -> Leased:
    """Lease jobs. With `wait`, waits for the first job if none is due. If the client disconnects
    while it waits, its leases are released.
    """
    request = _lease_request(body, call.server.settings.wait_ms_max)
    leases = await bounded_reply.lease(call.engine, request, bounded_reply.lease_sizes(call.app))
    if not leases:
        return Leased([])
    try:
        queues = await queue_settings(call.engine, {each.job.queue for each in leases})
    except BaseException:
        await bounded_reply.release_undelivered(call.engine, leases)
        raise
    lease_cache(call).add(leases)
    return Leased([lease_view(each, queues.get(each.job.queue)) for each in leases])


@operation("POST", "/v1/renew", needs=Scope.CONSUME, repeatable=True)
async def renew(call: ApiCall, body: RenewBody) -> RenewResults:
    """Renew leases. Extends their deadlines and stores progress, checkpoint and output. A lost or
    refused renewal does not affect the others."""
    cache = lease_cache(call)
    leases = await cache.get_or_read(call.engine, ((each.id, each.token) for each in body.renewals))
    results: list[RenewResult | None] = []
    valid: list[Renewal] = []
    for each in body.renewals:
        try:
            valid.append(_renewal(each, leases[each.id, each.token]))
            results.append(None)
        except UsageError as error:
            results.append(
                RenewResult(id=each.id, outcome="refused", error=EntryError(error.code, str(error)))
            )
    renewed = await call.engine.renew(valid) if valid else []
    cache.add(each for each in renewed if each is not None)
    from_engine = iter(zip(valid, renewed, strict=True))
    return RenewResults([each or _renew_result(*next(from_engine)) for each in results])


async def release_unread(call: ApiCall, answer: Leased) -> None:
    """Release leases whose client disconnected before it received them."""
    keys = [(each.job.id, each.token) for each in answer.leases]
    if keys:
        leases = await lease_cache(call).get_or_read(call.engine, keys)
        await bounded_reply.release_undelivered(call.engine, list(leases.values()))


OPERATIONS: tuple[Operation, ...] = (dataclasses.replace(lease, undo=release_unread), renew)


class LeaseCache:
    """The leases that the clients of one application hold, least recently added first."""

    def __init__(self) -> None:
        self._leases: OrderedDict[LeaseKey, Lease] = OrderedDict()

    def add(self, leases: Iterable[Lease]) -> None:
        """Remember leases, and drop the oldest ones beyond the bound."""
        for each in leases:
            self._leases[each.job.id, each.token] = replace(each, job=_without_payload(each.job))
        while len(self._leases) > _CACHED_MAX:
            self._leases.popitem(last=False)

    def remove(self, key: LeaseKey) -> None:
        """Forget a lease that has ended."""
        self._leases.pop(key, None)

    async def get_or_read(self, engine: Engine, keys: Iterable[LeaseKey]) -> dict[LeaseKey, Lease]:
        """Each lease with its job as it was leased, or as `read_leases` finds it."""
        found = {key: self._leases.get(key) for key in keys}
        read = await read_leases(engine, [key for key, cached in found.items() if not cached])
        return {key: cached or read[key] for key, cached in found.items()}


def lease_cache(call: ApiCall) -> LeaseCache:
    """The cache of the call's application."""
    return _caches.setdefault(call.app, LeaseCache())


_caches: WeakKeyDictionary[Holdfast, LeaseCache] = WeakKeyDictionary()


async def read_leases(engine: Engine, keys: Sequence[LeaseKey]) -> dict[LeaseKey, Lease]:
    """Each lease with its job as stored now. A missing job is replaced by an empty one with its id:
    the engine then answers that the lease is lost.
    """
    jobs = await _read_jobs(engine, sorted({key[0] for key in keys}))
    names = {job.queue for job in jobs.values()}
    queues = await queue_settings(engine, names) if jobs else {}
    return {key: _lease_of(key, jobs.get(key[0]), queues) for key in keys}


async def _read_jobs(engine: Engine, ids: list[str]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for start in range(0, len(ids), _READ_BATCH):
        wanted = JobFilter(ids=tuple(ids[start : start + _READ_BATCH]))
        after: int | None = None
        while True:
            page = await engine.find(wanted, limit=_READ_BATCH, after=after)
            jobs |= {job.id: _without_payload(job) for job in page.jobs}
            after = page.after
            if after is None:
                break
    return jobs


def _lease_of(key: LeaseKey, job: Job | None, queues: dict[str, Queue]) -> Lease:
    id_, token = key
    job = job or Job(id=id_, task="-", queue="-")
    queue = queues.get(job.queue) or Queue(name=job.queue)
    return Lease(job=job, token=token, lease_ms=job.overrides.lease_ms or queue.lease_ms)


def _without_payload(job: Job) -> Job:
    if job.has_receipt:
        return job
    return replace(job, payload=b"", checkpoint=None, labels={}, headers={}, after=job.after[:1])


def _lease_request(body: LeaseBody, wait_ms_max: int) -> LeaseRequest:
    """The engine's request. `bounded_reply.lease` checks its bounds."""
    queues = body.queues or ([] if body.ids else ["default"])
    return LeaseRequest(
        queues=tuple(dict.fromkeys(queues)),
        ids=tuple(dict.fromkeys(body.ids or ())),
        limit=body.limit,
        worker=body.worker,
        wait_ms=min(to_ms("wait", body.wait, UsageError), wait_ms_max),
        lease_ms=None if body.lease is None else to_ms("lease", body.lease, UsageError),
        tasks=None if body.tasks is None else frozenset(body.tasks),
        dead=body.dead,
    )


def _renewal(body: RenewalBody, held: Lease) -> Renewal:
    """The engine's renewal. UsageError if a value is out of bounds."""
    lease_ms = held.lease_ms if body.lease is None else to_ms("lease", body.lease, UsageError)
    if not bounds.LEASE_MS_MIN <= lease_ms <= bounds.LEASE_MS_MAX:
        raise UsageError(
            f"lease {lease_ms}ms: expected {bounds.LEASE_MS_MIN}ms to {bounds.LEASE_MS_MAX}ms"
        )
    note = None
    if body.progress is not None or body.output is not None or body.checkpoint is not UNSET:
        note = Note(
            progress=body.progress,
            checkpoint=_checkpoint(body.checkpoint),
            output=None if body.output is None else body.output.encode(),
        )
        checks.check_note(note)
    return Renewal(lease=held, lease_ms=lease_ms, note=note)


def _checkpoint(given: msgspec.Raw | UnsetType) -> bytes | None:
    return None if isinstance(given, UnsetType) else job_lines.json_bytes(given, "checkpoint")


def _renew_result(renewal: Renewal, renewed: Lease | None) -> RenewResult:
    if renewed is None:
        return RenewResult(id=renewal.lease.id, outcome="lost")
    return RenewResult(
        id=renewed.id,
        outcome="renewed",
        lease_ms=renewed.lease_ms,
        cancel_requested=renewed.cancel_requested,
    )
