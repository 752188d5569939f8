"""Enqueue jobs over REST: into one queue, each into its own queue, or as a batch with one more job
that starts when all others have ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple

from holdfast.app.application import Holdfast
from holdfast.app.batch import id_of, joined, last_again, progress_of
from holdfast.core import bounds, checks
from holdfast.core.checks import accepted
from holdfast.core.model import AfterOn, NewJob, Receipt, State, Status
from holdfast.errors import InvalidJob, NotFound, OutcomeUnknown, UsageError
from holdfast.notation import job_lines
from holdfast.notation.job import JobId, QueueName
from holdfast.notation.options import new_id
from holdfast.notation.synonyms import READ_ONLY, ignored_note
from holdfast.ops.settings import read_job_defaults
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.chunked_decode import YieldBudget
from holdfast.server.http.idempotency import NOTHING_DONE
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.http.problems import TooLarge
from holdfast.server.rest.jobs import read_job
from holdfast.server.rest.shapes import AnyJobBody, IgnoredNote, NewJobBody

_SETTINGS_AGE_S_MAX = 1.0

Body = TypeVar("Body", bound=NewJobBody)
Made = TypeVar("Made")

_MANY = Meta(min_length=1, max_length=bounds.BATCH_MAX)
_UNSET_FIELDS = astuple(NewJobBody())[3:]
"""All fields but task, payload and id: most jobs set none of them."""
_settings: WeakKeyDictionary[Holdfast, tuple[float, job_lines.JobDefaults]] = WeakKeyDictionary()


class NewJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Up to 1,000 jobs, enqueued in one transaction. With `dry_run` only their fields are checked,
    not whether the queue exists and accepts them.
    """

    jobs: Annotated[list[NewJobBody], _MANY]
    dry_run: bool = False


class AnyJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Up to 1,000 jobs, each with its own queue, enqueued in one transaction. With `dry_run` only
    their fields are checked.
    """

    jobs: Annotated[list[AnyJobBody], _MANY]
    dry_run: bool = False


class EntryError(msgspec.Struct, frozen=True):
    """Why one item of a batch was refused."""

    code: str
    message: str


class EnqueuedJob(msgspec.Struct, frozen=True, gc=False):
    """If the job is a duplicate by key, `id` is that of the earlier job."""

    id: str
    duplicate: bool
    error: EntryError | UnsetType = UNSET


class Enqueued(msgspec.Struct, frozen=True):
    """One result for each job, in the same order."""

    jobs: list[EnqueuedJob]
    note: IgnoredNote = UNSET


def _all_have_ids(jobs: Sequence[NewJobBody]) -> bool:
    """True if every job has an id: then enqueueing them again adds nothing."""
    return all(each.id is not None for each in jobs)


def _is_repeatable(body: NewJobs | AnyJobs) -> bool:
    return _all_have_ids(body.jobs)


@operation(
    "POST",
    "/v1/queues/{queue}/jobs",
    needs=Scope.PRODUCE,
    status=201,
    repeatable=_is_repeatable,
)
async def enqueue(call: ApiCall, queue: QueueName, body: NewJobs) -> Enqueued:
    """Enqueue jobs in a queue. They are durable when the answer arrives. A refused job does not
    affect the others; if all are refused, the answer is the first error. Repeating the request with
    the same ids adds nothing; for jobs without ids, use an Idempotency-Key."""
    return await _enqueue(call, body.jobs, queue, dry_run=body.dry_run)


@operation("POST", "/v1/jobs", needs=Scope.PRODUCE, status=201, repeatable=_is_repeatable)
async def enqueue_anywhere(call: ApiCall, body: AnyJobs) -> Enqueued:
    """Enqueue jobs in the queues that they name, in one transaction."""
    return await _enqueue(call, body.jobs, None, dry_run=body.dry_run)


class NewBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Up to 10,000 jobs, and the job `then` that starts when all of them have ended as `after_on`
    requires. If all jobs have ids, repeating the request adds only the missing ones.
    """

    jobs: Annotated[list[AnyJobBody], Meta(min_length=1, max_length=bounds.PARENTS_MAX)]
    then: AnyJobBody
    after_on: AfterOn = "either"


