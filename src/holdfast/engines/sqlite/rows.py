"""A stored row ↔ a Job, and the one general write that mirrors a `lifecycle.Change`."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.core import checks
from holdfast.core.codec import JSON
from holdfast.core.lifecycle import Change
from holdfast.core.model import (
    NO_OVERRIDES,
    STATES,
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
    PART_RESULT,
)
from holdfast.engines.sqlite.unit import Unit

INLINE_MAX = 1024
"""A longer payload or result lives beside the row, which is rewritten at every change."""

COLUMNS = (
    "seq, queue, state, rank, due_at, place, expires_at, parts, attempt, crashes, releases,"
    " version, token, deadline, leased_at, created_at, finished_at, cancel, lease_ms, worker,"
    " reason, id, task, key, tenant, grp, extra, payload, flow, lane, holds, fingerprint"
)
SEQ, QUEUE, STATE, RANK, DUE_AT, PLACE, EXPIRES_AT, PARTS = range(8)
TOKEN, DEADLINE, LEASED_AT, ID, TASK, TENANT, GROUP = 12, 13, 14, 21, 22, 24, 25
EXTRA, PAYLOAD, FLOW, LANE, HOLDS = 26, 27, 28, 29, 30

BY_ID = f"SELECT {COLUMNS} FROM hf_jobs WHERE id = ? AND ns = ?"
BY_SEQ = f"SELECT {COLUMNS} FROM hf_jobs WHERE seq = ?"

Row = tuple[Any, ...]

WAITING, LEASED, DONE, DEAD, CANCELLED = range(5)
CODES = {state: code for code, state in enumerate(STATES)}


class Extra(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few jobs have, in one column, so that a plain job writes little."""

    content_type: str = JSON
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    origin: str | None = None
    redrives: int = 0
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"


class Stand(NamedTuple):
    """How a job stands beside its own state: see `flow_schema`."""

    flow: int = 0
    lane: int | None = None
    holds: int = 0


PLAIN = Stand()
NO_EXTRA = Extra()
_EXTRA = msgspec.json.Decoder(Extra)
_EVENT = msgspec.json.Decoder(Event)
_IDS = msgspec.json.Decoder(tuple[str, ...])
_ENCODER = msgspec.json.Encoder()


def fetch(unit: Unit, id: str) -> Row | None:
    try:
        row: Row | None = unit.run(BY_ID, (id, unit.namespace_id)).fetchone()
    except UnicodeEncodeError:
        return None  # No job was ever stored under a lone surrogate.
    return row


def job_of(unit: Unit, row: Row, *, payload: bytes | None = None) -> Job | None:
    """The brief view. None when its queue is being dropped: the job is as good as gone."""
    name = unit.catalog.names.get(row[1])
    if name is None:
        return None
    extra = NO_EXTRA if row[26] is None else decode_extra(row[26])
    inline = row[27]
    if payload is None:
        payload = inline if inline is not None else outside(unit, row[0])
    deadline = row[13]
    return Job(
        id=row[21],
        task=row[22],
        queue=name,
        payload=payload,
        content_type=extra.content_type,
        priority=-row[3],
        state=STATES[row[2]],
        seq=row[0],
        version=row[11],
        attempt=row[8],
        crashes=row[9],
        releases=row[10],
        created_at=row[15],
        due_at=row[4],
        expires_at=row[6],
        leased_at=row[14],
        deadline_at=None if deadline is None else unit.now + deadline - unit.boot,
        finished_at=row[16],
        token=row[12],
        worker=row[19],
        cancel_requested=row[17] != 0,
        alone=row[7] & PART_ALONE != 0,
        reason=reason_of(row[20]),
        fingerprint=row[31],
        redrives=extra.redrives,
        key=row[23],
        tenant=row[24],
        group=row[25],
        labels=extra.labels,
        headers=extra.headers,
        overrides=extra.overrides,
        after_on=extra.after_on,
        parent_death=extra.parent_death,
        origin=extra.origin,
    )


