"""Actions on messages: send and delete them, and change how long they stay hidden.

A message is a job and a receive is a lease, so every change here is one conditional write of the
engine. A receipt handle whose timeout has ended never ends or shortens the lease of the consumer
that received the message since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, Queue, Receipt, Renewal, State, Status
from holdfast.core.verdict import Complete, Delete, Outcome, Retime, Retry, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import BY_CODE, Forbidden, HoldfastError, UsageError
from holdfast.ops.doctor import examine
from holdfast.ops.queues import change_queue
from holdfast.server.access.caller import Scope, missing_scope
from holdfast.server.sqs import errors, message_attributes
from holdfast.server.sqs.call import SqsCall
from holdfast.server.sqs.catalog import KnownQueue
from holdfast.server.sqs.errors import SqsError, error_of
from holdfast.server.sqs.message_jobs import (
    CheckedMessage,
    checked_message,
    require_fifo_ids,
    sequence_number,
)
from holdfast.server.sqs.queue_attributes import VISIBILITY_S_MAX
from holdfast.server.sqs.receipts import MessageReceipt, ReceiptSeal
from holdfast.server.sqs.receive import message_state
from holdfast.server.sqs.shapes import (
    BatchEntry,
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchRequest,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
    DeleteMessageRequest,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageRequest,
    SendMessageResult,
)

BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 1_048_576

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


async def send_message(call: SqsCall, request: SendMessageRequest) -> SendMessageResult:
    """Send one message."""
    known = await call.queue(request.queue_url)
    require_fifo_ids([request], known, in_batch=False)
    message = checked_message(request, known, sender=_sender(call), in_batch=False)
    [receipt] = await _enqueue(call, known, [message])
    if receipt.status is Status.REFUSED:
        raise _refusal(receipt)
    return SendMessageResult(
        message_id=receipt.id,
        md5_of_message_body=message.md5_of_body,
        md5_of_message_attributes=message.md5_of_attributes,
        md5_of_message_system_attributes=message.md5_of_system_attributes,
        sequence_number=_sequence(known, receipt),
    )


async def send_message_batch(
    call: SqsCall, request: SendMessageBatchRequest
) -> SendMessageBatchResult:
    """Send up to ten messages. One that is invalid does not affect the others."""
    known = await call.queue(request.queue_url)
    entries = request.entries
    _check_batch("SendMessageBatch", entries)
    size = sum(_size(each) for each in entries)
    if size > BATCH_BYTES_MAX:
        raise errors.batch_too_long(size)
    require_fifo_ids(entries, known, in_batch=True)
    valid: dict[str, CheckedMessage] = {}
    failed: dict[str, SqsError] = {}
    sender = _sender(call)
    for each in entries:
        try:
            valid[each.id] = checked_message(each, known, sender=sender, in_batch=True)
        except SqsError as error:
            failed[each.id] = error
    answers = await _enqueue(call, known, list(valid.values())) if valid else []
    receipts = dict(zip(valid, answers, strict=True))
    for id_, receipt in receipts.items():
        if receipt.status is Status.REFUSED:
            failed[id_] = error_of(_refusal(receipt))
    return SendMessageBatchResult(
        successful=tuple(
            SendMessageBatchResultEntry(
                id=id_,
                message_id=receipts[id_].id,
                md5_of_message_body=message.md5_of_body,
                md5_of_message_attributes=message.md5_of_attributes,
                md5_of_message_system_attributes=message.md5_of_system_attributes,
                sequence_number=_sequence(known, receipts[id_]),
            )
            for id_, message in valid.items()
            if id_ not in failed
        ),
        failed=_failed(entries, failed),
    )


def _size(entry: SendMessageBatchRequestEntry) -> int:
    body, attributes = entry.message_body, entry.message_attributes
    if body.isascii() and not attributes:
        return len(body)
    return message_attributes.message_size(body.encode(errors="surrogatepass"), attributes)


async def delete_message(call: SqsCall, request: DeleteMessageRequest) -> None:
    """Delete a received message. Repeating it, or a handle whose message is gone, is no error."""
    known = await call.queue(request.queue_url)
    receipt = _open_handle(await _seal(call), known, request.receipt_handle)
    [error] = await _delete(call, known, [(receipt, request.receipt_handle)])
    if error is not None:
        raise error


async def delete_message_batch(
    call: SqsCall, request: DeleteMessageBatchRequest
) -> DeleteMessageBatchResult:
    """Delete up to ten messages. An invalid handle does not affect the others."""
    known = await call.queue(request.queue_url)
    entries = request.entries
    _check_batch("DeleteMessageBatch", entries)
    seal = await _seal(call)
    failed: dict[str, SqsError] = {}
    valid: dict[str, OpenedHandle] = {}
    for each in entries:
        try:
            receipt = _open_handle(seal, known, each.receipt_handle)
        except SqsError as error:
            failed[each.id] = error
        else:
            valid[each.id] = (receipt, each.receipt_handle)
    if valid:
        errors_ = await _delete(call, known, list(valid.values()))
        failed |= {id_: error for id_, error in zip(valid, errors_, strict=True) if error}
    return DeleteMessageBatchResult(
        successful=tuple(
            DeleteMessageBatchResultEntry(id=each.id) for each in entries if each.id not in failed
        ),
        failed=_failed(entries, failed),
    )


async def change_message_visibility(call: SqsCall, request: ChangeMessageVisibilityRequest) -> None:
    """Hide a received message for this long from now; 0 makes it visible at once."""
    known = await call.queue(request.queue_url)
    receipt = _open_handle(await _seal(call), known, request.receipt_handle)
    seconds = _checked_visibility(call, receipt, request.visibility_timeout)
    [error] = await _change_visibility(call, known, [(receipt, request.receipt_handle)], [seconds])
    if error is not None:
        raise error


async def change_message_visibility_batch(
    call: SqsCall, request: ChangeMessageVisibilityBatchRequest
) -> ChangeMessageVisibilityBatchResult:
    """Change the visibility of up to ten messages. An invalid entry does not affect the others."""
    known = await call.queue(request.queue_url)
    entries = request.entries
    _check_batch("ChangeMessageVisibilityBatch", entries)
    seal = await _seal(call)
    failed: dict[str, SqsError] = {}
    valid: dict[str, tuple[OpenedHandle, int]] = {}
    for each in entries:
        try:
            receipt = _open_handle(seal, known, each.receipt_handle)
            if each.visibility_timeout is None:
                raise errors.missing_parameter("VisibilityTimeout")
            seconds = _checked_visibility(call, receipt, each.visibility_timeout)
        except SqsError as error:
            failed[each.id] = error
        else:
            valid[each.id] = ((receipt, each.receipt_handle), seconds)
    if valid:
        opened = [each for each, _ in valid.values()]
        errors_ = await _change_visibility(call, known, opened, [s for _, s in valid.values()])
        failed |= {id_: error for id_, error in zip(valid, errors_, strict=True) if error}
    return ChangeMessageVisibilityBatchResult(
        successful=tuple(
            ChangeMessageVisibilityBatchResultEntry(id=each.id)
            for each in entries
            if each.id not in failed
        ),
        failed=_failed(entries, failed),
    )


OpenedHandle = tuple[MessageReceipt, str]
"""A receipt, and the handle that a client sent."""


def _sender(call: SqsCall) -> str:
    """The SenderId of a message: the name of the caller's token. Without one it is the account."""
    return call.caller.name if call.caller.token else ""


