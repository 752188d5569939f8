"""What may come in, and what a verdict may name: the rules that every engine asks, and the words
of their refusals. `queues` is anything that knows which queues exist."""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import Job, NewJob, Queue, Receipt, Status
from holdfast.core.text import counted
from holdfast.core.verdict import Complete, Forward, Settlement
from holdfast.errors import (
    CircularJobs,
    NotAccepting,
    QueueFull,
    UnknownParent,
    UnknownQueue,
    UsageError,
)


def refused(id: str, error: UsageError) -> Receipt:
    return Receipt(id=id, status=Status.REFUSED, code=error.code, text=str(error))


def unknown(name: str, what: str = "queue") -> UnknownQueue:
    return UnknownQueue(f"{what} {name} does not exist: declare it first")


def unknown_parent(id: str, parent: str) -> UnknownParent:
    return UnknownParent(
        f"job {id} is after {parent}, which does not exist: enqueue it first or in the same call"
    )


def circular(id: str, circle: str) -> CircularJobs:
    return CircularJobs(f"job {id} would wait for itself: {circle}")


def gives_way(job: Job, new: NewJob) -> bool:
    """Does a waiting job change by a later one under its key? What is meant for another task is
    never laid over its payload: whoever may enqueue the one need not be allowed the other."""
    same = job.task == new.task
    return new.key_policy == "replace" or (new.key_policy == "merge" and same)


def check_new(new: NewJob, queue: Queue | None) -> Queue:
    """The queue, if the job is within its bounds and there is one."""
    checks.check_job(new, queue.payload_max if queue else limits.PAYLOAD_MAX)
    if queue is None:
        raise unknown(new.queue)
    return queue


def check_room(queue: Queue, waiting: int) -> None:
    """Raise unless the queue takes one more job; `waiting` matters only where it has a bound."""
    if not queue.accepting:
        raise NotAccepting(f"queue {queue.name} accepts no new jobs at present")
    if queue.max_depth is not None and waiting >= queue.max_depth:
        raise QueueFull(f"queue {queue.name} holds its most, {counted(queue.max_depth, 'job')}")


def check_dead_queue(queue: Queue, queues: Container[str]) -> None:
    if queue.dead_queue is not None and queue.dead_queue not in queues:
        raise unknown(queue.dead_queue, "dead_queue")


def is_welcome(settlement: Settlement, queues: Container[str]) -> bool:
    """Within bounds. Follow-up jobs pass a full or closed queue, but not an unknown one."""
    try:
        checks.check_settlement(settlement)
    except UsageError:
        return False
    match settlement.verdict:
        case Forward(queue=queue):
            return queue in queues
        case Complete(then=then):
            return all(new.queue in queues for new in then)
        case _:
            return True


def policy(queue: Queue, queues: Container[str]) -> Queue:
    """The queue as `lifecycle` wants it: a dead_queue that is gone does not count."""
    if queue.dead_queue is not None and queue.dead_queue not in queues:
        return replace(queue, dead_queue=None)
    return queue
