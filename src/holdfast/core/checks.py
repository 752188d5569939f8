"""Checks of everything that enters an engine: bounds of values, and admission to a queue.

Each check raises with the value and the bound; `refusal` turns the error into a receipt. Hostile
text that must be stored anyway, such as errors and traces, is cleaned instead of refused.
`queues` is any container of the existing queue names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.lanes import fields_of
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import (
    NO_OVERRIDES,
    Event,
    Failure,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Receipt,
    Record,
    Renewal,
    Reroute,
    Status,
)
from holdfast.core.text import counted, kind_of
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
)
from holdfast.errors import (
    BY_CODE,
    CircularJobs,
    InvalidJob,
    InvalidQueue,
    NotAccepting,
    PayloadTooLarge,
    QueueFull,
    UnknownParent,
    UnknownQueue,
    Unsupported,
    UsageError,
)

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_JOB_ID = bounds.JOB_ID.match
_TASK_NAME = bounds.TASK_NAME.match
_QUEUE_NAME = bounds.QUEUE_NAME.match
_PLAIN = re.compile(r"[\x20-\x7e]{1,200}\Z")


def check_job(job: NewJob, payload_max: int = bounds.PAYLOAD_MAX) -> None:
    """Raise InvalidJob or PayloadTooLarge unless every engine could store the job exactly.

    This is on the hot path: fields at their default are skipped in groups.
    """
    if not _JOB_ID(job.id):
        raise InvalidJob(
            f"id {job.id[:80]!r} is not valid: use 1 to 128 characters of A-Z a-z 0-9 _ . : @ -"
        )
    if not _TASK_NAME(job.task):
        raise InvalidJob(
            f"task {job.task[:80]!r} is not valid: use 1 to 200 characters of A-Z a-z 0-9 _ . : / -"
        )
    if not _QUEUE_NAME(job.queue):
        check_queue_name(job.queue)
    if len(job.payload) > payload_max:
        raise PayloadTooLarge(
            f"the payload of job {job.id} is {len(job.payload)} bytes; the maximum is {payload_max}"
        )
    if job.priority or job.delay_ms or job.expires_ms is not None:
        _check_numbers(job)
    if job.key is not None or job.tenant is not None or job.group is not None:
        _check_names(job)
    if job.content_type != "application/json" and not bounds.CONTENT_TYPE.match(job.content_type):
        raise InvalidJob(
            f"content_type {job.content_type[:80]!r} is not valid: use 1 to 127 characters of ASCII"
        )
    if job.labels or job.headers:
        check_pairs("labels", job.labels)
        check_pairs("headers", job.headers)
    if job.overrides is not NO_OVERRIDES:
        check_overrides(job.overrides)
    if job.after:
        _check_parents(job)


def _check_numbers(job: NewJob) -> None:
    if not bounds.PRIORITY_MIN <= job.priority <= bounds.PRIORITY_MAX:
        raise InvalidJob(
            f"priority {job.priority} is out of range: expected {bounds.PRIORITY_MIN} to"
            f" {bounds.PRIORITY_MAX}"
        )
    if not 0 <= job.delay_ms <= bounds.DELAY_MS_MAX:
        raise InvalidJob(
            f"delay_ms {job.delay_ms} is out of range: expected 0 to {bounds.DELAY_MS_MAX}"
        )
    if not 0 <= (job.expires_ms or 0) <= bounds.DELAY_MS_MAX:
        raise InvalidJob(
            f"expires_ms {job.expires_ms} is out of range: expected 0 to {bounds.DELAY_MS_MAX}"
        )


def _check_names(job: NewJob) -> None:
    if job.tenant is not None:
        check_text("tenant", job.tenant)
    if job.group is not None:
        check_text("group", job.group)
    if job.key is None:
        return
    check_text("key", job.key)
    if not 0 <= job.key_window_ms <= bounds.DELAY_MS_MAX:
        raise InvalidJob(
            f"key_window_ms {job.key_window_ms} is out of range: expected 0 to"
            f" {bounds.DELAY_MS_MAX}"
        )
    if job.key_policy not in ("keep", "replace", "merge"):
        raise InvalidJob(f"key_policy {job.key_policy!r} is not valid: use keep, replace or merge")
    if job.key_hold not in ("job", "window"):
        raise InvalidJob(f"key_hold {job.key_hold!r} is not valid: use job or window")


def _check_parents(job: NewJob) -> None:
    if len(job.after) > bounds.PARENTS_MAX:
        raise InvalidJob(
            f"job {job.id} depends on {len(job.after)} jobs; the maximum is {bounds.PARENTS_MAX}"
        )
    for id_ in job.after:
        if not _JOB_ID(id_):
            raise InvalidJob(
                f"after {id_[:80]!r} is not valid: use 1 to 128 characters of A-Z a-z 0-9 _ . : @ -"
            )
    if job.after_on not in ("success", "death", "either"):
        raise InvalidJob(f"after_on {job.after_on!r} is not valid: use success, death or either")
    if job.parent_death not in ("cancel", "run", "hold"):
        raise InvalidJob(f"parent_death {job.parent_death!r} is not valid: use cancel, run or hold")


def check_queue_name(name: str) -> None:
    """Raise InvalidQueue unless the name is well-formed."""
    if not bounds.QUEUE_NAME.match(name):
        raise InvalidQueue(
            f"queue name {name[:100]!r} is not valid: use 1 to 80 characters of A-Z a-z 0-9 _ . -"
        )


def check_queue(queue: Queue) -> None:
    """Raise InvalidQueue unless every setting of the queue is within its bound."""
    check_queue_name(queue.name)
    _within("lease_ms", queue.lease_ms, bounds.LEASE_MS_MIN, bounds.LEASE_MS_MAX)
    _within("timeout_ms", queue.timeout_ms, 1, bounds.DELAY_MS_MAX)
    _within("max_attempts", queue.max_attempts, 0, bounds.ATTEMPTS_MAX)
    _within("max_crashes", queue.max_crashes, 1, bounds.ATTEMPTS_MAX)
    _within("retention_ms", queue.retention_ms, 0, bounds.RETENTION_MS_MAX)
    _within("dead_retention_ms", queue.dead_retention_ms, 0, bounds.RETENTION_MS_MAX)
    _within("max_depth", queue.max_depth, 1, 2**53)
    _within("payload_max", queue.payload_max, 1, bounds.PAYLOAD_MAX)
    _within("aging_ms", queue.aging_ms, 1, bounds.DELAY_MS_MAX)
    _within("expires_ms", queue.expires_ms, 1, bounds.DELAY_MS_MAX)
    _within("group_batch", queue.group_batch, 1, bounds.GROUP_BATCH_MAX)
    _check_backoff(queue.backoff)
    check_flow(queue)
    if queue.order not in ("tail", "keep"):
        raise InvalidQueue(f"order {queue.order!r} is not valid: use tail or keep")
    if queue.dead_queue is not None:
        check_queue_name(queue.dead_queue)
        if queue.dead_queue == queue.name:
            raise InvalidQueue(f"queue {queue.name} cannot be its own dead_queue")


def check_overrides(overrides: Overrides) -> None:
    """Raise InvalidJob unless a job's own settings are within the bounds of a queue's."""
    try:
        _within("lease_ms", overrides.lease_ms, bounds.LEASE_MS_MIN, bounds.LEASE_MS_MAX)
        _within("timeout_ms", overrides.timeout_ms, 1, bounds.DELAY_MS_MAX)
        _within("max_attempts", overrides.max_attempts, 0, bounds.ATTEMPTS_MAX)
        _within("max_crashes", overrides.max_crashes, 1, bounds.ATTEMPTS_MAX)
        if overrides.backoff is not None:
            _check_backoff(overrides.backoff)
        if overrides.reroute is not None:
            _check_reroute(overrides.reroute)
    except InvalidQueue as error:
        raise InvalidJob(str(error)) from None


def _check_reroute(reroute: Reroute) -> None:
    check_pairs("labels", reroute.labels)
    _within("reroute.most", reroute.most, 1, bounds.REROUTES_MAX)
    _within("reroute.done", reroute.done, 0, bounds.REROUTES_MAX)
    _within("reroute.ttl_ms", reroute.ttl_ms, 0, bounds.DELAY_MS_MAX)


def _check_backoff(backoff: object) -> None:
    if not isinstance(backoff, Backoff):
        raise InvalidQueue(f"backoff is {kind_of(backoff)}, not a Backoff")


def check_request(request: LeaseRequest) -> None:
    """Raise UsageError unless the lease request is bounded and names queues or ids."""
    if bool(request.queues) == bool(request.ids):
        raise UsageError("a lease request must name either queues or ids")
    if len(request.queues) > bounds.BATCH_MAX or len(request.ids) > bounds.BATCH_MAX:
        raise UsageError(f"a lease request names at most {bounds.BATCH_MAX} queues or ids")
    for name, value, low, high in (
        ("limit", request.limit, 1, bounds.BATCH_MAX),
        ("wait_ms", request.wait_ms, 0, bounds.WAIT_MS_MAX),
        ("lease_ms", request.lease_ms, bounds.LEASE_MS_MIN, bounds.LEASE_MS_MAX),
    ):
        if value is not None and not low <= value <= high:
            raise UsageError(f"{name} {value} is out of range: expected {low} to {high}")
    for queue in request.queues:
        check_queue_name(queue)
    for task in request.tasks or ():
        if not bounds.TASK_NAME.match(task):
            raise UsageError(
                f"task {task[:80]!r} is not valid: use 1 to 200 characters of A-Z a-z 0-9 _ . : / -"
            )
    for id_ in request.ids:
        if not bounds.JOB_ID.match(id_):
            raise UsageError(
                f"id {id_[:80]!r} is not valid: use 1 to 128 characters of A-Z a-z 0-9 _ . : @ -"
            )
    if request.worker:
        check_text("worker", request.worker)


def check_filter(wanted: JobFilter) -> None:
    """Raise UsageError unless every engine can evaluate the filter exactly."""
    for name in (
        *("queue", "task", "tenant", "group", "key", "worker", "fingerprint", "parent", "search"),
    ):
        value = getattr(wanted, name)
        if value:
            check_text(name, value)
    for name in ("created_from", "created_before", "version", "finished_before_ms"):
        number = getattr(wanted, name)
        if number is not None and not 0 <= number <= 2**53:
            raise UsageError(f"{name} {number} is out of range: expected 0 to {2**53}")
    if wanted.labels:
        check_pairs("labels", wanted.labels)
    if wanted.ids is not None:
        check_batch(len(wanted.ids))
        for id_ in wanted.ids:
            if _UNSTORABLE.search(id_):
                raise UsageError(f"id {id_[:80]!r} has a NUL or a lone surrogate")


def check_page(limit: int, after: int | None = None) -> None:
    """Raise UsageError unless the page size and the cursor are valid."""
    given: object = limit
    if not isinstance(given, int) or not 1 <= limit <= bounds.PAGE_MAX:
        raise UsageError(f"limit {limit!r} is out of range: expected 1 to {bounds.PAGE_MAX}")
    cursor: object = after
    if after is not None and not (isinstance(cursor, int) and 0 <= after < 2**63):
        raise UsageError(f"after {after!r} is not a cursor of this engine")


def check_note(note: Note) -> None:
    """Raise UsageError unless progress and checkpoint are within bounds."""
    if note.progress is not None and not 0.0 <= note.progress <= 1.0:
        raise UsageError(f"progress {note.progress} is out of range: expected 0 to 1")
    if note.checkpoint is not None and len(note.checkpoint) > bounds.CHECKPOINT_MAX:
        raise UsageError(
            f"the checkpoint is {len(note.checkpoint)} bytes; the maximum is"
            f" {bounds.CHECKPOINT_MAX}"
        )


def check_renewals(renewals: Sequence[Renewal]) -> None:
    """Raise UsageError, before any write, if a renewal of the batch is out of bounds."""
    check_batch(len(renewals))
    for renewal in renewals:
        lease_ms = renewal.lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
        if not 0 <= lease_ms <= bounds.LEASE_MS_MAX:
            raise UsageError(
                f"lease_ms {lease_ms} is out of range: expected 0 to {bounds.LEASE_MS_MAX}"
            )
        if renewal.note is not None:
            check_note(renewal.note)


def check_settlement(settlement: Settlement) -> None:
    """Raise UsageError unless the verdict and its note are within bounds. Engines answer such a
    settlement with Outcome.REFUSED."""
    match settlement.verdict:
        case Complete(result=result, then=then):
            if result is not None and len(result) > bounds.RESULT_MAX:
                raise UsageError(
                    f"the result is {len(result)} bytes; the maximum is {bounds.RESULT_MAX}"
                )
            if len(then) > bounds.FOLLOW_UPS_MAX:
                raise UsageError(
                    f"{len(then)} follow-up jobs; the maximum is {bounds.FOLLOW_UPS_MAX}"
                )
            for new in then:
                check_job(new)
        case Retry(delay_ms=delay_ms) | Release(delay_ms=delay_ms):
            if not 0 <= delay_ms <= bounds.DELAY_MS_MAX:
                raise UsageError(
                    f"delay_ms {delay_ms} is out of range: expected 0 to {bounds.DELAY_MS_MAX}"
                )
        case Bury() | Forward():
            pass
        case never:
            assert_never(never)
    if settlement.note is not None:
        check_note(settlement.note)


def check_amendment(amendment: Amendment) -> None:
    """Raise InvalidJob or InvalidQueue unless the values of the amendment are within bounds."""
    match amendment:
        case Edit(payload=payload, content_type=content_type, priority=priority):
            checked = NewJob(
                id="-",
                task="-",
                payload=b"" if payload is None else payload,
                content_type="-" if content_type is None else content_type,
                priority=0 if priority is None else priority,
                expires_ms=amendment.expires_ms,
                labels=amendment.labels or {},
                headers=amendment.headers or {},
            )
            check_job(checked)
        case Move(queue=queue, expires_ms=expires_ms, reroute=reroute):
            check_queue_name(queue)
            check_job(NewJob(id="-", task="-", expires_ms=expires_ms))
            check_overrides(Overrides(reroute=reroute))
        case Retime(delay_ms=delay_ms) | Redrive(delay_ms=delay_ms):
            if not 0 <= delay_ms <= bounds.DELAY_MS_MAX:
                raise InvalidJob(
                    f"delay_ms {delay_ms} is out of range: expected 0 to {bounds.DELAY_MS_MAX}"
                )
        case Cancel() | BuryWaiting() | Expedite() | Delete():
            pass
        case never:
            assert_never(never)


def check_record(record: Record) -> None:
    """Raise UsageError unless a record's kind, key and size are within bounds."""
    if not bounds.RECORD_KIND.match(record.kind):
        raise UsageError(
            f"record kind {record.kind[:80]!r} is not valid: use 1 to 40 characters of a-z 0-9 _ -"
        )
    check_text("record key", record.key)
    if record.value is not None and len(record.value) > bounds.RECORD_MAX:
        raise UsageError(
            f"record {record.key} is {len(record.value)} bytes; the maximum is {bounds.RECORD_MAX}"
        )


