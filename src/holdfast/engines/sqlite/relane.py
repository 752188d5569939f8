"""Waiting jobs into the lanes they belong in, when those have changed or are gone."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.lanes import fields_of
from holdfast.engines.sqlite import lanes, rows
from holdfast.engines.sqlite.aftermath import Aftermath
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import FLOW_LANE, FLOW_TENANT, HOLD_LANED
from holdfast.engines.sqlite.unit import Unit

_BESIDE = {"queue", "task", "tenant", "group"}
"""What a limit may count by that stands in a job's own row. Labels do too, but a job without the
label has it in its payload."""


def relane(unit: Unit, aftermath: Aftermath, seqs: Collection[int]) -> None:
    """Each waiting job into its lane as its queue is now."""
    for seq in seqs:
        row = unit.run(rows.BY_SEQ, (seq,)).fetchone()
        job = None if row is None else rows.job_of(unit, row)
        if job is None or row[rows.STATE] != rows.WAITING:
            continue
        line = unit.catalog.lines[job.queue]
        lane = lanes.find(unit, aftermath, job, line, strict=False)
        bits = _bits(row, line, lane)
        if (lane, bits) == (row[rows.LANE], row[rows.FLOW]):
            continue
        holds = row[rows.HOLDS] & ~HOLD_LANED | (HOLD_LANED if lane is not None else 0)
        unit.run(
            "UPDATE hf_jobs SET lane = ?, flow = ?, holds = ? WHERE seq = ?",
            (lane, bits, holds, seq),
        )
        aftermath.lanes |= {each for each in (lane, row[rows.LANE]) if each is not None}


def strays(unit: Unit, seqs: Collection[int]) -> list[int]:
    """Those that wait in another lane than their queue's settings ask for. Only reads. A queue
    that is being sorted has them by right."""
    found = []
    for seq in seqs:
        row = unit.run(rows.BY_SEQ, (seq,)).fetchone()
        name = None if row is None else unit.catalog.names.get(row[rows.QUEUE])
        if name is None or row[rows.STATE] != rows.WAITING:
            continue
        line, lane = unit.catalog.lines[name], row[rows.LANE]
        if line.unsorted:
            continue
        is_at_home = lane is None
        if line.laned:
            job = rows.job_of(unit, row, payload=None if _looks_inside(line) else b"")
            is_at_home = job is not None and lanes.is_of(unit, job, line, lane)
        if not is_at_home or row[rows.FLOW] != _bits(row, line, lane):
            found.append(seq)
    return found


def _bits(row: rows.Row, line: Line, lane: int | None) -> int:
    bits: int = row[rows.FLOW] & ~(FLOW_LANE | FLOW_TENANT)
    bits |= FLOW_LANE if lane is not None else 0
    return bits | (FLOW_TENANT if line.queue.fairness != "off" else 0)


def _looks_inside(line: Line) -> bool:
    """May a limit count by what is in payloads, which are long to read?"""
    return any(set(fields_of(limit.key)) - _BESIDE for limit in line.queue.limits)
