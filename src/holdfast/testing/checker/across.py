"""Invariants between jobs: I9 ticks, I12 rates, I13 keys, I15 liveness, I16 counts, I17 effects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life
from holdfast.testing.checker.grants import MS_NS, TOLERANCE_NS, reopened
from holdfast.testing.history.lines import Line


def check_across(history: History) -> Iterator[Violation]:
    yield from _rates(history)
    yield from _keys(history)
    yield from _ticks(history)
    yield from _effects(history)
    yield from _counts(history)
    for line in history.notes.get("undrained", ()):
        yield Violation("I15", "", f"not drained: {line.facts}", (line,))
    for line in history.notes.get("deadlocks", ()):
        if line.facts["count"]:
            yield Violation(
                "I15", "", f"deadlocks that a server had to break: {line.facts}", (line,)
            )


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
        # Of several that nobody knows the answer of, any may have made it.
        for birth in new if len(new) == 1 else ():
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
    # A child may have been cancelled with its parents, which nobody is told.
    unsure = bool(history.sweeping) or bool(first.asked.after)
    if not unsure and min(ends, default=NEVER_NS) > second.end_ns:
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
