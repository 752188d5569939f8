"""Jobs on their way in: many plain ones in one statement, the others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from msgspec.structs import replace

from holdfast.core import admission, checks, codec, lifecycle, limits
from holdfast.core.model import NO_OVERRIDES, NewJob, Queue, Receipt, Status
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.schema import PART_PAYLOAD
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import UsageError

_COLUMNS = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload) VALUES
"""
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_KNOWN = " ON CONFLICT(id, ns) DO NOTHING"
_WIDTH = _ROW.count("?")
_CHUNK = 25
_INSERT = _COLUMNS + _ROW + _KNOWN
_INSERT_CHUNK = _COLUMNS + ", ".join([_ROW] * _CHUNK) + _KNOWN  # sql: the same row many times


def enqueue(unit: Unit, jobs: Sequence[NewJob]) -> list[Receipt]:
    unit.rings = True
    lines = unit.catalog.lines
    if not unit.catalog.is_dropping and all(map(_is_simple, jobs, repeat(lines))):
        return _enqueue_many(unit, jobs)
    depths: dict[int, int] = {}
    receipts = []
    for new in jobs:
        line = lines.get(new.queue)
        try:
            _check(new, line)
        except UsageError as error:
            receipts.append(admission.refused(new.id, error))
        else:
            assert line is not None
            receipts.append(_enqueue_one(unit, new, line, depths))
    return receipts


def follow_up(unit: Unit, jobs: Sequence[NewJob]) -> None:
    """Jobs that a completed one brings along: a known id or a held key is passed over."""
    for new in jobs:
        if not _is_known(unit, new.id) and _holder(unit, new) is None:
            _admit(unit, new, unit.catalog.lines[new.queue])


def _is_simple(new: NewJob, lines: dict[str, Line]) -> bool:
    """Nothing but its id decides whether it comes in."""
    line = lines.get(new.queue)
    return new.key is None and (
        line is None or (line.queue.accepting and line.queue.max_depth is None)
    )


def _check(new: NewJob, line: Line | None) -> None:
    checks.check_job(new, line.queue.payload_max if line else limits.PAYLOAD_MAX)
    if line is None:
        raise admission.unknown(new.queue)


def _enqueue_many(unit: Unit, jobs: Sequence[NewJob]) -> list[Receipt]:
    """All in few statements; a number that is missing afterwards was refused or known."""
    lines = unit.catalog.lines
    first = unit.numbers(len(jobs))
    values: list[object] = []
    large: list[tuple[int, bytes]] = []
    refused: dict[int, Receipt] = {}
    for seq, new in enumerate(jobs, start=first):
        line = lines.get(new.queue)
        try:
            _check(new, line)
        except UsageError as error:
            refused[seq] = admission.refused(new.id, error)
            continue
        assert line is not None
        values += _values(unit, seq, new, line)
        if len(new.payload) > rows.INLINE_MAX:
            large.append((seq, new.payload))
    known: set[int] = set()
    if _insert(unit, values) != len(jobs):
        found = unit.run("SELECT seq FROM hf_jobs WHERE seq >= ?", (first,)).fetchall()
        known = set(range(first, first + len(jobs))) - {seq for (seq,) in found}
    for seq, payload in large:
        if seq not in known:
            _keep_outside(unit, seq, payload)
    if not known:
        return [Receipt(id=new.id, status=Status.NEW) for new in jobs]
    return [
        refused.get(seq)
        or Receipt(id=new.id, status=Status.DUPLICATE if seq in known else Status.NEW)
        for seq, new in enumerate(jobs, start=first)
    ]


def _insert(unit: Unit, values: list[object]) -> int:
    """Many rows a statement, the rest one by one; how many were new."""
    before = unit.connection.total_changes()
    end = len(values) - len(values) % (_CHUNK * _WIDTH)
    for start in range(0, end, _CHUNK * _WIDTH):
        unit.run(_INSERT_CHUNK, values[start : start + _CHUNK * _WIDTH])
    for start in range(end, len(values), _WIDTH):
        unit.run(_INSERT, values[start : start + _WIDTH])
    return unit.connection.total_changes() - before


