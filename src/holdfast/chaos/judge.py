"""Judges what workers did under blows, from the jobs' own lines, the blows and the store.

Pure: it reads what it is given. A run is known by its job and token, and lasted from its first
line to its last; the blows name the processes that they hit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.core.model import FailureKind, Job, Queue, Reason, State

_AFTERMATH_NS = 5_000_000_000
"""How long after a freeze its effects are still felt: what was lost is ended, with its child."""
LINGER_MS_MAX = 5_000
"""A run that lost its lease must end within a second of its worker's learning it; the worker has
to be woken, to ask and to be answered first, on a machine that is busy with all the others."""
_FATAL = ("kill",)


@dataclass(frozen=True, slots=True)
class Blow:
    """`pids`: whom it hit, and who goes down with them; none if that may be anybody. A freeze, a
    stall of the whole machine, or an outage of the store lasts until `until_ns`; a kill has no
    end."""

    what: str
    role: str
    at_ns: int
    pids: tuple[int, ...] = ()
    until_ns: int = 0


@dataclass(slots=True)
class Run:
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
class Findings:
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    runs: int = 0
    reruns: int = 0
    lost_leases: int = 0
    done: int = 0
    dead: int = 0
    lost: list[str] = field(default_factory=list)
    """Jobs that were accepted and are gone, not brought to their end, or done by nobody."""
    recovery_ms: list[float] = field(default_factory=list)
    linger_ms: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not self.violations


def judge(
    lines: Iterable[Mapping[str, Any]],
    blows: Sequence[Blow],
    accepted: Iterable[str],
    store: Mapping[str, Job],
    queue: Queue,
) -> Findings:
    """`accepted` are the jobs whose enqueue was answered, `store` what is there at the end."""
    findings = Findings()
    runs = read_runs(lines)
    by_job: dict[str, list[Run]] = defaultdict(list)
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
        say(f"nobody enqueued job {each}, and it ran")
    for each, job_runs in by_job.items():
        _judge_runs(job_runs, _Blows(blows, store.get(each)), queue, findings)
    findings.recovery_ms = sorted(_recoveries(by_job.values(), blows))
    return findings


def read_runs(lines: Iterable[Mapping[str, Any]]) -> list[Run]:
    """In the order in which they began."""
    runs: dict[tuple[str, int], Run] = {}
    for line in sorted(lines, key=lambda each: int(each["at_ns"])):
        key = (line["job"], line["token"])
        run = runs.get(key)
        if run is None:
            runs[key] = run = Run(
                *key, line.get("attempt", 0), line.get("kind", "?"),
                tuple(line.get("pids", ())), line["at_ns"], line["at_ns"],
                begun=0,
            )  # fmt: skip
        run.begun += line["what"] == "begin"
        run.last_ns = line["at_ns"]
        run.ended = run.ended or line["what"] == "end"
    return sorted(runs.values(), key=lambda run: run.begin_ns)


def _judge_end(id: str, runs: list[Run], job: Job | None, queue: Queue, findings: Findings) -> None:
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
            say(f"job {id} failed in attempt {event.attempt}, and no blow does that: {failure}")
    match job.state:
        case State.DONE:
            findings.done += 1
            if not any(run.ended for run in runs):
                findings.lost.append(id)
                say(f"job {id} is done, and no run of it came to its end")
        case State.DEAD:
            findings.dead += 1
            if not _is_policy(job, queue):
                say(
                    f"job {id} died against policy: {job.reason} after {job.attempt} attempts,"
                    f" {job.crashes} crashes and {job.releases} releases"
                )
        case _:
            findings.lost.append(id)
            say(f"job {id} was not brought to its end: it is {job.state}")
    return None


def _is_policy(job: Job, queue: Queue) -> bool:
    match job.reason:
        case Reason.ATTEMPTS:
            return job.attempt >= queue.max_attempts
        case Reason.CRASHED:
            return job.crashes >= queue.max_crashes
        case _:
            return False


def _judge_runs(runs: list[Run], blows: _Blows, queue: Queue, findings: Findings) -> None:
    say = findings.violations.append
    for run in runs:
        if run.attempt > queue.max_attempts:
            say(f"{_name(run)} is beyond the {queue.max_attempts} of its queue")
        if run.begun != 1:
            say(f"{_name(run)} began {run.begun} times under one lease")
    for run, later in pairwise(runs):
        findings.reruns += 1
        if later.token <= run.token:
            say(f"{_name(later)} began after {_name(run)}, whose token is not smaller")
        losses = blows.losses(run, later)
        if not losses and not blows.killed(run, later):
            say(f"{_name(later)} is a re-run that no blow explains; before: {_name(run)}")
        if run.last_ns >= later.begin_ns:
            _judge_overlap(run, later, losses, findings)


def _judge_overlap(run: Run, later: Run, losses: list[Blow], findings: Findings) -> None:
    """Two at once are right only where the lease was really lost, and then not for long."""
    if not losses:
        overlap_ms = (run.last_ns - later.begin_ns) / 1e6
        findings.violations.append(
            f"{_name(later)} began {overlap_ms:.0f} ms before {_name(run)} was over,"
            " and no lease was lost"
        )
        return
    findings.lost_leases += 1
    learned_ns = max([later.begin_ns, *(blow.until_ns for blow in losses)])
    linger_ms = (run.last_ns - learned_ns) / 1e6
    findings.linger_ms = max(findings.linger_ms, linger_ms)
    if linger_ms > LINGER_MS_MAX:
        findings.violations.append(
            f"{_name(run)} went on for {linger_ms:.0f} ms after its worker could learn that its"
            " lease was lost"
        )


class _Blows:
    """What could have ended the runs of one job, so that it had to run again."""

    def __init__(self, blows: Sequence[Blow], job: Job | None) -> None:
        self._blows = blows
        self._events = job.events if job else ()

    def killed(self, run: Run, later: Run) -> bool:
        """Who is killed does not come back: all that is left of it ends, however late it began."""
        return any(
            blow.what in _FATAL
            and blow.at_ns <= later.begin_ns
            and set(blow.pids).intersection(run.pids)
            for blow in self._blows
        )

    def losses(self, run: Run, later: Run) -> list[Blow]:
        """The freezes and stalls that cost the run its lease, if the store says that it lapsed;
        or that of a job beside it, for which their process was ended."""
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
            blow
            for blow in self._blows
            if blow.what not in _FATAL
            and blow.at_ns <= later.begin_ns
            and run.begin_ns <= blow.until_ns + _AFTERMATH_NS
            and (not blow.pids or set(blow.pids).intersection(run.pids))
        ]


def _recoveries(jobs: Iterable[list[Run]], blows: Sequence[Blow]) -> Iterator[float]:
    """From the first fatal blow under a run to the next run of its job."""
    kills: dict[int, list[Blow]] = defaultdict(list)
    for blow in blows:
        if blow.what in _FATAL:
            for pid in blow.pids:
                kills[pid].append(blow)
    for runs in jobs:
        for run, later in pairwise(runs):
            hits = [
                blow.at_ns
                for pid in run.pids
                for blow in kills[pid]
                if run.begin_ns <= blow.at_ns <= later.begin_ns
            ]
            if hits and not run.ended:
                yield (later.begin_ns - min(hits)) / 1e6


def _name(run: Run) -> str:
    return f"attempt {run.attempt} (token {run.token}, {run.kind}) of job {run.job}"


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values; 0 when there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
