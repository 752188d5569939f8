"""Is this value within bounds? Each check raises with the value and the bound, or returns nothing.

Hostile text that must be kept all the same (errors, traces) is cleaned here, not refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from holdfast.core import flowing, limits
from holdfast.core.backoff import Backoff
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
    Record,
    Renewal,
    Reroute,
)
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
from holdfast.errors import InvalidJob, InvalidQueue, PayloadTooLarge, UsageError

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_JOB_ID = limits.JOB_ID.match
_TASK_NAME = limits.TASK_NAME.match
_QUEUE_NAME = limits.QUEUE_NAME.match
_PLAIN = re.compile(r"[\x20-\x7e]{1,200}\Z")


def check_job(job: NewJob, payload_max: int = limits.PAYLOAD_MAX) -> None:
    """Raise InvalidJob or PayloadTooLarge unless every engine could store the job exactly.

    Every job passes here, so what a plain one leaves at its default is not looked at twice.
    """
    if not _JOB_ID(job.id):
        raise InvalidJob(f"id {job.id[:80]!r} is not 1 to 128 of A-Z a-z 0-9 _ . : @ -")
    if not _TASK_NAME(job.task):
        raise InvalidJob(f"task {job.task[:80]!r} is not 1 to 200 of A-Z a-z 0-9 _ . : / -")
    if not _QUEUE_NAME(job.queue):
        check_queue_name(job.queue)
    if len(job.payload) > payload_max:
        raise PayloadTooLarge(
            f"the payload of job {job.id} is {len(job.payload)} bytes; the bound is {payload_max}"
        )
    if job.priority or job.delay_ms or job.expires_ms is not None:
        _check_numbers(job)
    if job.key is not None or job.tenant is not None or job.group is not None:
        _check_names(job)
    if job.labels or job.headers or job.content_type != "application/json":
        if not limits.CONTENT_TYPE.match(job.content_type):
            raise InvalidJob(f"content_type {job.content_type[:80]!r} is not 1 to 127 of ASCII")
        check_pairs("labels", job.labels)
        check_pairs("headers", job.headers)
    if job.overrides is not NO_OVERRIDES:
        check_overrides(job.overrides)
    if job.after:
        _check_parents(job)


def _check_numbers(job: NewJob) -> None:
    if not limits.PRIORITY_MIN <= job.priority <= limits.PRIORITY_MAX:
        raise InvalidJob(
            f"priority {job.priority} is not {limits.PRIORITY_MIN} to {limits.PRIORITY_MAX}"
        )
    if not 0 <= job.delay_ms <= limits.DELAY_MS_MAX:
        raise InvalidJob(f"delay_ms {job.delay_ms} is not 0 to {limits.DELAY_MS_MAX}")
    if not 0 <= (job.expires_ms or 0) <= limits.DELAY_MS_MAX:
        raise InvalidJob(f"expires_ms {job.expires_ms} is not 0 to {limits.DELAY_MS_MAX}")


def _check_names(job: NewJob) -> None:
    if job.tenant is not None:
        check_text("tenant", job.tenant)
    if job.group is not None:
        check_text("group", job.group)
    if job.key is None:
        return
    check_text("key", job.key)
    if not 0 <= job.key_window_ms <= limits.DELAY_MS_MAX:
        raise InvalidJob(f"key_window_ms {job.key_window_ms} is not 0 to {limits.DELAY_MS_MAX}")
    if job.key_policy not in ("keep", "replace", "merge"):
        raise InvalidJob(f"key_policy {job.key_policy!r} is not keep, replace or merge")


def _check_parents(job: NewJob) -> None:
    if len(job.after) > limits.PARENTS_MAX:
        raise InvalidJob(
            f"job {job.id} is after {len(job.after)} others; the bound is {limits.PARENTS_MAX}"
        )
    for id_ in job.after:
        if not _JOB_ID(id_):
            raise InvalidJob(f"after {id_[:80]!r} is not 1 to 128 of A-Z a-z 0-9 _ . : @ -")
    if job.after_on not in ("success", "death", "either"):
        raise InvalidJob(f"after_on {job.after_on!r} is not success, death or either")
    if job.parent_death not in ("cancel", "run", "hold"):
        raise InvalidJob(f"parent_death {job.parent_death!r} is not cancel, run or hold")


def check_queue_name(name: str) -> None:
    if not limits.QUEUE_NAME.match(name):
        raise InvalidQueue(f"queue name {name[:100]!r} is not 1 to 80 of A-Z a-z 0-9 _ . -")


def check_queue(queue: Queue) -> None:
    check_queue_name(queue.name)
    _within("lease_ms", queue.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
    _within("timeout_ms", queue.timeout_ms, 1, limits.DELAY_MS_MAX)
    _within("max_attempts", queue.max_attempts, 0, limits.ATTEMPTS_MAX)
    _within("max_crashes", queue.max_crashes, 1, limits.ATTEMPTS_MAX)
    _within("retention_ms", queue.retention_ms, 0, limits.RETENTION_MS_MAX)
    _within("dead_retention_ms", queue.dead_retention_ms, 0, limits.RETENTION_MS_MAX)
    _within("max_depth", queue.max_depth, 1, 2**53)
    _within("payload_max", queue.payload_max, 1, limits.PAYLOAD_MAX)
    _within("aging_ms", queue.aging_ms, 1, limits.DELAY_MS_MAX)
    _within("group_batch", queue.group_batch, 1, limits.GROUP_BATCH_MAX)
    _check_backoff(queue.backoff)
    flowing.check_flow(queue)
    if queue.order not in ("tail", "keep"):
        raise InvalidQueue(f"order {queue.order!r} is not tail or keep")
    if queue.dead_queue is not None:
        check_queue_name(queue.dead_queue)
        if queue.dead_queue == queue.name:
            raise InvalidQueue(f"queue {queue.name} cannot be its own dead_queue")


def check_overrides(overrides: Overrides) -> None:
    try:
        _within("lease_ms", overrides.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
        _within("timeout_ms", overrides.timeout_ms, 1, limits.DELAY_MS_MAX)
        _within("max_attempts", overrides.max_attempts, 0, limits.ATTEMPTS_MAX)
        _within("max_crashes", overrides.max_crashes, 1, limits.ATTEMPTS_MAX)
        if overrides.backoff is not None:
            _check_backoff(overrides.backoff)
        if overrides.reroute is not None:
            _check_reroute(overrides.reroute)
    except InvalidQueue as error:
        raise InvalidJob(str(error)) from None


def _check_reroute(reroute: Reroute) -> None:
    check_pairs("labels", reroute.labels)
    _within("reroute.most", reroute.most, 1, limits.REROUTES_MAX)
    _within("reroute.done", reroute.done, 0, limits.REROUTES_MAX)
    _within("reroute.ttl_ms", reroute.ttl_ms, 0, limits.DELAY_MS_MAX)


def _check_backoff(backoff: object) -> None:
    if not isinstance(backoff, Backoff):
        raise InvalidQueue(f"backoff is a {type(backoff).__name__}, not a Backoff")


def check_request(request: LeaseRequest) -> None:
    """Raise UsageError unless the lease request is bounded and asks for something."""
    if bool(request.queues) == bool(request.ids):
        raise UsageError("a lease request names either queues or ids, not both and not neither")
    if len(request.queues) > limits.BATCH_MAX or len(request.ids) > limits.BATCH_MAX:
        raise UsageError(f"a lease request names at most {limits.BATCH_MAX} queues or ids")
    for name, value, low, high in (
        ("limit", request.limit, 1, limits.BATCH_MAX),
        ("wait_ms", request.wait_ms, 0, limits.WAIT_MS_MAX),
        ("lease_ms", request.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    ):
        if value is not None and not low <= value <= high:
            raise UsageError(f"{name} {value} is not {low} to {high}")
    for queue in request.queues:
        check_queue_name(queue)
    for task in request.tasks or ():
        if not limits.TASK_NAME.match(task):
            raise UsageError(f"task {task[:80]!r} is not 1 to 200 of A-Z a-z 0-9 _ . : / -")
    for id_ in request.ids:
        if not limits.JOB_ID.match(id_):
            raise UsageError(f"id {id_[:80]!r} is not 1 to 128 of A-Z a-z 0-9 _ . : @ -")
    if request.worker:
        check_text("worker", request.worker)


def check_filter(wanted: JobFilter) -> None:
    """Raise UsageError unless every store could be asked for exactly this."""
    for name in ("queue", "task", "tenant", "group", "key", "worker", "fingerprint", "search"):
        value = getattr(wanted, name)
        if value:
            check_text(name, value)
    for name in ("created_from", "created_before", "version", "finished_before_ms"):
        number = getattr(wanted, name)
        if number is not None and not 0 <= number <= 2**53:
            raise UsageError(f"{name} {number} is not 0 to {2**53}")
    if wanted.labels:
        check_pairs("labels", wanted.labels)
    if wanted.ids is not None:
        check_batch(len(wanted.ids))
        for id_ in wanted.ids:
            if _UNSTORABLE.search(id_):
                raise UsageError(f"id {id_[:80]!r} has a NUL or a lone surrogate")


def check_page(limit: int, after: int | None = None) -> None:
    given: object = limit
    if not isinstance(given, int) or not 1 <= limit <= limits.PAGE_MAX:
        raise UsageError(f"limit {limit!r} is not 1 to {limits.PAGE_MAX}")
    cursor: object = after
    if after is not None and not (isinstance(cursor, int) and 0 <= after < 2**63):
        raise UsageError(f"after {after!r} is no cursor of this engine")


def check_note(note: Note) -> None:
    if note.progress is not None and not 0.0 <= note.progress <= 1.0:
        raise UsageError(f"progress {note.progress} is not 0 to 1")
    if note.checkpoint is not None and len(note.checkpoint) > limits.CHECKPOINT_MAX:
        raise UsageError(
            f"the checkpoint is {len(note.checkpoint)} bytes; the bound is {limits.CHECKPOINT_MAX}"
        )


def check_renewals(renewals: Sequence[Renewal]) -> None:
    """The whole batch is refused before anything is written: a note is the caller's own."""
    check_batch(len(renewals))
    for renewal in renewals:
        lease_ms = renewal.lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
        if not 0 <= lease_ms <= limits.LEASE_MS_MAX:
            raise UsageError(f"lease_ms {lease_ms} is not 0 to {limits.LEASE_MS_MAX}")
        if renewal.note is not None:
            check_note(renewal.note)


