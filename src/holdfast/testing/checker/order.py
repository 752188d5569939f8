"""I10, order: whoever came into line first is leased first, within a queue, a priority and a lane.

With aging, time in line makes up for priority. A lane's jobs are alike to whoever leases, so that
no limit and no turn may let a later one go before an earlier one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from holdfast.core.lanes import Lane, is_same_flow, lane_of
from holdfast.core.model import Queue
from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import ORPHAN_NS_MAX, Act, History, Life
from holdfast.testing.checker.grants import MS_NS, TOLERANCE_NS, Grant, grants_of
from holdfast.testing.checker.slots import is_told, told


def check_order(history: History) -> Iterator[Violation]:
    # It is by due time: a clock that was set back has put later jobs before earlier ones.
    if history.notes.get("jump") or history.sweeping:
        return
    blind = [(begin, min(end, begin + ORPHAN_NS_MAX)) for begin, end in history.blind]
    steady = {name: _steady(name, history) for name in history.settings}
    lines: dict[Place, list[Stint]] = defaultdict(list)
    for life in history.lives.values():
        if life.rewritten or life.of("amend"):
            continue
        for place, stint in _stints(life, steady):
            lines[place].append(stint)
    for stints in lines.values():
        yield from _overtaken(stints, blind)


class Place(NamedTuple):
    """Jobs of one place go in the order of their time; without a priority all go together."""

    queue: str
    priority: int | None
    lane: Lane | None


class Stint(NamedTuple):
    """One stay in line: the act that began it, and the lease that ended it. Its time, by which it
    is served, is between `first_ns` and `last_ns`."""

    life: Life
    entered: Act
    first_ns: int
    last_ns: int
    leased: Act
    overtakes: bool
    may_be_overtaken: bool


def _overtaken(stints: list[Stint], blind: list[tuple[int, int]]) -> Iterator[Violation]:
    coming = sorted((s for s in stints if s.may_be_overtaken), key=lambda s: -s.entered.end_ns)
    waiting: list[Stint] = []
    for stint in sorted(stints, key=lambda s: s.leased.begin_ns):
        act = stint.leased
        while coming and coming[-1].entered.end_ns < act.begin_ns:
            waiting.append(coming.pop())
        waiting = [other for other in waiting if other.leased.begin_ns > act.begin_ns]
        passed = [
            other
            for other in waiting
            if other.leased.begin_ns > act.end_ns and other.last_ns < stint.first_ns
        ]
        if not passed or not stint.overtakes:
            continue
        # A lease call that came to nothing may have held the other job for a moment.
        if any(begin < act.end_ns and end > act.begin_ns for begin, end in blind):
            continue
        lines = (*passed[0].life.lines, *stint.life.lines)
        text = f"leased before job {passed[0].life.id}, which had been in line before it"
        yield Violation("I10", stint.life.id, text, lines)


def _stints(life: Life, steady: dict[str, Queue | None]) -> Iterator[tuple[Place, Stint]]:
    births = [act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"]
    grants = grants_of(life)
    if len(births) != 1 or not births[0].won or not grants:
        return
    birth = births[0]
    if any(steady.get(grant.queue) is None for grant in grants):
        return
    # A job whose key an enqueuer is looking at may be locked for a moment, and is passed over;
    # one of a group or with parents may wait for others.
    asked = birth.asked
    bound = asked.group is not None or bool(asked.after)
    passable = asked.expires_ms is not None or asked.key is not None or bound
    if not birth.asked.delay_ms and len(grants[0].leased) == 1:
        yield _stint(life, birth, grants[0], steady, passable=passable)
    for before, after in pairwise(grants):
        queue = steady[after.queue]
        if len(before.effective) != 1 or queue is None or len(after.leased) != 1:
            continue
        settle = before.effective[0]
        again = settle.verdict in ("retry", "release") and not settle.asked.delay_ms
        tail = queue.order == "tail" and birth.asked.group is None
        if settle.won and again and tail:
            yield _stint(life, settle, after, steady, passable=passable)


def _steady(name: str, history: History) -> Queue | None:
    """The settings if they always meant the same order, and one that a history can tell."""
    first, *others = (each.queue for each in history.settings[name])
    same = all(
        is_same_flow(first, other) and _order_of(first) == _order_of(other) for other in others
    )
    return first if same and first.group_batch == 1 and is_told(first) else None


def _order_of(queue: Queue) -> tuple[str, str, int | None, int]:
    return queue.order, queue.fairness, queue.aging_ms, queue.group_batch


def _stint(
    life: Life, into_line: Act, grant: Grant, steady: dict[str, Queue | None], *, passable: bool
) -> tuple[Place, Stint]:
    leased = grant.leased[0]
    queue, entry = steady[grant.queue], leased.answer
    assert queue is not None and entry is not None
    priority = entry.priority or 0
    # Turns are taken within a priority, so there a lane's jobs of another one may be passed over.
    ages = bool(queue.aging_ms) and queue.fairness == "off"
    sooner_ns = priority * (queue.aging_ms or 0) * MS_NS if ages else 0
    stint = Stint(
        life,
        into_line,
        into_line.begin_ns - sooner_ns,
        into_line.end_ns - sooner_ns + (TOLERANCE_NS if ages else 0),
        leased,
        overtakes=leased.asked.state != "selective",
        may_be_overtaken=not passable,
    )
    return Place(queue.name, None if ages else priority, lane_of(told(entry), queue)), stint
