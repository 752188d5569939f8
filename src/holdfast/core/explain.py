"""Explains why a job is not running and what would change that: facts → causes, in order.

Pure: the caller reads the facts. The text of a cause contains no instant; `at` holds it, so that
each reader can format it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from holdfast.core import breaker, failures, lifecycle, retry_policy
from holdfast.core.fairness import TenantView
from holdfast.core.limits import Slot
from holdfast.core.model import Event, EventKind, Job, Queue, Reason, State, Waits
from holdfast.core.text import counted
from holdfast.core.workers import (
    HEARTBEAT_MS,
    Health,
    WorkerRecord,
    addressee,
    health,
    knows_task,
    usable_slots,
)

NAMES_MAX = 5
JOBS_SHOWN_MAX = 3
ABSENT_MS = 6 * HEARTBEAT_MS
"""A worker without a heartbeat for this long counts as absent."""


class SeenWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record and its age by the engine's clock; `unattended_ms` is for how long it has
    not received from its queue at the broker."""

    record: WorkerRecord
    age_ms: int = 0
    unattended_ms: int = 0

    @property
    def health(self) -> tuple[Health, str]:
        """Its health, and the reason."""
        return health(self.record, self.age_ms, self.unattended_ms)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an explanation needs. `ahead` counts the startable jobs before it in the queue;
    with `ahead_more` it is a lower bound. `paused_by` and `paused_at` are the person and time of
    the pause, if known. `waits` is the engine's answer; `parents` holds the states of the first
    parents. `breaker` describes the breaker that blocks the job, `breaker_key` names it, and
    `breaker_at` is when it is probed. `broker_error` is why the broker cannot be reached; "" if it
    can, or if there is none."""

    job: Job
    queue: Queue | None
    now: int
    workers: tuple[SeenWorker, ...] = ()
    ahead: int = 0
    ahead_more: bool = False
    paused_by: str = ""
    paused_at: int | None = None
    breaker: str = ""
    breaker_key: str = ""
    breaker_at: int | None = None
    waits: Waits | None = None
    parents: dict[str, State] = {}
    broker_error: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a job is not running. `command` is what a person can type after the name of
    the program to apply the remedy; "" if there is no such command."""

    code: str
    text: str
    remedy: str = ""
    command: str = ""
    at: int | None = None


def explain(facts: Facts) -> list[Cause]:
    """Every cause, the most important first; never empty."""
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
    """Whether a worker leases from a queue; its own queue counts."""
    return queue in record.queues or addressee(queue) == record.name


def startable(task: str, queue: str, workers: Iterable[SeenWorker]) -> bool:
    """Whether jobs of this task can start: a worker of the queue knows the task, or the queue has
    no worker.
    """
    serving = [seen for seen in workers if _is_present(seen) and serves(seen.record, queue)]
    return not serving or any(knows_task(seen.record, task) for seen in serving)


def _waiting(facts: Facts) -> Iterator[Cause]:
    causes = list(_of_the_job(facts))
    if facts.waits is not None:
        causes += flow_control_causes(facts.job, facts.waits, facts.parents, facts.now)
    causes += [*_of_the_queue(facts), *_of_the_workers(facts)]
    if facts.breaker:
        causes.append(_of_the_breaker(facts))
    if facts.broker_error and addressee(facts.job.queue) is not None:
        causes.append(_of_the_broker(facts))
    yield from causes
    if facts.ahead and not _is_held(facts):
        least = "at least " if facts.ahead_more else ""
        yield Cause(
            code="jobs_ahead",
            text=f"{least}{counted(facts.ahead, 'waiting job')} of its queue must start first, "
            "because of a higher priority or an earlier due time",
            remedy="expedite it, or start more workers",
            command=f"job expedite {facts.job.id}",
        )
    elif not causes:
        yield Cause(code="ready", text="nothing blocks it: a worker should start it at once")