def check_settlement(settlement: Settlement) -> None:
    """Raise UsageError unless the verdict and its note are within bounds: Outcome.REFUSED."""
    match settlement.verdict:
        case Complete(result=result, then=then):
            if result is not None and len(result) > limits.RESULT_MAX:
                raise UsageError(
                    f"the result is {len(result)} bytes; the bound is {limits.RESULT_MAX}"
                )
            if len(then) > limits.FOLLOW_UPS_MAX:
                raise UsageError(
                    f"{len(then)} follow-up jobs; the bound is {limits.FOLLOW_UPS_MAX}"
                )
            for new in then:
                check_job(new)
        case Retry(delay_ms=delay_ms) | Release(delay_ms=delay_ms):
            if not 0 <= delay_ms <= limits.DELAY_MS_MAX:
                raise UsageError(f"delay_ms {delay_ms} is not 0 to {limits.DELAY_MS_MAX}")
        case Bury() | Forward():
            pass
        case never:
            assert_never(never)
    if settlement.note is not None:
        check_note(settlement.note)


def check_amendment(amendment: Amendment) -> None:
    """Raise InvalidJob or InvalidQueue unless the act's own values are within bounds."""
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
            if not 0 <= delay_ms <= limits.DELAY_MS_MAX:
                raise InvalidJob(f"delay_ms {delay_ms} is not 0 to {limits.DELAY_MS_MAX}")
        case Cancel() | BuryWaiting() | Expedite() | Delete():
            pass
        case never:
            assert_never(never)


