"""Jobs on their way in: many simple ones in few statements, the others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from holdfast.core import admission, lanes, meeting
from holdfast.core.model import NewJob, Queue, Receipt, Status
from holdfast.engines.sqlite import edges, flow, groups, rows
from holdfast.engines.sqlite.admitting import (
    COLUMNS,
    INSERT_IN_FLOW,
    KNOWN,
    ROW,
    admit,
    arrange,
    holder_of,
    is_known,
    is_plain,
    keep_outside,
    missing_parent,
    stand_of,
    values_of,
)
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.rows import Stand
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import UsageError

_WIDTH = ROW.count("?")
_CHUNK = 25
_INSERT = COLUMNS + ROW + KNOWN
_INSERT_CHUNK = COLUMNS + ", ".join([ROW] * _CHUNK) + KNOWN  # sql: the same row many times


def enqueue(unit: Unit, jobs: Sequence[NewJob]) -> list[Receipt]:
    unit.rings = True
    lines = unit.catalog.lines
    is_quiet = not unit.catalog.is_dropping and not (
        unit.forsaken and edges.are_awaited(unit, [new.id for new in jobs])
    )
    if is_quiet and all(map(_is_simple, jobs, repeat(lines))):
        many = _enqueue_many(unit, jobs)
        if many is not None:
            return many
    depths: dict[int, int] = {}
    order, circular = arrange(unit, jobs)
    receipts: dict[int, Receipt] = {}
    for place in order:
        new = jobs[place]
        line = lines.get(new.queue)
        try:
            admission.check_new(new, line.queue if line else None)
            assert line is not None
            receipts[place] = _enqueue_one(unit, new, line, depths, circular.get(place))
        except UsageError as error:
            receipts[place] = admission.refused(new.id, error)
    return [receipts[place] for place in range(len(jobs))]


def _is_simple(new: NewJob, lines: dict[str, Line]) -> bool:
    """Nothing but its id decides whether it comes in."""
    if new.key is not None or new.after:
        return False
    line = lines.get(new.queue)
    return line is None or (line.queue.accepting and line.queue.max_depth is None)


def _enqueue_many(unit: Unit, jobs: Sequence[NewJob]) -> list[Receipt] | None:
    """All in few statements; a number that is missing afterwards was refused or known. None, with
    nothing written, if their order matters: a limit refuses one, which may be known, or two have
    the same id."""
    lines = unit.catalog.lines
    first = unit.numbers(len(jobs))
    values: list[object] = []
    in_flow: list[tuple[tuple[object, ...], Stand]] = []
    joined: dict[tuple[int, str], None] = {}
    refused: dict[int, Receipt] = {}
    for seq, new in enumerate(jobs, start=first):
        line = lines.get(new.queue)
        try:
            admission.check_new(new, line.queue if line else None)
            assert line is not None
        except UsageError as error:
            refused[seq] = admission.refused(new.id, error)
            continue
        if is_plain(new, line):
            values += values_of(unit, seq, new, line)
            continue
        try:
            stand = stand_of(unit, new, line, strict=True)
        except UsageError:
            return None
        in_flow.append((values_of(unit, seq, new, line), stand))
        if new.group is not None:
            joined[line.id, new.group] = None
    if values and in_flow and len({new.id for new in jobs}) < len(jobs):
        return None
    known: set[int] = set()
    if _insert(unit, values) + _insert_in_flow(unit, in_flow) != len(jobs):
        # Lanes take numbers too, after these.
        found = unit.run(
            "SELECT seq FROM hf_jobs WHERE seq >= ? AND seq < ?", (first, first + len(jobs))
        ).fetchall()
        known = set(range(first, first + len(jobs))) - {seq for (seq,) in found}
    if joined:
        flow.aftermath_of(unit).lanes.update(groups.expose_first(unit, joined))
    for seq, new in enumerate(jobs, start=first):
        if len(new.payload) > rows.INLINE_MAX and seq not in known:
            keep_outside(unit, seq, new.payload)
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


def _insert_in_flow(unit: Unit, given: list[tuple[tuple[object, ...], Stand]]) -> int:
    if not given:
        return 0
    before = unit.connection.total_changes()
    unit.connection.executemany(INSERT_IN_FLOW, [(*values, *stand) for values, stand in given])
    flow.aftermath_of(unit).lanes.update(stand.lane for _, stand in given if stand.lane is not None)
    return unit.connection.total_changes() - before


def _enqueue_one(
    unit: Unit, new: NewJob, line: Line, depths: dict[int, int], circle: str | None
) -> Receipt:
    queue = line.queue
    if is_known(unit, new.id):
        return Receipt(id=new.id, status=Status.DUPLICATE)
    if circle is not None:
        raise admission.circular(new.id, circle)
    holder = holder_of(unit, new)
    if holder is not None:
        _meet(unit, holder, new, queue)
        return Receipt(id=holder, status=Status.DUPLICATE)
    parent = missing_parent(unit, new)
    if parent is not None:
        raise admission.unknown_parent(new.id, parent)
    lanes.lane_of(new, queue, strict=True)
    if queue.max_depth is not None and line.id not in depths:
        depths[line.id] = _depth(unit, line, queue.max_depth)
    waiting = depths.get(line.id, 0)
    admission.check_room(queue, waiting)
    admit(unit, new, line)
    # One that was cancelled at the door does not wait.
    depths.pop(line.id, None) if new.after else depths.update({line.id: waiting + 1})
    return Receipt(id=new.id, status=Status.NEW)


def _meet(unit: Unit, holder: str, new: NewJob, queue: Queue) -> None:
    row = rows.fetch(unit, holder)
    if row is None or row[rows.STATE] != rows.WAITING or new.key_policy == "keep":
        return
    job = rows.job_of(unit, row)
    change = meeting.meet(job, new, queue, unit.now) if job else None
    if job is not None and change is not None:
        flow.keep(unit, row, job, change)


def _depth(unit: Unit, line: Line, most: int) -> int:
    """How many jobs wait, counted no further than `most`; those that are held wait too."""
    ready: int = unit.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ready"
        " WHERE queue = ?1 AND state = 0 AND holds = 0 LIMIT ?2)",
        (line.id, most),
    ).get
    if ready >= most:
        return ready
    held: int = unit.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ?1 AND state = 0 AND holds <> 0 LIMIT ?2)",
        (line.id, most),
    ).get
    return ready + held