def check_load(kind: str, after: str | None, limit: int) -> None:
    """Raise UsageError unless the arguments of `Engine.load` are within bounds."""
    if not bounds.RECORD_KIND.match(kind):
        raise UsageError(
            f"record kind {kind[:80]!r} is not valid: use 1 to 40 characters of a-z 0-9 _ -"
        )
    if after:
        check_text("after", after)
    check_page(limit)


def check_batch(count: int) -> None:
    """Raise UsageError if a call has too many items."""
    if count > bounds.BATCH_MAX:
        raise UsageError(
            f"{count} items in one call; the maximum is {bounds.BATCH_MAX}: split the batch"
        )


def check_text(name: str, value: str) -> None:
    """Raise InvalidJob unless the text is short and storable everywhere, also in an index."""
    if _PLAIN.match(value):
        return
    if not value or _UNSTORABLE.search(value):
        raise InvalidJob(f"{name} {value[:80]!r} is empty or has a NUL or a lone surrogate")
    if len(value.encode()) > bounds.NAME_BYTES_MAX:
        raise InvalidJob(f"{name} {value[:80]!r}… is over {bounds.NAME_BYTES_MAX} bytes")


def check_pairs(name: str, pairs: Mapping[str, str]) -> None:
    """Raise InvalidJob unless labels or headers are within bounds, each and in total."""
    if len(pairs) > bounds.PAIRS_MAX:
        raise InvalidJob(f"{len(pairs)} {name}; the maximum is {bounds.PAIRS_MAX}")
    total = 0
    for key, value in pairs.items():
        check_text(f"{name} name", key)
        if _UNSTORABLE.search(value):
            raise InvalidJob(f"{name} value of {key!r} has a NUL or a lone surrogate")
        size = len(value.encode())
        if size > bounds.PAIR_VALUE_BYTES_MAX:
            raise InvalidJob(f"{name} value of {key!r} is over {bounds.PAIR_VALUE_BYTES_MAX} bytes")
        total += size + len(key.encode())
    if total > bounds.EXTRA_BYTES_MAX:
        raise InvalidJob(
            f"{name} are {total} bytes in total; the maximum is {bounds.EXTRA_BYTES_MAX}"
        )


