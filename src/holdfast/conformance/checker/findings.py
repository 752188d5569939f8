"""Findings: the counts of a run, and each violated invariant with the history of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.conformance.history import HistoryLine

INVARIANTS = {
    "I1": "no job is lost",
    "I2": "every job was enqueued",
    "I3": "a finished job stays finished",
    "I4": "one holder at a time, with a token that grows",
    "I5": "a stale token changes nothing",
    "I6": "attempts are numbered 1, 2, 3 and stay within the queue's limit",
    "I7": "a job dies only by policy, once, with the right reason",
    "I8": "no lease after the expiry",
    "I9": "no lease before the job is due",
    "I10": "first come, first leased within a queue and priority",
    "I11": "a follow-up job exists only after its parent's completion",
    "I12": "no rate is exceeded in any window",
    "I13": "one job per key",
    "I14": "the payload is delivered unchanged",
    "I15": "every job ends once the faults stop",
    "I16": "the store agrees with the history",
    "I17": "one effect per job behind a fence",
    "I18": "no limit is exceeded",
    "I19": "a group runs one batch at a time, in order of arrival",
    "I20": "no child starts before its parents have ended",
    "I21": "no slot is leaked",
    "I22": "a dead letter is leased only after its burial, and deleted once it is handled",
}
LINES_SHOWN_MAX = 60
HEADS_SHOWN_MAX = 20
HEAD_CHARS_MAX = 300


class Violation(msgspec.Struct, frozen=True):
    """A broken rule, the job it is about, and the lines of the history that show it."""

    rule: str
    id: str
    text: str
    lines: tuple[HistoryLine, ...] = ()

    def __str__(self) -> str:
        shown = [f"    {msgspec.json.encode(line).decode()}" for line in self.lines]
        if len(shown) > LINES_SHOWN_MAX:
            shown = [*shown[:LINES_SHOWN_MAX], f"    … {len(shown) - LINES_SHOWN_MAX} more lines"]
        return "\n".join([self.head, *shown])

    @property
    def head(self) -> str:
        return f"{self.rule} ({INVARIANTS[self.rule]}) job {self.id or '-'}: {self.text}"


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `operations` counts jobs, `calls` engine calls. `duplicates` are runs
    that had an effect and then lost their lease; `recovery` is the time from a holder's death until
    the job waits again. `limited`, `grouped` and `children` count leases; `told` counts the parents
    whose end only a recount propagated to their children."""

    jobs: int
    calls: int
    operations: int
    unknown: int
    kills: int
    server_kills: int
    freezes: int
    effects: int
    duplicates: int
    states: dict[str, int]
    limited: int
    grouped: int
    children: int
    recounts: int
    told: int
    recovery_ms_p50: float | None
    recovery_ms_p99: float | None
    violations: tuple[Violation, ...]

    @property
    def clean(self) -> bool:
        return not self.violations

    @property
    def brief(self) -> str:
        """A summary for the last line: of a long output often only the end is kept."""
        heads = [found.head[:HEAD_CHARS_MAX] for found in self.violations[:HEADS_SHOWN_MAX]]
        return "\n".join([*heads, f"violations: {_rules(self.violations)}"])

    @property
    def rules(self) -> set[str]:
        return {violation.rule for violation in self.violations}

    @property
    def lost(self) -> int:
        return self._count("I1")

    @property
    def resurrected(self) -> int:
        return self._count("I3")

    @property
    def stale_settles(self) -> int:
        return self._count("I5")

    def _count(self, rule: str) -> int:
        return len({found.id for found in self.violations if found.rule == rule})

    def __str__(self) -> str:
        rate = self.duplicates / self.effects if self.effects else 0.0
        recovery = "-"
        if self.recovery_ms_p50 is not None and self.recovery_ms_p99 is not None:
            recovery = f"{self.recovery_ms_p50:.0f} ms p50, {self.recovery_ms_p99:.0f} ms p99"
        rows = [
            ("jobs", f"{self.jobs} ({_states(self.states)})"),
            ("operations", f"{self.operations} in {self.calls} calls, {self.unknown} unknown"),
            ("kills", f"{self.kills} processes, {self.server_kills} servers"),
            ("freezes", str(self.freezes)),
            ("lost", str(self.lost)),
            ("resurrected", str(self.resurrected)),
            ("stale settles", str(self.stale_settles)),
            ("run again", f"{self.duplicates} of {self.effects} effects ({rate:.2%})"),
            ("recovery", recovery),
            ("leases", f"{self.limited} limited, {self.grouped} grouped, {self.children} children"),
            ("recounts", f"{self.recounts}, which notified children of {self.told} endings"),
            ("violations", _rules(self.violations)),
        ]
        return "\n".join(f"{name:14} {value}" for name, value in rows)


def percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def _states(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(states.items())) or "none"


def _rules(violations: Sequence[Violation]) -> str:
    counts = Counter(violation.rule for violation in violations)
    return ", ".join(f"{rule} ×{count}" for rule, count in sorted(counts.items())) or "0"
