"""Verifies a chaos run from the jobs' log, the faults and the store.

Pure. A run is identified by job and token, and lasts from its first line to its last. Faults name
the processes that they hit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.core.model import FailureKind, Job, Queue, Reason, State

_RECOVERY_NS = 5_000_000_000
"""The longest time for which the effects of a freeze last: lost runs are ended with their child."""
LINGER_MS_MAX = 5_000
"""A run that lost its lease must end within a second after its worker learns of it. This adds the
time to wake up, send a request and get the answer on a busy machine.
"""
_FATAL = ("kill",)


@dataclass(frozen=True, slots=True)
class Fault:
    """`pids` are the processes it hit, and those that end with them; empty if that may be any. A
    freeze, a stall of the machine or an outage of the store lasts until `until_ns`; a kill has no
    end."""

    what: str
    role: str
    at_ns: int
    pids: tuple[int, ...] = ()
    until_ns: int = 0


@dataclass(slots=True)
class JobRun:
    """One run of a job, as it noted itself; `begun` counts its starts under the same token."""

    job: str
    token: int
    attempt: int
    kind: str
    pids: tuple[int, ...]
    begin_ns: int
    last_ns: int
    ended: bool = False
    begun: int = 1


@dataclass(slots=True)
class ChaosFindings:
    """The result of a run: broken promises, and counts."""

    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    runs: int = 0
    reruns: int = 0
    lost_leases: int = 0
    done: int = 0
    dead: int = 0
    lost: list[str] = field(default_factory=list)
    """Accepted jobs that are missing, have not ended, or are done without a run."""
    recovery_ms: list[float] = field(default_factory=list)
    linger_ms: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not self.violations


def verify(
    lines: Iterable[Mapping[str, Any]],
    faults: Sequence[Fault],
    accepted: Iterable[str],
    store: Mapping[str, Job],
    queue: Queue,
) -> ChaosFindings:
    """`accepted` are the jobs whose enqueue was answered; `store` is the final state."""
    findings = ChaosFindings()
    runs = read_runs(lines)
    by_job: dict[str, list[JobRun]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    findings.runs = len(runs)
    findings.kinds = Counter(run.kind for run in runs)
    known = set(accepted)
    findings.jobs = len(known)
    say = findings.violations.append
    for each in sorted(known):
        _judge_end(each, by_job.get(each, []), store.get(each), queue, findings)
    for each in sorted(set(by_job) - known):
        say(f"job {each} ran, but was never enqueued")
    for each, job_runs in by_job.items():
        _judge_runs(job_runs, _Faults(faults, store.get(each)), queue, findings)
    findings.recovery_ms = sorted(_recoveries(by_job.values(), faults))
    return findings


def read_runs(lines: Iterable[Mapping[str, Any]]) -> list[JobRun]:
    """The runs in the order in which they began."""
    runs: dict[tuple[str, int], JobRun] = {}
    for line in sorted(lines, key=lambda each: int(each["at_ns"])):
        key = (line["job"], line["token"])
        run = runs.get(key)
        if run is None:
            runs[key] = run = JobRun(
                *key, line.get("attempt", 0), line.get("kind", "?"),
                tuple(line.get("pids", ())), line["at_ns"], line["at_ns"],
                begun=0,
            )  # fmt: skip
        run.begun += line["what"] == "begin"
        run.last_ns = line["at_ns"]
        run.ended = run.ended or line["what"] == "end"
    return sorted(runs.values(), key=lambda run: run.begin_ns)


def _judge_end(
    id: str, runs: list[JobRun], job: Job | None, queue: Queue, findings: ChaosFindings
) -> None:
    say = findings.violations.append
    if job is None:
        findings.lost.append(id)
        return say(f"job {id} is lost: it was enqueued and is not in the store")
    if job.attempt > queue.max_attempts:
        say(f"job {id} had {job.attempt} attempts; the queue allows {queue.max_attempts}")
    for event in job.failures:
        failure = event.failure
        assert failure is not None
        by_kill = failure.kind is FailureKind.ERROR and failure.signal == 9
        if not by_kill and failure.kind not in (FailureKind.CRASH, FailureKind.OVERDUE):
            say(
                f"job {id} failed in attempt {event.attempt}, and no fault explains that: {failure}"
            )
    match job.state:
        case State.DONE:
            findings.done += 1
            if not any(run.ended for run in runs):
                findings.lost.append(id)
                say(f"job {id} is done, but no run of it finished")
        case State.DEAD:
            findings.dead += 1
            if not _is_policy(job, queue):
                say(
                    f"job {id} died against policy: {job.reason} after {job.attempt} attempts,"
                    f" {job.crashes} crashes and {job.releases} releases"
                )
        case _:
            findings.lost.append(id)
            say(f"job {id} did not end: it is {job.state}")
    return None


def _is_policy(job: Job, queue: Queue) -> bool:
    match job.reason:
        case Reason.ATTEMPTS:
            return job.attempt >= queue.max_attempts
        case Reason.CRASHED:
            return job.crashes >= queue.max_crashes
        case _:
            return False


def _judge_runs(runs: list[JobRun], faults: _Faults, queue: Queue, findings: ChaosFindings) -> None:
    say = findings.violations.append
    for run in runs:
        if run.attempt > queue.max_attempts:
            say(f"{_name(run)} exceeds the {queue.max_attempts} attempts of its queue")
        if run.begun != 1:
            say(f"{_name(run)} began {run.begun} times under one lease")
    for run, later in pairwise(runs):
        findings.reruns += 1
        if later.token <= run.token:
            say(f"{_name(later)} began after {_name(run)}, whose token is not smaller")
        losses = faults.losses(run, later)
        if not losses and not faults.killed(run, later):
            say(f"{_name(later)} is a re-run that no fault explains; before: {_name(run)}")
        if run.last_ns >= later.begin_ns:
            _judge_overlap(run, later, losses, findings)


def _judge_overlap(
    run: JobRun, later: JobRun, losses: list[Fault], findings: ChaosFindings
) -> None:
    """Two runs may overlap only if the lease was really lost, and only briefly."""
    if not losses:
        overlap_ms = (run.last_ns - later.begin_ns) / 1e6
        findings.violations.append(
            f"{_name(later)} began {overlap_ms:.0f} ms before {_name(run)} was over,"
            " and no lease was lost"
        )
        return
    findings.lost_leases += 1
    learned_ns = max([later.begin_ns, *(fault.until_ns for fault in losses)])
    linger_ms = (run.last_ns - learned_ns) / 1e6
    findings.linger_ms = max(findings.linger_ms, linger_ms)
    if linger_ms > LINGER_MS_MAX:
        findings.violations.append(
            f"{_name(run)} continued for {linger_ms:.0f} ms after its worker could know that its"
            " lease was lost"
        )


class _Faults:
    """The faults that may have ended the runs of one job and made it run again."""

    def __init__(self, faults: Sequence[Fault], job: Job | None) -> None:
        self._faults = faults
        self._events = job.events if job else ()

    def killed(self, run: JobRun, later: JobRun) -> bool:
        """Whether a kill explains the later run: a killed process does not come back."""
        return any(
            fault.what in _FATAL
            and fault.at_ns <= later.begin_ns
            and set(fault.pids).intersection(run.pids)
            for fault in self._faults
        )

    def losses(self, run: JobRun, later: JobRun) -> list[Fault]:
        """The freezes and stalls that explain a lost lease, if the store shows that it lapsed, or
        that of a job in the same process, which was ended for it."""
        if not any(
            event.attempt == run.attempt
            and (
                (event.failure and event.failure.kind is FailureKind.OVERDUE)
                or "lost its lease" in event.text
            )
            for event in self._events
        ):
            return []
        return [
            fault
            for fault in self._faults
            if fault.what not in _FATAL
            and fault.at_ns <= later.begin_ns
            and run.begin_ns <= fault.until_ns + _RECOVERY_NS
            and (not fault.pids or set(fault.pids).intersection(run.pids))
        ]


def _recoveries(jobs: Iterable[list[JobRun]], faults: Sequence[Fault]) -> Iterator[float]:
    """The times from the first fatal fault during a run to the next run of its job."""
    kills: dict[int, list[Fault]] = defaultdict(list)
    for fault in faults:
        if fault.what in _FATAL:
            for pid in fault.pids:
                kills[pid].append(fault)
    for runs in jobs:
        for run, later in pairwise(runs):
            hits = [
                fault.at_ns
                for pid in run.pids
                for fault in kills[pid]
                if run.begin_ns <= fault.at_ns <= later.begin_ns
            ]
            if hits and not run.ended:
                yield (later.begin_ns - min(hits)) / 1e6


def _name(run: JobRun) -> str:
    return f"attempt {run.attempt} (token {run.token}, {run.kind}) of job {run.job}"


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of sorted values; 0 if there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