def in_hand(unit: Unit, seq: int, parts: int, job: Job) -> Job:
    """With what its next run must know: the progress and the checkpoint to go on from, and whether
    to run alone."""
    if parts & PART_ALONE:
        job = msgspec.structs.replace(job, alone=True)
    if parts & PART_AFTER:
        job = msgspec.structs.replace(job, after=after(unit, seq))
    if not parts & PART_NOTES:
        return job
    progress, checkpoint = unit.run(
        "SELECT progress, checkpoint FROM hf_notes WHERE seq = ?", (seq,)
    ).fetchone()
    return msgspec.structs.replace(job, progress=progress, checkpoint=checkpoint)


def whole(unit: Unit, row: Row, job: Job) -> Job:
    """With everything the store knows."""
    seq, parts = row[SEQ], row[PARTS]
    progress = checkpoint = output = None
    if parts & PART_NOTES:
        progress, checkpoint, output = unit.run(
            "SELECT progress, checkpoint, output FROM hf_notes WHERE seq = ?", (seq,)
        ).fetchone()
    beside = (
        "SELECT data FROM hf_results WHERE seq = ?"
        if parts & PART_RESULT
        else "SELECT result FROM hf_jobs WHERE seq = ?"
    )
    bodies = (
        unit.run("SELECT body FROM hf_events WHERE seq = ? ORDER BY n", (seq,)).fetchall()
        if parts & PART_EVENTS
        else []
    )
    return msgspec.structs.replace(
        job,
        progress=progress,
        checkpoint=checkpoint,
        output=output,
        result=unit.run(beside, (seq,)).get,
        after=after(unit, seq) if parts & PART_AFTER else (),
        events=tuple(_EVENT.decode(body) for (body,) in bodies),
    )


def after(unit: Unit, seq: int) -> tuple[str, ...]:
    """The ids of its parents, as they were given."""
    return _IDS.decode(unit.run("SELECT ids FROM hf_after WHERE seq = ?", (seq,)).get)


def keep_after(unit: Unit, seq: int, ids: tuple[str, ...]) -> None:
    unit.run("INSERT INTO hf_after(seq, ids) VALUES (?, ?)", (seq, _ENCODER.encode(ids)))