def check_flow(queue: Queue) -> None:
    """Raise InvalidQueue unless the queue's limits, fairness and weights are within bounds."""
    if queue.fairness not in ("off", "shares", "noisy"):
        raise InvalidQueue(f"fairness {queue.fairness!r} is not valid: use off, shares or noisy")
    if len(queue.limits) > bounds.LIMITS_MAX:
        raise InvalidQueue(f"{len(queue.limits)} limits; the maximum is {bounds.LIMITS_MAX}")
    if len(queue.weights) > bounds.WEIGHTS_MAX:
        raise InvalidQueue(f"{len(queue.weights)} weights; the maximum is {bounds.WEIGHTS_MAX}")
    for tenant, weight in queue.weights.items():
        if _UNSTORABLE.search(tenant):
            raise InvalidQueue(f"tenant {tenant[:80]!r} of weights has a NUL or a lone surrogate")
        if not 1 <= weight <= bounds.WEIGHT_MAX:
            raise InvalidQueue(
                f"weight {weight} of tenant {tenant[:80]!r} is out of range: expected 1 to"
                f" {bounds.WEIGHT_MAX}"
            )
    names = [limit.name for limit in queue.limits]
    for limit in queue.limits:
        if names.count(limit.name) > 1:
            raise InvalidQueue(f"queue {queue.name} has two limits named {limit.name}")
        check_limit(limit)