async def _enqueue(
    call: SqsCall, known: KnownQueue, messages: Sequence[CheckedMessage]
) -> list[Receipt]:
    """One receipt for each message. Those of a FIFO queue have a seq, also of a duplicate."""
    jobs = [each.job for each in messages]
    if known.settings.fairness == "off" and any(job.tenant is not None for job in jobs):
        if not call.caller.may(Scope.PRODUCE):
            raise Forbidden(missing_scope(Scope.PRODUCE))
        await change_queue(call.store, known.queue, _with_fairness)
        call.catalog.forget(call.region, known.name)
    receipts = await call.engine.enqueue(jobs)
    _count_sent(call, known, messages, receipts)
    if not known.is_fifo:
        return receipts
    ids = [each.id for each in receipts if each.status is Status.DUPLICATE and each.seq is None]
    seqs = {job.id: job.seq for job in await _read_jobs(call.store, ids)}
    return [replace(each, seq=seqs[each.id]) if each.id in seqs else each for each in receipts]


def _count_sent(
    call: SqsCall,
    known: KnownQueue,
    messages: Sequence[CheckedMessage],
    receipts: Sequence[Receipt],
) -> None:
    statuses = [each.status for each in receipts]
    sizes = [
        message.size
        for message, status in zip(messages, statuses, strict=True)
        if status is Status.NEW
    ]
    duplicates = 0 if len(sizes) == len(statuses) else statuses.count(Status.DUPLICATE)
    call.count(
        known.queue, sqs_sent=len(sizes), sqs_sent_bytes=sum(sizes), sqs_deduplicated=duplicates
    )


