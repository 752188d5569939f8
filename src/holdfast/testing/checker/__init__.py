"""Did the store keep its promises? One fold over a recorded history, then every invariant.

`ok` obliges, `info` only permits: what nobody knows is never held against the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.testing.checker.across import check_across
from holdfast.testing.checker.bonds import check_bonds
from holdfast.testing.checker.fates import check_fate
from holdfast.testing.checker.findings import INVARIANTS, Findings, Violation, percentile
from holdfast.testing.checker.fold import Act, History, fold
from holdfast.testing.checker.grants import MS_NS, grants_of
from holdfast.testing.checker.holds import holds_of
from holdfast.testing.checker.leases import check_leases
from holdfast.testing.checker.order import check_order
from holdfast.testing.checker.slots import check_slots, is_limited
from holdfast.testing.checker.times import check_times
from holdfast.testing.history.lines import Line

__all__ = ["INVARIANTS", "Findings", "Violation", "check"]


def check(lines: Iterable[Line]) -> Findings:
    """`lines` by time, with a dump of the store at their end."""
    history = fold(lines)
    digests = {
        act.asked.digest: life.id
        for life in history.lives.values()
        for act in life.acts
        if act.op in ("enqueue", "follow")
    }
    violations = [
        found
        for life in history.lives.values()
        for found in (
            *check_leases(life, history),
            *check_fate(life, history, digests),
            *check_times(life, history),
        )
    ]
    held = holds_of(history)
    violations += [
        *check_across(history),
        *check_order(history),
        *check_slots(held, history),
        *check_bonds(held, history),
    ]
    effects = history.notes.get("effect", [])
    recoveries = list(_recoveries(history))
    return Findings(
        jobs=len(history.lives),
        calls=history.calls,
        operations=history.operations,
        unknown=history.unknown,
        kills=len(history.notes.get("kill", ())),
        server_kills=len(history.notes.get("server_kill", ())),
        freezes=len(history.notes.get("freeze", ())),
        effects=len(effects),
        duplicates=_run_again(history),
        states=dict(
            Counter(life.kept.state for life in history.lives.values() if life.kept is not None)
        ),
        limited=sum(is_limited(hold, history) for hold in held),
        grouped=sum(hold.entry.group is not None for hold in held),
        children=sum(any(act.asked.after for act in hold.life.acts) for hold in held),
        recounts=len(history.recounts),
        told=sum(line.facts["count"] for line in history.notes.get("told", ())),
        recovery_ms_p50=percentile(recoveries, 0.50),
        recovery_ms_p99=percentile(recoveries, 0.99),
        violations=tuple(violations),
    )


def _recoveries(history: History) -> Iterable[float]:
    """From the death of a holder to the end of its lease, when the job is in line again."""
    deaths = {line.facts["process"]: line.at_ns for line in history.notes.get("kill", ())}
    if not deaths:
        return
    for life in history.lives.values():
        for grant in grants_of(life):
            reaped = [act.end_ns for act in grant.settles if act.won and _is_reaped(act)]
            for held in grant.leased:
                died_ns = deaths.get(held.process)
                if died_ns is not None and reaped:
                    yield max(0, min(reaped) - died_ns) / MS_NS


def _run_again(history: History) -> int:
    """Effects under leases that the reaper ended: somebody had to run the job once more."""
    effects = {(line.facts["id"], line.facts["token"]) for line in history.notes.get("effect", ())}
    return sum(
        (life.id, grant.token) in effects
        for life in history.lives.values()
        for grant in grants_of(life)
        if any(act.won and _is_reaped(act) for act in grant.settles)
    )


def _is_reaped(act: Act) -> bool:
    return act.asked.failure == "overdue"
