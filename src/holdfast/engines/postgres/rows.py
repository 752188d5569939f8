"""Jobs ↔ columns: what a row says as a Job, and the arrays in which jobs are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import JSON
from holdfast.core.model import (
    NO_OVERRIDES,
    STATES,
    Event,
    Job,
    NewJob,
    Overrides,
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
    j.state, j.finished_at, j.noted"""

BRIEF = f"{_START} j.payload, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""What a list carries."""

BARE = f"{_START} ''::bytea, {_MIDDLE} NULL::float8, NULL::bytea, {_END}"
"""What a decision about its end needs: no payload."""

WHOLE = f"""{_START} j.payload, {_MIDDLE} n.progress, n.checkpoint, {_END}, n.output, j.result,
    ARRAY(SELECT e.body FROM $schema.events e WHERE e.job = j.seq ORDER BY e.number)"""
"""Everything; `n` is the job's note."""


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


_EXTRA = msgspec.json.Decoder(Extra)
_EVENT = msgspec.json.Decoder(Event)
_QUEUE = msgspec.json.Decoder(Queue)
_ENCODER = msgspec.json.Encoder()


def extra_of(job: Job | NewJob) -> bytes | None:
    overrides = None if job.overrides == NO_OVERRIDES else job.overrides
    if overrides is None and not job.labels and not job.headers and job.content_type == JSON:
        return None
    return _ENCODER.encode(
        Extra(
            content_type=job.content_type,
            labels=job.labels,
            headers=job.headers,
            overrides=overrides,
        )
    )


def held_job(row: Row) -> Job:
    """A job in hand, from a row of the type `held`."""
    return _job(row, State.LEASED, None)


def brief_job(row: Row) -> Job:
    """A job from the columns BRIEF, or a row of the type `kept`."""
    return _job(row[:27], STATES[row[27]], row[28])


def whole_job(row: Row) -> Job:
    """A job from the columns WHOLE."""
    job = _job(row[:27], STATES[row[27]], row[28])
    return msgspec.structs.replace(
        job,
        output=row[30],
        result=row[31],
        events=tuple(_EVENT.decode(body) for body in row[32]),
    )


def queue_of(settings: bytes) -> Queue:
    return _QUEUE.decode(settings)


def encode(value: Event | Queue) -> bytes:
    return _ENCODER.encode(value)


def _job(row: Row, state: State, finished_at: int | None) -> Job:
    (
        id_, seq, _, queue, task, payload, extra_json, rank, version, attempt, crashes, releases,
        created_at, due_at, expires_at, leased_at, deadline_at, token, worker, cancel, reason, key,
        tenant, group, origin, progress, checkpoint,
    ) = row  # fmt: skip
    more: dict[str, Any] = {}
    if releases >= ALONE:
        releases -= ALONE
        more["alone"] = True
    if extra_json is not None:
        extra = _EXTRA.decode(extra_json)
        more |= {
            "content_type": extra.content_type,
            "labels": extra.labels,
            "headers": extra.headers,
            "overrides": extra.overrides or NO_OVERRIDES,
        }
    return Job(
        id=id_, seq=seq, queue=queue, task=task, state=state, priority=-rank,
        payload=UNREAD if payload is None else payload, version=version, attempt=attempt,
        crashes=crashes, releases=releases,
        created_at=created_at, due_at=due_at, expires_at=expires_at, leased_at=leased_at,
        deadline_at=deadline_at, finished_at=finished_at, token=token, worker=worker,
        cancel_requested=cancel, reason=reason and Reason(reason), key=key, tenant=tenant,
        group=group, origin=origin, progress=progress, checkpoint=checkpoint, **more,
    )  # fmt: skip


def columns(rows: Iterable[Sequence[Any]], width: int) -> tuple[list[Any], ...]:
    """Rows turned on their side: one list for each column, also of no rows."""
    turned = tuple(list(column) for column in zip(*rows, strict=True))
    return turned or tuple([] for _ in range(width))