def check_limit(limit: Limit) -> None:
    """Raise InvalidQueue unless one limit is within bounds."""
    if not bounds.TASK_NAME.match(limit.name):
        raise InvalidQueue(
            f"limit name {limit.name[:80]!r} is not valid: use 1 to 200 characters of A-Z a-z 0-9"
            " _ . : / -"
        )
    if limit.task is not None and not bounds.TASK_NAME.match(limit.task):
        raise InvalidQueue(f"limit {limit.name}: task {limit.task[:80]!r} is not a task name")
    if len(limit.key.encode(errors="replace")) > bounds.NAME_BYTES_MAX:
        raise InvalidQueue(f"limit {limit.name}: key is over {bounds.NAME_BYTES_MAX} bytes")
    if _UNSTORABLE.search(limit.key):
        raise InvalidQueue(f"limit {limit.name}: key has a NUL or a lone surrogate")
    fields_of(limit.key)
    if limit.concurrency is None and limit.rate is None:
        raise InvalidQueue(f"limit {limit.name} limits nothing: give it a concurrency or a rate")
    if limit.concurrency is not None and not 1 <= limit.concurrency <= bounds.SLOTS_MAX:
        raise InvalidQueue(
            f"limit {limit.name}: concurrency {limit.concurrency} is out of range: expected 1 to"
            f" {bounds.SLOTS_MAX};"
            " to stop a queue, pause it"
        )
    if limit.rate is not None:
        _check_rate(limit.name, limit.rate)