def check_record(record: Record) -> None:
    if not limits.RECORD_KIND.match(record.kind):
        raise UsageError(f"record kind {record.kind[:80]!r} is not 1 to 40 of a-z 0-9 _ -")
    check_text("record key", record.key)
    if record.value is not None and len(record.value) > limits.RECORD_MAX:
        raise UsageError(
            f"record {record.key} is {len(record.value)} bytes; the bound is {limits.RECORD_MAX}"
        )


def check_load(kind: str, after: str | None, limit: int) -> None:
    if not limits.RECORD_KIND.match(kind):
        raise UsageError(f"record kind {kind[:80]!r} is not 1 to 40 of a-z 0-9 _ -")
    if after:
        check_text("after", after)
    check_page(limit)


def check_batch(count: int) -> None:
    if count > limits.BATCH_MAX:
        raise UsageError(f"{count} in one call; the bound is {limits.BATCH_MAX}: split the batch")


def check_text(name: str, value: str) -> None:
    """A short text that every store can hold and an index can carry."""
    if _PLAIN.match(value):
        return
    if not value or _UNSTORABLE.search(value):
        raise InvalidJob(f"{name} {value[:80]!r} is empty or has a NUL or a lone surrogate")
    if len(value.encode()) > limits.NAME_BYTES_MAX:
        raise InvalidJob(f"{name} {value[:80]!r}… is over {limits.NAME_BYTES_MAX} bytes")


