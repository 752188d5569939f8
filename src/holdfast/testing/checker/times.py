"""Invariants about when a job may be leased: I8 not after its expiry, I9 not before it is due."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life
from holdfast.testing.checker.grants import MS_NS, TOLERANCE_NS, buried_in_place

Faults = Iterator[tuple[str, str]]
_SETS_DUE = {
    "enqueue": ("",),
    "follow": ("",),
    "settle": ("retry", "release", "forward", "bury"),
    "amend": ("retime", "redrive", "expedite", "bury"),
}


def check_times(life: Life, history: History) -> Iterator[Violation]:
    for leased in life.of("lease"):
        found = [*_by_the_store(leased)]
        if not life.rewritten and not history.sweeping:
            found += [*_due(leased, life, history), *_expiry(leased, life, history)]
        for rule, text in found:
            yield Violation(rule, life.id, text, tuple(life.lines))


def _by_the_store(leased: Act) -> Faults:
    entry = leased.answer
    if entry is None or entry.leased_at is None:
        return
    if entry.due_at is not None and entry.leased_at < entry.due_at:
        yield "I9", f"leased {entry.due_at - entry.leased_at} ms before it was due"
    if entry.expires_at is not None and entry.leased_at >= entry.expires_at:
        yield "I8", f"leased {entry.leased_at - entry.expires_at} ms after its expiry"


def _due(leased: Act, life: Life, history: History) -> Faults:
    setters = [
        act
        for act in life.acts
        if act.verdict in _SETS_DUE.get(act.op, ())
        and act.phase != "fail"
        and not (act.void and act.op in ("settle", "amend"))
        and act.begin_ns < leased.end_ns
    ]
    if not setters:
        return
    certain = [act for act in setters if act.won and act.end_ns <= leased.begin_ns]
    last = max(certain, key=lambda act: act.end_ns, default=None)
    possible = [act for act in setters if last is None or _may_be_later(act, last)]
    due_ns = min(act.begin_ns + (act.asked.delay_ms or 0) * MS_NS for act in possible)
    first_ns = min(act.begin_ns for act in possible)
    if history.disturbed("jump", first_ns, leased.end_ns):
        return
    if leased.end_ns + TOLERANCE_NS < due_ns:
        yield "I9", f"leased {(due_ns - leased.end_ns) // MS_NS} ms before its delay was over"


def _may_be_later(act: Act, last: Act) -> bool:
    """Repeats under one token are answered alike, and only the first of them counted."""
    together = act.op == "settle" and last.op == "settle" and act.asked.token == last.asked.token
    first = act.op == "enqueue" and last.op == "enqueue"
    return act.end_ns >= last.begin_ns or together or first


def _expiry(leased: Act, life: Life, history: History) -> Faults:
    births = [act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"]
    bounds = [act.asked.expires_ms for act in births]
    if not births or any(bound is None for bound in bounds):
        return
    latest_ns = max(
        NEVER_NS if act.end_ns == NEVER_NS else act.end_ns + (act.asked.expires_ms or 0) * MS_NS
        for act in births
    )
    changed = any(
        not act.void and act.begin_ns < leased.end_ns and _lifts_expiry(act, history)
        for act in life.acts
    )
    first_ns = min(act.begin_ns for act in births)
    if changed or history.disturbed("jump", first_ns, leased.end_ns):
        return
    if leased.begin_ns > latest_ns + TOLERANCE_NS:
        yield "I8", f"leased {(leased.begin_ns - latest_ns) // MS_NS} ms after its expiry"


def _lifts_expiry(act: Act, history: History) -> bool:
    if act.op == "amend":
        edited = act.verdict == "edit" and act.asked.expires_ms is not None
        return act.verdict in ("redrive", "bury") or edited
    return act.op == "settle" and act.verdict == "bury" and not buried_in_place(act, history)
