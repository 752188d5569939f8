"""A history by job: the acts on each job, its leases, and the time in which each was held.

`fold` joins the two lines of each call in one pass; it checks nothing. The times of a lease are
bounds. A lease appears even if its holder never learnt of it: the call that ends it names its token
and attempt. Acts on the lease of a dead letter have an op of their own, `…_dead`: the invariants of
jobs at work do not concern them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast.conformance.history import Entry, HistoryLine
from holdfast.core.model import Queue

MS_NS = 1_000_000
NEVER_NS = 2**63
TOLERANCE_NS = 5 * MS_NS
"""Slack for rounding to milliseconds and for clocks that run at slightly different speeds."""
ORPHAN_NS_MAX = 5_000_000_000
"""The longest time for which a call continues in the store after its caller was killed."""
_WON = ("new", "settled", "renewed", "amended")
_VOID = ("lost", "refused", "duplicate", "untouched")


@dataclass(slots=True)
class Act:
    """One call's part about one job. `end_ns` is NEVER_NS if the caller got no answer."""

    op: str
    process: str
    begin_ns: int
    end_ns: int
    phase: str
    asked: Entry
    answer: Entry | None
    lines: tuple[HistoryLine, ...]

    @property
    def won(self) -> bool:
        """Whether it certainly took effect, or repeated a call that had."""
        return self.phase == "ok" and self.answer is not None and self.answer.answer in _WON

    @property
    def void(self) -> bool:
        """Whether it certainly had no effect."""
        if self.phase == "fail":
            return True
        return self.phase == "ok" and self.answer is not None and self.answer.answer in _VOID

    def answer_is(self, *answers: str) -> bool:
        return self.answer is not None and self.answer.answer in answers

    @property
    def verdict(self) -> str:
        return self.asked.verdict

    @property
    def over_ns(self) -> int:
        """The latest time at which the call may have been at work in the store: if its outcome is
        unknown, some time after the caller gave up or was killed."""
        if self.phase != "info":
            return self.end_ns
        return ORPHAN_NS_MAX + (self.begin_ns if self.end_ns == NEVER_NS else self.end_ns)


@dataclass(slots=True)
class JobHistory:
    """All acts on one job, by the time they were requested. `kept` is the job in the final dump of
    the store; `rewritten` means that a later job under its key may have replaced it."""

    id: str
    acts: list[Act] = field(default_factory=list)
    kept: Entry | None = None
    rewritten: bool = False

    def of(self, op: str, *verdicts: str) -> list[Act]:
        return [
            act for act in self.acts if act.op == op and (not verdicts or act.verdict in verdicts)
        ]

    @property
    def lines(self) -> list[HistoryLine]:
        every = {id(line): line for act in self.acts for line in act.lines}
        return sorted(every.values(), key=lambda line: line.at_ns)


class DeclaredQueue(NamedTuple):
    """Settings that a call declared or may have declared; they applied by `end_ns`."""

    queue: Queue
    begin_ns: int
    end_ns: int
    is_certain: bool


@dataclass(slots=True)
class History:
    """A history by job. `queues` holds the latest settings, `settings` all of them by time. `blind`
    are lease calls without an answer, `sweeping` amendments by filter: both allow effects but
    require none. `recounts` are the recounts that were answered."""

    lives: dict[str, JobHistory] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    settings: dict[str, list[DeclaredQueue]] = field(default_factory=lambda: defaultdict(list))
    recounts: list[tuple[HistoryLine, HistoryLine]] = field(default_factory=list)
    notes: dict[str, list[HistoryLine]] = field(default_factory=lambda: defaultdict(list))
    blind: list[tuple[int, int]] = field(default_factory=list)
    sweeping: list[HistoryLine] = field(default_factory=list)
    calls: int = 0
    operations: int = 0
    unknown: int = 0

    def life(self, id_: str) -> JobHistory:
        found = self.lives.get(id_)
        if found is None:
            found = self.lives[id_] = JobHistory(id_)
        return found

    def settings_at(self, name: str, begin_ns: int, end_ns: int) -> list[Queue]:
        """All settings of a queue that may have applied at some moment in that time."""
        known = [each for each in self.settings.get(name, ()) if each.begin_ns <= end_ns]
        certain = [each.begin_ns for each in known if each.is_certain and each.end_ns <= begin_ns]
        latest_ns = max(certain, default=0)
        return [each.queue for each in known if each.end_ns >= latest_ns]

    def disturbed(self, op: str, begin_ns: int, end_ns: int) -> bool:
        """Whether the clock jumped, or the machine was rebooted, in that time."""
        return any(begin_ns <= line.at_ns <= end_ns for line in self.notes.get(op, ()))

    @property
    def dumped(self) -> bool:
        return bool(self.notes.get("dumped"))

    @property
    def drained(self) -> bool:
        return bool(self.notes.get("drained"))


