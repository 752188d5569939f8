"""A history by job: the two lines of each call joined into acts, each put to the jobs it is about.

It reads in one pass and judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast.core.model import Queue
from holdfast.testing.history.lines import Entry, Line

NEVER_NS = 2**63
ORPHAN_NS_MAX = 5_000_000_000
"""How long a call may go on inside the store after its caller was killed."""
_WON = ("new", "settled", "renewed", "amended")
_VOID = ("lost", "refused", "duplicate", "untouched")


@dataclass(slots=True)
class Act:
    """One call's part about one job. `end_ns` is NEVER_NS where the caller was not answered."""

    op: str
    process: str
    begin_ns: int
    end_ns: int
    phase: str
    asked: Entry
    answer: Entry | None
    lines: tuple[Line, ...]

    @property
    def won(self) -> bool:
        """It certainly took effect, or repeated what had."""
        return self.phase == "ok" and self.answer is not None and self.answer.answer in _WON

    @property
    def void(self) -> bool:
        """It certainly did nothing."""
        if self.phase == "fail":
            return True
        return self.phase == "ok" and self.answer is not None and self.answer.answer in _VOID

    def answer_is(self, *answers: str) -> bool:
        return self.answer is not None and self.answer.answer in answers

    @property
    def verdict(self) -> str:
        return self.asked.verdict


@dataclass(slots=True)
class Life:
    """Everything that was said about one job, by time of asking. `kept` is what the store has at
    the end; `rewritten` that a later job under its key may have replaced what it says."""

    id: str
    acts: list[Act] = field(default_factory=list)
    kept: Entry | None = None
    rewritten: bool = False

    def of(self, op: str, *verdicts: str) -> list[Act]:
        return [
            act for act in self.acts if act.op == op and (not verdicts or act.verdict in verdicts)
        ]

    @property
    def lines(self) -> list[Line]:
        every = {id(line): line for act in self.acts for line in act.lines}
        return sorted(every.values(), key=lambda line: line.at_ns)


class Setting(NamedTuple):
    """What somebody declared, or may have: `end_ns` is by when it was so."""

    queue: Queue
    begin_ns: int
    end_ns: int
    is_certain: bool


@dataclass(slots=True)
class History:
    """`queues` are the latest settings, `settings` all by time of asking. `blind` are the lease
    calls whose answer nobody saw, `sweeping` the acts on jobs that were not named: both only
    permit, they never oblige. `recounts` are those that were answered."""

    lives: dict[str, Life] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    settings: dict[str, list[Setting]] = field(default_factory=lambda: defaultdict(list))
    recounts: list[tuple[Line, Line]] = field(default_factory=list)
    notes: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    blind: list[tuple[int, int]] = field(default_factory=list)
    sweeping: list[Line] = field(default_factory=list)
    calls: int = 0
    operations: int = 0
    unknown: int = 0

    def life(self, id_: str) -> Life:
        found = self.lives.get(id_)
        if found is None:
            found = self.lives[id_] = Life(id_)
        return found

    def settings_at(self, name: str, begin_ns: int, end_ns: int) -> list[Queue]:
        """Every settings of a queue that may have counted at some moment of that time."""
        known = [each for each in self.settings.get(name, ()) if each.begin_ns <= end_ns]
        certain = [each.begin_ns for each in known if each.is_certain and each.end_ns <= begin_ns]
        latest_ns = max(certain, default=0)
        return [each.queue for each in known if each.end_ns >= latest_ns]

    def disturbed(self, op: str, begin_ns: int, end_ns: int) -> bool:
        """Was the clock jumped, or the machine started anew, in that time?"""
        return any(begin_ns <= line.at_ns <= end_ns for line in self.notes.get(op, ()))

    @property
    def dumped(self) -> bool:
        return bool(self.notes.get("dumped"))

    @property
    def drained(self) -> bool:
        return bool(self.notes.get("drained"))


def fold(lines: Iterable[Line]) -> History:
    """`lines` by time."""
    history = History()
    asked: dict[tuple[str, int], Line] = {}
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


def _note(history: History, line: Line) -> None:
    if line.op == "dump":
        for entry in line.jobs:
            history.life(entry.id).kept = entry
        return
    history.notes[line.op].append(line)


def _join(history: History, asked: Line, answer: Line | None) -> None:
    history.calls += 1
    phase = "info" if answer is None else answer.phase
    history.unknown += phase == "info"
    match asked.op:
        case "lease" | "overdue" | "expired":
            _granted(history, asked, answer)
        case "declare":
            # Also when nobody knows: workloads settle their queues before anything else.
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


def _granted(history: History, asked: Line, answer: Line | None) -> None:
    if answer is None or answer.phase != "ok":
        if asked.op == "lease":
            history.blind.append((asked.at_ns, NEVER_NS if answer is None else answer.at_ns))
        return
    request = Entry(id="", state="selective" if asked.selective else "")
    history.operations += len(answer.jobs)
    for entry in answer.jobs:
        act = Act(
            asked.op,
            asked.process,
            asked.at_ns,
            answer.at_ns,
            "ok",
            request,
            entry,
            (asked, answer),
        )
        history.life(entry.id).acts.append(act)


def _about_named(history: History, asked: Line, answer: Line | None) -> None:
    phase = "info" if answer is None else answer.phase
    end_ns = NEVER_NS if answer is None else answer.at_ns
    lines = (asked,) if answer is None else (asked, answer)
    history.operations += len(asked.jobs)
    answers: Iterable[Entry | None] = (None,) * len(asked.jobs)
    if answer is not None and phase == "ok":
        answers = _amended(asked, answer) if asked.op == "amend" else answer.jobs
    for entry, said in zip(asked.jobs, answers, strict=True):
        act = Act(asked.op, asked.process, asked.at_ns, end_ns, phase, entry, said, lines)
        history.life(entry.id).acts.append(act)
        for child in entry.then:
            birth = Act("follow", asked.process, asked.at_ns, end_ns, phase, child, said, lines)
            history.life(child.id).acts.append(birth)


def _amended(asked: Line, answer: Line) -> list[Entry | None]:
    """The answer is only a count: it names the jobs where it is none or all of them."""
    if answer.count == 0:
        return [Entry(id=entry.id, answer="untouched") for entry in asked.jobs]
    if answer.count == len(asked.jobs):
        return [Entry(id=entry.id, answer="amended") for entry in asked.jobs]
    return [None] * len(asked.jobs)


def _declared(history: History, asked: Line, answer: Line | None) -> None:
    queue = msgspec.convert(asked.facts, Queue)
    history.queues[queue.name] = queue
    is_certain = answer is not None and answer.phase == "ok"
    end_ns = answer.at_ns if answer is not None and is_certain else asked.at_ns + ORPHAN_NS_MAX
    history.settings[queue.name].append(Setting(queue, asked.at_ns, end_ns, is_certain))


def _mark_rewritten(history: History) -> None:
    rewriting = {
        (act.asked.queue, act.asked.key)
        for life in history.lives.values()
        for act in life.of("enqueue")
        if act.asked.key_policy not in ("", "keep") and not act.answer_is("new", "refused")
    }
    for life in history.lives.values():
        births = [*life.of("enqueue"), *life.of("follow")]
        life.rewritten = any((act.asked.queue, act.asked.key) in rewriting for act in births)