def encode_extra(job: Any) -> bytes | None:
    """Of a Job or a NewJob, which has no origin and was never redriven."""
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
    extra = Extra(
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


def decode_extra(data: bytes) -> Extra:
    return _EXTRA.decode(data)


def reason_of(stored: str | None) -> Reason | None:
    return None if stored is None else Reason(stored)


_KEEP = """
UPDATE hf_jobs SET queue = ?, state = ?, rank = ?, due_at = ?, place = ?,
  expires_at = ?, parts = ?, attempt = ?, crashes = ?, releases = ?, version = ?, token = ?,
  deadline = iif(?2 = 1, deadline, NULL), leased_at = ?, finished_at = ?, cancel = ?,
  lease_ms = ?, worker = ?, reason = ?, task = ?, tenant = ?, grp = ?, extra = ?, payload = ?,
  result = ?, fingerprint = ?, flow = ?, lane = ?, holds = ?
WHERE seq = ? AND version = ? AND state = ? AND token IS ?
"""


def keep(
    unit: Unit,
    row: Row,
    before: Job,
    change: Change,
    *,
    stand: Stand = PLAIN,
    note: Note | None = None,
) -> None:
    """Write what `lifecycle` or `amend` decided, guarded by what it was decided on. Only
    `flow.keep` calls this, which sees to what else it means."""
    job = change.job
    place = unit.numbers(1) if change.tail and job.state is State.WAITING else row[PLACE]
    seq, parts = row[SEQ], row[PARTS] & ~PART_ALONE
    if job.alone:
        parts |= PART_ALONE
    if change.forgets and parts & PART_NOTES:
        unit.run("UPDATE hf_notes SET progress = NULL, checkpoint = NULL WHERE seq = ?", (seq,))
    payload = row[PAYLOAD]
    if job.payload is not before.payload:
        payload, parts = _keep_payload(unit, seq, job.payload, parts)
    result = job.result if job.state is State.DONE else None
    if result is not None or parts & PART_RESULT:
        result, parts = _keep_result(unit, seq, result, parts)
    if note is not None and keep_note(unit, seq, note):
        parts |= PART_NOTES
    if change.event is not None:
        parts |= PART_EVENTS
        _keep_event(unit, seq, checks.clean_event(change.event))
    unit.run(
        _KEEP,
        (
            *_values(unit, job, place, parts),
            payload,
            result,
            job.fingerprint,
            *stand,
            seq,
            before.version,
            CODES[before.state],
            before.token,
        ),
    )
    assert unit.changes() == 1, "the row changed inside our own transaction"


def _values(unit: Unit, job: Job, place: int, parts: int) -> tuple[object, ...]:
    return (
        unit.catalog.lines[job.queue].id,
        CODES[job.state],
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


def remove(unit: Unit, seq: int, parts: int) -> None:
    """Only `flow.remove` calls this."""
    unit.run("DELETE FROM hf_jobs WHERE seq = ?", (seq,))
    if parts & PART_PAYLOAD:
        unit.run("DELETE FROM hf_payloads WHERE seq = ?", (seq,))
    if parts & PART_NOTES:
        unit.run("DELETE FROM hf_notes WHERE seq = ?", (seq,))
    if parts & PART_EVENTS:
        unit.run("DELETE FROM hf_events WHERE seq = ?", (seq,))
    if parts & PART_RESULT:
        unit.run("DELETE FROM hf_results WHERE seq = ?", (seq,))
    if parts & PART_AFTER:
        unit.run("DELETE FROM hf_after WHERE seq = ?", (seq,))


def keep_note(unit: Unit, seq: int, note: Note) -> bool:
    """What the note says is laid over what is there; False when it says nothing."""
    output = None if note.output is None else checks.clip_output(note.output)
    if note.progress is None and note.checkpoint is None and output is None:
        return False
    unit.run(
        "INSERT INTO hf_notes(seq, progress, checkpoint, output) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(seq) DO UPDATE SET progress = coalesce(excluded.progress, progress),"
        " checkpoint = coalesce(excluded.checkpoint, checkpoint),"
        " output = coalesce(excluded.output, output)",
        (seq, note.progress, note.checkpoint, output),
    )
    return True


def _keep_payload(unit: Unit, seq: int, payload: bytes, parts: int) -> tuple[bytes | None, int]:
    if len(payload) <= INLINE_MAX:
        if parts & PART_PAYLOAD:
            unit.run("DELETE FROM hf_payloads WHERE seq = ?", (seq,))
        return payload, parts & ~PART_PAYLOAD
    unit.run("INSERT OR REPLACE INTO hf_payloads(seq, data) VALUES (?, ?)", (seq, payload))
    return None, parts | PART_PAYLOAD


def _keep_result(
    unit: Unit, seq: int, result: bytes | None, parts: int
) -> tuple[bytes | None, int]:
    if result is None or len(result) <= INLINE_MAX:
        if parts & PART_RESULT:
            unit.run("DELETE FROM hf_results WHERE seq = ?", (seq,))
        return result, parts & ~PART_RESULT
    unit.run("INSERT OR REPLACE INTO hf_results(seq, data) VALUES (?, ?)", (seq, result))
    return None, parts | PART_RESULT


def _keep_event(unit: Unit, seq: int, event: Event) -> None:
    unit.run(
        "INSERT INTO hf_events(seq, n, body) VALUES"
        " (?1, (SELECT coalesce(max(n), 0) + 1 FROM hf_events WHERE seq = ?1), ?2)",
        (seq, _ENCODER.encode(event)),
    )


def outside(unit: Unit, seq: int) -> bytes:
    payload: bytes = unit.run("SELECT data FROM hf_payloads WHERE seq = ?", (seq,)).get
    return payload