def _values(unit: Unit, seq: int, new: NewJob, line: Line) -> tuple[object, ...]:
    now = unit.now
    payload = new.payload
    inline = len(payload) <= rows.INLINE_MAX
    plain = (
        new.content_type == codec.JSON
        and not new.labels
        and not new.headers
        and new.overrides is NO_OVERRIDES
    )
    return (
        seq,
        unit.catalog.namespace_id,
        line.id,
        -new.priority,
        now + new.delay_ms,
        seq,
        None if new.expires_ms is None else now + new.expires_ms,
        0 if inline else PART_PAYLOAD,
        now,
        new.overrides.lease_ms,
        new.id,
        new.task,
        new.key,
        new.tenant,
        new.group,
        None if plain else rows.encode_extra(new),
        payload if inline else None,
    )


def _keep_outside(unit: Unit, seq: int, payload: bytes) -> None:
    unit.run("INSERT INTO hf_payloads(seq, data) VALUES (?, ?)", (seq, payload))


def _enqueue_one(unit: Unit, new: NewJob, line: Line, depths: dict[int, int]) -> Receipt:
    queue = line.queue
    try:
        if _is_known(unit, new.id):
            return Receipt(id=new.id, status=Status.DUPLICATE)
        holder = _holder(unit, new)
        if holder is not None:
            _meet(unit, holder, new, queue)
            return Receipt(id=holder, status=Status.DUPLICATE)
        if queue.max_depth is not None and line.id not in depths:
            depths[line.id] = _depth(unit, line, queue.max_depth)
        waiting = depths.get(line.id, 0)
        admission.check_room(queue, waiting)
        depths[line.id] = waiting + 1
    except UsageError as error:
        return admission.refused(new.id, error)
    _admit(unit, new, line)
    return Receipt(id=new.id, status=Status.NEW)


def _is_known(unit: Unit, id: str) -> bool:
    row = rows.fetch(unit, id)
    if row is not None and row[rows.QUEUE] not in unit.catalog.names:
        # Left behind by a queue that is being dropped: it must not keep a new job out.
        rows.remove(unit, row[rows.SEQ], row[rows.PARTS])
        return False
    return row is not None


def _admit(unit: Unit, new: NewJob, line: Line) -> None:
    seq = unit.numbers(1)
    unit.run(_INSERT, _values(unit, seq, new, line))
    assert unit.changes() == 1, "the id was looked for in this transaction"
    if len(new.payload) > rows.INLINE_MAX:
        _keep_outside(unit, seq, new.payload)
    if new.key is not None:
        unit.run(
            "INSERT OR REPLACE INTO hf_keys(queue, key, ns, id, until) VALUES (?, ?, ?, ?, ?)",
            (line.id, new.key, unit.namespace_id, new.id, unit.now + new.key_window_ms),
        )


def _holder(unit: Unit, new: NewJob) -> str | None:
    """The id of the job that holds this key: unfinished, or still within its window."""
    if new.key is None:
        return None
    held = unit.run(
        "SELECT k.id, k.until > ?3 OR ifnull(j.state, 2) < 2 FROM hf_keys k"
        " LEFT JOIN hf_jobs j ON j.id = k.id AND j.ns = k.ns WHERE k.queue = ?1 AND k.key = ?2",
        (unit.catalog.lines[new.queue].id, new.key, unit.now),
    ).fetchone()
    return held[0] if held is not None and held[1] else None


def _meet(unit: Unit, holder: str, new: NewJob, queue: Queue) -> None:
    """A later job under a held key: what it says goes to the job that still waits."""
    row = rows.fetch(unit, holder)
    if row is None or row[rows.STATE] != rows.WAITING or new.key_policy == "keep":
        return
    job = rows.job_of(unit, row)
    if job is None:
        return
    if new.key_policy == "replace":
        rows.keep(unit, row, job, lifecycle.replace_waiting(job, new, unit.now))
    else:
        payload = codec.merge_patch(job.payload, new.payload)
        checks.check_job(replace(new, payload=payload), queue.payload_max)
        rows.keep(unit, row, job, lifecycle.merge_waiting(job, payload, unit.now))


def _depth(unit: Unit, line: Line, most: int) -> int:
    """How many jobs wait, counted no further than `most`; those put aside wait too."""
    ready: int = unit.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ready"
        " WHERE queue = ?1 AND state = 0 AND holds = 0 LIMIT ?2)",
        (line.id, most),
    ).get
    if ready >= most:
        return ready
    held: int = unit.run(
        "SELECT count(*) FROM hf_jobs INDEXED BY hf_held"
        " WHERE ns = ?1 AND state = 0 AND holds <> 0 AND queue = ?2",
        (unit.namespace_id, line.id),
    ).get
    return ready + held
