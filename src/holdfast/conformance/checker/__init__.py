"""Checks a recorded history against every invariant of an engine.

Only calls with a known outcome (`ok`) are required to show in the store. Calls with an unknown
outcome (`info`) are merely allowed to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.conformance.checker.admission import check_order, check_slots, is_limited
from holdfast.conformance.checker.cross_job import check_cross_job, check_groups_and_parents
from holdfast.conformance.checker.findings import INVARIANTS, Findings, Violation, percentile
from holdfast.conformance.checker.job_history import (
    MS_NS,
    NEVER_NS,
    Act,
    History,
    fold,
    grants_of,
    holds_of,
)
from holdfast.conformance.checker.single_job import check_leases, check_lifecycle, check_times
from holdfast.conformance.history import HistoryLine

__all__ = ["INVARIANTS", "Findings", "Violation", "check"]


def check(lines: Iterable[HistoryLine]) -> Findings:
    """Check `lines`, sorted by time, with a dump of the store at their end. Raises ValueError if a
    call follows the dump: its jobs would seem to be lost."""
    history = fold(lines)
    _require_dump_at_end(history)
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
            *check_lifecycle(life, history, digests),
            *check_times(life, history),
        )
    ]
    held = holds_of(history)
    violations += [
        *check_cross_job(history),
        *check_order(history),
        *check_slots(held, history),
        *check_groups_and_parents(held, history),
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


def _require_dump_at_end(history: History) -> None:
    dumped_ns = min((line.at_ns for line in history.notes.get("dumped", ())), default=NEVER_NS)
    for life in history.lives.values():
        for act in life.acts:
            if act.begin_ns > dumped_ns:
                raise ValueError(
                    f"{act.process} called {act.op} for job {life.id} after the dump of the store:"
                    " stop all clients first"
                )


def _recoveries(history: History) -> Iterable[float]:
    """The times from the death of a lease's holder to the end of that lease, in milliseconds."""
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
    """The number of effects under leases that the reaper ended: those jobs ran more than once."""
    effects = {(line.facts["id"], line.facts["token"]) for line in history.notes.get("effect", ())}
    return sum(
        (life.id, grant.token) in effects
        for life in history.lives.values()
        for grant in grants_of(life)
        if any(act.won and _is_reaped(act) for act in grant.settles)
    )


def _is_reaped(act: Act) -> bool:
    return act.asked.failure == "overdue"
