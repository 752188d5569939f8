"""Batches: jobs that belong together, and one more that starts when all of them have ended."""

from __future__ import annotations

from itertools import count
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.batches import id_of, joined, last_again, progress_of
from holdfast.core import limits
from holdfast.core.model import AfterOn, NewJob, Receipt, State, Status
from holdfast.errors import InvalidJob, NotFound, OutcomeUnknown
from holdfast.server.bodies import AnyJobBody
from holdfast.server.calls import Call
from holdfast.server.enqueuing import Desk, check_together, desk_of, have_ids, in_turns
from holdfast.server.idempotency import NOTHING_DONE
from holdfast.server.jobs import read_job
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import JobId


class NewBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Up to 10,000 jobs, and the one that starts `then`: when all of them have ended as `after_on`
    says. With ids of their own, repeating it adds what is missing."""

    jobs: Annotated[list[AnyJobBody], Meta(min_length=1, max_length=limits.PARENTS_MAX)]
    then: AnyJobBody
    after_on: AfterOn = "either"


class BatchTaken(msgspec.Struct, frozen=True):
    """`id` is the batch's, and that of the job that completes it; `jobs` are the others'."""

    id: str
    jobs: list[str]


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is of the job that completes it. Jobs that are gone, being past their retention,
    count as done."""

    id: str
    state: State
    total: int
    done: int
    dead: int
    cancelled: int
    left: int


def _is_repeatable(body: NewBatch) -> bool:
    return have_ids((*body.jobs, body.then))


@operation("POST", "/v1/batches", needs=Scope.PRODUCE, status=201, repeatable=_is_repeatable)
async def enqueue_batch(call: Call, body: NewBatch) -> BatchTaken:
    """Enqueue jobs, and one more that starts when all of them have ended. If one is refused, the
    answer is its error, and those before it are there."""
    check_together(body.jobs)
    desk = await desk_of(call.app)
    numbers = count()
    made = await in_turns(body.jobs, lambda each: _made(each, next(numbers), desk))
    given = joined(made, desk.job(body.then, "default"), body.after_on)
    receipts: list[Receipt] = []
    try:
        for start in range(0, len(given), limits.BATCH_MAX):
            receipts += await call.engine.enqueue(given[start : start + limits.BATCH_MAX])
        if (last := last_again(given, receipts)) is not None:
            receipts[-1:] = await call.engine.enqueue([last])
        id_ = id_of(receipts)
    except NOTHING_DONE as error:
        # That would say that it may be tried again, and make a second job of each without an id.
        if not any(each.status is Status.NEW for each in receipts):
            raise
        raise OutcomeUnknown(
            f"some of its jobs are there, and then: {error}; repeat it only with ids of their own"
        ) from error
    return BatchTaken(id_, [each.id for each in receipts[:-1]])


@operation("GET", "/v1/batches/{id}", needs=Scope.PRODUCE)
async def show_batch(call: Call, id: JobId) -> BatchView:
    """How far a batch is, by the id of the job that completes it."""
    last = await read_job(call.engine, id)
    if not last.after:
        raise NotFound(f"job {id} completes no batch: it is after no other")
    progress = await progress_of(call.engine, last)
    return BatchView(
        id=last.id,
        state=last.state,
        total=progress.total,
        done=progress.done,
        dead=progress.dead,
        cancelled=progress.cancelled,
        left=progress.left,
    )


OPERATIONS: tuple[Operation, ...] = (enqueue_batch, show_batch)


def _made(body: AnyJobBody, at: int, desk: Desk) -> NewJob:
    try:
        return desk.job(body, "default")
    except InvalidJob as error:
        raise InvalidJob(f"job {at}: {error}") from None