def _check_rate(name: str, rate: Rate) -> None:
    if not 1 <= rate.count <= bounds.RATE_COUNT_MAX:
        raise InvalidQueue(
            f"limit {name}: rate {rate.count} is out of range: expected 1 to"
            f" {bounds.RATE_COUNT_MAX};"
            " to stop a queue, pause it"
        )
    if not 1 <= rate.per_ms <= bounds.DAY_MS:
        raise InvalidQueue(
            f"limit {name}: a rate per {rate.per_ms} ms is out of range: expected 1 to"
            f" {bounds.DAY_MS} ms"
        )
    if not 1 <= rate.burst <= bounds.RATE_COUNT_MAX:
        raise InvalidQueue(
            f"limit {name}: burst {rate.burst} is out of range: expected 1 to"
            f" {bounds.RATE_COUNT_MAX}"
        )


def check_new(new: NewJob, queue: Queue | None) -> Queue:
    """Check a new job against its queue and return the queue; raise if it does not exist."""
    check_job(new, queue.payload_max if queue else bounds.PAYLOAD_MAX)
    if queue is None:
        raise unknown_queue(new.queue)
    return queue


def check_room(queue: Queue, waiting: int) -> None:
    """Raise unless the queue accepts one more job. `waiting` matters only with a `max_depth`."""
    if not queue.accepting:
        raise NotAccepting(
            f"queue {queue.name} does not accept new jobs: try again once it is open"
        )
    if queue.max_depth is not None and waiting >= queue.max_depth:
        raise QueueFull(
            f"queue {queue.name} is full: it holds its maximum of"
            f" {counted(queue.max_depth, 'job')}; try again later"
        )


