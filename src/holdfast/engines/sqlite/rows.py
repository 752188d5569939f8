"""Stored rows ↔ Jobs, and the general write of a `lifecycle.Change`.

Does not maintain flow control: callers that change or delete a job go through `flow.effects`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.core import checks
from holdfast.core.codec import JSON
from holdfast.core.lifecycle import Change
from holdfast.core.model import (
    NO_OVERRIDES,
    STATES,
    STORED_STATES,
    AfterOn,
    Event,
    Job,
    Note,
    Overrides,
    ParentDeath,
    Reason,
    State,
)
from holdfast.engines.sqlite.schema import (
    PART_AFTER,
    PART_ALONE,
    PART_EVENTS,
    PART_NOTES,
    PART_PAYLOAD,
    PART_QUEUE_EXPIRY,
    PART_RESULT,
)
from holdfast.engines.sqlite.transaction import Transaction

INLINE_MAX = 1024
"""A longer payload or result is stored in a separate table, because each change rewrites the
row.
"""

COLUMNS = (
    "seq, queue, state, rank, due_at, place, expires_at, parts, attempt, crashes, releases,"
    " version, token, deadline, leased_at, created_at, finished_at, cancel, lease_ms, worker,"
    " reason, id, task, key, tenant, grp, extra, payload, flow, lane, holds, fingerprint"
)
ROW_COLUMNS = COLUMNS.replace(" payload,", " x'',")
"""The columns with an empty payload."""
SEQ, QUEUE, STATE, RANK, DUE_AT, PLACE, EXPIRES_AT, PARTS, ATTEMPT, CRASHES, RELEASES = range(11)
VERSION, TOKEN, DEADLINE, LEASED_AT, CREATED_AT, FINISHED_AT, CANCEL = range(11, 18)
LEASE_MS, WORKER, REASON, ID, TASK, KEY, TENANT, GROUP, EXTRA, PAYLOAD = range(18, 28)
FLOW, LANE, HOLDS, FINGERPRINT = range(28, 32)

BY_ID = f"SELECT {COLUMNS} FROM hf_jobs WHERE id = ? AND ns = ?"
BY_SEQ = f"SELECT {COLUMNS} FROM hf_jobs WHERE seq = ?"

Row = tuple[Any, ...]

WAITING, LEASED, DONE, DEAD, CANCELLED = range(5)
CODES = {state: code for code, state in enumerate(STATES)}


class ExtraColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields that few jobs have, in one JSON column, so that a plain job writes little."""

    content_type: str = JSON
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    origin: str | None = None
    redrives: int = 0
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"


class FlowColumns(NamedTuple):
    """The flow-control columns of a job; their bits are explained in `schema`."""

    flow: int = 0
    lane: int | None = None
    holds: int = 0


class QueuePosition(NamedTuple):
    """A job's position in the order of its queue."""

    queue_id: int
    rank: int
    due_at: int
    place: int


PLAIN = FlowColumns()
NO_EXTRA = ExtraColumn()
decode_extra: Final = msgspec.json.Decoder(ExtraColumn).decode
_EVENT = msgspec.json.Decoder(Event)
_IDS = msgspec.json.Decoder(tuple[str, ...])
_ENCODER = msgspec.json.Encoder()


def fetch(transaction: Transaction, id: str) -> Row | None:
    """The row of the job with this id."""
    try:
        row: Row | None = transaction.run(BY_ID, (id, transaction.namespace_id)).fetchone()
    except UnicodeEncodeError:
        return None  # An id with a lone surrogate cannot be stored.
    return row


