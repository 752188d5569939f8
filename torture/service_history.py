"""Calls of an SQS service as a proxy in front of it wrote them down, and the judge of a run. Pure.

Every message of a run has a unique name in its body. Times are of the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.conformance.chaos.verify import Fault
from holdfast.core.model import Reason

FAULTS: Final = (
    "throttle", "entry", "request", "reply", "half", "stall", "double", "shuffle", "empty",
)  # fmt: skip
"""`throttle`: refused. `entry`: one entry of a batch is refused. `request`: cut before the service
gets it. `reply`: carried out, and the answer is lost. `half`: cut within the answer. `stall`: late.
`double`: a delivered message becomes visible at once. `shuffle`: a receive has another order.
`empty`: a receive finds nothing."""
HARMLESS: Final = frozenset({"shuffle", "empty"})
SETTLED_NS: Final = 10_000_000_000
"""How long a fault may have effects: the client repeats a call for some seconds, and a message
stays invisible until its timeout ends."""
THEN: Final = ".then"


class ServiceCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that the proxy saw, by the names of its messages. `fault` is empty if it passed."""

    action: str
    queue: str
    fault: str
    names: list[str]
    began_ns: int
    ended_ns: int


class SentMessage(NamedTuple):
    """A job that was offered to SQS. `is_acknowledged`: a send of it was answered. `kind` tells how
    it ends: `work`, `fail` (raises each time), `bury`, or `then` (with a follow-up)."""

    name: str
    kind: str
    is_acknowledged: bool


class Letter(NamedTuple):
    """A message in the dead-letter queue; `reason` is None if SQS itself moved it."""

    name: str
    reason: Reason | None
    attempt: int


@dataclass(slots=True)
class MessageRun:
    """One run of a message, as the job wrote it down. `outcome` is its last word: `end`, `raise` or
    `bury`; empty if it never came to it."""

    name: str
    message: str
    attempt: int
    pids: tuple[int, ...]
    begin_ns: int
    last_ns: int
    outcome: str = ""


