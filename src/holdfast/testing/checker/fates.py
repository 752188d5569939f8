"""Invariants about a job's beginning and end: I1, I2, I7, I11, I14, I16."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.testing.checker.findings import Violation
from holdfast.testing.checker.fold import Act, History, Life
from holdfast.testing.checker.grants import is_final, removed, reopened

_CAUSES = {
    "done": (("settle", "complete"),),
    "dead": (("settle", "bury"), ("amend", "bury")),
    "cancelled": (("amend", "cancel"),),
}

Faults = Iterator[tuple[str, str]]


def check_fate(life: Life, history: History, digests: dict[str, str]) -> Iterator[Violation]:
    """`digests` names, for a payload, a job that was enqueued with it."""
    found = [
        *_kept(life, history),
        *_born(life, digests),
        *_cause(life, history),
        *_policy(life, history),
        *_payload(life),
        *_agreed(life, history),
    ]
    for rule, text in found:
        yield Violation(rule, life.id, text, tuple(life.lines))


def exists(act: Act) -> bool:
    """Does this answer oblige the store to have the job?"""
    if act.op == "follow":
        return act.won and act.asked.key is None
    own = act.answer is not None and act.answer.id == act.asked.id
    return act.op == "enqueue" and act.phase == "ok" and own and act.answer_is("new", "duplicate")


def _kept(life: Life, history: History) -> Faults:
    if history.dumped and life.kept is None and not removed(life, history):
        certain = next((act for act in life.acts if exists(act)), None)
        if certain is not None:
            yield "I1", f"acknowledged by {certain.op}, and gone from the store"


def _born(life: Life, digests: dict[str, str]) -> Faults:
    seen = life.kept is not None or bool(life.of("lease"))
    if not seen:
        return
    enqueues, follows = life.of("enqueue"), life.of("follow")
    if any(exists(act) or not act.void for act in enqueues):
        return
    if not enqueues and not follows:
        digest = life.kept.digest if life.kept else ""
        if digest in digests:
            yield "I7", f"a second copy of job {digests[digest]}"
        else:
            yield "I2", "nobody enqueued it"
        return
    if not follows:
        yield "I2", "its enqueue was refused or failed, and it is there all the same"
        return
    released = [act for act in follows if not act.void]
    if not released:
        yield "I11", "its parent's completion did not take effect"
    for leased in life.of("lease"):
        if released and all(act.begin_ns > leased.end_ns for act in released):
            yield "I11", "leased before its parent's completion was asked for"


def _cause(life: Life, history: History) -> Faults:
    kept = life.kept
    if kept is None or history.sweeping:
        return
    causes = [
        act
        for op, verdict in _CAUSES.get(kept.state, ())
        for act in life.of(op, verdict)
        if not act.void
    ]
    orphan = kept.state == "cancelled" and kept.reason == "dependency" and _has_parents(life)
    if kept.state in _CAUSES and not causes and not orphan:
        yield "I7", f"{kept.state}, and nobody asked for that"
    if kept.state == "dead" and causes:
        reasons = {act.asked.reason for act in causes}
        if kept.reason not in reasons:
            said = ", ".join(sorted(reasons))
            yield "I7", f"dead for the reason {kept.reason!r}; the verdicts said {said}"
    if kept.state in ("waiting", "leased") and history.drained:
        yield "I15", f"still {kept.state} at the end"


def _has_parents(life: Life) -> bool:
    return any(act.asked.after for act in life.acts)


def _policy(life: Life, history: History) -> Faults:
    if life.rewritten:
        return
    own = next(
        (act.asked.max_attempts for act in life.acts if act.asked.max_attempts is not None), None
    )
    for act in life.of("settle", "retry", "bury"):
        queue = history.queues.get(act.asked.queue)
        if queue is None or act.void or not act.asked.failure:
            continue
        most = queue.max_attempts if own is None else own
        attempt = act.asked.attempt or 0
        exhausted = 0 < most <= attempt
        if act.verdict == "retry" and exhausted and not act.asked.cancel_requested:
            yield "I7", f"retried after attempt {attempt} of {most}"
        if act.verdict == "bury" and act.asked.reason == "attempts" and not exhausted:
            yield "I7", f"buried for its attempts after {attempt} of {most}"


def _payload(life: Life) -> Faults:
    if life.rewritten:
        return
    allowed = {
        act.asked.digest
        for act in life.acts
        if act.op in ("enqueue", "follow") or (act.op == "amend" and act.asked.digest)
    }
    seen = [act.answer for act in life.of("lease")] + [life.kept]
    for entry in seen:
        if allowed and entry is not None and entry.digest not in allowed:
            yield "I14", "its payload is not the one that was enqueued"
            return


def _agreed(life: Life, history: History) -> Faults:
    kept = life.kept
    if kept is None:
        return
    for act in life.of("settle"):
        if not act.won or not is_final(act, history):
            continue
        expected = "done" if act.verdict == "complete" else "dead"
        if kept.state != expected and not reopened(life, history, act.begin_ns, 2**63):
            yield "I16", f"{kept.state} in the store, though its {act.verdict} was acknowledged"