def to_job(transaction: Transaction, row: Row, *, payload: bytes | None = None) -> Job | None:
    """The job without notes, events and result; None if its queue is being dropped.

    Callers that do not need a large payload pass `payload=b""`.
    """
    name = transaction.queue_names.get(row[QUEUE])
    if name is None:
        return None
    extra = NO_EXTRA if row[EXTRA] is None else decode_extra(row[EXTRA])
    inline = row[PAYLOAD]
    if payload is None:
        payload = inline if inline is not None else large_payload(transaction, row[SEQ])
    deadline = row[DEADLINE]
    return Job(
        id=row[ID],
        task=row[TASK],
        queue=name,
        payload=payload,
        content_type=extra.content_type,
        priority=-row[RANK],
        state=STORED_STATES[row[STATE]],
        seq=row[SEQ],
        version=row[VERSION],
        attempt=row[ATTEMPT],
        crashes=row[CRASHES],
        releases=row[RELEASES],
        created_at=row[CREATED_AT],
        due_at=row[DUE_AT],
        expires_at=row[EXPIRES_AT],
        leased_at=row[LEASED_AT],
        deadline_at=None if deadline is None else transaction.now + deadline - transaction.boot,
        finished_at=row[FINISHED_AT],
        token=row[TOKEN],
        worker=row[WORKER],
        cancel_requested=row[CANCEL] != 0,
        alone=row[PARTS] & PART_ALONE != 0,
        reason=reason_of(row[REASON]),
        fingerprint=row[FINGERPRINT],
        redrives=extra.redrives,
        key=row[KEY],
        tenant=row[TENANT],
        group=row[GROUP],
        labels=extra.labels,
        headers=extra.headers,
        overrides=extra.overrides,
        after_on=extra.after_on,
        parent_death=extra.parent_death,
        origin=extra.origin,
        queue_expiry=row[PARTS] & PART_QUEUE_EXPIRY != 0,
    )


def for_lease(job: Job) -> Job:
    """The job as in a lease: without the end of a dead letter."""
    if job.finished_at is None:
        return job
    return msgspec.structs.replace(job, finished_at=None, fingerprint=None)


def with_checkpoint(transaction: Transaction, seq: int, parts: int, job: Job) -> Job:
    """Add the fields that the next attempt needs: progress, checkpoint, parents, and the bits of
    `parts`."""
    if parts & (PART_ALONE | PART_QUEUE_EXPIRY):
        job = msgspec.structs.replace(
            job, alone=parts & PART_ALONE != 0, queue_expiry=parts & PART_QUEUE_EXPIRY != 0
        )
    if parts & PART_AFTER:
        job = msgspec.structs.replace(job, after=read_after(transaction, seq))
    if not parts & PART_NOTES:
        return job
    progress, checkpoint = transaction.run(
        "SELECT progress, checkpoint FROM hf_notes WHERE seq = ?", (seq,)
    ).fetchone()
    return msgspec.structs.replace(job, progress=progress, checkpoint=checkpoint)


def with_details(transaction: Transaction, row: Row, job: Job) -> Job:
    """Add everything else that is stored: notes, result, parents and events."""
    seq, parts = row[SEQ], row[PARTS]
    progress = checkpoint = output = None
    if parts & PART_NOTES:
        progress, checkpoint, output = transaction.run(
            "SELECT progress, checkpoint, output FROM hf_notes WHERE seq = ?", (seq,)
        ).fetchone()
    result_sql = (
        "SELECT data FROM hf_results WHERE seq = ?"
        if parts & PART_RESULT
        else "SELECT result FROM hf_jobs WHERE seq = ?"
    )
    bodies = (
        transaction.run("SELECT body FROM hf_events WHERE seq = ? ORDER BY n", (seq,)).fetchall()
        if parts & PART_EVENTS
        else []
    )
    return msgspec.structs.replace(
        job,
        progress=progress,
        checkpoint=checkpoint,
        output=output,
        result=transaction.run(result_sql, (seq,)).get,
        after=read_after(transaction, seq) if parts & PART_AFTER else (),
        events=tuple(_EVENT.decode(body) for (body,) in bodies),
    )


def read_after(transaction: Transaction, seq: int) -> tuple[str, ...]:
    """The ids of a job's parents, in the order given."""
    return _IDS.decode(transaction.run("SELECT ids FROM hf_after WHERE seq = ?", (seq,)).get)


