"""Judges what poison did: to good jobs, to memory, and what became of the poison itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from holdfast.chaos.judge import percentile
from holdfast.core.model import Job, Queue
from torture.worker_poison import Poison

GROWTH_MAX = 1.3
"""The last quarter's memory beside the second's: caches fill early, a leak goes on."""
GROWTH_KB_MIN = 8_192
SLOWER_P50_MAX, SLOWER_P99_MAX = 25, 200
"""How much longer a good job may take beside poison. Most should hardly feel it; a few shared a
process with a crash, and have to wait until they can run alone."""
TOOK_MS_MIN = 20


def judge_good(ids: Iterable[str], store: Mapping[str, Job]) -> list[str]:
    """Each is done, at its first attempt that counted: what others did is not its fault."""
    violations = []
    for each in ids:
        job = store.get(each)
        if job is None:
            violations.append(f"good job {each} is lost")
        elif job.state != "done":
            violations.append(f"good job {each} ({job.task}) is {job.state}: {job.events}")
        elif job.attempt != 1:
            violations.append(
                f"good job {each} ({job.task}) was charged {job.attempt} attempts: {job.events}"
            )
    return violations


def judge_poison(given: Mapping[str, Poison], store: Mapping[str, Job], queue: Queue) -> list[str]:
    violations = []
    for each, poison in given.items():
        job = store.get(each)
        if job is None:
            violations.append(f"poison {poison.task} {each} is lost")
            continue
        last = job.failures[-1].failure if job.failures else None
        found = (job.state, job.reason, last.kind if last else None)
        if found != ("dead", poison.reason, poison.kind):
            wanted = f"dead, {poison.reason}, {poison.kind}"
            violations.append(f"poison {poison.task} {each} is {found}, not {wanted}: {job.events}")
        elif job.attempt > queue.max_attempts:
            violations.append(f"poison {poison.task} {each} had {job.attempt} attempts")
    return violations


def judge_memory(samples_kb: list[int]) -> list[str]:
    before, after = early(samples_kb), late(samples_kb)
    if after > max(before * GROWTH_MAX, before + GROWTH_KB_MIN):
        return [f"the supervisors grew from {before / 1024:.0f} to {after / 1024:.0f} MB"]
    return []


def judge_promptness(calm_ms: list[float], poisoned_ms: list[float]) -> list[str]:
    """By the ratio, because machines differ; both are sorted."""
    violations = []
    for share, most in ((0.5, SLOWER_P50_MAX), (0.99, SLOWER_P99_MAX)):
        alone = max(percentile(calm_ms, share), TOOK_MS_MIN)
        beside = percentile(poisoned_ms, share)
        if beside > alone * most:
            violations.append(
                f"beside poison, good jobs took {beside:.0f} ms and alone {alone:.0f} ms, in"
                f" {share:.0%} of all cases: that is more than {most} times as long"
            )
    return violations


def early(samples: list[int]) -> float:
    quarter = len(samples) // 4
    return median(samples[quarter : 2 * quarter] or [0])


def late(samples: list[int]) -> float:
    return median(samples[-(len(samples) // 4) :] or [0])