def _is_held(facts: Facts) -> bool:
    """Whether something other than its place in the queue blocks the job."""
    waits = facts.waits
    behind = waits is not None and (waits.parent_count > 0 or waits.group_head is not None)
    return behind or lifecycle.is_expired(facts.job, facts.now)


def _of_the_breaker(facts: Facts) -> Cause:
    return Cause(
        code="breaker_open",
        text=facts.breaker,
        remedy=breaker.remedy(is_probed=facts.breaker_at is not None),
        command=f"breaker close {facts.breaker_key}",
        at=facts.breaker_at,
    )


def _of_the_broker(facts: Facts) -> Cause:
    return Cause(
        code="broker_down",
        text=f"the broker delivers nothing now ({facts.broker_error}); its worker finds the job by"
        " polling the store, a little later",
        remedy="see what is wrong with the broker",
        command="doctor",
    )


def _is_present(seen: SeenWorker) -> bool:
    return seen.age_ms <= ABSENT_MS


def _of_the_job(facts: Facts) -> Iterator[Cause]:
    job = facts.job
    if lifecycle.is_expired(job, facts.now):
        onward = job.overrides.reroute is not None and addressee(job.queue) is not None
        fate = "moves to another worker or dies" if onward else "becomes a dead letter"
        yield Cause(
            code="expired",
            text=f"it did not start before its expiry and {fate}",
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
        most = retry_policy.attempts_max(facts.queue, job) if facts.queue else 0
        of = f" of {most}" if most else ""
        return Cause(
            code="retry_backoff",
            text=f"attempt {last.attempt}{of} failed{_quoted(last)}; it waits for the next attempt",
            remedy="run it at once",
            command=command,
            at=job.due_at,
        )
    if last is not None and last.kind is EventKind.RELEASED:
        by = f" by {last.by}" if last.by else ""
        text = f"it was released{by}{_quoted(last)} and is not due again yet"
        return Cause(
            code="released", text=text, remedy="run it at once", command=command, at=job.due_at
        )
    text = "it is delayed and not due yet"
    return Cause(code="delayed", text=text, remedy="run it at once", command=command, at=job.due_at)


def _of_the_queue(facts: Facts) -> Iterator[Cause]:
    queue = facts.queue
    if queue is None:
        yield Cause(code="queue_gone", text=f"queue {facts.job.queue} no longer exists")
    elif queue.paused:
        by = f" by {facts.paused_by}" if facts.paused_by else ""
        yield Cause(
            code="queue_paused",
            text=f"queue {queue.name} was paused{by}",
            remedy="resume the queue",
            command=f"queue resume {queue.name}",
            at=facts.paused_at,
        )


def _of_the_workers(facts: Facts) -> Iterator[Cause]:
    """The causes that lie with the workers; none if at least one could take the job now."""
    job = facts.job
    present = [seen for seen in facts.workers if _is_present(seen)]
    serving = [seen for seen in present if serves(seen.record, job.queue)]
    if not serving:
        yield _unserved(facts, present)
        return
    knowing = [seen for seen in serving if knows_task(seen.record, job.task)]
    if not knowing:
        yield _unknown(job, serving)
        return
    hindered = [(seen, _hindrance(seen)) for seen in knowing]
    if all(why for _, why in hindered):
        yield from _hindered(hindered, job.queue)


def _unknown(job: Job, serving: list[SeenWorker]) -> Cause:
    names = {task for seen in serving for task in seen.record.tasks}
    close = difflib.get_close_matches(job.task, sorted(names), 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    rename = "enqueue it under that name, or " if close else ""
    return Cause(
        code="task_unknown",
        text=f"no worker of queue {job.queue} knows the task {job.task}{meant};"
        f" {_present(serving)}",
        remedy=f"{rename}start a worker with the application that has the task",
        command=f"worker run MODULE:APP --queues {job.queue}",
    )


def _unserved(facts: Facts, present: list[SeenWorker]) -> Cause:
    queue = facts.job.queue
    name = addressee(queue)
    if name is not None:
        last = [seen for seen in facts.workers if seen.record.name == name]
        heard = f"; its last heartbeat was {last[0].age_ms // 1000} s ago" if last else ""
        return Cause(
            code="addressee_absent",
            text=f"it is addressed to worker {name}, which is not running{heard}",
            remedy="start that worker, or extend the job's expiry",
            command=f"worker start --name {name}",
            at=facts.job.expires_at,
        )
    others = f"; {_present(present)}" if present else "; no worker is running"
    return Cause(
        code="queue_unserved",
        text=f"no worker serves queue {queue}{others}",
        remedy="start a worker for it",
        command=f"worker start --queues {queue}",
    )


_HINDRANCES = {
    "stopping": ("{} stopping", "start another worker", "worker start --queues {queue}"),
    "cordoned": ("{} cordoned", "uncordon them", "worker uncordon {name}"),
    "unhealthy": ("{} unhealthy", "see why", "worker list"),
    "saturated": ("{} saturated", "wait, or start more workers", "worker start --queues {queue}"),
}


def _hindrance(seen: SeenWorker) -> str:
    """Why this worker, which knows the task, leases nothing now; "" if it could."""
    record = seen.record
    state, _ = seen.health
    if record.stopping:
        return "stopping"
    if record.cordoned:
        return "cordoned"
    if state is Health.UNHEALTHY:
        return "unhealthy"
    return "" if usable_slots(max(record.capacity - record.running, 0), state) else "saturated"


def _hindered(hindered: list[tuple[SeenWorker, str]], queue: str) -> Iterator[Cause]:
    for code, (template, remedy, command) in _HINDRANCES.items():
        alike = [seen for seen, why in hindered if why == code]
        if not alike:
            continue
        record = alike[0].record
        text = template.format(f"{_names(alike)} {'is' if len(alike) == 1 else 'are'}")
        if code == "saturated":
            busy = sum(seen.record.running for seen in alike)
            slots = sum(seen.record.capacity for seen in alike)
            text += f": {busy} of {slots} slots busy"
        elif code == "unhealthy":
            text += f": {alike[0].health[1]}"
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
            text=f"its lease is overdue: {worker} did not renew it",
            remedy="run upkeep, which returns the job to its queue",
            command="up",
            at=job.deadline_at,
        )
    elif seen is not None and seen.age_ms > ABSENT_MS:
        yield Cause(
            code="worker_lost",
            text=f"{worker} holds it; its last heartbeat was {seen.age_ms // 1000} s ago",
            remedy="wait until the lease expires; then another worker gets the job",
            at=job.deadline_at,
        )
    if job.cancel_requested:
        yield Cause(code="cancelling", text=f"{worker} has been asked to stop it")
    act = (
        "is handling it as a dead letter"
        if job.is_dead_letter
        else f"is running attempt {job.attempt}"
    )
    yield Cause(
        code="running",
        text=f"{worker} {act}",
        remedy="follow its output",
        command=f"job logs {job.id} --follow",
        at=job.leased_at,
    )


_DEATHS = {
    Reason.ATTEMPTS: "its last attempt failed",
    Reason.EXPIRED: "it did not start before its expiry",
    Reason.CRASHED: "it crashed too many workers",
    Reason.REJECTED: "it was rejected",
    Reason.EXPLICIT: "it was buried on purpose",
    Reason.DEPENDENCY: "a job it depends on died",
}


def _finished(job: Job) -> Cause:
    remedy, command = "run it again", f"job retry {job.id}"
    if job.state is State.DEAD:
        why = _DEATHS[job.reason] if job.reason else "it is a dead letter"
        failed = job.failures
        error = _quoted(failed[-1]) if failed else ""
        text = f"it is dead: {why}{error}"
        return Cause(code="dead", text=text, remedy=remedy, command=command, at=job.finished_at)
    text = "it is done" if job.state is State.DONE else "it was cancelled"
    if job.state is State.CANCELLED and job.events and job.events[-1].by:
        text += f" by {job.events[-1].by}"
    return Cause(code=str(job.state), text=text, remedy=remedy, command=command, at=job.finished_at)


def _quoted(event: Event) -> str:
    text = failures.line(event.failure) if event.failure else event.text[:200]
    return f" ({text})" if text else ""


def _present(workers: list[SeenWorker]) -> str:
    return f"{_names(workers)} {'is' if len(workers) == 1 else 'are'} running"


def _names(workers: list[SeenWorker]) -> str:
    names = [seen.record.name for seen in workers[:NAMES_MAX]]
    rest = len(workers) - len(names)
    shown = ", ".join(names) + (f" and {rest} more" if rest else "")
    return f"{'worker' if len(workers) == 1 else 'workers'} {shown}"


def flow_control_causes(
    job: Job, waits: Waits, parents: dict[str, State], now: int
) -> Iterator[Cause]:
    """Parents, group, limits and other tenants that a due job waits for."""
    if waits.parent_count:
        yield _parents(waits, parents)
    if waits.group_head is not None:
        yield Cause(
            code="group",
            text=f"job {waits.group_head} is ahead of it in group {job.group}",
            remedy="see why that job has not ended",
            command=f"job explain {waits.group_head}",
        )
    for slot in waits.slots:
        yield from _slot(job, slot, now)
    if waits.tenant is not None and waits.tenant.noisy:
        yield _noisy(waits.tenant)


def _parents(waits: Waits, states: dict[str, State]) -> Cause:
    shown = [
        f"{id_} ({states[id_]})" if id_ in states else id_ for id_ in waits.parents[:JOBS_SHOWN_MAX]
    ]
    rest = waits.parent_count - len(shown)
    more = f" and {rest} more" if rest > 0 else ""
    text = f"it waits for {counted(waits.parent_count, 'job')}: {', '.join(shown)}{more}"
    first = waits.parents[0] if waits.parents else ""
    if states.get(first) in (State.DEAD, State.CANCELLED):
        return Cause(
            code="parents",
            text=f"{text}; it is held until the dead job is redriven",
            remedy="retry that job",
            command=f"job retry {first}",
        )
    return Cause(
        code="parents",
        text=text,
        remedy="see why they have not ended",
        command=f"job explain {first}" if first else "",
    )


def has_room(slot: Slot) -> bool:
    """Whether the counter allows one more job to start now."""
    return not _is_full(slot) and (slot.rate is None or slot.free_ms == 0)


def _is_full(slot: Slot) -> bool:
    return slot.concurrency is not None and slot.used >= slot.concurrency


def _slot(job: Job, slot: Slot, now: int) -> Iterator[Cause]:
    name = f"limit {slot.limit}" + (f" for {slot.key}" if slot.key else "")
    if _is_full(slot):
        holders = ", ".join(slot.holders[:JOBS_SHOWN_MAX])
        rest = slot.used - min(JOBS_SHOWN_MAX, len(slot.holders))
        by = f", by {holders}" + (f" and {rest} more" if rest > 0 else "") if holders else ""
        yield Cause(
            code="limit_full",
            text=f"{name} is full: {slot.used} of {slot.concurrency} slots are held{by}",
            remedy="wait until one of them ends, or raise the limit",
            command=f"queue limits {job.queue}",
        )
    if slot.rate is not None and slot.free_ms > 0:
        yield Cause(
            code="rate",
            text=f"{name} has reached its rate",
            remedy="wait, or raise the limit",
            command=f"queue limits {job.queue}",
            at=now + slot.free_ms,
        )


def _noisy(tenant: TenantView) -> Cause:
    return Cause(
        code="tenant_noisy",
        text=f"its tenant {tenant.tenant or '(none)'} uses {tenant.share:.0%} of the queue's time,"
        f" with {counted(tenant.leased, 'job')} leased, and yields to the others",
        remedy="start more workers",
    )