def fold(lines: Iterable[HistoryLine]) -> History:
    """Group `lines`, sorted by time."""
    history = History()
    asked: dict[tuple[str, int], HistoryLine] = {}
    for line in lines:
        if line.phase == "inv":
            asked[line.process, line.call] = line
        elif line.phase == "note":
            _note(history, line)
        else:
            _join(history, asked.pop((line.process, line.call)), line)
    for line in asked.values():
        _join(history, line, None)
    for life in history.lives.values():
        life.acts.sort(key=lambda act: act.begin_ns)
    _mark_rewritten(history)
    return history


def _note(history: History, line: HistoryLine) -> None:
    if line.op == "dump":
        for entry in line.jobs:
            history.life(entry.id).kept = entry
        return
    history.notes[line.op].append(line)


def _join(history: History, asked: HistoryLine, answer: HistoryLine | None) -> None:
    history.calls += 1
    phase = "info" if answer is None else answer.phase
    history.unknown += phase == "info"
    match asked.op:
        case "lease" | "overdue" | "expired":
            _granted(history, asked, answer)
        case "declare":
            # Also if the outcome is unknown: workloads declare their queues before anything else.
            if answer is None or answer.count != 0:
                _declared(history, asked, answer)
        case "recount":
            if answer is not None and phase == "ok":
                history.recounts.append((asked, answer))
        case "drop":
            history.sweeping.append(asked)
        case "amend" if asked.selective:
            if phase != "fail":
                history.sweeping.append(asked)
        case _:
            _about_named(history, asked, answer)


def _granted(history: History, asked: HistoryLine, answer: HistoryLine | None) -> None:
    if answer is None or answer.phase != "ok":
        if asked.op == "lease":
            history.blind.append((asked.at_ns, NEVER_NS if answer is None else answer.at_ns))
        return
    request = Entry(id="", state="selective" if asked.selective else "")
    history.operations += len(answer.jobs)
    for entry in answer.jobs:
        act = Act(
            _op_of(asked.op, entry),
            asked.process,
            asked.at_ns,
            answer.at_ns,
            "ok",
            request,
            entry,
            (asked, answer),
        )
        history.life(entry.id).acts.append(act)


def _about_named(history: History, asked: HistoryLine, answer: HistoryLine | None) -> None:
    phase = "info" if answer is None else answer.phase
    end_ns = NEVER_NS if answer is None else answer.at_ns
    lines = (asked,) if answer is None else (asked, answer)
    history.operations += len(asked.jobs)
    answers: Iterable[Entry | None] = (None,) * len(asked.jobs)
    if answer is not None and phase == "ok":
        answers = _amended(asked, answer) if asked.op == "amend" else answer.jobs
    for entry, said in zip(asked.jobs, answers, strict=True):
        op = _op_of(asked.op, entry)
        act = Act(op, asked.process, asked.at_ns, end_ns, phase, entry, said, lines)
        history.life(entry.id).acts.append(act)
        for child in entry.then:
            creation = Act("follow", asked.process, asked.at_ns, end_ns, phase, child, said, lines)
            history.life(child.id).acts.append(creation)


def _op_of(op: str, entry: Entry) -> str:
    return f"{op}_dead" if entry.dead else op


def _amended(asked: HistoryLine, answer: HistoryLine) -> list[Entry | None]:
    """The answer for each named job. The call returns only a count, so it is known only if that is
    zero or all of them."""
    if answer.count == 0:
        return [Entry(id=entry.id, answer="untouched") for entry in asked.jobs]
    if answer.count == len(asked.jobs):
        return [Entry(id=entry.id, answer="amended") for entry in asked.jobs]
    return [None] * len(asked.jobs)


def _declared(history: History, asked: HistoryLine, answer: HistoryLine | None) -> None:
    queue = msgspec.convert(asked.facts, Queue)
    history.queues[queue.name] = queue
    is_certain = answer is not None and answer.phase == "ok"
    end_ns = answer.at_ns if answer is not None and is_certain else asked.at_ns + ORPHAN_NS_MAX
    history.settings[queue.name].append(DeclaredQueue(queue, asked.at_ns, end_ns, is_certain))


def _mark_rewritten(history: History) -> None:
    rewriting = {
        (act.asked.queue, act.asked.key)
        for life in history.lives.values()
        for act in life.of("enqueue")
        if act.asked.key_policy not in ("", "keep") and not act.answer_is("new", "refused")
    }
    for life in history.lives.values():
        creations = [*life.of("enqueue"), *life.of("follow")]
        life.rewritten = any((act.asked.queue, act.asked.key) in rewriting for act in creations)


