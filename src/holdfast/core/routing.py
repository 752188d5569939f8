"""Chooses another worker for an addressed job: the healthiest, then the least loaded.

Pure: the caller reads the workers and the number of jobs that wait in the queue of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from holdfast.core.explain import ABSENT_MS, SeenWorker
from holdfast.core.model import Job, Reroute
from holdfast.core.retry_policy import show_ttl, ttl_ms
from holdfast.core.verdict import Move
from holdfast.core.workers import Health, WorkerRecord, addressee, knows_task, worker_queue

_BETTER = (Health.HEALTHY, Health.DEGRADED)


def choose_worker(
    job: Job, workers: Iterable[SeenWorker], labels: Mapping[str, str], waiting: Mapping[str, int]
) -> str | None:
    """The name of the worker to reroute the job to, never its current one; None if none fits.
    `waiting` maps a worker's name to the number of jobs in its queue; a worker that is missing
    from it has no queue."""
    present = addressee(job.queue)
    fitting = [
        seen
        for seen in workers
        if seen.record.name != present
        and seen.record.name in waiting
        and _is_open(seen)
        and knows_task(seen.record, job.task)
        and labels.items() <= seen.record.labels.items()
    ]
    best = min(fitting, key=lambda seen: _rank(seen, waiting), default=None)
    return None if best is None else best.record.name


def reroutes_left(policy: Reroute | None) -> int:
    """How many more times a job with this policy may be rerouted."""
    return 0 if policy is None else max(0, policy.most - policy.done)


def reroute_to(
    job: Job, policy: Reroute, to: str, *, by: str = "reaper", why: str = "", history: str = ""
) -> Move:
    """The amendment that moves a job to another worker, with its original TTL: because it expired,
    unless `why` gives another reason. `history` is what the broker recorded about its message."""
    did = "finished" if job.attempt else "taken"
    why = why or f"not {did} within its TTL of {show_ttl(job)}"
    return Move(
        queue=worker_queue(to),
        by=by,
        text=f"{why}; {history}" if history else why,
        expires_ms=ttl_ms(job),
        reroute=replace(policy, done=policy.done + 1, ttl_ms=ttl_ms(job)),
    )


def why_not_rerouted(policy: Reroute) -> str:
    """Why a job with this policy could not be rerouted."""
    if reroutes_left(policy) == 0:
        return f"it was already rerouted {policy.done} times, the maximum"
    labels = ", ".join(f"{name}={value}" for name, value in sorted(policy.labels.items()))
    return f"no other worker{f' with {labels}' if labels else ''} could take it"


def _is_open(seen: SeenWorker) -> bool:
    record = seen.record
    state, _ = seen.health
    shut = record.stopping or record.cordoned or seen.age_ms > ABSENT_MS
    return not shut and state in _BETTER


def _rank(seen: SeenWorker, waiting: Mapping[str, int]) -> tuple[int, float, str]:
    record: WorkerRecord = seen.record
    state, _ = seen.health
    jobs = record.running + record.prefetched + waiting[record.name]
    return _BETTER.index(state), jobs / max(record.capacity, 1), record.name
