"""Invariants of jobs that share limits: I12 rates, I18 limits, I21 slots. Settings may change at
any time: whatever may have counted at the moment is allowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.core.flow import Limit, Rate, SlotKey
from holdfast.core.lanes import fields_of, is_same_flow, lane_of
from holdfast.core.model import NewJob, Queue
from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, History
from holdfast.testing.checker.grants import MS_NS, TOLERANCE_NS, Grant
from holdfast.testing.checker.holds import Hold, crowds_of
from holdfast.testing.history.lines import Entry

_OWN = {"queue", "task", "tenant", "group"}
"""What a limit may count by if a history is to tell; payloads are not written down."""


BySlot = dict[SlotKey, list[Hold]]


def check_slots(held: list[Hold], history: History) -> Iterator[Violation]:
    by_slot = _by_slot(held, history)
    yield from _limits(by_slot, history)
    if not history.notes.get("reboot"):
        # Rates run on the boot clock, which began anew.
        yield from _rates(by_slot, history)
    yield from _leaks(history)


def told(entry: Entry) -> NewJob:
    """A leased job as far as its lane goes."""
    return NewJob(
        id=entry.id, task=entry.task, queue=entry.queue, tenant=entry.tenant, group=entry.group
    )


def is_limited(hold: Hold, history: History) -> bool:
    """Was the job in a queue that ever had a limit?"""
    return any(each.queue.limits for each in history.settings.get(hold.entry.queue, ()))


def is_told(queue: Queue) -> bool:
    """Can a history tell which lane a job is in?"""
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
            # The last of them was let in when all had asked, and before all were known.
            begin_ns = max(hold.grant.begin_ns for hold in crowd)
            end_ns = max(hold.begin_ns for hold in crowd)
            most = _bound(_declared(slot.limit, crowd, history, begin_ns, end_ns))
            if len(crowd) > most:
                lines = tuple(line for hold in crowd for line in hold.life.lines)
                text = f"{len(crowd)} leases at once under limit {slot.limit} ({slot.key!r})"
                yield Violation("I18", crowd[-1].life.id, f"{text} of {most}", lines)
                break


def _bound(known: list[Limit]) -> int:
    """With several numbers under one name, the largest is the one that certainly holds."""
    numbers = [limit.concurrency for limit in known]
    return max((NEVER_NS if number is None else number for number in numbers), default=NEVER_NS)


def _declared(
    name: str, holds: list[Hold], history: History, begin_ns: int, end_ns: int
) -> list[Limit]:
    """The limit as it may have been in that time, in the queues of these leases."""
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
            # Where it changed within the window, or queues disagree, the two add up to no bound.
            if rate and all(each.rate == rate for each in now) and _is_over(started, rate):
                lines = tuple(line for grant in started for line in grant.leased[0].lines)
                text = (
                    f"{len(started)} starts within {rate.per_ms} ms under limit {slot.limit}"
                    f" ({slot.key!r}) of {rate.count} and a burst of {rate.burst}"
                )
                yield Violation("I12", "", text, lines)
                break


def _is_over(started: list[Grant], rate: Rate) -> bool:
    return len(started) > rate.count + rate.burst - 1


def _windows(grants: list[Grant], window_ns: int) -> Iterator[list[Grant]]:
    """For each start, those that were certainly within one window that begins with it."""
    ordered = sorted(grants, key=lambda grant: grant.begin_ns)
    for position, first in enumerate(ordered):
        inside = []
        for grant in ordered[position:]:
            if grant.begin_ns > first.begin_ns + window_ns:
                break
            if grant.leased[0].end_ns < first.begin_ns + window_ns:
                inside.append(grant)
        yield inside


def _by_slot(held: list[Hold], history: History) -> BySlot:
    """Which leases certainly had which slot: by every settings of the time when they were asked
    for, if these changed."""
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
    lane = lane_of(told(entry), queue) if queue.limits else None
    names = {limit.name for limit in queue.limits if _OWN.issuperset(fields_of(limit.key))}
    return (slot for slot in (lane.slots if lane else ()) if slot.limit in names)


def _leaks(history: History) -> Iterator[Violation]:
    """At the end, when nothing is leased, nobody holds a slot."""
    for line in history.notes.get("slot", ()):
        if history.drained and line.facts["used"]:
            facts = line.facts
            text = (
                f"limit {facts['limit']} ({facts['key']!r}) counts {facts['used']}, nobody has it"
            )
            yield Violation("I21", "", text, (line,))
    for line in history.notes.get("audit", ()):
        facts = line.facts
        if facts["used"] != facts["held"]:
            text = f"limit {facts['limit']} ({facts['key']!r}) counts {facts['used']}"
            yield Violation("I21", "", f"{text}, {facts['held']} leases have it", (line,))
    for lines in history.recounts:
        if lines[1].count:
            text = f"a recount found {lines[1].count} wrong"
            yield Violation("I21", "", text, lines)
