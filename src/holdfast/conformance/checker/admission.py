"""Invariants on the jobs that a lease call may grant: I10 order, I12 rates, I18 limits, I21 slots.

Settings may change at any time: a lease is allowed if any settings that may have applied allow it.
The order holds within a queue, a priority and a lane: the jobs of a lane are interchangeable, so no
limit and no fairness may let a later one go before an earlier one. With aging, waiting time makes
up for priority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from holdfast.conformance.checker.findings import Violation
from holdfast.conformance.checker.job_history import (
    MS_NS,
    NEVER_NS,
    ORPHAN_NS_MAX,
    TOLERANCE_NS,
    Act,
    HeldInterval,
    History,
    JobHistory,
    LeaseInterval,
    crowds_of,
    grants_of,
)
from holdfast.conformance.history import Entry
from holdfast.core.lanes import Lane, fields_of, is_same_flow, lane_of
from holdfast.core.limits import Limit, Rate, SlotKey
from holdfast.core.model import NewJob, Queue

_OWN = {"queue", "task", "tenant", "group"}
"""The fields that a history records; a limit keyed by other fields cannot be checked."""

Span = tuple[int, int]
BySlot = dict[SlotKey, list[HeldInterval]]


def check_slots(held: list[HeldInterval], history: History) -> Iterator[Violation]:
    """No limit or rate was exceeded, and no slot leaked."""
    by_slot = _by_slot(held, history)
    yield from _limits(by_slot, history)
    if not history.notes.get("reboot"):
        # Rates use the boot clock, which a reboot restarts.
        yield from _rates(by_slot, history)
    yield from _leaks(history)


def recorded_job(entry: Entry) -> NewJob:
    """The fields of a leased job that determine its lane."""
    return NewJob(
        id=entry.id, task=entry.task, queue=entry.queue, tenant=entry.tenant, group=entry.group
    )


def is_limited(hold: HeldInterval, history: History) -> bool:
    """Whether the job's queue ever had a limit."""
    return any(each.queue.limits for each in history.settings.get(hold.entry.queue, ()))


def is_recorded(queue: Queue) -> bool:
    """Whether a history contains what determines the lanes of this queue."""
    return all(_OWN.issuperset(fields_of(limit.key)) for limit in queue.limits)


def _limits(by_slot: BySlot, history: History) -> Iterator[Violation]:
    for slot, holds in by_slot.items():
        known = _declared(slot.limit, holds, history, 0, NEVER_NS)
        if _bound(known) == NEVER_NS:
            continue
        least = min(limit.concurrency for limit in known if limit.concurrency is not None)
        for crowd in crowds_of(holds):
            if len(crowd) <= least:
                continue
            # The last lease was granted after all were requested and before all were known.
            begin_ns = max(hold.grant.begin_ns for hold in crowd)
            end_ns = max(hold.begin_ns for hold in crowd)
            most = _bound(_declared(slot.limit, crowd, history, begin_ns, end_ns))
            if len(crowd) > most:
                lines = tuple(line for hold in crowd for line in hold.life.lines)
                text = f"{len(crowd)} leases at once under limit {slot.limit} ({slot.key!r})"
                yield Violation("I18", crowd[-1].life.id, f"{text} of {most}", lines)
                break


def _bound(known: list[Limit]) -> int:
    """The limit that certainly applied: the largest of several numbers under one name."""
    numbers = [limit.concurrency for limit in known]
    return max((NEVER_NS if number is None else number for number in numbers), default=NEVER_NS)


def _declared(
    name: str, holds: list[HeldInterval], history: History, begin_ns: int, end_ns: int
) -> list[Limit]:
    """The versions of a limit that may have applied in that time, in the queues of these leases."""
    return [
        limit
        for queue in {hold.entry.queue for hold in holds}
        for settings in history.settings_at(queue, begin_ns, end_ns)
        for limit in settings.limits
        if limit.name == name
    ]