def write_after(transaction: Transaction, seq: int, ids: tuple[str, ...]) -> None:
    """Store the ids of a job's parents."""
    transaction.run("INSERT INTO hf_after(seq, ids) VALUES (?, ?)", (seq, _ENCODER.encode(ids)))


@lru_cache(maxsize=100)
def encode_type(content_type: str) -> bytes | None:
    """The `extra` column of a job that has nothing else in it."""
    return None if content_type == JSON else _ENCODER.encode(ExtraColumn(content_type))


def encode_extra(job: Any) -> bytes | None:
    """The `extra` column of a Job or NewJob; None if all its fields have their defaults."""
    origin = getattr(job, "origin", None)
    redrives = getattr(job, "redrives", 0)
    if (
        job.content_type == JSON
        and not job.labels
        and not job.headers
        and job.overrides == NO_OVERRIDES
        and origin is None
        and not redrives
        and job.after_on == "success"
        and job.parent_death == "cancel"
    ):
        return None
    extra = ExtraColumn(
        job.content_type,
        job.labels,
        job.headers,
        job.overrides,
        origin,
        redrives,
        job.after_on,
        job.parent_death,
    )
    return _ENCODER.encode(extra)


def reason_of(stored: str | None) -> Reason | None:
    """The Reason stored in a row."""
    return None if stored is None else Reason(stored)


_WRITE_CHANGE = """
UPDATE hf_jobs SET queue = ?, state = ?, rank = ?, due_at = ?, place = ?,
  expires_at = ?, parts = ?, attempt = ?, crashes = ?, releases = ?, version = ?, token = ?,
  deadline = iif(?2 IN (1, 5), deadline, NULL), leased_at = ?, finished_at = ?, cancel = ?,
  lease_ms = ?, worker = ?, reason = ?, task = ?, tenant = ?, grp = ?, extra = ?, payload = ?,
  result = ?, fingerprint = ?, flow = ?, lane = ?, holds = ?
WHERE seq = ? AND version = ? AND state = ? AND token IS ?
"""


def write_change(
    transaction: Transaction,
    row: Row,
    before: Job,
    change: Change,
    *,
    columns: FlowColumns = PLAIN,
    note: Note | None = None,
) -> None:
    """Write a change, guarded by the version, state and token it was decided on.

    Only `flow.effects.write_change` calls this; it also updates groups, lanes and children.
    """
    job = change.job
    place = transaction.allocate(1) if change.tail and job.state is State.WAITING else row[PLACE]
    seq, parts = row[SEQ], row[PARTS] & ~(PART_ALONE | PART_QUEUE_EXPIRY)
    parts |= (PART_ALONE if job.alone else 0) | (PART_QUEUE_EXPIRY if job.queue_expiry else 0)
    if change.forgets and parts & PART_NOTES:
        transaction.run(
            "UPDATE hf_notes SET progress = NULL, checkpoint = NULL WHERE seq = ?", (seq,)
        )
    payload = row[PAYLOAD]
    if job.payload is not before.payload:
        payload, parts = _write_payload(transaction, seq, job.payload, parts)
    result = job.result if job.state is State.DONE else None
    if result is not None or parts & PART_RESULT:
        result, parts = _write_result(transaction, seq, result, parts)
    if note is not None and write_note(transaction, seq, note):
        parts |= PART_NOTES
    if change.event is not None:
        parts |= PART_EVENTS
        _append_event(transaction, seq, checks.clean_event(change.event))
    transaction.run(
        _WRITE_CHANGE,
        (
            *_values(transaction, job, place, parts),
            payload,
            result,
            job.fingerprint,
            *columns,
            seq,
            before.version,
            row[STATE],
            before.token,
        ),
    )
    assert transaction.changes() == 1, "the row changed inside our own transaction"