def _with_fairness(queue: Queue | None) -> Queue:
    """The settings of a queue whose message groups are tenants."""
    if queue is None:
        raise errors.queue_does_not_exist()
    return replace(queue, fairness="noisy") if queue.fairness == "off" else queue


def _refusal(receipt: Receipt) -> HoldfastError:
    return BY_CODE.get(receipt.code, UsageError)(receipt.text)


def _sequence(known: KnownQueue, receipt: Receipt) -> str | None:
    return sequence_number(receipt.seq) if known.is_fifo and receipt.seq is not None else None


async def _seal(call: SqsCall) -> ReceiptSeal:
    return await message_state(call).seal(call.store)


def _open_handle(seal: ReceiptSeal, known: KnownQueue, handle: str) -> MessageReceipt:
    """The receipt in a handle. Raises SqsError unless this queue issued it."""
    receipt = seal.open(handle)
    if receipt is None:
        raise errors.invalid_handle(handle)
    if receipt.queue != known.queue:
        raise errors.handle_of_other_queue(handle)
    return receipt


async def _delete(
    call: SqsCall, known: KnownQueue, opened: Sequence[OpenedHandle]
) -> list[SqsError | None]:
    """Delete messages. Returns the error of each handle, None if there is none."""
    failed = await _expired(call, known, opened)
    live = [each for each in opened if each[1] not in failed]
    state = message_state(call)
    done = Complete()
    ends = [Settlement(lease=receipt.lease(), verdict=done) for receipt, _ in live]
    outcomes = await call.engine.settle(ends) if ends else []
    lost = [
        each for each, outcome in zip(live, outcomes, strict=True) if outcome is not Outcome.SETTLED
    ]
    state.counts.add(known.queue, len(lost) - len(live))
    for receipt, _ in live:
        state.attempts.note_change(receipt)
    if lost and known.is_fifo:
        # Another consumer received these messages since the check.
        failed |= await _expired(call, known, lost)
    elif lost:
        # An older handle deletes the message too, unless another consumer holds it.
        ids = tuple(dict.fromkeys(receipt.id for receipt, _ in lost))
        wanted = JobFilter(ids=ids, queue=known.queue, states=(State.WAITING, State.DEAD))
        await call.store.amend(wanted, Delete(), limit=len(lost))
    call.count(known.queue, sqs_deleted=len(live))
    return [failed.get(handle) for _, handle in opened]


async def _change_visibility(
    call: SqsCall, known: KnownQueue, opened: Sequence[OpenedHandle], seconds: Sequence[int]
) -> list[SqsError | None]:
    """Hide or show messages. Returns the error of each handle, None if there is none."""
    failed = await _expired(call, known, opened)
    changes = [
        (receipt, handle, after_s)
        for (receipt, handle), after_s in zip(opened, seconds, strict=True)
        if handle not in failed
    ]
    for receipt, _, _ in changes:
        message_state(call).attempts.note_change(receipt)
    shown = [each for each in changes if each[2] == 0]
    hidden = [each for each in changes if each[2] > 0]
    outcomes = await _settle(call, [(receipt, Retry(0)) for receipt, _, _ in shown])
    renewals = [
        Renewal(lease=receipt.lease(), lease_ms=after_s * bounds.SECOND_MS)
        for receipt, _, after_s in hidden
    ]
    renewed = await call.engine.renew(renewals) if renewals else []
    lost = [each for each, done in zip(shown, outcomes, strict=True) if done is Outcome.LOST]
    message_state(call).counts.add(known.queue, len(lost) - len(shown))
    lost += [each for each, lease in zip(hidden, renewed, strict=True) if lease is None]
    jobs = {job.id: job for job in await _read_jobs(call.store, [each.id for each, _, _ in lost])}
    for receipt, handle, after_s in lost:
        job = jobs.get(receipt.id)
        if job is None or job.queue != known.queue or _is_gone(job):
            failed[handle] = errors.not_in_flight(handle)
        else:
            await _retime(call, job, receipt, after_s)
    return [failed.get(handle) for _, handle in opened]


