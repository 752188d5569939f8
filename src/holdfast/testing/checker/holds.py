"""The leases of all jobs as holds: a lease counts as held only while it certainly was, from when
somebody knew of it to when somebody first asked for its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.testing.checker.fold import NEVER_NS, History, Life
from holdfast.testing.checker.grants import Grant, grants_of
from holdfast.testing.history.lines import Entry, Line


class Hold(NamedTuple):
    """One lease, while it certainly was held, and by which call it was granted if that is known."""

    life: Life
    grant: Grant
    entry: Entry
    begin_ns: int
    end_ns: int
    call: Line | None


def holds_of(history: History) -> list[Hold]:
    return [hold for life in history.lives.values() for hold in _holds(life, history)]


def crowds_of(holds: list[Hold]) -> Iterator[list[Hold]]:
    """Those that were certainly held at one time, whenever one more came."""
    current: list[Hold] = []
    for hold in sorted(holds, key=lambda hold: hold.begin_ns):
        if hold.end_ns > hold.begin_ns:
            current = [other for other in current if other.end_ns > hold.begin_ns]
            current.append(hold)
            yield current


def _holds(life: Life, history: History) -> Iterator[Hold]:
    removals = [act.begin_ns for act in life.of("amend", "delete") if not act.void]
    swept = min((line.at_ns for line in history.sweeping), default=NEVER_NS)
    for grant in grants_of(life):
        entry = next((act.answer for act in grant.leased), None)
        if entry is None:
            continue
        ends = [act.begin_ns for act in grant.effective]
        gone = [at_ns for at_ns in removals if at_ns >= grant.begin_ns]
        end_ns = min((*ends, *gone, swept), default=NEVER_NS)
        call = grant.leased[0].lines[0] if len(grant.leased) == 1 else None
        yield Hold(life, grant, entry, grant.known_ns, end_ns, call)
