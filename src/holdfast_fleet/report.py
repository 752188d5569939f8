"""The Markdown report of a pool audit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast_fleet.model import PoolReport

_HEADER = (
    "| pool | running | stopped | idle | utilization | idle cost | compute cost |",
    "|---|---:|---:|---:|---:|---:|---:|",
)
_UNKNOWN = "unknown"


def markdown(reports: Sequence[PoolReport], *, at: str, truncated: bool = False) -> str:
    """A heading, a row for each pool and a row of totals. An unknown value is said to be so, and
    makes its total unknown."""
    hours = f"{reports[0].hours:g}" if reports else "24"
    lines = [f"# Pools on {at}", "", f"Costs are US dollars for {hours} hours.", ""]
    if truncated:
        lines += ["**Truncated**: the audit ran out of time; pools may be missing.", ""]
    if not reports:
        return "\n".join([*lines, "There are no pools.", ""])
    rows = [
        (
            _cell(each.pool),
            _count(each.running),
            _count(each.stopped),
            _count(each.idle),
            _UNKNOWN if each.utilization is None else f"{each.utilization:.0%}",
            _dollars(each.idle_cost),
            _dollars(each.compute_cost),
        )
        for each in reports
    ]
    total = (
        "**all**",
        _count(_sum([each.running for each in reports])),
        _count(_sum([each.stopped for each in reports])),
        _count(_sum([each.idle for each in reports])),
        "",
        _dollars(_sum([each.idle_cost for each in reports])),
        _dollars(_sum([each.compute_cost for each in reports])),
    )
    table = [f"| {' | '.join(row)} |" for row in (*rows, total)]
    return "\n".join([*lines, *_HEADER, *table, ""])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:g}"


def _dollars(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _cell(text: str) -> str:
    """A name in a cell: it may hold anything, and must not end the cell or its line."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", plain)