def _values(transaction: Transaction, job: Job, place: int, parts: int) -> tuple[object, ...]:
    return (
        transaction.queues[job.queue].id,
        job.state_code,
        -job.priority,
        job.due_at,
        place,
        job.expires_at,
        parts,
        job.attempt,
        job.crashes,
        job.releases,
        job.version,
        job.token,
        job.leased_at,
        job.finished_at,
        int(job.cancel_requested),
        job.overrides.lease_ms,
        job.worker,
        None if job.reason is None else job.reason.value,
        job.task,
        job.tenant,
        job.group,
        encode_extra(job),
    )


def delete(transaction: Transaction, seq: int, parts: int) -> None:
    """Delete a job's rows. Only `flow.effects.delete_job` calls this."""
    if parts & PART_AFTER:
        # Its trigger reads the job.
        transaction.run("DELETE FROM hf_after WHERE seq = ?", (seq,))
    transaction.run("DELETE FROM hf_jobs WHERE seq = ?", (seq,))
    if parts & PART_PAYLOAD:
        transaction.run("DELETE FROM hf_payloads WHERE seq = ?", (seq,))
    if parts & PART_NOTES:
        transaction.run("DELETE FROM hf_notes WHERE seq = ?", (seq,))
    if parts & PART_EVENTS:
        transaction.run("DELETE FROM hf_events WHERE seq = ?", (seq,))
    if parts & PART_RESULT:
        transaction.run("DELETE FROM hf_results WHERE seq = ?", (seq,))


def write_note(transaction: Transaction, seq: int, note: Note) -> bool:
    """Store the fields that the note sets; False if it sets none."""
    output = None if note.output is None else checks.clip_output(note.output)
    if note.progress is None and note.checkpoint is None and output is None:
        return False
    transaction.run(
        "INSERT INTO hf_notes(seq, progress, checkpoint, output) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(seq) DO UPDATE SET progress = coalesce(excluded.progress, progress),"
        " checkpoint = coalesce(excluded.checkpoint, checkpoint),"
        " output = coalesce(excluded.output, output)",
        (seq, note.progress, note.checkpoint, output),
    )
    return True


def _write_payload(
    transaction: Transaction, seq: int, payload: bytes, parts: int
) -> tuple[bytes | None, int]:
    if len(payload) <= INLINE_MAX:
        if parts & PART_PAYLOAD:
            transaction.run("DELETE FROM hf_payloads WHERE seq = ?", (seq,))
        return payload, parts & ~PART_PAYLOAD
    transaction.run("INSERT OR REPLACE INTO hf_payloads(seq, data) VALUES (?, ?)", (seq, payload))
    return None, parts | PART_PAYLOAD


def _write_result(
    transaction: Transaction, seq: int, result: bytes | None, parts: int
) -> tuple[bytes | None, int]:
    if result is None or len(result) <= INLINE_MAX:
        if parts & PART_RESULT:
            transaction.run("DELETE FROM hf_results WHERE seq = ?", (seq,))
        return result, parts & ~PART_RESULT
    transaction.run("INSERT OR REPLACE INTO hf_results(seq, data) VALUES (?, ?)", (seq, result))
    return None, parts | PART_RESULT


def _append_event(transaction: Transaction, seq: int, event: Event) -> None:
    transaction.run(
        "INSERT INTO hf_events(seq, n, body) VALUES"
        " (?1, (SELECT coalesce(max(n), 0) + 1 FROM hf_events WHERE seq = ?1), ?2)",
        (seq, _ENCODER.encode(event)),
    )


def large_payload(transaction: Transaction, seq: int) -> bytes:
    """A payload longer than INLINE_MAX."""
    payload: bytes = transaction.run("SELECT data FROM hf_payloads WHERE seq = ?", (seq,)).get
    return payload


def write_large_payload(transaction: Transaction, seq: int, payload: bytes) -> None:
    """Store a payload longer than INLINE_MAX."""
    transaction.run("INSERT INTO hf_payloads(seq, data) VALUES (?, ?)", (seq, payload))
