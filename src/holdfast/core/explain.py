"""Why is this job not running, and what would change it? Facts in, causes out, in order.

Pure: whoever asks reads the facts. A cause never repeats the instant it is about: `at` says it,
so that each reader can show it in a way of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from holdfast.core import lifecycle, policy
from holdfast.core.causes import Cause, of_the_flow
from holdfast.core.flow import Waits
from holdfast.core.model import Event, EventKind, Job, Queue, Reason, State
from holdfast.core.text import counted
from holdfast.core.workers import (
    HEARTBEAT_MS,
    Health,
    WorkerRecord,
    addressee,
    health,
    knows,
    room,
)

NAMES_MAX = 5
ABSENT_MS = 6 * HEARTBEAT_MS
"""A worker that was not heard of for so long is not there."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record, and how old it is by the engine's clock."""

    record: WorkerRecord
    age_ms: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know. `ahead` jobs of the queue that can be started come first; with
    `ahead_more` at least so many. `paused_by` and `paused_at` say who paused the queue, where
    that is known. `waits` is what the engine says of it, and `parents` how the first of those
    stand that it waits for. `breaker` says how one stands that keeps the job, under `breaker_key`,
    and `breaker_at` when that is over."""

    job: Job
    queue: Queue | None
    now: int
    workers: tuple[Seen, ...] = ()
    ahead: int = 0
    ahead_more: bool = False
    paused_by: str = ""
    paused_at: int | None = None
    breaker: str = ""
    breaker_key: str = ""
    breaker_at: int | None = None
    waits: Waits | None = None
    parents: dict[str, State] = {}


def explain(facts: Facts) -> list[Cause]:
    """Every cause, the one that matters most first; never empty."""
    match facts.job.state:
        case State.WAITING:
            return list(_waiting(facts))
        case State.LEASED:
            return list(_leased(facts))
        case State.DONE | State.DEAD | State.CANCELLED:
            return [_finished(facts.job)]
        case never:
            assert_never(never)


def serves(record: WorkerRecord, queue: str) -> bool:
    """A worker also serves the queue of the jobs that are addressed to it."""
    return queue in record.queues or addressee(queue) == record.name


def startable(task: str, queue: str, workers: Iterable[Seen]) -> bool:
    """Would jobs of this task be started here? While nobody serves the queue, nobody knows."""
    serving = [seen for seen in workers if _is_present(seen) and serves(seen.record, queue)]
    return not serving or any(knows(seen.record, task) for seen in serving)


def _waiting(facts: Facts) -> Iterator[Cause]:
    causes = list(_of_the_job(facts))
    if facts.waits is not None:
        causes += of_the_flow(facts.job, facts.waits, facts.parents, facts.now)
    causes += [*_of_the_queue(facts), *_of_the_workers(facts)]
    if facts.breaker:
        causes.append(_of_the_breaker(facts))
    yield from causes
    if facts.ahead and not _is_held(facts):
        least = "at least " if facts.ahead_more else ""
        yield Cause(
            code="jobs_ahead",
            text=f"{least}{counted(facts.ahead, 'waiting job')} of its queue must be started "
            "first: of a higher priority, or due earlier",
            remedy="put it in front of them, or start more workers",
            command=f"job expedite {facts.job.id}",
        )
    elif not causes:
        yield Cause(code="ready", text="nothing is in its way: a worker should start it at once")


def _is_held(facts: Facts) -> bool:
    """By what no place in the line would change."""
    waits = facts.waits
    behind = waits is not None and (waits.parent_count > 0 or waits.group_head is not None)
    return behind or lifecycle.is_expired(facts.job, facts.now)


def _of_the_breaker(facts: Facts) -> Cause:
    return Cause(
        code="breaker_open",
        text=facts.breaker,
        remedy="wait until it is tried again, or close it if what failed is mended",
        command=f"breaker close {facts.breaker_key}",
        at=facts.breaker_at,
    )


def _is_present(seen: Seen) -> bool:
    return seen.age_ms <= ABSENT_MS


def _of_the_job(facts: Facts) -> Iterator[Cause]:
    job = facts.job
    if lifecycle.is_expired(job, facts.now):
        onward = job.overrides.reroute is not None and addressee(job.queue) is not None
        fate = "goes on to another worker, or dies" if onward else "becomes a dead letter"
        yield Cause(
            code="expired",
            text=f"it was not started before its expiry, and {fate}",
            remedy="give it more time",
            command=f"job edit {job.id} --expires 1h",
            at=job.expires_at,
        )
    if job.due_at > facts.now:
        yield _delayed(facts)


def _delayed(facts: Facts) -> Cause:
    job = facts.job
    last = job.events[-1] if job.events else None
    command = f"job expedite {job.id}"
    if last is not None and last.kind is EventKind.RETRIED:
        most = policy.attempts_max(facts.queue, job) if facts.queue else 0
        of = f" of {most}" if most else ""
        return Cause(
            code="retry_backoff",
            text=f"attempt {last.attempt}{of} failed{_said(last)}: it waits before the next",
            remedy="run it at once",
            command=command,
            at=job.due_at,
        )
    if last is not None and last.kind is EventKind.RELEASED:
        by = f" by {last.by}" if last.by else ""
        text = f"it was given back{by}{_said(last)}, and is not due again yet"
        return Cause(
            code="released", text=text, remedy="run it at once", command=command, at=job.due_at
        )
    text = "it is delayed, and not due yet"
    return Cause(code="delayed", text=text, remedy="run it at once", command=command, at=job.due_at)


def _of_the_queue(facts: Facts) -> Iterator[Cause]:
    queue = facts.queue
    if queue is None:
        yield Cause(code="queue_gone", text=f"queue {facts.job.queue} does not exist any more")
    elif queue.paused:
        by = f" by {facts.paused_by}" if facts.paused_by else ""
        yield Cause(
            code="queue_paused",
            text=f"queue {queue.name} was paused{by}",
            remedy="let it go on",
            command=f"queue resume {queue.name}",
            at=facts.paused_at,
        )


def _of_the_workers(facts: Facts) -> Iterator[Cause]:
    """Only when no worker could take the job: one with room is enough."""
    job = facts.job
    present = [seen for seen in facts.workers if _is_present(seen)]
    serving = [seen for seen in present if serves(seen.record, job.queue)]
    if not serving:
        yield _unserved(facts, present)
        return
    knowing = [seen for seen in serving if knows(seen.record, job.task)]
    if not knowing:
        yield _unknown(job, serving)
        return
    hindered = [(seen, _hindrance(seen)) for seen in knowing]
    if all(why for _, why in hindered):
        yield from _hindered(hindered, job.queue)


def _unknown(job: Job, serving: list[Seen]) -> Cause:
    names = {task for seen in serving for task in seen.record.tasks}
    close = difflib.get_close_matches(job.task, sorted(names), 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    anew = "enqueue it under that name, or " if close else ""
    return Cause(
        code="task_unknown",
        text=f"no worker of queue {job.queue} knows the task {job.task}{meant}; {_there(serving)}",
        remedy=f"{anew}start a worker with the application that has the task",
        command=f"worker run MODULE:APP --queues {job.queue}",
    )


def _unserved(facts: Facts, present: list[Seen]) -> Cause:
    queue = facts.job.queue
    name = addressee(queue)
    if name is not None:
        last = [seen for seen in facts.workers if seen.record.name == name]
        heard = f", last heard of {last[0].age_ms // 1000} s ago" if last else ""
        return Cause(
            code="addressee_absent",
            text=f"it is addressed to worker {name}, which is not there{heard}",
            remedy="start that worker, or give the job more time until it comes",
            command=f"worker start --name {name}",
            at=facts.job.expires_at,
        )
    there = f"; {_there(present)}" if present else ", and there is no worker at all"
    return Cause(
        code="queue_unserved",
        text=f"no worker serves queue {queue}{there}",
        remedy="start a worker for it",
        command=f"worker start --queues {queue}",
    )


_HINDRANCES = {
    "stopping": ("{} stopping", "start another worker", "worker start --queues {queue}"),
    "cordoned": ("{} cordoned", "let them lease again", "worker uncordon {name}"),
    "unhealthy": ("{} unhealthy", "see what is wrong with them", "worker list"),
    "saturated": ("{} saturated", "wait, or start more workers", "worker start --queues {queue}"),
}


def _hindrance(seen: Seen) -> str:
    """Why this worker, which could run it, leases nothing now."""
    record = seen.record
    state, _ = health(record, seen.age_ms)
    if record.stopping:
        return "stopping"
    if record.cordoned:
        return "cordoned"
    if state is Health.UNHEALTHY:
        return "unhealthy"
    return "" if room(max(record.capacity - record.running, 0), state) else "saturated"


def _hindered(hindered: list[tuple[Seen, str]], queue: str) -> Iterator[Cause]:
    for code, (does, remedy, command) in _HINDRANCES.items():
        alike = [seen for seen, why in hindered if why == code]
        if not alike:
            continue
        record = alike[0].record
        text = does.format(f"{_names(alike)} {'is' if len(alike) == 1 else 'are'}")
        if code == "saturated":
            busy = sum(seen.record.running for seen in alike)
            slots = sum(seen.record.capacity for seen in alike)
            text += f": {busy} of {slots} slots busy"
        elif code == "unhealthy":
            text += f": {health(record, alike[0].age_ms)[1]}"
        yield Cause(
            code=f"workers_{code}",
            text=text,
            remedy=remedy,
            command=command.format(queue=queue, name=record.name),
        )


def _leased(facts: Facts) -> Iterator[Cause]:
    job = facts.job
    worker = job.worker or "a worker without a name"
    seen = next((seen for seen in facts.workers if seen.record.name == job.worker), None)
    if job.deadline_at is not None and job.deadline_at <= facts.now:
        yield Cause(
            code="overdue",
            text=f"its lease lapsed, and nobody has ended it: {worker} did not renew it",
            remedy="run upkeep, which gives the job to another worker",
            command="up",
            at=job.deadline_at,
        )
    elif seen is not None and seen.age_ms > ABSENT_MS:
        yield Cause(
            code="worker_lost",
            text=f"{worker} holds it, and was last heard of {seen.age_ms // 1000} s ago",
            remedy="wait until the lease lapses: then another worker gets it",
            at=job.deadline_at,
        )
    if job.cancel_requested:
        yield Cause(code="cancelling", text=f"{worker} was asked to stop it")
    yield Cause(
        code="running",
        text=f"it is leased by {worker}, in attempt {job.attempt}",
        remedy="follow its output",
        command=f"job logs {job.id} --follow",
        at=job.leased_at,
    )


_DEATHS = {
    Reason.ATTEMPTS: "its last attempt failed",
    Reason.EXPIRED: "it was not started before its expiry",
    Reason.CRASHED: "it took too many workers down with it",
    Reason.REJECTED: "it was turned away",
    Reason.EXPLICIT: "it was given up on purpose",
    Reason.DEPENDENCY: "a job that it waited for died",
}


def _finished(job: Job) -> Cause:
    remedy, command = "run it again", f"job retry {job.id}"
    if job.state is State.DEAD:
        why = _DEATHS[job.reason] if job.reason else "it is a dead letter"
        failed = job.failures
        said = _said(failed[-1]) if failed else ""
        text = f"it is dead: {why}{said}"
        return Cause(code="dead", text=text, remedy=remedy, command=command, at=job.finished_at)
    text = "it is done" if job.state is State.DONE else "it was cancelled"
    if job.state is State.CANCELLED and job.events and job.events[-1].by:
        text += f" by {job.events[-1].by}"
    return Cause(code=str(job.state), text=text, remedy=remedy, command=command, at=job.finished_at)


def _said(event: Event) -> str:
    text = event.failure.message if event.failure else event.text
    return f" ({text[:200]})" if text else ""


def _there(workers: list[Seen]) -> str:
    return f"there {'is' if len(workers) == 1 else 'are'} {_names(workers)}"


def _names(workers: list[Seen]) -> str:
    names = [seen.record.name for seen in workers[:NAMES_MAX]]
    rest = len(workers) - len(names)
    shown = ", ".join(names) + (f" and {rest} more" if rest else "")
    return f"{'worker' if len(workers) == 1 else 'workers'} {shown}"
