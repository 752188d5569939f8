"""Jobs from rows and columns from jobs: every encoding of a job in the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import JSON
from holdfast.core.model import (
    NO_OVERRIDES,
    STATES,
    STORED_STATES,
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
from holdfast.engines.postgres.script import Row

CODES = {state: code for code, state in enumerate(STATES)}

_START = """
    j.id, j.seq, j.place, q.name, j.task,"""
_MIDDLE = """
    j.extra, j.rank, j.version, j.attempt, j.crashes, j.releases, j.created_at, j.due_at,
    j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
    j.tenant, j.grp, j.origin,"""
_END = """
    j.state, j.finished_at, j.noted, j.fingerprint"""

BRIEF_COLUMNS = f"{_START} j.payload, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""A job in a list."""

BARE_COLUMNS = f"{_START} ''::bytea, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""A job without its payload, for a decision about its end."""

WHOLE_COLUMNS = f"""{_START} j.payload, {_MIDDLE} n.progress, n.checkpoint, {_END}, n.output,
    j.result, ARRAY(SELECT e.body FROM $schema.events e WHERE e.job = j.seq ORDER BY e.number)"""
"""A complete job; `n` is its row of `notes`."""

LEASE_COLUMNS = """
    h.id, h.seq, h.place, h.queue, h.task, h.payload, h.rank, h.version, h.attempt, h.created_at,
    h.due_at, h.leased_at, h.deadline_at, h.token, h.tenant, h.grp,
    CASE WHEN h.crashes <> 0 OR h.releases <> 0 OR h.cancel OR num_nonnulls(
        h.extra, h.expires_at, h.reason, h.key, h.origin, h.progress, h.checkpoint
    ) > 0 THEN
        ROW(h.extra, h.crashes, h.releases, h.expires_at, h.cancel, h.reason, h.key, h.tenant,
            h.grp, h.origin, h.progress, h.checkpoint)
    END"""
"""A new lease, from a row `h` of the SQL type `held`. Fields that few jobs set come as one value:
decoding a dozen empty columns takes as long as all the others."""

ALONE_BIT = 1 << 30
"""The bit of the column `releases` that stores `Job.alone`, because a column of its own would cost
every job."""

UNREAD = b"left in the database"
"""Stands for a payload that was not read; recognised by identity."""


class RareFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that few jobs set, stored as JSON in the column `extra`."""

    content_type: str = JSON
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides | None = None
    redrives: int = 0
    after: tuple[str, ...] = ()
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"
    queue_expiry: bool = False


_EXTRA = msgspec.json.Decoder(RareFields)
_EVENT = msgspec.json.Decoder(Event)
_QUEUE = msgspec.json.Decoder(Queue)
_ENCODER = msgspec.json.Encoder()
_LEASED = State.LEASED


def extra_of(job: Job | NewJob, *, queue_expiry: bool = False) -> bytes | None:
    """The column `extra` of a job; NULL if all its fields have their defaults. A new job with
    `queue_expiry` expires by the setting of its queue."""
    overrides = None if job.overrides == NO_OVERRIDES else job.overrides
    redrives = job.redrives if isinstance(job, Job) else 0
    is_alone = not job.after and job.after_on == "success" and job.parent_death == "cancel"
    queue_expiry = queue_expiry or (isinstance(job, Job) and job.queue_expiry)
    is_plain = job.content_type == JSON and not (
        job.labels or job.headers or redrives or queue_expiry
    )
    if is_alone and is_plain and overrides is None:
        return None
    return _ENCODER.encode(
        RareFields(
            content_type=job.content_type,
            labels=job.labels,
            headers=job.headers,
            overrides=overrides,
            redrives=redrives,
            after=tuple(dict.fromkeys(job.after)),
            after_on=job.after_on,
            parent_death=job.parent_death,
            queue_expiry=queue_expiry,
        )
    )


def leased_job(row: Row) -> Job:
    """A leased job, from a row of the SQL type `held`."""
    return _job(row, State.LEASED, None)


def new_lease(row: Row, worker: str | None) -> Lease:
    """A new lease of `worker`, from LEASE_COLUMNS."""
    (
        id_, seq, _, queue, task, payload, rank, version, attempt, created_at, due_at, leased_at,
        deadline_at, token, tenant, group, rare,
    ) = row  # fmt: skip
    job = Job(
        id=id_, seq=seq, queue=queue, task=task, payload=payload, priority=-rank, state=_LEASED,
        version=version, attempt=attempt, created_at=created_at, due_at=due_at,
        leased_at=leased_at, deadline_at=deadline_at, token=token, worker=worker,
    )  # fmt: skip
    # A call with more than 15 keyword arguments takes twice as long.
    if tenant is not None or group is not None:
        job = msgspec.structs.replace(job, tenant=tenant, group=group)
    if rare is not None:
        job = msgspec.structs.replace(job, **_rare_fields(rare))
    return Lease(job=job, token=token, lease_ms=deadline_at - leased_at)


def brief_job(row: Row) -> Job:
    """A job from BRIEF_COLUMNS, without the ids of its parents, which may be many."""
    job = locked_job(row)
    return msgspec.structs.replace(job, after=()) if job.after else job


def locked_job(row: Row) -> Job:
    """A job from a row of the SQL type `kept`."""
    return _job(row[:27], STORED_STATES[row[27]], row[28], row[30])


def whole_job(row: Row) -> Job:
    """A job from WHOLE_COLUMNS."""
    return msgspec.structs.replace(
        locked_job(row),
        output=row[31],
        result=row[32],
        events=tuple(_EVENT.decode(body) for body in row[33]),
    )


def queue_of(settings: bytes) -> Queue:
    """A queue from its stored settings."""
    return _QUEUE.decode(settings)


def encode(value: Event | Queue) -> bytes:
    """The stored form of an event or of a queue's settings."""
    return _ENCODER.encode(value)


def _job(row: Row, state: State, finished_at: int | None, fingerprint: str | None = None) -> Job:
    (
        id_, seq, _, queue, task, payload, extra_json, rank, version, attempt, crashes, releases,
        created_at, due_at, expires_at, leased_at, deadline_at, token, worker, cancel, reason, key,
        tenant, group, origin, progress, checkpoint,
    ) = row  # fmt: skip
    rare = (
        extra_json, crashes, releases, expires_at, cancel, reason, key, tenant, group, origin,
        progress, checkpoint,
    )  # fmt: skip
    return Job(
        id=id_, seq=seq, queue=queue, task=task, state=state, priority=-rank,
        payload=UNREAD if payload is None else payload, version=version, attempt=attempt,
        created_at=created_at, due_at=due_at, leased_at=leased_at, deadline_at=deadline_at,
        finished_at=finished_at, token=token, worker=worker, fingerprint=fingerprint,
        **_rare_fields(rare),
    )  # fmt: skip


def _rare_fields(rare: Row) -> dict[str, Any]:
    """The fields that few jobs set, from their columns in the order of LEASE_COLUMNS."""
    (
        extra_json, crashes, releases, expires_at, cancel, reason, key, tenant, group, origin,
        progress, checkpoint,
    ) = rare  # fmt: skip
    fields: dict[str, Any] = {
        "crashes": crashes, "releases": releases, "expires_at": expires_at,
        "cancel_requested": cancel, "reason": reason and Reason(reason), "key": key,
        "tenant": tenant, "group": group, "origin": origin, "progress": progress,
        "checkpoint": checkpoint,
    }  # fmt: skip
    if releases >= ALONE_BIT:
        fields |= {"releases": releases - ALONE_BIT, "alone": True}
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
            "queue_expiry": extra.queue_expiry,
        }
    return fields


def columns(rows: Iterable[Sequence[Any]], width: int) -> tuple[list[Any], ...]:
    """One list for each column, even without rows."""
    lists = tuple(list(column) for column in zip(*rows, strict=True))
    return lists or tuple([] for _ in range(width))
