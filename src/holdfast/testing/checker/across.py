"""Invariants between jobs: I9 ticks, I10 order, I12 rates, I13 keys, I15 liveness, I16 counts,
I17 effects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life
from holdfast.testing.checker.grants import MS_NS, TOLERANCE_NS, Grant, grants_of, reopened
from holdfast.testing.history.lines import Line

ORPHAN_NS_MAX = 5_000 * MS_NS
"""How long a call may go on inside the store after its caller was killed."""


def check_across(history: History) -> Iterator[Violation]:
    yield from _rates(history)
    yield from _keys(history)
    yield from _ticks(history)
    yield from _effects(history)
    yield from _counts(history)
    for line in history.notes.get("undrained", ()):
        yield Violation("I15", "", f"not drained: {line.facts}", (line,))
    # Order is by due time: a clock that was set back has put later jobs before earlier ones.
    if not history.notes.get("jump"):
        yield from _order(history)


class Stint(NamedTuple):
    """One stay in line: from when it was asked for and answered, to the lease that ended it."""

    life: Life
    line_begin_ns: int
    line_end_ns: int
    leased: Act
    overtakes: bool
    may_be_overtaken: bool


def _order(history: History) -> Iterator[Violation]:
    blind = [(begin, min(end, begin + ORPHAN_NS_MAX)) for begin, end in history.blind]
    lines: dict[tuple[str, int], list[Stint]] = defaultdict(list)
    for life in history.lives.values():
        if life.rewritten or life.of("amend") or history.sweeping:
            continue
        for place, stint in _stints(life, history):
            lines[place].append(stint)
    for stints in lines.values():
        yield from _overtaken(stints, blind)


def _overtaken(stints: list[Stint], blind: list[tuple[int, int]]) -> Iterator[Violation]:
    earlier = sorted((s for s in stints if s.may_be_overtaken), key=lambda s: s.line_end_ns)
    position, slowest = 0, None
    for stint in sorted(stints, key=lambda s: s.line_begin_ns):
        while position < len(earlier) and earlier[position].line_end_ns < stint.line_begin_ns:
            candidate = earlier[position]
            if slowest is None or candidate.leased.begin_ns > slowest.leased.begin_ns:
                slowest = candidate
            position += 1
        if slowest is None or not stint.overtakes:
            continue
        act = stint.leased
        if slowest.leased.begin_ns <= act.end_ns:
            continue
        # A lease call that came to nothing may have held the other job for a moment.
        if any(begin < act.end_ns and end > act.begin_ns for begin, end in blind):
            continue
        lines = (*slowest.life.lines, *stint.life.lines)
        text = f"leased before job {slowest.life.id}, which had been in line before it"
        yield Violation("I10", stint.life.id, text, lines)


def _stints(life: Life, history: History) -> Iterator[tuple[tuple[str, int], Stint]]:
    births = [act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"]
    grants = grants_of(life)
    if len(births) != 1 or not births[0].won or not grants:
        return
    birth = births[0]
    priority = birth.asked.priority or 0
    # A job whose key an enqueuer is looking at may be locked for a moment, and is passed over.
    passable = birth.asked.expires_ms is not None or birth.asked.key is not None
    if not birth.asked.delay_ms and len(grants[0].leased) == 1:
        yield _stint(life, birth, grants[0], priority=priority, passable=passable)
    for before, after in pairwise(grants):
        queue = history.queues.get(after.queue)
        if len(before.effective) != 1 or queue is None or len(after.leased) != 1:
            continue
        settle = before.effective[0]
        again = settle.verdict in ("retry", "release") and not settle.asked.delay_ms
        if settle.won and again and queue.order == "tail":
            yield _stint(life, settle, after, priority=priority, passable=passable)


def _stint(
    life: Life, into_line: Act, grant: Grant, *, priority: int, passable: bool
) -> tuple[tuple[str, int], Stint]:
    leased = grant.leased[0]
    stint = Stint(
        life,
        into_line.begin_ns,
        into_line.end_ns,
        leased,
        overtakes=leased.asked.state != "selective",
        may_be_overtaken=not passable,
    )
    return (grant.queue, priority), stint


def _rates(history: History) -> Iterator[Violation]:
    by_name: dict[str, list[Line]] = defaultdict(list)
    for line in history.notes.get("rate", ()):
        by_name[line.facts["name"]].append(line)
    for name, lines in by_name.items():
        limit, per_ms = lines[0].facts["limit"], lines[0].facts["per_ms"]
        for first, beyond in zip(lines, lines[limit:], strict=False):
            if beyond.at_ns - first.at_ns < per_ms * MS_NS:
                text = f"rate {name}: over {limit} grants within {per_ms} ms"
                yield Violation("I12", "", text, (first, beyond))


def _keys(history: History) -> Iterator[Violation]:
    held: dict[tuple[str, str], list[tuple[Act, Life]]] = defaultdict(list)
    for life in history.lives.values():
        births = [act for act in life.of("enqueue") if act.asked.key is not None]
        new = [act for act in births if act.won] or [
            act for act in births if not act.void and life.kept is not None
        ]
        for birth in new[:1]:
            held[birth.asked.queue, birth.asked.key or ""].append((birth, life))
    for (_, key), holders in held.items():
        holders.sort(key=lambda holder: holder[0].begin_ns)
        for (first, one), (second, other) in pairwise(holders):
            text = _key_fault(first, one, second, other, history)
            if text and second.begin_ns < first.end_ns:
                # Nobody can say which of the two came first: either order may excuse them.
                text = _key_fault(second, other, first, one, history)
            if text:
                lines = (*one.lines, *other.lines)
                yield Violation("I13", other.id, f"{text} (key {key}, job {one.id})", lines)


def _key_fault(first: Act, one: Life, second: Act, other: Life, history: History) -> str | None:
    window_ms = first.asked.key_window_ms or 0
    if not history.notes.get("jump"):
        apart_ms = (second.end_ns - first.begin_ns + TOLERANCE_NS) // MS_NS
        if one.kept is not None and other.kept is not None:
            apart_ms = abs((other.kept.created_at or 0) - (one.kept.created_at or 0))
        if apart_ms < window_ms:
            return f"a second job after {apart_ms} ms under a key held for {window_ms} ms"
    ends = [
        act.begin_ns
        for act in one.acts
        if not act.void
        and (act.op, act.verdict)
        in (
            ("settle", "complete"),
            ("settle", "bury"),
            ("amend", "bury"),
            ("amend", "cancel"),
            ("amend", "delete"),
        )
    ]
    if not history.sweeping and min(ends, default=NEVER_NS) > second.end_ns:
        return "a second job while the first was unfinished"
    return None


def _ticks(history: History) -> Iterator[Violation]:
    fired: dict[str, list[Life]] = defaultdict(list)
    for life in history.lives.values():
        births = [act for act in life.of("enqueue") if act.asked.tick]
        if life.kept is not None or any(act.won for act in births):
            for tick in {act.asked.tick for act in births}:
                fired[tick].append(life)
    for tick, lives in fired.items():
        if len(lives) > 1:
            lines = tuple(line for life in lives for line in life.lines)
            yield Violation("I9", lives[1].id, f"{len(lives)} jobs for the tick {tick}", lines)


def _effects(history: History) -> Iterator[Violation]:
    effects = history.notes.get("effect", ())
    if not effects:
        return
    counts = Counter((line.facts["id"], line.facts["token"]) for line in effects)
    for life in history.lives.values():
        winners = {act.asked.token for act in life.of("settle", "complete") if act.won}
        accepted = sum(counts[life.id, token] for token in winners)
        if winners and accepted != 1 and not reopened(life, history, 0, NEVER_NS):
            text = f"{accepted} effects under the tokens that completed it"
            yield Violation("I17", life.id, text, tuple(life.lines))


def _counts(history: History) -> Iterator[Violation]:
    stored: Counter[tuple[str, str]] = Counter()
    for life in history.lives.values():
        if life.kept is not None:
            stored[life.kept.queue, life.kept.state] += 1
    for line in history.notes.get("counts", ()):
        facts = line.facts
        for state in ("leased", "done", "dead", "cancelled"):
            found = stored[facts["queue"], state]
            if facts["exact"] and found != facts[state]:
                text = f"queue {facts['queue']} counts {facts[state]} {state}, it has {found}"
                yield Violation("I16", "", text, (line,))
