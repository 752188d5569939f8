"""Invariants of jobs that wait for each other: I19 groups, I20 parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life
from holdfast.testing.checker.grants import buried_in_place
from holdfast.testing.checker.holds import Hold, crowds_of
from holdfast.testing.history.lines import Entry


def check_bonds(held: list[Hold], history: History) -> Iterator[Violation]:
    yield from _groups(held, history)
    for life in history.lives.values():
        yield from _parents(life, history)


def _groups(held: list[Hold], history: History) -> Iterator[Violation]:
    by_group: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in held:
        if hold.entry.group is not None:
            by_group[hold.entry.queue, hold.entry.group].append(hold)
    for (queue, group), holds in by_group.items():
        most = max((each.queue.group_batch for each in history.settings.get(queue, ())), default=1)
        for crowd in crowds_of(holds):
            calls = {id(hold.call) for hold in crowd if hold.call is not None}
            if len(crowd) > most or len(calls) > 1:
                lines = tuple(line for hold in crowd for line in hold.life.lines)
                text = f"{len(crowd)} of group {group} leased at once, by {len(calls)} calls"
                yield Violation("I19", crowd[-1].life.id, text, lines)
                break
        yield from _passed(holds, group, history)


class Arrival(NamedTuple):
    """A job that came into its group once, was never moved, and when it can first have left."""

    life: Life
    birth: Act
    leaves_ns: int


def _passed(holds: list[Hold], group: str, history: History) -> Iterator[Violation]:
    own: dict[str, list[Hold]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.begin_ns):
        own[hold.life.id].append(hold)
    lives = [its[0].life for its in own.values()]
    arrived = [found for life in lives if (found := _arrival(life, history))]
    arrived.sort(key=lambda each: each.birth.end_ns)
    position, slowest = 0, None
    for later in sorted(arrived, key=lambda each: each.birth.begin_ns):
        while position < len(arrived) and arrived[position].birth.end_ns < later.birth.begin_ns:
            earlier = arrived[position]
            if slowest is None or earlier.leaves_ns > slowest.leaves_ns:
                slowest = earlier
            position += 1
        hold = own[later.life.id][0]
        if slowest is None or hold.grant.leased[0].end_ns >= slowest.leaves_ns:
            continue
        together = hold.call is not None and any(
            other.call is hold.call for other in own[slowest.life.id]
        )
        if not together:
            text = f"leased before job {slowest.life.id}, which came before it in group {group}"
            lines = (*slowest.life.lines, *later.life.lines)
            yield Violation("I19", later.life.id, text, lines)


def _arrival(life: Life, history: History) -> Arrival | None:
    births = [act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"]
    moved = any(not act.void for act in (*life.of("settle", "forward"), *life.of("amend")))
    # One that came after others may have been cancelled with them, which nobody is told.
    unsure = life.rewritten or moved or bool(history.sweeping) or any(b.asked.after for b in births)
    if len(births) != 1 or not births[0].won or unsure:
        return None
    ends = [act.begin_ns for act in life.of("settle", "complete", "bury") if not act.void]
    return Arrival(life, births[0], min(ends, default=NEVER_NS))


def _parents(life: Life, history: History) -> Iterator[Violation]:
    births = [act for act in (*life.of("enqueue"), *life.of("follow")) if act.phase != "fail"]
    redriven = any(not act.void for act in life.of("amend", "redrive"))
    # Whoever enqueues again after an unknown outcome asks for the same.
    if len({act.asked.after for act in births}) != 1 or redriven or history.sweeping:
        return
    asked = births[0].asked
    for leased in life.of("lease"):
        for name in asked.after:
            parent = history.lives.get(name)
            if parent is None or not _may_have_ended(parent, asked, leased.end_ns, history):
                lines = (*(parent.lines if parent else ()), *life.lines)
                text = f"leased before its parent {name} had ended as it asked"
                yield Violation("I20", life.id, text, lines)
    kept = life.kept
    if kept is not None and kept.reason == "dependency" and not _may_be_orphan(asked, history):
        text = "cancelled for its parents, of whom none ended in such a way"
        yield Violation("I20", life.id, text, tuple(life.lines))


def _may_have_ended(parent: Life, asked: Entry, by_ns: int, history: History) -> bool:
    done = _asked_by(parent.of("settle", "complete"), by_ns)
    if asked.after_on == "success" and asked.parent_death != "run":
        return done
    if asked.after_on != "death" and done:
        return True
    return _may_have_died(parent, by_ns, history)


def _may_have_died(parent: Life, by_ns: int, history: History) -> bool:
    buried = [act for act in parent.of("settle", "bury") if buried_in_place(act, history)]
    acts = [*buried, *parent.of("amend", "bury", "cancel", "delete")]
    # A parent with parents of its own may be cancelled with them.
    return _asked_by(acts, by_ns) or any(act.asked.after for act in parent.acts)


def _may_be_orphan(asked: Entry, history: History) -> bool:
    parents = [history.lives.get(name) for name in asked.after]
    if asked.after_on == "death":
        return any(each and _asked_by(each.of("settle", "complete"), NEVER_NS) for each in parents)
    return any(each is None or _may_have_died(each, NEVER_NS, history) for each in parents)


def _asked_by(acts: list[Act], by_ns: int) -> bool:
    return any(not act.void and act.begin_ns <= by_ns for act in acts)
