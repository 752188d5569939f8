"""Invariants on a single job: its creation, times, holders, attempts and end.

Only acts on the job itself count; invariants that join jobs are in `cross_job` and `admission`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from holdfast.conformance.checker.findings import Violation
from holdfast.conformance.checker.job_history import (
    MS_NS,
    NEVER_NS,
    TOLERANCE_NS,
    Act,
    History,
    JobHistory,
    LeaseInterval,
    deletions_of,
    grants_of,
    is_final,
    reborn,
    removed,
    reopened,
)
from holdfast.core import bounds

_CAUSES = {
    "done": (("settle", "complete"),),
    "dead": (("settle", "bury"), ("amend", "bury")),
    "cancelled": (("amend", "cancel"),),
}
_SETS_DUE = {
    "enqueue": ("",),
    "follow": ("",),
    "settle": ("retry", "release", "forward"),
    "settle_dead": ("forward",),
    "amend": ("retime", "redrive", "expedite"),
}

Faults = Iterator[tuple[str, str]]


def check_lifecycle(
    life: JobHistory, history: History, digests: dict[str, str]
) -> Iterator[Violation]:
    """Check I1, I2, I7, I11, I14 and I16. `digests` maps the digest of a payload to a job that was
    enqueued with it."""
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
    """Whether this answer requires the job to be in the store."""
    if act.op == "follow":
        return act.won and act.asked.key is None
    own = act.answer is not None and act.answer.id == act.asked.id
    return act.op == "enqueue" and act.phase == "ok" and own and act.answer_is("new", "duplicate")


def _kept(life: JobHistory, history: History) -> Faults:
    if history.dumped and life.kept is None and not removed(life, history):
        certain = next((act for act in life.acts if exists(act)), None)
        if certain is not None:
            yield "I1", f"acknowledged by {certain.op}, but missing from the store"


def _born(life: JobHistory, digests: dict[str, str]) -> Faults:
    if life.kept is None and not life.of("lease"):
        return
    enqueues, follows = life.of("enqueue"), life.of("follow")
    if any(exists(act) or not act.void for act in enqueues):
        return
    if not enqueues and not follows:
        digest = life.kept.digest if life.kept else ""
        if digest in digests:
            yield "I7", f"a second copy of job {digests[digest]}"
        else:
            yield "I2", "it was never enqueued"
        return
    if not follows:
        yield "I2", "its enqueue was refused or failed, but it is in the store"
        return
    released = [act for act in follows if not act.void]
    if not released:
        yield "I11", "its parent's completion did not take effect"
    for leased in life.of("lease"):
        if released and all(act.begin_ns > leased.end_ns for act in released):
            yield "I11", "leased before its parent's completion was requested"


def _cause(life: JobHistory, history: History) -> Faults:
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
        yield "I7", f"{kept.state}, but no call requested that"
    if kept.state == "dead" and causes:
        reasons = {act.asked.reason for act in causes}
        if kept.reason not in reasons:
            named = ", ".join(sorted(reasons))
            yield "I7", f"dead for the reason {kept.reason!r}; the verdicts named {named}"
    if kept.state in ("waiting", "leased") and history.drained:
        yield "I15", f"still {kept.state} at the end"


def _has_parents(life: JobHistory) -> bool:
    return any(act.asked.after for act in life.acts)


def _policy(life: JobHistory, history: History) -> Faults:
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
            yield "I7", f"buried for reaching its maximum attempts after {attempt} of {most}"


def _payload(life: JobHistory) -> Faults:
    if life.rewritten:
        return
    allowed = {
        act.asked.digest
        for act in life.acts
        if act.op in ("enqueue", "follow") or (act.op == "amend" and act.asked.digest)
    }
    for entry in [*(act.answer for act in life.of("lease")), life.kept]:
        if allowed and entry is not None and entry.digest not in allowed:
            yield "I14", "its payload is not the one that was enqueued"
            return


def _agreed(life: JobHistory, history: History) -> Faults:
    kept = life.kept
    if kept is None:
        return
    if kept.state == "leased" and kept.reason:
        return  # It is leased as a dead letter.
    for act in life.of("settle"):
        if not act.won or not is_final(act):
            continue
        expected = "done" if act.verdict == "complete" else "dead"
        if kept.state != expected and not reopened(life, history, act.begin_ns, 2**63):
            yield "I16", f"{kept.state} in the store, though its {act.verdict} was acknowledged"


def check_times(life: JobHistory, history: History) -> Iterator[Violation]:
    """Check I8 and I9: each lease is at or after the due time and before the expiry."""
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


def _due(leased: Act, life: JobHistory, history: History) -> Faults:
    setters = [
        act
        for act in life.acts
        if act.verdict in _SETS_DUE.get(act.op, ())
        and act.phase != "fail"
        and not (act.void and act.op in ("settle", "settle_dead", "amend"))
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
    """Whether `act` may have set the due time after `last` did. Repeats under one token, and
    repeated enqueues, get the same answer although only the first took effect."""
    together = act.op == "settle" and last.op == "settle" and act.asked.token == last.asked.token
    first = act.op == "enqueue" and last.op == "enqueue"
    return act.end_ns >= last.begin_ns or together or first


def _expiry(leased: Act, life: JobHistory, history: History) -> Faults:
    creations = [
        act for act in life.acts if act.op in ("enqueue", "follow") and act.phase != "fail"
    ]
    if not creations or any(act.asked.expires_ms is None for act in creations):
        return
    latest_ns = max(
        NEVER_NS if act.end_ns == NEVER_NS else act.end_ns + (act.asked.expires_ms or 0) * MS_NS
        for act in creations
    )
    changed = any(
        not act.void and act.begin_ns < leased.end_ns and _lifts_expiry(act) for act in life.acts
    )
    first_ns = min(act.begin_ns for act in creations)
    if changed or history.disturbed("jump", first_ns, leased.end_ns):
        return
    if leased.begin_ns > latest_ns + TOLERANCE_NS:
        yield "I8", f"leased {(leased.begin_ns - latest_ns) // MS_NS} ms after its expiry"


def _lifts_expiry(act: Act) -> bool:
    """A redriven job and a forwarded dead letter have no expiry; an edited one may have another."""
    if act.op == "settle_dead":
        return act.verdict == "forward"
    edited = act.verdict == "edit" and act.asked.expires_ms is not None
    return act.op == "amend" and (act.verdict == "redrive" or edited)


def check_leases(life: JobHistory, history: History) -> Iterator[Violation]:
    """Check I3 finality, I4 one holder, I5 fencing and I6 attempts; I4, I5 and I22 of the leases of
    a dead letter."""
    grants, dead_grants = grants_of(life), grants_of(life, dead=True)
    found = [
        *_final(life, grants, history),
        *_one_holder(life, grants, history),
        *_fenced(grants),
        *_attempts(life, grants, history),
        *_one_holder(life, dead_grants, history),
        *_fenced(dead_grants),
        *_as_dead_letter(life, dead_grants, history),
    ]
    for rule, text in found:
        yield Violation(rule, life.id, text, tuple(life.lines))


def _final(life: JobHistory, grants: list[LeaseInterval], history: History) -> Faults:
    settles = [act for grant in grants for act in grant.settles if act.won]
    ends = [act for act in settles if is_final(act)]
    for end in ends:
        for grant in grants:
            for act in grant.leased:
                late = act.begin_ns > end.end_ns
                if late and not reopened(life, history, end.begin_ns, act.end_ns):
                    yield "I3", f"leased as {grant.token} after its {end.verdict} was answered"
        for act in settles:
            same = (act.verdict, act.asked.token) == (end.verdict, end.asked.token)
            apart = act.begin_ns > end.end_ns or is_final(act)
            first, last = min(act.begin_ns, end.begin_ns), max(act.end_ns, end.end_ns)
            if not same and apart and not reopened(life, history, first, last):
                yield "I3", f"settled by {act.verdict} as well as by {end.verdict}"
    for gone in life.of("amend", "delete"):
        for grant in grants:
            afterwards = [act for act in grant.leased if act.begin_ns > gone.end_ns]
            if gone.won and any(not reborn(life, act.end_ns) for act in afterwards):
                yield "I3", f"leased as {grant.token} after it was deleted"


def _one_holder(life: JobHistory, grants: list[LeaseInterval], history: History) -> Faults:
    for grant in grants:
        if len(grant.leased) > 1:
            yield "I4", f"token {grant.token} was given {len(grant.leased)} times"
        yield from _early_end(grant, history)
    for before, after in pairwise(grants):
        if before.leased and after.known_ns < before.begin_ns:
            yield "I4", f"token {after.token} was given before {before.token}"
        ended = any(act.begin_ns < after.known_ns for act in before.effective)
        if not ended and not history.sweeping and not _deleted_by_force(life):
            yield "I4", f"leased as {after.token} before lease {before.token} had ended"


def _early_end(grant: LeaseInterval, history: History) -> Faults:
    earliest = grant.deadline_ns_min() - TOLERANCE_NS
    for act in grant.overdue:
        if act.end_ns < earliest and not history.disturbed("reboot", grant.begin_ns, act.end_ns):
            yield "I4", f"lease {grant.token} was reported overdue before its deadline"
    for act in grant.settles:
        reaped = act.won and act.asked.failure == "overdue"
        rebooted = history.disturbed("reboot", grant.begin_ns, act.end_ns)
        if reaped and act.end_ns < earliest and not rebooted:
            yield "I4", f"lease {grant.token} was reaped before its deadline"


def _deleted_by_force(life: JobHistory) -> bool:
    return bool(deletions_of(life))


def _as_dead_letter(life: JobHistory, grants: list[LeaseInterval], history: History) -> Faults:
    burials = [*life.of("settle", "bury", "release"), *life.of("amend", "bury")]
    for grant in grants:
        for act in grant.leased:
            asked = any(not each.void and each.begin_ns <= act.end_ns for each in burials)
            if not asked and not history.sweeping:
                yield "I22", f"leased as a dead letter as {grant.token}, but nobody buried it"
        most = max((each.attempt for each in grants_of(life)), default=0)
        if grant.attempt > most and not history.blind and not history.sweeping:
            yield "I22", f"attempt {grant.attempt} as a dead letter, after {most} of its task"
    for end in life.of("settle_dead", "complete"):
        gone = not reborn(life, NEVER_NS)
        if end.won and gone and history.dumped and life.kept is not None:
            yield "I22", f"handled as a dead letter, but it is {life.kept.state} in the store"


def _fenced(grants: list[LeaseInterval]) -> Faults:
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


def _too_late(renewal: Act, grant: LeaseInterval) -> bool:
    settled = any(act.won and act.end_ns < renewal.begin_ns for act in grant.settles)
    lapsed = renewal.begin_ns > grant.deadline_ns_max(renewal) + TOLERANCE_NS
    return settled or lapsed


def _attempts(life: JobHistory, grants: list[LeaseInterval], history: History) -> Faults:
    possible = {0}
    released = sum(not act.void for act in life.of("settle", "release"))
    for grant in grants:
        if possible and reopened(life, history, 0, grant.known_ns):
            possible.add(0)
        if possible and grant.attempt - 1 not in possible:
            expected = ", ".join(str(base + 1) for base in sorted(possible))
            yield "I6", f"lease {grant.token} is attempt {grant.attempt}, expected {expected}"
        most = _attempts_max(life, grant, history)
        if most and grant.attempt > most and released <= bounds.RELEASES_MAX:
            yield "I6", f"lease {grant.token} is attempt {grant.attempt} of at most {most}"
        possible = {
            base for act in grant.effective for base in _base_after(act, grant.attempt, released)
        }


def _base_after(act: Act, attempt: int, released: int) -> Iterator[int]:
    """The possible attempt counters after a lease ended this way."""
    match act.verdict:
        case "retry":
            yield attempt
        case "release":
            yield max(attempt - 1, 0)
            if released > bounds.RELEASES_MAX:
                yield attempt
        case "forward":
            yield 0
        case _:
            yield -1


def _attempts_max(life: JobHistory, grant: LeaseInterval, history: History) -> int:
    """The most attempts the job may have; 0 if unlimited or unknown."""
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