def check_dead_queue(queue: Queue, queues: Container[str]) -> None:
    """Raise UnknownQueue if the queue names a dead_queue that does not exist."""
    if queue.dead_queue is not None and queue.dead_queue not in queues:
        raise unknown_queue(queue.dead_queue, "dead_queue")


def is_acceptable(settlement: Settlement, queues: Container[str]) -> bool:
    """Whether a settlement is within bounds and names only existing queues. Follow-up jobs may
    enter a full or closed queue."""
    try:
        check_settlement(settlement)
    except UsageError:
        return False
    match settlement.verdict:
        case Forward(queue=queue):
            return queue in queues
        case Complete(then=then):
            return all(new.queue in queues for new in then)
        case _:
            return True


def effective_queue(queue: Queue, queues: Container[str]) -> Queue:
    """The queue as `lifecycle` needs it: without a dead_queue that no longer exists."""
    if queue.dead_queue is not None and queue.dead_queue not in queues:
        return replace(queue, dead_queue=None)
    return queue


def refusal(id: str, error: UsageError) -> Receipt:
    """The REFUSED receipt of a job, with the code and text of the error."""
    return Receipt(id=id, status=Status.REFUSED, code=error.code, text=str(error))


def accepted(receipt: Receipt) -> Receipt:
    """Return the receipt, or raise the error of a refusal."""
    if receipt.status is not Status.REFUSED:
        return receipt
    error = BY_CODE.get(receipt.code, UsageError)
    raise (Unsupported.from_text if error is Unsupported else error)(receipt.text)


def unknown_queue(name: str, what: str = "queue") -> UnknownQueue:
    """The error for a queue that does not exist; `what` is the field that names it."""
    return UnknownQueue(f"{what} {name} does not exist: correct its name, or declare it first")


def unknown_parent(id: str, parent: str) -> UnknownParent:
    """The error for a job whose parent does not exist."""
    return UnknownParent(
        f"job {id} depends on {parent}, which does not exist: enqueue it first or in the same call"
    )


def circular(id: str, circle: str) -> CircularJobs:
    """The error for a job among its own ancestors; `circle` shows the ids on the way."""
    return CircularJobs(f"job {id} would wait for itself: {circle}")


def clean_text(text: str, most: int = bounds.ERROR_TEXT_MAX) -> str:
    """Hostile text made storable everywhere; the middle of a long text is cut out."""
    if _UNSTORABLE.search(text):
        text = _UNSTORABLE.sub("\ufffd", text)
    if len(text) > most:
        # The result, including the note, is within the bound: cleaning it again changes nothing.
        half = (most - 64) // 2
        omitted = len(text) - 2 * half
        text = f"{text[:half]}\n… {omitted} characters left out …\n{text[-half:]}"
    return text


def clean_failure(failure: Failure) -> Failure:
    """A failure whose texts are storable everywhere."""
    return Failure(
        kind=failure.kind,
        type=clean_text(failure.type, bounds.NAME_BYTES_MAX),
        message=clean_text(failure.message),
        trace=clean_text(failure.trace),
        exit_code=failure.exit_code,
        signal=failure.signal,
        output=clean_text(failure.output),
    )


def clean_event(event: Event) -> Event:
    """A timeline event whose texts are storable everywhere."""
    failure = event.failure
    return replace(
        event,
        by=clean_text(event.by, bounds.NAME_BYTES_MAX),
        text=clean_text(event.text),
        failure=None if failure is None else clean_failure(failure),
    )


def clip_output(output: bytes) -> bytes:
    """The output; only the head and the tail of a long one."""
    if len(output) <= bounds.OUTPUT_MAX:
        return output
    half = bounds.OUTPUT_MAX // 2 - 64
    omitted = len(output) - 2 * half
    return output[:half] + f"\n… {omitted} bytes left out …\n".encode() + output[-half:]


def _within(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidQueue(f"{name} {value} is out of range: expected {low} to {high}")