@dataclass(slots=True)
class LeaseInterval:
    """One lease of a job: the acts that granted, renewed, settled or reaped it."""

    token: int
    attempt: int = 0
    queue: str = ""
    leased: list[Act] = field(default_factory=list)
    renewals: list[Act] = field(default_factory=list)
    settles: list[Act] = field(default_factory=list)
    overdue: list[Act] = field(default_factory=list)

    @property
    def begin_ns(self) -> int:
        """The earliest time at which it was granted; 0 if the lease call is unknown."""
        return min((act.begin_ns for act in self.leased), default=0)

    @property
    def known_ns(self) -> int:
        """The latest time at which it was granted."""
        answered = [act.end_ns for act in (*self.leased, *self.overdue)]
        used = [act.begin_ns for act in (*self.renewals, *self.settles)]
        return min((*answered, *used))

    @property
    def effective(self) -> list[Act]:
        """The settles that took effect or may have."""
        return [act for act in self.settles if not act.void]

    def deadline_ns_min(self) -> int:
        """The earliest possible deadline; 0 if it is unknown."""
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
        """The latest possible deadline at the time `renewal` was requested."""
        others = [act for act in self.renewals if act is not renewal and not act.void]
        if not self.leased or any(not act.won for act in others):
            return NEVER_NS
        earlier = [act for act in others if act.begin_ns < renewal.begin_ns]
        return max(act.end_ns + _lease_ns(act) for act in (*self.leased, *earlier))


def grants_of(life: JobHistory, *, dead: bool = False) -> list[LeaseInterval]:
    """The leases of a job, or of it as a dead letter, ordered by token."""
    found: dict[int, LeaseInterval] = {}
    for act in life.acts:
        is_granted = act.op.removesuffix("_dead") in ("lease", "overdue")
        entry = act.answer if is_granted else act.asked
        if entry is None or entry.token is None or entry.dead != dead:
            continue
        grant = found.setdefault(entry.token, LeaseInterval(entry.token))
        grant.attempt = grant.attempt or entry.attempt or 0
        grant.queue = grant.queue or entry.queue
        match act.op.removesuffix("_dead"):
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


def is_final(act: Act) -> bool:
    return act.op == "settle" and act.verdict in ("complete", "bury")


def reopened(life: JobHistory, history: History, after_ns: int, before_ns: int) -> bool:
    """Whether the finished job may have been redriven, or forwarded as a dead letter, in that
    time."""
    if any(line.op == "amend" for line in history.sweeping):
        return True
    if reborn(life, before_ns):
        return True
    return any(
        not act.void and act.begin_ns <= before_ns and act.end_ns >= after_ns
        for act in (*life.of("amend", "redrive"), *life.of("settle_dead", "forward"))
    )


def reborn(life: JobHistory, before_ns: int) -> bool:
    """Whether the job may have been deleted and enqueued again under the same id."""
    deletions = [act.begin_ns for act in deletions_of(life)]
    return bool(deletions) and any(
        act.end_ns > min(deletions) and act.begin_ns <= before_ns and act.phase != "fail"
        for act in (*life.of("enqueue"), *life.of("follow"))
    )


def removed(life: JobHistory, history: History) -> bool:
    """Whether the job may have been deleted."""
    return bool(history.sweeping) or bool(deletions_of(life))


def deletions_of(life: JobHistory) -> list[Act]:
    """The acts that may have deleted the job: by an operator, or as a dead letter that was
    handled."""
    acts = (*life.of("amend", "delete"), *life.of("settle_dead", "complete"))
    return [act for act in acts if not act.void]


def _lease_ns(act: Act) -> int:
    entry = act.answer if act.op in ("lease", "lease_dead") else act.asked
    assert entry is not None
    return (entry.lease_ms or 0) * MS_NS


class HeldInterval(NamedTuple):
    """One lease, over the time in which it was certainly held."""

    life: JobHistory
    grant: LeaseInterval
    entry: Entry
    begin_ns: int
    end_ns: int
    call: HistoryLine | None


def holds_of(history: History) -> list[HeldInterval]:
    """Every lease of every job whose grant was answered."""
    return [hold for life in history.lives.values() for hold in _holds(life, history)]


def crowds_of(holds: list[HeldInterval]) -> Iterator[list[HeldInterval]]:
    """The sets of leases that were certainly held at the same time."""
    current: list[HeldInterval] = []
    for hold in sorted(holds, key=lambda hold: hold.begin_ns):
        if hold.end_ns > hold.begin_ns:
            current = [other for other in current if other.end_ns > hold.begin_ns]
            current.append(hold)
            yield current


def _holds(life: JobHistory, history: History) -> Iterator[HeldInterval]:
    removals = [act.begin_ns for act in life.of("amend", "delete") if not act.void]
    swept = min((line.at_ns for line in history.sweeping), default=NEVER_NS)
    for grant in grants_of(life):
        entry = next((act.answer for act in grant.leased), None)
        if entry is None:
            continue
        ends = [act.begin_ns for act in grant.effective]
        gone = [at_ns for at_ns in removals if at_ns >= grant.begin_ns]
        end_ns = min((*ends, *gone, swept), default=NEVER_NS)
        call = grant.leased[0].lines[0] if len(grant.leased) == 1 else None
        yield HeldInterval(life, grant, entry, grant.known_ns, end_ns, call)