@dataclass(slots=True)
class ServiceFindings:
    """Counts of a run, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def read_service_calls(journal: Path) -> list[ServiceCall]:
    """The calls that a proxy wrote down, by their beginning."""
    decoder = msgspec.json.Decoder(ServiceCall)
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    return sorted(map(decoder.decode, lines), key=lambda call: call.began_ns)


def read_message_runs(lines: Iterable[Mapping[str, Any]]) -> list[MessageRun]:
    """The runs in the order in which they began. A delivery is a message and its receive count."""
    runs: dict[tuple[str, str, int], MessageRun] = {}
    for line in sorted(lines, key=lambda each: int(each["at_ns"])):
        key = (line["name"], line["message"], line["attempt"])
        at_ns = line["at_ns"]
        if line["what"] == "begin":
            runs[key] = MessageRun(*key, tuple(line["pids"]), at_ns, at_ns)
        elif key in runs:
            runs[key].last_ns = at_ns
            runs[key].outcome = line["what"] if line["what"] != "beat" else runs[key].outcome
    return sorted(runs.values(), key=lambda run: run.begin_ns)


class Causes:
    """The faults of a run, and whether one of them explains a repeat."""

    def __init__(self, faults: Sequence[Fault], calls: Sequence[ServiceCall]) -> None:
        self._faults = faults
        self._struck: dict[str, list[ServiceCall]] = defaultdict(list)
        self._calls: dict[str, list[ServiceCall]] = defaultdict(list)
        for call in calls:
            for name in call.names:
                self._calls[name].append(call)
            if call.fault and call.fault not in HARMLESS:
                for name in call.names:
                    self._struck[name].append(call)

    def is_struck(self, name: str, from_ns: int, until_ns: int) -> bool:
        """Whether the service misbehaved in a call about this message."""
        return any(
            call.began_ns < until_ns and from_ns < call.ended_ns + SETTLED_NS
            for call in self._struck.get(name, ())
        )

    def is_doubtful(self, name: str, until_ns: int) -> bool:
        """Whether the answer to a send of this message was lost."""
        return any(
            call.action.startswith("SendMessage") and call.began_ns < until_ns
            for call in self._struck.get(name, ())
        )

    def is_sent_again(self, name: str, until_ns: int) -> bool:
        """Whether a worker sent the message again to its queue, after it had received it: one that
        it gives back would use up an attempt. The first one is deleted, at once or, if the worker
        was killed, after another run."""
        sources: set[str] = set()
        calls = self._calls.get(name, ())
        for at, call in enumerate(calls):
            if call.began_ns >= until_ns:
                return False
            if call.action == "ReceiveMessage":
                sources.add(call.queue)
            elif call.action.startswith("SendMessage") and call.queue in sources:
                deletes = (each.action.startswith("DeleteMessage") for each in calls[at + 1 :])
                if any(deletes):
                    return True
        return False

    def is_killed(self, pids: Iterable[int], from_ns: int, until_ns: int) -> bool:
        """Whether one of these processes was killed. Those below a killed launcher may go on for
        some seconds."""
        wanted = set(pids)
        return any(
            fault.what == "kill"
            and from_ns - SETTLED_NS <= fault.at_ns <= until_ns
            and wanted & set(fault.pids)
            for fault in self._faults
        )

    def is_frozen(self, pids: Iterable[int], from_ns: int, until_ns: int) -> bool:
        """Whether one of these processes was frozen: the timeouts of its messages end."""
        wanted = set(pids)
        return any(
            fault.what == "freeze"
            and fault.at_ns < until_ns
            and from_ns < fault.until_ns + SETTLED_NS
            and wanted & set(fault.pids)
            for fault in self._faults
        )

    def is_role_killed(self, role: str, from_ns: int, until_ns: int) -> bool:
        """Whether a process of this role was killed."""
        return any(
            fault.what == "kill" and fault.role == role and from_ns <= fault.at_ns <= until_ns
            for fault in self._faults
        )

    def is_stalled(self, from_ns: int, until_ns: int) -> bool:
        """Whether the whole machine stalled: timeouts end through nobody's fault."""
        return any(
            fault.what == "stall" and fault.at_ns < until_ns and from_ns < fault.until_ns
            for fault in self._faults
        )


