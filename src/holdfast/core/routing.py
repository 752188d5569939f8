"""Which worker may have a job that was meant for another: the healthiest, then the least loaded.

Pure: whoever asks reads the workers, and how many jobs wait in the queue of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from holdfast.core.explain import ABSENT_MS, Seen
from holdfast.core.model import Job, Reroute
from holdfast.core.policy import show_ttl, ttl_ms
from holdfast.core.verdict import Move
from holdfast.core.workers import Health, WorkerRecord, addressee, health, knows, worker_queue

_BETTER = (Health.HEALTHY, Health.DEGRADED)


def choose(
    job: Job, workers: Iterable[Seen], labels: Mapping[str, str], waiting: Mapping[str, int]
) -> str | None:
    """The name of the worker that shall have it, never the one that has it now; None if nobody
    fits. `waiting` says how many jobs wait in a worker's own queue; one that is not there has
    none."""
    away = addressee(job.queue)
    fitting = [
        seen
        for seen in workers
        if seen.record.name != away
        and seen.record.name in waiting
        and _is_open(seen)
        and knows(seen.record, job.task)
        and labels.items() <= seen.record.labels.items()
    ]
    best = min(fitting, key=lambda seen: _standing(seen, waiting), default=None)
    return None if best is None else best.record.name


def left_of(policy: Reroute | None) -> int:
    """How often a job with this policy may still be rerouted."""
    return 0 if policy is None else max(0, policy.most - policy.done)


def onward(job: Job, policy: Reroute, to: str) -> Move:
    """The act that gives an expired job to another worker, with as much time as it had."""
    did = "finished" if job.attempt else "taken"
    return Move(
        queue=worker_queue(to),
        by="reaper",
        text=f"not {did} within its TTL of {show_ttl(job)}",
        expires_ms=ttl_ms(job),
        reroute=replace(policy, done=policy.done + 1, ttl_ms=ttl_ms(job)),
    )


def why_not(policy: Reroute) -> str:
    """Why a job with this policy died all the same."""
    if left_of(policy) == 0:
        return f"it was rerouted {policy.done} times before, which is the most"
    labels = ", ".join(f"{name}={value}" for name, value in sorted(policy.labels.items()))
    return f"no other worker{f' with {labels}' if labels else ''} could take it"


def _is_open(seen: Seen) -> bool:
    record = seen.record
    state, _ = health(record, seen.age_ms)
    shut = record.stopping or record.cordoned or seen.age_ms > ABSENT_MS
    return not shut and state in _BETTER


def _standing(seen: Seen, waiting: Mapping[str, int]) -> tuple[int, float, str]:
    record: WorkerRecord = seen.record
    state, _ = health(record, seen.age_ms)
    jobs = record.running + record.prefetched + waiting[record.name]
    return _BETTER.index(state), jobs / max(record.capacity, 1), record.name
