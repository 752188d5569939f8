"""Invariants across jobs: ticks, rates, keys, liveness, counts, effects, groups and parents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.conformance.checker.findings import Violation
from holdfast.conformance.checker.job_history import (
    MS_NS,
    NEVER_NS,
    TOLERANCE_NS,
    Act,
    HeldInterval,
    History,
    JobHistory,
    crowds_of,
    reopened,
)
from holdfast.conformance.history import Entry, HistoryLine


def check_cross_job(history: History) -> Iterator[Violation]:
    """Check I9 ticks, I12 rates, I13 keys, I15 liveness, I16 counts and I17 effects."""
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
    by_name: dict[str, list[HistoryLine]] = defaultdict(list)
    for line in history.notes.get("rate", ()):
        by_name[line.facts["name"]].append(line)
    for name, lines in by_name.items():
        limit, per_ms = lines[0].facts["limit"], lines[0].facts["per_ms"]
        for first, beyond in zip(lines, lines[limit:], strict=False):
            if beyond.at_ns - first.at_ns < per_ms * MS_NS:
                text = f"rate {name}: over {limit} grants within {per_ms} ms"
                yield Violation("I12", "", text, (first, beyond))


def _keys(history: History) -> Iterator[Violation]:
    held: dict[tuple[str, str], list[tuple[Act, JobHistory]]] = defaultdict(list)
    # Enqueues that may have taken the key from an unfinished job.
    takers: dict[tuple[str, str], list[Act]] = defaultdict(list)
    for life in history.lives.values():
        creations = [act for act in life.of("enqueue") if act.asked.key is not None]
        new = [act for act in creations if act.won] or [
            act for act in creations if not act.void and life.kept is not None
        ]
        # If the outcome of several enqueues is unknown, any of them may have created the job.
        for creation in new if len(new) == 1 else ():
            held[creation.asked.queue, creation.asked.key or ""].append((creation, life))
        for creation in creations:
            if creation.asked.key_hold == "window" and not creation.void:
                takers[creation.asked.queue, creation.asked.key or ""].append(creation)
    for name, holders in held.items():
        holders.sort(key=lambda holder: holder[0].begin_ns)
        for (first, one), (second, other) in pairwise(holders):
            text = _key_fault(first, one, second, other, history, takers[name])
            if text and second.begin_ns < first.end_ns:
                # If the two overlap, either order is possible, and one that is legal excuses them.
                text = _key_fault(second, other, first, one, history, takers[name])
            if text:
                lines = (*one.lines, *other.lines)
                yield Violation("I13", other.id, f"{text} (key {name[1]}, job {one.id})", lines)


def _key_fault(
    first: Act,
    one: JobHistory,
    second: Act,
    other: JobHistory,
    history: History,
    takers: Sequence[Act],
) -> str | None:
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
    if any(
        act.asked.id != one.id and act.begin_ns < second.end_ns and act.over_ns > first.begin_ns
        for act in takers
    ):
        return None
    # A child may have been cancelled with its parents; no call reports that.
    unsure = bool(history.sweeping) or bool(first.asked.after)
    if not unsure and min(ends, default=NEVER_NS) > second.end_ns:
        return "a second job while the first was unfinished"
    return None


def _ticks(history: History) -> Iterator[Violation]:
    fired: dict[str, list[JobHistory]] = defaultdict(list)
    for life in history.lives.values():
        creations = [act for act in life.of("enqueue") if act.asked.tick]
        if life.kept is not None or any(act.won for act in creations):
            for tick in {act.asked.tick for act in creations}:
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


def check_groups_and_parents(held: list[HeldInterval], history: History) -> Iterator[Violation]:
    """Check I19 strict groups and I20 parents."""
    yield from _groups(held, history)
    for life in history.lives.values():
        yield from _parents(life, history)


def _groups(held: list[HeldInterval], history: History) -> Iterator[Violation]:
    by_group: dict[tuple[str, str], list[HeldInterval]] = defaultdict(list)
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
    """A job that entered its group once and was never moved, and when it can first have left."""

    life: JobHistory
    creation: Act
    leaves_ns: int


def _passed(holds: list[HeldInterval], group: str, history: History) -> Iterator[Violation]:
    own: dict[str, list[HeldInterval]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.begin_ns):
        own[hold.life.id].append(hold)
    lives = [its[0].life for its in own.values()]
    arrived = [found for life in lives if (found := _arrival(life, history))]
    arrived.sort(key=lambda each: each.creation.end_ns)
    position, slowest = 0, None
    for later in sorted(arrived, key=lambda each: each.creation.begin_ns):
        while (
            position < len(arrived) and arrived[position].creation.end_ns < later.creation.begin_ns
        ):
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


def _arrival(life: JobHistory, history: History) -> Arrival | None:
    creations = [
        act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"
    ]
    forwards = (*life.of("settle", "forward"), *life.of("settle_dead", "forward"))
    moved = any(not act.void for act in (*forwards, *life.of("amend")))
    # A job with parents may have been cancelled with them; no call reports that.
    unsure = (
        life.rewritten or moved or bool(history.sweeping) or any(b.asked.after for b in creations)
    )
    if len(creations) != 1 or not creations[0].won or unsure:
        return None
    ends = [act.begin_ns for act in life.of("settle", "complete", "bury") if not act.void]
    return Arrival(life, creations[0], min(ends, default=NEVER_NS))


def _parents(life: JobHistory, history: History) -> Iterator[Violation]:
    creations = [act for act in (*life.of("enqueue"), *life.of("follow")) if act.phase != "fail"]
    redriven = any(not act.void for act in life.of("amend", "redrive"))
    # An enqueue that is repeated after an unknown outcome has the same parents.
    if len({act.asked.after for act in creations}) != 1 or redriven or history.sweeping:
        return
    asked = creations[0].asked
    for leased in life.of("lease"):
        for name in asked.after:
            parent = history.lives.get(name)
            if parent is None or not _may_have_ended(parent, asked, leased.end_ns):
                lines = (*(parent.lines if parent else ()), *life.lines)
                text = f"leased before its parent {name} had ended as required"
                yield Violation("I20", life.id, text, lines)
    kept = life.kept
    if kept is not None and kept.reason == "dependency" and not _may_be_orphan(asked, history):
        text = "cancelled because of its parents, although none ended in such a way"
        yield Violation("I20", life.id, text, tuple(life.lines))


def _may_have_ended(parent: JobHistory, asked: Entry, by_ns: int) -> bool:
    done = _asked_by(parent.of("settle", "complete"), by_ns)
    if asked.after_on == "success" and asked.parent_death != "run":
        return done
    if asked.after_on != "death" and done:
        return True
    return _may_have_died(parent, by_ns)


def _may_have_died(parent: JobHistory, by_ns: int) -> bool:
    acts = [*parent.of("settle", "bury"), *parent.of("amend", "bury", "cancel", "delete")]
    # A parent that has parents itself may have been cancelled with them.
    return _asked_by(acts, by_ns) or any(act.asked.after for act in parent.acts)


def _may_be_orphan(asked: Entry, history: History) -> bool:
    parents = [history.lives.get(name) for name in asked.after]
    if asked.after_on == "death":
        return any(each and _asked_by(each.of("settle", "complete"), NEVER_NS) for each in parents)
    return any(each is None or _may_have_died(each, NEVER_NS) for each in parents)


def _asked_by(acts: list[Act], by_ns: int) -> bool:
    return any(not act.void and act.begin_ns <= by_ns for act in acts)