class EnqueuedBatch(msgspec.Struct, frozen=True):
    """`id` is the id of the batch and of the job that completes it; `jobs` are the other ids."""

    id: str
    jobs: list[str]
    note: IgnoredNote = UNSET


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is that of the job that completes the batch. Jobs deleted after their retention count
    as done."""

    id: str
    state: State
    total: int
    done: int
    dead: int
    cancelled: int
    left: int


def _is_batch_repeatable(body: NewBatch) -> bool:
    return _all_have_ids((*body.jobs, body.then))


@operation("POST", "/v1/batches", needs=Scope.PRODUCE, status=201, repeatable=_is_batch_repeatable)
async def enqueue_batch(call: ApiCall, body: NewBatch) -> EnqueuedBatch:
    """Enqueue a batch: jobs, and one more that starts when all of them have ended. If a job is
    refused, the answer is its error, and the jobs before it stay enqueued."""
    check_batch_size(body.jobs)
    builder = await job_builder(call.app)
    numbers = count()
    jobs = await map_yielding(body.jobs, lambda each: _batch_job(each, next(numbers), builder))
    batch = joined(jobs, builder.job(body.then), body.after_on)
    receipts: list[Receipt] = []
    try:
        for start in range(0, len(batch), bounds.BATCH_MAX):
            receipts += await call.engine.enqueue(batch[start : start + bounds.BATCH_MAX])
        if (last := last_again(batch, receipts)) is not None:
            receipts[-1:] = await call.engine.enqueue([last])
        id_ = id_of(receipts)
    except NOTHING_DONE as error:
        # A client may repeat such an error, which would duplicate every job without an id.
        if not any(each.status is Status.NEW for each in receipts):
            raise
        raise OutcomeUnknown(
            f"some jobs of the batch were enqueued before the error: {error}; repeat the request "
            "only if all its jobs have ids"
        ) from error
    return EnqueuedBatch(id_, [each.id for each in receipts[:-1]], builder.note)


@operation("GET", "/v1/batches/{id}", needs=(Scope.PRODUCE, Scope.OBSERVE))
async def show_batch(call: ApiCall, id: JobId) -> BatchView:
    """Show the progress of a batch, by the id of the job that completes it."""
    last = await read_job(call.engine, id)
    if not last.after:
        raise NotFound(f"job {id} does not complete a batch: it depends on no other job")
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


OPERATIONS: tuple[Operation, ...] = (
    enqueue,
    enqueue_anywhere,
    enqueue_batch,
    show_batch,
)


async def _enqueue(
    call: ApiCall, bodies: Sequence[NewJobBody], queue: str | None, *, dry_run: bool
) -> Enqueued:
    check_batch_size(bodies)
    builder = await job_builder(call.app)
    built = await map_yielding(bodies, lambda each: _job_or_refusal(each, queue, builder))
    jobs = [each for each in built if isinstance(each, NewJob)]
    enqueue_jobs = _check_only if dry_run else call.engine.enqueue
    from_engine = iter(await enqueue_jobs(jobs) if jobs else ())
    receipts = [next(from_engine) if isinstance(each, NewJob) else each for each in built]
    if all(each.status is Status.REFUSED for each in receipts):
        raise _first_error(receipts)
    return Enqueued([_enqueued_job(each) for each in receipts], builder.note)


def check_batch_size(jobs: Sequence[NewJobBody] | Sequence[NewJob]) -> None:
    """Raise TooLarge beyond the bound on one transaction, because all other writers wait for it."""
    parents = sum([len(each.after) for each in jobs if each.after])
    if max(len(jobs), parents) > bounds.PARENTS_MAX:
        raise TooLarge(
            f"{len(jobs)} jobs with {parents} dependencies are too many for one request: at most "
            f"{bounds.PARENTS_MAX} of each"
        )


async def map_yielding(bodies: Sequence[Body], make: Callable[[Body], Made]) -> list[Made]:
    """Apply `make` to each body, yielding to the event loop in between: checking a large payload is
    slow.
    """
    budget = YieldBudget()
    made = []
    for body in bodies:
        payload = body.payload
        if budget.spend(0 if isinstance(payload, UnsetType) else len(memoryview(payload))):
            await asyncio.sleep(0)
        made.append(make(body))
    return made


class JobBuilder(NamedTuple):
    """Builds jobs from the bodies of one request and the stored settings."""

    base: job_lines.JobDefaults
    make_id: Callable[[], str]
    ignored: set[str]
    """Names of fields that were left out of jobs."""

    @property
    def note(self) -> str | UnsetType:
        """The note for the answer, if fields were left out."""
        return ignored_note(self.ignored) or UNSET

    def job(self, body: NewJobBody, queue: str | None = None) -> NewJob:
        """The job of a body; `queue` is the default, or else its task's. UsageError if it is not a
        valid job."""
        plain = not self.base.values and body.task not in self.base.by_task
        if body.task is not None and plain and astuple(body)[3:] == _UNSET_FIELDS:
            payload = job_lines.json_bytes(body.payload)
            id_ = body.id or self.make_id()
            return NewJob(id=id_, task=body.task, queue=queue or "default", payload=payload)
        fields = zip(body.__struct_fields__, astuple(body), strict=True)
        given = {name: value for name, value in fields if value not in (None, UNSET)}
        for name in given.keys() & READ_ONLY:
            del given[name]
            self.ignored.add(name)
        line = job_lines.JobLine(**given)
        line.id = line.id or self.make_id()
        if line.queue is None and line.to is None:
            line.queue = queue
        return job_lines.make_job(line, self.base)


async def job_builder(app: Holdfast) -> JobBuilder:
    """A builder with the stored settings of an application, at most a second old."""
    known = _settings.get(app)
    now = time.monotonic()
    if known is None or known[0] < now:
        if known is not None:
            # One caller reads again; meanwhile the others use the current value.
            _settings[app] = (now + _SETTINGS_AGE_S_MAX, known[1])
        # The application's engine: the caller may lack the scope to read settings.
        base = await read_job_defaults(app.engine)
        known = _settings[app] = (now + _SETTINGS_AGE_S_MAX, base)
    # The store's own ids, looked up once for all jobs of a request.
    return JobBuilder(known[1], app.home.mint or new_id, set())


def _job_or_refusal(body: NewJobBody, queue: str | None, builder: JobBuilder) -> NewJob | Receipt:
    try:
        return builder.job(body, queue)
    except UsageError as error:
        return checks.refusal(body.id or builder.make_id(), error)


async def _check_only(jobs: Sequence[NewJob]) -> list[Receipt]:
    """The receipts of a dry run."""
    receipts = []
    for job in jobs:
        try:
            checks.check_job(job)
        except UsageError as error:
            receipts.append(checks.refusal(job.id, error))
        else:
            receipts.append(Receipt(id=job.id, status=Status.NEW))
    return receipts


def _first_error(receipts: Sequence[Receipt]) -> UsageError:
    """The error of the first refused job. Of several, the detail lists them all."""
    try:
        accepted(receipts[0])
    except UsageError as error:
        if len(receipts) > 1:
            jobs = [{"id": each.id, "code": each.code, "message": each.text} for each in receipts]
            error.detail = {"jobs": jobs}  # type: ignore[attr-defined]
        return error
    raise AssertionError("the receipt is not a refusal")


def _enqueued_job(receipt: Receipt) -> EnqueuedJob:
    if receipt.status is Status.REFUSED:
        return EnqueuedJob(
            receipt.id, duplicate=False, error=EntryError(receipt.code, receipt.text)
        )
    return EnqueuedJob(receipt.id, receipt.status is Status.DUPLICATE)


def _batch_job(body: AnyJobBody, at: int, builder: JobBuilder) -> NewJob:
    try:
        return builder.job(body, "default")
    except InvalidJob as error:
        raise InvalidJob(f"job {at}: {error}") from None
