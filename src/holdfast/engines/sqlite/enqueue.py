"""Jobs on their way in: many plain ones in one statement, the others one by one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import checks, codec, lifecycle, limits
from holdfast.core.model import NO_OVERRIDES, NewJob, Queue, Receipt, Status
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.schema import PART_PAYLOAD
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import NotAccepting, QueueFull, UnknownQueue, UsageError

_INSERT = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?1, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT(id, ns) DO NOTHING
"""


def enqueue(unit: Unit, jobs: Sequence[NewJob]) -> list[Receipt]:
    lines = unit.catalog.lines
    receipts: list[Receipt | None] = [None] * len(jobs)
    welcome: list[tuple[int, NewJob, Line]] = []
    simple = True
    for index, new in enumerate(jobs):
        try:
            line = lines.get(new.queue)
            checks.check_job(new, line.queue.payload_max if line else limits.PAYLOAD_MAX)
            if line is None:
                raise UnknownQueue(f"queue {new.queue} does not exist: declare it first")
        except UsageError as error:
            receipts[index] = _refused(new, error)
            continue
        welcome.append((index, new, line))
        simple = simple and new.key is None and _is_open(line.queue)
    if simple:
        for (index, new, _), known in zip(welcome, _insert_many(unit, welcome), strict=True):
            status = Status.DUPLICATE if known else Status.NEW
            receipts[index] = Receipt(id=new.id, status=status)
    else:
        depths: dict[int, int] = {}
        for index, new, line in welcome:
            receipts[index] = _enqueue_one(unit, new, line, depths)
    unit.rings = True
    return [receipt for receipt in receipts if receipt is not None]


def follow_up(unit: Unit, jobs: Sequence[NewJob]) -> None:
    """Jobs that a completed one brings along: a known id or a held key is passed over."""
    for new in jobs:
        if rows.fetch(unit, new.id) is None and _holder(unit, new) is None:
            _admit(unit, new, unit.catalog.lines[new.queue])


def _is_open(queue: Queue) -> bool:
    return queue.accepting and queue.max_depth is None


def _refused(new: NewJob, error: UsageError) -> Receipt:
    return Receipt(id=new.id, status=Status.REFUSED, code=error.code, text=str(error))


def _insert_many(unit: Unit, welcome: list[tuple[int, NewJob, Line]]) -> list[bool]:
    """Whether each was known before."""
    count = len(welcome)
    if count == 0:
        return []
    first = unit.numbers(count)
    before = unit.connection.total_changes()
    unit.connection.executemany(
        _INSERT,
        [_values(unit, first + at, new, line) for at, (_, new, line) in enumerate(welcome)],
    )
    if unit.connection.total_changes() - before == count:
        added = set(range(first, first + count))
    else:
        found = unit.run("SELECT seq FROM hf_jobs WHERE seq >= ?", (first,)).fetchall()
        added = {seq for (seq,) in found}
    for at, (_, new, _line) in enumerate(welcome):
        if len(new.payload) > rows.INLINE_MAX and first + at in added:
            _keep_outside(unit, first + at, new.payload)
    return [first + at not in added for at in range(count)]


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
        if rows.fetch(unit, new.id) is not None:
            return Receipt(id=new.id, status=Status.DUPLICATE)
        holder = _holder(unit, new)
        if holder is not None:
            _meet(unit, holder, new, queue)
            return Receipt(id=holder, status=Status.DUPLICATE)
        if not queue.accepting:
            raise NotAccepting(f"queue {queue.name} accepts no new jobs at present")
        if queue.max_depth is not None:
            if line.id not in depths:
                depths[line.id] = _depth(unit, line, queue.max_depth)
            if depths[line.id] >= queue.max_depth:
                raise QueueFull(f"queue {queue.name} holds its most, {queue.max_depth} jobs")
            depths[line.id] += 1
    except UsageError as error:
        return _refused(new, error)
    _admit(unit, new, line)
    return Receipt(id=new.id, status=Status.NEW)


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
