"""Invariants about who holds a job: I3 final, I4 one holder, I5 fencing, I6 attempts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from holdfast.core import limits
from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life
from holdfast.testing.checker.grants import (
    TOLERANCE_NS,
    Grant,
    buried_in_place,
    grants_of,
    is_final,
    reborn,
    reopened,
)


def check_leases(life: Life, history: History) -> Iterator[Violation]:
    grants = grants_of(life)
    found = [
        *_final(life, grants, history),
        *_one_holder(life, grants, history),
        *_fenced(grants),
        *_attempts(life, grants, history),
    ]
    for rule, text in found:
        yield Violation(rule, life.id, text, tuple(life.lines))


Faults = Iterator[tuple[str, str]]


def _final(life: Life, grants: list[Grant], history: History) -> Faults:
    settles = [act for grant in grants for act in grant.settles if act.won]
    ends = [act for act in settles if is_final(act, history)]
    for end in ends:
        for grant in grants:
            for act in grant.leased:
                late = act.begin_ns > end.end_ns
                if late and not reopened(life, history, end.begin_ns, act.end_ns):
                    yield "I3", f"leased as {grant.token} after its {end.verdict} was answered"
        for act in settles:
            same = (act.verdict, act.asked.token) == (end.verdict, end.asked.token)
            apart = act.begin_ns > end.end_ns or is_final(act, history)
            first, last = min(act.begin_ns, end.begin_ns), max(act.end_ns, end.end_ns)
            if not same and apart and not reopened(life, history, first, last):
                yield "I3", f"settled by {act.verdict} as well as by {end.verdict}"
    for gone in life.of("amend", "delete"):
        for grant in grants:
            afterwards = [act for act in grant.leased if act.begin_ns > gone.end_ns]
            if gone.won and any(not reborn(life, act.end_ns) for act in afterwards):
                yield "I3", f"leased as {grant.token} after it was deleted"


def _one_holder(life: Life, grants: list[Grant], history: History) -> Faults:
    for grant in grants:
        if len(grant.leased) > 1:
            yield "I4", f"token {grant.token} was given {len(grant.leased)} times"
        yield from _early_end(grant, history)
    for before, after in pairwise(grants):
        if before.leased and after.known_ns < before.begin_ns:
            yield "I4", f"token {after.token} was given before {before.token}"
        ended = any(act.begin_ns < after.known_ns for act in before.effective)
        if not ended and not history.sweeping and not _deleted_by_force(life):
            yield "I4", f"leased as {after.token} while nobody had ended lease {before.token}"


def _early_end(grant: Grant, history: History) -> Faults:
    earliest = grant.deadline_ns_min() - TOLERANCE_NS
    for act in grant.overdue:
        if act.end_ns < earliest and not history.disturbed("reboot", grant.begin_ns, act.end_ns):
            yield "I4", f"lease {grant.token} was called overdue before its deadline"
    for act in grant.settles:
        reaped = act.won and act.asked.failure == "overdue"
        rebooted = history.disturbed("reboot", grant.begin_ns, act.end_ns)
        if reaped and act.end_ns < earliest and not rebooted:
            yield "I4", f"lease {grant.token} was reaped before its deadline"


def _deleted_by_force(life: Life) -> bool:
    return any(not act.void for act in life.of("amend", "delete"))


def _fenced(grants: list[Grant]) -> Faults:
    newer_ns, newer = NEVER_NS, 0
    for grant in reversed(grants):
        for act in (*grant.settles, *grant.renewals):
            if act.won and act.begin_ns > newer_ns:
                yield "I5", f"{_named(act)} under {grant.token} won after lease {newer} was given"
        for renewal in grant.renewals:
            if renewal.won and _too_late(renewal, grant):
                yield "I5", f"lease {grant.token} was renewed after its end"
        for act in grant.leased:
            if act.end_ns < newer_ns:
                newer_ns, newer = act.end_ns, grant.token


def _named(act: Act) -> str:
    return act.verdict or act.op


def _too_late(renewal: Act, grant: Grant) -> bool:
    settled = any(act.won and act.end_ns < renewal.begin_ns for act in grant.settles)
    lapsed = renewal.begin_ns > grant.deadline_ns_max(renewal) + TOLERANCE_NS
    return settled or lapsed


def _attempts(life: Life, grants: list[Grant], history: History) -> Faults:
    possible = {0}
    # A waiting job that is buried in a queue with a dead_queue starts afresh there.
    buried_waiting = any(not act.void for act in life.of("amend", "bury"))
    released = sum(not act.void for act in life.of("settle", "release"))
    for grant in grants:
        if possible and (buried_waiting or reopened(life, history, 0, grant.known_ns)):
            possible.add(0)
        if possible and grant.attempt - 1 not in possible:
            expected = ", ".join(str(base + 1) for base in sorted(possible))
            yield "I6", f"lease {grant.token} is attempt {grant.attempt}, expected {expected}"
        most = _attempts_max(life, grant, history)
        if most and grant.attempt > most and released <= limits.RELEASES_MAX:
            yield "I6", f"lease {grant.token} is attempt {grant.attempt} of at most {most}"
        possible = {
            base
            for act in grant.effective
            for base in _base_after(act, grant.attempt, released, history)
        }


def _base_after(act: Act, attempt: int, released: int, history: History) -> Iterator[int]:
    """The attempts that count when the lease ended this way."""
    match act.verdict:
        case "retry":
            yield attempt
        case "release":
            yield max(attempt - 1, 0)
            if released > limits.RELEASES_MAX:
                yield attempt
        case "forward":
            yield 0
        case "bury" if not buried_in_place(act, history):
            yield 0
        case _:
            yield -1


def _attempts_max(life: Life, grant: Grant, history: History) -> int:
    """0 where there is no bound, or none that can be told."""
    own = [
        act.asked.max_attempts
        for act in (*life.of("enqueue"), *life.of("follow"))
        if act.asked.max_attempts is not None
    ]
    if life.rewritten:
        return 0
    if own:
        return own[0]
    queue = history.queues.get(grant.queue)
    return queue.max_attempts if queue else 0