async def _retime(call: SqsCall, job: Job, receipt: MessageReceipt, seconds: int) -> None:
    """Hide or show a message that no consumer holds any more. The handle of an earlier receive may
    only hide it for longer."""
    delay_ms = seconds * bounds.SECOND_MS
    if _is_leased(job, receipt):
        # Its timeout has ended, but the reaper has not seen it yet.
        await _settle(call, [(receipt, Retry(delay_ms))])
        return
    due_at = max(job.due_at, now := call.now_ms())
    is_latest = receipt.attempt == job.attempt and now + delay_ms != due_at
    if job.state is State.WAITING and (is_latest or now + delay_ms > due_at):
        wanted = JobFilter(
            ids=(job.id,), queue=job.queue, states=(State.WAITING,), version=job.version
        )
        await call.store.amend(wanted, Retime(delay_ms=delay_ms), limit=1)


async def _settle(call: SqsCall, verdicts: Sequence[tuple[MessageReceipt, Retry]]) -> list[Outcome]:
    ends = [Settlement(lease=each.lease(), verdict=verdict) for each, verdict in verdicts]
    return await call.engine.settle(ends) if ends else []


async def _expired(
    call: SqsCall, known: KnownQueue, opened: Sequence[OpenedHandle]
) -> dict[str, SqsError]:
    """The handles of a FIFO queue whose timeout has ended: they are no longer valid there. The
    engine compares the token again, so that a later consumer is never affected."""
    if not known.is_fifo:
        return {}
    jobs = {
        job.id: job for job in await _read_jobs(call.store, [receipt.id for receipt, _ in opened])
    }
    present = [
        (jobs[receipt.id], receipt, handle)
        for receipt, handle in opened
        if receipt.id in jobs and not _is_gone(jobs[receipt.id])
    ]
    now = call.now_ms()
    if any(_is_leased(job, receipt) and _is_overdue(job, now) for job, receipt, _ in present):
        # The clock of the store decides: the one of this server may be ahead.
        now = (await examine(call.store)).now
    return {
        handle: errors.expired_handle(handle)
        for job, receipt, handle in present
        if not _is_leased(job, receipt) or _is_overdue(job, now)
    }


def _is_leased(job: Job, receipt: MessageReceipt) -> bool:
    return job.state is State.LEASED and job.token == receipt.token


def _is_overdue(job: Job, now: int) -> bool:
    return (job.deadline_at or 0) <= now


def _is_gone(job: Job) -> bool:
    """True if clients see the message as deleted. Its row stays until the pruner removes it."""
    return job.state in (State.DONE, State.CANCELLED)


def _checked_visibility(call: SqsCall, receipt: MessageReceipt, seconds: int) -> int:
    """A visibility timeout that keeps the message hidden for at most 12 hours in all."""
    if not 0 <= seconds <= VISIBILITY_S_MAX:
        raise errors.visibility_out_of_range(seconds)
    held_s = max(0, call.now_ms() - receipt.received_at) // bounds.SECOND_MS
    if seconds and held_s + seconds > VISIBILITY_S_MAX:
        raise errors.visibility_beyond_limit(seconds)
    return seconds


async def _read_jobs(engine: Engine, ids: Sequence[str]) -> list[Job]:
    """The jobs with these ids, ten at most."""
    if not ids:
        return []
    wanted = JobFilter(ids=tuple(dict.fromkeys(ids)))
    jobs: list[Job] = []
    after: int | None = None
    while True:
        page = await engine.find(wanted, limit=BATCH_MAX, after=after)
        jobs += page.jobs
        after = page.after
        if after is None:
            return jobs


def _check_batch(action: str, entries: Sequence[BatchEntry]) -> None:
    if not entries:
        raise errors.empty_batch(action)
    if len(entries) > BATCH_MAX:
        raise errors.too_many_entries(len(entries))
    seen: set[str] = set()
    for each in entries:
        if not _ENTRY_ID.fullmatch(each.id):
            raise errors.invalid_entry_id()
        if each.id in seen:
            raise errors.repeated_entry_id(each.id)
        seen.add(each.id)


def _failed(
    entries: Sequence[BatchEntry], failed: Mapping[str, SqsError]
) -> tuple[BatchResultErrorEntry, ...]:
    """The failed entries in the order of the request."""
    return tuple(
        BatchResultErrorEntry.of(each.id, failed[each.id]) for each in entries if each.id in failed
    )