def check_pairs(name: str, pairs: Mapping[str, str]) -> None:
    if len(pairs) > limits.PAIRS_MAX:
        raise InvalidJob(f"{len(pairs)} {name}; the bound is {limits.PAIRS_MAX}")
    total = 0
    for key, value in pairs.items():
        check_text(f"{name} name", key)
        if _UNSTORABLE.search(value):
            raise InvalidJob(f"{name} value of {key!r} has a NUL or a lone surrogate")
        size = len(value.encode())
        if size > limits.PAIR_VALUE_BYTES_MAX:
            raise InvalidJob(f"{name} value of {key!r} is over {limits.PAIR_VALUE_BYTES_MAX} bytes")
        total += size + len(key.encode())
    if total > limits.EXTRA_BYTES_MAX:
        raise InvalidJob(f"{name} are {total} bytes in all; the bound is {limits.EXTRA_BYTES_MAX}")


def clean_text(text: str, most: int = limits.ERROR_TEXT_MAX) -> str:
    """Hostile text made storable everywhere; a long one keeps its head and its tail."""
    if _UNSTORABLE.search(text):
        text = _UNSTORABLE.sub("\ufffd", text)
    if len(text) > most:
        # With the note in it no longer than allowed, so that cleaning again changes nothing.
        half = (most - 64) // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n… {left_out} characters left out …\n{text[-half:]}"
    return text


def clean_failure(failure: Failure) -> Failure:
    return Failure(
        kind=failure.kind,
        type=clean_text(failure.type, limits.NAME_BYTES_MAX),
        message=clean_text(failure.message),
        trace=clean_text(failure.trace),
        exit_code=failure.exit_code,
        signal=failure.signal,
    )


def clean_event(event: Event) -> Event:
    """A timeline row that every store can hold, whatever an error or a person said."""
    failure = event.failure
    return replace(
        event,
        by=clean_text(event.by, limits.NAME_BYTES_MAX),
        text=clean_text(event.text),
        failure=None if failure is None else clean_failure(failure),
    )


def clip_output(output: bytes) -> bytes:
    """The head and the tail of an output that is too long to keep."""
    if len(output) <= limits.OUTPUT_MAX:
        return output
    half = limits.OUTPUT_MAX // 2 - 64
    left_out = len(output) - 2 * half
    return output[:half] + f"\n… {left_out} bytes left out …\n".encode() + output[-half:]


def _within(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidQueue(f"{name} {value} is not {low} to {high}")
