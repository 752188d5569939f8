"""Jobs ↔ columns: what a row says as a Job, and the arrays in which jobs are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import JSON
from holdfast.core.model import (
    NO_OVERRIDES,
    STATES,
    AfterOn,
    Event,
    Job,
    Lease,
    NewJob,
    Overrides,
    ParentDeath,
    Queue,
    Reason,
    State,
)
from holdfast.engines.postgres.steps import Row

CODES = {state: code for code, state in enumerate(STATES)}

_START = """
    j.id, j.seq, j.place, q.name, j.task,"""
_MIDDLE = """
    j.extra, j.rank, j.version, j.attempt, j.crashes, j.releases, j.created_at, j.due_at,
    j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
    j.tenant, j.grp, j.origin,"""
_END = """
    j.state, j.finished_at, j.noted, j.fingerprint"""

BRIEF = f"{_START} j.payload, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""What a list carries."""

BARE = f"{_START} ''::bytea, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""What a decision about its end needs: no payload."""

WHOLE = f"""{_START} j.payload, {_MIDDLE} n.progress, n.checkpoint, {_END}, n.output, j.result,
    ARRAY(SELECT e.body FROM $schema.events e WHERE e.job = j.seq ORDER BY e.number)"""
"""Everything; `n` is the job's note."""

TAKEN = """
    h.id, h.seq, h.place, h.queue, h.task, h.payload, h.rank, h.version, h.attempt, h.created_at,
    h.due_at, h.leased_at, h.deadline_at, h.token, h.tenant, h.grp,
    CASE WHEN h.crashes <> 0 OR h.releases <> 0 OR h.cancel OR num_nonnulls(
        h.extra, h.expires_at, h.reason, h.key, h.origin, h.progress, h.checkpoint
    ) > 0 THEN
        ROW(h.extra, h.crashes, h.releases, h.expires_at, h.cancel, h.reason, h.key, h.tenant,
            h.grp, h.origin, h.progress, h.checkpoint)
    END"""
"""What a lease is made of, of a row `h` of the type `held`. What few jobs have comes as one value:
reading a dozen columns that say nothing takes as long as all the others."""

ALONE = 1 << 30
"""The bit of the column `releases` that says `Job.alone`: one more column would cost every job."""

UNREAD = b"left in the database"
"""Stands for a payload that was not read, and is known by its identity."""


class Extra(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What few jobs set, kept in one column."""

    content_type: str = JSON
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides | None = None
    redrives: int = 0
    after: tuple[str, ...] = ()
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"


_EXTRA = msgspec.json.Decoder(Extra)
_EVENT = msgspec.json.Decoder(Event)
_QUEUE = msgspec.json.Decoder(Queue)
_ENCODER = msgspec.json.Encoder()
_LEASED = State.LEASED


def extra_of(job: Job | NewJob) -> bytes | None:
    overrides = None if job.overrides == NO_OVERRIDES else job.overrides
    redrives = job.redrives if isinstance(job, Job) else 0
    is_alone = not job.after and job.after_on == "success" and job.parent_death == "cancel"
    is_plain = job.content_type == JSON and not (job.labels or job.headers or redrives)
    if is_alone and is_plain and overrides is None:
        return None
    return _ENCODER.encode(
        Extra(
            content_type=job.content_type,
            labels=job.labels,
            headers=job.headers,
            overrides=overrides,
            redrives=redrives,
            after=tuple(dict.fromkeys(job.after)),
            after_on=job.after_on,
            parent_death=job.parent_death,
        )
    )


def held_job(row: Row) -> Job:
    """A job in hand, from a row of the type `held`."""
    return _job(row, State.LEASED, None)


def taken_lease(row: Row, worker: str | None) -> Lease:
    """A lease just given to `worker`, from the columns TAKEN."""
    (
        id_, seq, _, queue, task, payload, rank, version, attempt, created_at, due_at, leased_at,
        deadline_at, token, tenant, group, rest,
    ) = row  # fmt: skip
    job = Job(
        id=id_, seq=seq, queue=queue, task=task, payload=payload, priority=-rank, state=_LEASED,
        version=version, attempt=attempt, created_at=created_at, due_at=due_at,
        leased_at=leased_at, deadline_at=deadline_at, token=token, worker=worker, tenant=tenant,
        group=group,
    )  # fmt: skip
    if rest is not None:
        job = msgspec.structs.replace(job, **_rest(rest))
    return Lease(job=job, token=token, lease_ms=deadline_at - leased_at)


def brief_job(row: Row) -> Job:
    """A job from the columns BRIEF: without the parents' ids, which may be many."""
    job = kept_job(row)
    return msgspec.structs.replace(job, after=()) if job.after else job


def kept_job(row: Row) -> Job:
    """A job from a row of the type `kept`."""
    return _job(row[:27], STATES[row[27]], row[28], row[30])


def whole_job(row: Row) -> Job:
    """A job from the columns WHOLE."""
    return msgspec.structs.replace(
        kept_job(row),
        output=row[31],
        result=row[32],
        events=tuple(_EVENT.decode(body) for body in row[33]),
    )


def queue_of(settings: bytes) -> Queue:
    return _QUEUE.decode(settings)


def encode(value: Event | Queue) -> bytes:
    return _ENCODER.encode(value)


def _job(row: Row, state: State, finished_at: int | None, fingerprint: str | None = None) -> Job:
    (
        id_, seq, _, queue, task, payload, extra_json, rank, version, attempt, crashes, releases,
        created_at, due_at, expires_at, leased_at, deadline_at, token, worker, cancel, reason, key,
        tenant, group, origin, progress, checkpoint,
    ) = row  # fmt: skip
    rest = (
        extra_json, crashes, releases, expires_at, cancel, reason, key, tenant, group, origin,
        progress, checkpoint,
    )  # fmt: skip
    return Job(
        id=id_, seq=seq, queue=queue, task=task, state=state, priority=-rank,
        payload=UNREAD if payload is None else payload, version=version, attempt=attempt,
        created_at=created_at, due_at=due_at, leased_at=leased_at, deadline_at=deadline_at,
        finished_at=finished_at, token=token, worker=worker, fingerprint=fingerprint,
        **_rest(rest),
    )  # fmt: skip


def _rest(rest: Row) -> dict[str, Any]:
    """The fields of a job that few jobs set, from their columns in the order of TAKEN."""
    (
        extra_json, crashes, releases, expires_at, cancel, reason, key, tenant, group, origin,
        progress, checkpoint,
    ) = rest  # fmt: skip
    fields: dict[str, Any] = {
        "crashes": crashes, "releases": releases, "expires_at": expires_at,
        "cancel_requested": cancel, "reason": reason and Reason(reason), "key": key,
        "tenant": tenant, "group": group, "origin": origin, "progress": progress,
        "checkpoint": checkpoint,
    }  # fmt: skip
    if releases >= ALONE:
        fields |= {"releases": releases - ALONE, "alone": True}
    if extra_json is not None:
        extra = _EXTRA.decode(extra_json)
        fields |= {
            "content_type": extra.content_type,
            "labels": extra.labels,
            "headers": extra.headers,
            "overrides": extra.overrides or NO_OVERRIDES,
            "redrives": extra.redrives,
            "after": extra.after,
            "after_on": extra.after_on,
            "parent_death": extra.parent_death,
        }
    return fields


def columns(rows: Iterable[Sequence[Any]], width: int) -> tuple[list[Any], ...]:
    """Rows turned on their side: one list for each column, also of no rows."""
    turned = tuple(list(column) for column in zip(*rows, strict=True))
    return turned or tuple([] for _ in range(width))
