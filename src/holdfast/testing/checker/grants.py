"""The leases of one job, by token: who held it, from when, until when at the least and the most.

Every lease that ended is seen here, also one whose holder never learnt of it: whoever ends a
lease names its token and attempt before he does so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.testing.checker.fold import NEVER_NS, Act, History, Life

MS_NS = 1_000_000
TOLERANCE_NS = 5 * MS_NS
"""The store's clock and ours run at slightly different speeds, and milliseconds are rounded."""


@dataclass(slots=True)
class Grant:
    token: int
    attempt: int = 0
    queue: str = ""
    leased: list[Act] = field(default_factory=list)
    renewals: list[Act] = field(default_factory=list)
    settles: list[Act] = field(default_factory=list)
    overdue: list[Act] = field(default_factory=list)

    @property
    def begin_ns(self) -> int:
        """It was not granted before this; 0 where nobody saw the lease call."""
        return min((act.begin_ns for act in self.leased), default=0)

    @property
    def known_ns(self) -> int:
        """It was granted by then."""
        answered = [act.end_ns for act in (*self.leased, *self.overdue)]
        used = [act.begin_ns for act in (*self.renewals, *self.settles)]
        return min((*answered, *used))

    @property
    def effective(self) -> list[Act]:
        """The settles that took effect or may have."""
        return [act for act in self.settles if not act.void]

    def deadline_ns_min(self) -> int:
        """The deadline was not before this; 0 where that cannot be told."""
        if not self.leased:
            return 0
        won = [act for act in self.renewals if act.won]
        last = max(won, key=lambda act: act.end_ns, default=None)
        if last is None:
            possible = [*self.leased, *(act for act in self.renewals if not act.void)]
        else:
            later = [act for act in self.renewals if not act.void and act.end_ns >= last.begin_ns]
            possible = later
        return min(act.begin_ns + _lease_ns(act) for act in possible)

    def deadline_ns_max(self, renewal: Act) -> int:
        """The deadline was not after this when `renewal` was asked for."""
        others = [act for act in self.renewals if act is not renewal and not act.void]
        if not self.leased or any(not act.won for act in others):
            return NEVER_NS
        earlier = [act for act in others if act.begin_ns < renewal.begin_ns]
        return max(act.end_ns + _lease_ns(act) for act in (*self.leased, *earlier))


def grants_of(life: Life) -> list[Grant]:
    """By token."""
    found: dict[int, Grant] = {}
    for act in life.acts:
        entry = act.answer if act.op in ("lease", "overdue") else act.asked
        if entry is None or entry.token is None:
            continue
        grant = found.setdefault(entry.token, Grant(entry.token))
        grant.attempt = grant.attempt or entry.attempt or 0
        grant.queue = grant.queue or entry.queue
        match act.op:
            case "lease":
                grant.leased.append(act)
            case "renew":
                grant.renewals.append(act)
            case "settle":
                grant.settles.append(act)
            case "overdue":
                grant.overdue.append(act)
            case _:
                pass
    return [found[token] for token in sorted(found)]


def buried_in_place(act: Act, history: History) -> bool:
    """A burial in a queue with a dead_queue is a move: the job lives on there."""
    if act.verdict != "bury":
        return False
    queue = history.queues.get(act.asked.queue)
    return queue is None or queue.dead_queue is None or queue.dead_queue not in history.queues


def is_final(act: Act, history: History) -> bool:
    return act.op == "settle" and (act.verdict == "complete" or buried_in_place(act, history))


def reopened(life: Life, history: History, after_ns: int, before_ns: int) -> bool:
    """May somebody have put the finished job back to work in that time?"""
    if any(line.op == "amend" for line in history.sweeping):
        return True
    if reborn(life, before_ns):
        return True
    return any(
        not act.void and act.begin_ns <= before_ns and act.end_ns >= after_ns
        for act in life.of("amend", "redrive")
    )


def reborn(life: Life, before_ns: int) -> bool:
    """A job that is deleted is forgotten, id and all: a late enqueue of it makes it anew."""
    deletions = [act.begin_ns for act in life.of("amend", "delete") if not act.void]
    return bool(deletions) and any(
        act.end_ns > min(deletions) and act.begin_ns <= before_ns and act.phase != "fail"
        for act in (*life.of("enqueue"), *life.of("follow"))
    )


def removed(life: Life, history: History) -> bool:
    """May somebody have deleted the job?"""
    return bool(history.sweeping) or any(not act.void for act in life.of("amend", "delete"))


def _lease_ns(act: Act) -> int:
    entry = act.answer if act.op == "lease" else act.asked
    assert entry is not None
    return (entry.lease_ms or 0) * MS_NS
