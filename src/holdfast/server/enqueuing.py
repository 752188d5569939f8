"""New jobs: into one queue, or each where it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple

from holdfast import newjob
from holdfast.app import Holdfast, accepted
from holdfast.config import settings
from holdfast.core import admission, checks, limits
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.errors import UsageError
from holdfast.options import new_id
from holdfast.server.bodies import AnyJobBody, NewJobBody
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.pieces import Turn
from holdfast.server.refusals import TooLarge
from holdfast.server.shapes import QueueName

_SETTINGS_S = 1.0
"""Stored settings are as old as this at most."""

Body = TypeVar("Body", bound=NewJobBody)
Made = TypeVar("Made")
_MANY = Meta(min_length=1, max_length=limits.BATCH_MAX)


class NewJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Up to 1,000 jobs, which go in together. With `dry_run` only their form is looked at: whether
    there is such a queue, and whether it takes them, is seen when they come."""

    jobs: Annotated[list[NewJobBody], _MANY]
    dry_run: bool = False


class AnyJobs(msgspec.Struct, forbid_unknown_fields=True):
    """As for one queue."""

    jobs: Annotated[list[AnyJobBody], _MANY]
    dry_run: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """Why this one was left out."""

    code: str
    message: str


class Taken(msgspec.Struct, frozen=True, gc=False):
    """`id` is the earlier job's when it is a duplicate by key."""

    id: str
    duplicate: bool
    error: Refusal | UnsetType = UNSET


class Enqueued(msgspec.Struct, frozen=True):
    """An answer for each job, in their order."""

    jobs: list[Taken]


def have_ids(jobs: Sequence[NewJobBody]) -> bool:
    """Then enqueueing them again adds nothing."""
    return all(each.id is not None for each in jobs)


def _is_repeatable(body: NewJobs | AnyJobs) -> bool:
    return have_ids(body.jobs)


@operation(
    "POST",
    "/v1/queues/{queue}/jobs",
    needs=Scope.PRODUCE,
    status=201,
    repeatable=_is_repeatable,
)
async def enqueue(call: Call, queue: QueueName, body: NewJobs) -> Enqueued:
    """Put jobs in a queue. They are durable when the answer comes. One that is refused harms no
    other; if all are, the answer is that error. Repeating it with the same ids adds nothing; for
    jobs without one an Idempotency-Key does the same."""
    check_together(body.jobs)
    desk = await desk_of(call.app)
    made = await in_turns(body.jobs, lambda each: _made(each, queue, desk))
    return await _enqueue(call, made, body.dry_run)


@operation("POST", "/v1/jobs", needs=Scope.PRODUCE, status=201, repeatable=_is_repeatable)
async def enqueue_anywhere(call: Call, body: AnyJobs) -> Enqueued:
    """Put jobs in queues that they name themselves, in one transaction."""
    check_together(body.jobs)
    desk = await desk_of(call.app)
    made = await in_turns(body.jobs, lambda each: _made(each, "default", desk))
    return await _enqueue(call, made, body.dry_run)


OPERATIONS: tuple[Operation, ...] = (enqueue, enqueue_anywhere)


def check_together(jobs: Sequence[NewJobBody] | Sequence[NewJob]) -> None:
    """What one transaction does is what everybody else waits for, so that there is an end to it."""
    parents = sum([len(each.after) for each in jobs if each.after])
    if max(len(jobs), parents) > limits.PARENTS_MAX:
        raise TooLarge(
            f"{len(jobs)} jobs that are after {parents} others are too much for one request: "
            f"{limits.PARENTS_MAX} of each are the most"
        )


async def in_turns(bodies: Sequence[Body], make: Callable[[Body], Made]) -> list[Made]:
    """What is made of each. A payload is read to its end, so that others have their turn between
    them."""
    turn = Turn()
    made = []
    for body in bodies:
        payload = body.payload
        if turn.is_over(0 if isinstance(payload, UnsetType) else len(memoryview(payload))):
            await asyncio.sleep(0)
        made.append(make(body))
    return made


class Desk(NamedTuple):
    """Where jobs are made of what callers say, under what the stored settings say."""

    base: newjob.Base
    make_id: Callable[[], str]

    def job(self, body: NewJobBody, queue: str) -> NewJob:
        """`queue` is for one that does not say. UsageError: it cannot be a job."""
        if body.task is not None and not self.base.values and astuple(body)[3:] == _UNSAID:
            payload = newjob.json_of(body.payload)
            id_ = body.id or self.make_id()
            return NewJob(id=id_, task=body.task, queue=queue, payload=payload)
        said = zip(body.__struct_fields__, astuple(body), strict=True)
        line = newjob.Line(**{name: value for name, value in said if value is not None})
        line.id = line.id or self.make_id()
        if line.queue is None and line.to is None:
            line.queue = queue
        return newjob.make(line, self.base)


_UNSAID = astuple(NewJobBody())[3:]
"""Most jobs say only these three."""


async def desk_of(app: Holdfast) -> Desk:
    known = _settings.get(app)
    now = time.monotonic()
    if known is None or known[0] < now:
        if known is not None:
            # One caller looks again; the others go on with what is known meanwhile.
            _settings[app] = (now + _SETTINGS_S, known[1])
        # Read for the server and not for the caller, who may perhaps only enqueue.
        base = newjob.base_of(newjob.Line(), await settings(app.engine))
        known = _settings[app] = (now + _SETTINGS_S, base)
    # As the application makes them, looked up once for all jobs of a request.
    return Desk(known[1], getattr(app.home.store, "mint", new_id))


_settings: WeakKeyDictionary[Holdfast, tuple[float, newjob.Base]] = WeakKeyDictionary()


async def _enqueue(call: Call, made: list[NewJob | Receipt], dry_run: bool) -> Enqueued:
    good = [each for each in made if isinstance(each, NewJob)]
    look = _looked_at if dry_run else call.engine.enqueue
    receipts = iter(await look(good) if good else ())
    answers = [next(receipts) if isinstance(each, NewJob) else each for each in made]
    if all(each.status is Status.REFUSED for each in answers):
        raise _refusal(answers)
    return Enqueued([_taken(each) for each in answers])


def _refusal(receipts: Sequence[Receipt]) -> UsageError:
    """The first one's error. What was wrong with each of several is in its detail."""
    try:
        accepted(receipts[0])
    except UsageError as error:
        if len(receipts) > 1:
            told = [{"id": each.id, "code": each.code, "message": each.text} for each in receipts]
            error.detail = {"jobs": told}  # type: ignore[attr-defined]
        return error
    raise AssertionError("only refusals are raised")


async def _looked_at(jobs: Sequence[NewJob]) -> list[Receipt]:
    receipts = []
    for job in jobs:
        try:
            checks.check_job(job)
        except UsageError as error:
            receipts.append(admission.refused(job.id, error))
        else:
            receipts.append(Receipt(id=job.id, status=Status.NEW))
    return receipts


def _made(body: NewJobBody, queue: str, desk: Desk) -> NewJob | Receipt:
    """The job, or why it cannot be one."""
    try:
        return desk.job(body, queue)
    except UsageError as error:
        return admission.refused(body.id or "", error)


def _taken(receipt: Receipt) -> Taken:
    if receipt.status is Status.REFUSED:
        return Taken(receipt.id, duplicate=False, error=Refusal(receipt.code, receipt.text))
    return Taken(receipt.id, receipt.status is Status.DUPLICATE)