def judge_workers(
    sent: Sequence[SentMessage],
    runs: Sequence[MessageRun],
    letters: Sequence[Letter],
    causes: Causes,
    *,
    attempts_max: int,
) -> ServiceFindings:
    """Judge a run of workers on SQS whose queues have drained."""
    findings = ServiceFindings()
    by_name: dict[str, list[MessageRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    dead: dict[str, list[Letter]] = defaultdict(list)
    for letter in letters:
        dead[letter.name].append(letter)
    known = {each.name: each for each in sent}
    say = findings.violations.append
    for each in sent:
        ended = any(run.outcome == "end" for run in by_name[each.name])
        if each.is_acknowledged and not ended and not dead[each.name]:
            say(f"lost: {each.name} was sent, and is neither done nor dead")
        follow_up = f"{each.name}{THEN}"
        if each.kind == "then" and ended and not dead[each.name]:
            is_over = any(run.outcome == "end" for run in by_name[follow_up]) or dead[follow_up]
            if not is_over:
                say(f"lost: {each.name} is done, and its follow-up is neither done nor dead")
        findings.counts["done"] += ended
        findings.counts["dead"] += bool(dead[each.name])
    for name in sorted({*by_name, *dead}):
        if (by_name[name] or dead[name]) and not _is_offered(name, known, by_name):
            say(f"invented: {name} was never sent")
    for name, found in by_name.items():
        findings.violations += _unexplained(name, found, by_name, causes)
        findings.counts["reruns"] += max(len(found) - 1, 0)
        findings.counts["overlaps"] += sum(
            later.begin_ns < earlier.last_ns for earlier, later in pairwise(found)
        )
    for name, found_letters in dead.items():
        kind = known[name].kind if name in known else "work"
        for letter in found_letters:
            findings.violations += _wrong_death(letter, kind, attempts_max, causes)
    acknowledged = sum(each.is_acknowledged for each in sent)
    findings.counts.update(sent=acknowledged, runs=len(runs), letters=len(letters))
    return findings


def _is_offered(
    name: str, known: Mapping[str, SentMessage], by_name: Mapping[str, Sequence[MessageRun]]
) -> bool:
    """A follow-up is offered once a run of its parent has ended."""
    parent = name.removesuffix(THEN)
    if parent == name:
        return name in known
    runs = by_name.get(parent, ())
    return parent in known and any(run.outcome == "end" for run in runs)


def _unexplained(
    name: str,
    runs: Sequence[MessageRun],
    by_name: Mapping[str, Sequence[MessageRun]],
    causes: Causes,
) -> Iterator[str]:
    """A second run has a cause: the first one asked for it, its process was killed, or the service
    misbehaved in a call about the message. Another message with the same name comes from a send
    that was repeated, from a worker that sent it again, or from a second run of its parent."""
    for at, run in enumerate(runs[1:], start=1):
        same = [each for each in runs[:at] if each.message == run.message]
        from_ns, until_ns = same[-1].begin_ns if same else 0, run.begin_ns
        if not same:
            parent = name.removesuffix(THEN)
            if parent != name and len(by_name.get(parent, ())) > 1:
                continue
            if not (causes.is_doubtful(name, until_ns) or causes.is_sent_again(name, until_ns)):
                yield f"doubled: {name} is two messages, and no send of it was in doubt"
            continue
        if causes.is_struck(name, from_ns, until_ns) or causes.is_stalled(from_ns, until_ns):
            continue
        before = same[-1]
        if before.outcome == "raise" or causes.is_killed(before.pids, from_ns, until_ns):
            continue
        if causes.is_frozen(before.pids, from_ns, until_ns):
            continue
        yield (
            f"ran again: {name} in attempt {run.attempt}, {(until_ns - from_ns) // 10**6} ms after"
            f" attempt {before.attempt} began ({before.outcome or 'unfinished'}), without a cause"
        )


def _wrong_death(letter: Letter, kind: str, attempts_max: int, causes: Causes) -> Iterator[str]:
    if letter.reason is None:
        if not causes.is_struck(letter.name, 0, 2**63):
            yield f"unexplained death: SQS moved {letter.name}, and nothing kept us from burying it"
    elif letter.reason is Reason.ATTEMPTS:
        if letter.attempt < attempts_max:
            yield f"early death: {letter.name} after {letter.attempt} of {attempts_max} attempts"
    elif kind != "bury":
        yield f"wrong death: {letter.name} died by {letter.reason}, and nobody buried it"


def judge_moves(
    sent: Mapping[str, bool], calls: Sequence[ServiceCall], target: str, causes: Causes
) -> ServiceFindings:
    """Judge a distributor. `sent` are the messages of the tenants, and whether each was confirmed:
    those were sent to the target, and again only because of a kill or of a fault in a call about
    the message."""
    findings = ServiceFindings()
    moves: dict[str, list[ServiceCall]] = defaultdict(list)
    for call in calls:
        if call.queue == target and call.action.startswith("SendMessage") and call.names:
            if call.fault in ("throttle", "entry", "request"):
                continue
            for name in call.names:
                if name in sent:
                    moves[name].append(call)
    for name, is_confirmed in sent.items():
        if is_confirmed and not moves[name]:
            findings.violations.append(f"not moved: {name} was sent to a tenant's queue")
    for name, found in moves.items():
        for earlier, later in pairwise(found):
            from_ns, until_ns = earlier.began_ns - SETTLED_NS, later.began_ns
            if not (
                causes.is_struck(name, from_ns, until_ns)
                or causes.is_role_killed("distributor", from_ns, until_ns)
                or causes.is_stalled(from_ns, until_ns)
            ):
                findings.violations.append(f"moved again: {name}, without a cause")
        findings.counts["moved_again"] += max(len(found) - 1, 0)
    findings.counts["moved"] = sum(1 for found in moves.values() if found)
    return findings