def _rates(by_slot: BySlot, history: History) -> Iterator[Violation]:
    for slot, holds in by_slot.items():
        rates = [each.rate for each in _declared(slot.limit, holds, history, 0, NEVER_NS)]
        if None in rates:
            continue
        least = min(rate.count + rate.burst - 1 for rate in rates if rate)
        window_ns = min(rate.per_ms for rate in rates if rate) * MS_NS - TOLERANCE_NS
        for started in _windows([hold.grant for hold in holds], window_ns):
            if len(started) <= least:
                continue
            begin_ns = started[0].begin_ns
            now = _declared(slot.limit, holds, history, begin_ns, begin_ns + window_ns)
            rate = now[0].rate if now else None
            # Without a fixed rate over the whole window, in all queues, no bound can be stated.
            if rate and all(each.rate == rate for each in now) and _is_over(started, rate):
                lines = tuple(line for grant in started for line in grant.leased[0].lines)
                text = (
                    f"{len(started)} starts within {rate.per_ms} ms under limit {slot.limit}"
                    f" ({slot.key!r}) of {rate.count} and a burst of {rate.burst}"
                )
                yield Violation("I12", "", text, lines)
                break


def _is_over(started: list[LeaseInterval], rate: Rate) -> bool:
    return len(started) > rate.count + rate.burst - 1


def _windows(grants: list[LeaseInterval], window_ns: int) -> Iterator[list[LeaseInterval]]:
    """For each start, the starts that were certainly within one window from it."""
    ordered = sorted(grants, key=lambda grant: grant.begin_ns)
    for position, first in enumerate(ordered):
        inside = []
        for grant in ordered[position:]:
            if grant.begin_ns > first.begin_ns + window_ns:
                break
            if grant.leased[0].end_ns < first.begin_ns + window_ns:
                inside.append(grant)
        yield inside


def _by_slot(held: list[HeldInterval], history: History) -> BySlot:
    """The leases that certainly used each slot: if the settings changed, by all settings that may
    have applied."""
    shapes = {name: _shapes(name, history) for name in history.settings}
    by_slot: BySlot = defaultdict(list)
    for hold in held:
        possible = shapes.get(hold.entry.queue, [])
        if len(possible) > 1:
            begin_ns, end_ns = hold.grant.begin_ns, hold.begin_ns
            possible = history.settings_at(hold.entry.queue, begin_ns, end_ns)
        slots = [set(_slots(hold.entry, queue)) for queue in possible]
        for slot in set.intersection(*slots) if slots else ():
            by_slot[slot].append(hold)
    return by_slot


def _shapes(name: str, history: History) -> list[Queue]:
    found: list[Queue] = []
    for each in history.settings[name]:
        if not any(is_same_flow(each.queue, other) for other in found):
            found.append(each.queue)
    return found


def _slots(entry: Entry, queue: Queue) -> Iterator[SlotKey]:
    lane = lane_of(recorded_job(entry), queue) if queue.limits else None
    names = {limit.name for limit in queue.limits if _OWN.issuperset(fields_of(limit.key))}
    return (slot for slot in (lane.slots if lane else ()) if slot.limit in names)


def _leaks(history: History) -> Iterator[Violation]:
    """Slots that are still counted as used although no lease holds them."""
    for line in history.notes.get("slot", ()):
        if history.drained and line.facts["used"]:
            facts = line.facts
            text = (
                f"limit {facts['limit']} ({facts['key']!r}) counts {facts['used']}, but no lease"
                " holds it"
            )
            yield Violation("I21", "", text, (line,))
    for line in history.notes.get("audit", ()):
        facts = line.facts
        if facts["used"] != facts["held"]:
            text = f"limit {facts['limit']} ({facts['key']!r}) counts {facts['used']}"
            yield Violation("I21", "", f"{text}, but {facts['held']} leases hold it", (line,))
    for lines in history.recounts:
        if lines[1].count:
            text = f"a recount found {lines[1].count} wrong"
            yield Violation("I21", "", text, lines)


def check_order(history: History) -> Iterator[Violation]:
    """No job was leased before another of its place that was due earlier."""
    # The order is by due time: after the clock was set back, later jobs may be due earlier.
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
    locked = _lock_spans(history)
    for stints in lines.values():
        yield from _overtaken(stints, blind, locked)


def _lock_spans(history: History) -> dict[str, list[Span]]:
    """By job: the times of the calls that may have locked it, because they named it or enqueued a
    child of it. On PostgreSQL a lease skips a locked job."""
    found: dict[str, list[Span]] = defaultdict(list)
    for life in history.lives.values():
        for act in life.acts:
            if act.op not in ("lease", "lease_dead", "overdue", "overdue_dead", "expired"):
                for id_ in (life.id, *act.asked.after):
                    found[id_].append((act.begin_ns, act.over_ns))
    return found


class Place(NamedTuple):
    """The jobs of one place are leased in order; without a priority, over all priorities."""

    queue: str
    priority: int | None
    lane: Lane | None


class Stint(NamedTuple):
    """One period of waiting: the act that began it and the lease that ended it. The time that
    determines its order is between `first_ns` and `last_ns`."""

    life: JobHistory
    entered: Act
    first_ns: int
    last_ns: int
    leased: Act
    overtakes: bool
    may_be_overtaken: bool


def _overtaken(
    stints: list[Stint], blind: list[Span], locked: dict[str, list[Span]]
) -> Iterator[Violation]:
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
            if other.leased.begin_ns > act.end_ns
            and other.last_ns < stint.first_ns
            and not _overlaps(act, locked[other.life.id])
        ]
        if not passed or not stint.overtakes:
            continue
        # A lease call that was abandoned may have held the other job for a moment.
        if _overlaps(act, blind):
            continue
        lines = (*passed[0].life.lines, *stint.life.lines)
        text = f"leased before job {passed[0].life.id}, which was ahead of it"
        yield Violation("I10", stint.life.id, text, lines)


def _overlaps(act: Act, spans: list[Span]) -> bool:
    return any(begin < act.end_ns and end > act.begin_ns for begin, end in spans)


def _stints(life: JobHistory, steady: dict[str, Queue | None]) -> Iterator[tuple[Place, Stint]]:
    creations = [
        act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"
    ]
    grants = grants_of(life)
    if len(creations) != 1 or not creations[0].won or not grants:
        return
    creation = creations[0]
    if any(steady.get(grant.queue) is None for grant in grants):
        return
    # A job may be passed over while an enqueue locks its key; a job of a group or with parents may
    # wait for others.
    asked = creation.asked
    bound = asked.group is not None or bool(asked.after)
    passable = asked.expires_ms is not None or asked.key is not None or bound
    if not creation.asked.delay_ms and len(grants[0].leased) == 1:
        yield _stint(life, creation, grants[0], steady, passable=passable)
    for before, after in pairwise(grants):
        queue = steady[after.queue]
        if len(before.effective) != 1 or queue is None or len(after.leased) != 1:
            continue
        settle = before.effective[0]
        again = settle.verdict in ("retry", "release") and not settle.asked.delay_ms
        tail = queue.order == "tail" and creation.asked.group is None
        if settle.won and again and tail:
            yield _stint(life, settle, after, steady, passable=passable)


def _steady(name: str, history: History) -> Queue | None:
    """The settings, if they implied the same order at all times and a history can check it."""
    first, *others = (each.queue for each in history.settings[name])
    same = all(
        is_same_flow(first, other) and _order_of(first) == _order_of(other) for other in others
    )
    return first if same and first.group_batch == 1 and is_recorded(first) else None


def _order_of(queue: Queue) -> tuple[str, str, int | None, int]:
    return queue.order, queue.fairness, queue.aging_ms, queue.group_batch


def _stint(
    life: JobHistory,
    into_line: Act,
    grant: LeaseInterval,
    steady: dict[str, Queue | None],
    *,
    passable: bool,
) -> tuple[Place, Stint]:
    leased = grant.leased[0]
    queue, entry = steady[grant.queue], leased.answer
    assert queue is not None and entry is not None
    priority = entry.priority or 0
    # Fair turns apply within a priority, so a job of another priority may be passed over.
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
    return Place(queue.name, None if ages else priority, lane_of(recorded_job(entry), queue)), stint
