"""SQS messages ↔ jobs: a message to send → NewJob, a leased job → the message received. Pure.

The payload is the body, or an envelope of body and attributes. The attribute `holdfast.task` is the
job's task. System attributes are columns or headers of the job. A payload that is not legal text is
received as base64, and the attribute `holdfast.encoding` says so.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from holdfast.core import bounds
from holdfast.core.codec import Attribute, Envelope, pack_envelope, unpack_envelope
from holdfast.core.model import Job, NewJob
from holdfast.core.text import xml_bytes, xml_text
from holdfast.notation.options import new_id
from holdfast.server.sqs import errors, message_attributes
from holdfast.server.sqs.catalog import KnownQueue
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.receipts import DEFAULT_TASK
from holdfast.server.sqs.shapes import (
    MessageAttributes,
    MessageAttributeValue,
    ReceivedMessage,
    ReceiveMessageRequest,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
)

TASK_ATTRIBUTE: Final = "holdfast.task"
ENCODING_ATTRIBUTE: Final = "holdfast.encoding"
DELAY_S_MAX: Final = 900
DEDUP_MS: Final = 5 * bounds.MINUTE_MS
DEDUP_HEADER: Final = "sqs-deduplication-id"
SENDER_HEADER: Final = "sqs-sender-id"
TRACE_HEADER: Final = "sqs-trace-header"

_SEQUENCE_START: Final = 10**19
_BASE64: Final = MessageAttributeValue(data_type="String", string_value="base64")

NewMessage = SendMessageRequest | SendMessageBatchRequestEntry


class CheckedMessage(Struct, frozen=True, kw_only=True):
    """A message that was checked: its job, its size, and the MD5s for the answer."""

    job: NewJob
    size: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


def require_fifo_ids(messages: Sequence[NewMessage], known: KnownQueue, *, in_batch: bool) -> None:
    """Raise SqsError if a message of a FIFO queue has no group, or no deduplication id although the
    queue derives none from the content. As on AWS, one such message fails the whole request."""
    if not known.is_fifo:
        return
    for message in messages:
        if message.message_group_id is None:
            raise errors.missing_group_id(in_batch=in_batch)
        by_content = known.attributes.content_based_deduplication
        if message.message_deduplication_id is None and not by_content:
            raise errors.missing_deduplication_id()


def checked_message(
    message: NewMessage, known: KnownQueue, *, sender: str, in_batch: bool
) -> CheckedMessage:
    """The job of a message. Raises SqsError if the message is invalid."""
    attributes = message.message_attributes
    system = message.message_system_attributes
    body = message_attributes.checked_body(message.message_body)
    if attributes:
        message_attributes.check_message_attributes(attributes)
    if system:
        message_attributes.check_system_attributes(system)
    size = message_attributes.message_size(body, attributes)
    size_max = known.attributes.maximum_message_size
    if size > size_max:
        raise errors.message_too_long(size_max, in_batch=in_batch)
    task, packed = _packed(attributes) if attributes else (DEFAULT_TASK, {})
    payload, content_type = pack_envelope(body, packed)
    is_fifo = known.is_fifo
    group, dedup_id = message.message_group_id, message.message_deduplication_id
    if group is not None:
        message_attributes.check_fifo_id("MessageGroupId", group)
    if dedup_id is not None:
        message_attributes.check_fifo_id("MessageDeduplicationId", dedup_id)
        if not is_fifo:
            raise errors.wrong_queue_type("MessageDeduplicationId", dedup_id)
    job = NewJob(
        id=new_id(),
        task=task,
        queue=known.queue,
        payload=payload,
        content_type=content_type,
        delay_ms=_delay_s(message, known) * bounds.SECOND_MS,
        headers=_headers(message, sender),
        group=group if is_fifo else None,
        tenant=None if is_fifo else group,
        key=_key(known, group, dedup_id or _content_id(body)) if is_fifo else None,
        key_window_ms=DEDUP_MS,
        key_hold="window",
    )
    return CheckedMessage(
        job=job,
        size=size,
        md5_of_body=message_attributes.md5_of(body),
        md5_of_attributes=message_attributes.md5_of_attributes(attributes),
        md5_of_system_attributes=message_attributes.md5_of_attributes(system),
    )


def _packed(attributes: MessageAttributes) -> tuple[str, dict[str, Attribute]]:
    """The task that the attributes name, and the attributes that the envelope has: not the task."""
    task = _task_of(attributes)
    packed = {name: _packed_value(each) for name, each in attributes.items()}
    if task != DEFAULT_TASK:
        del packed[TASK_ATTRIBUTE]
    return task, packed


def _task_of(attributes: MessageAttributes) -> str:
    given = attributes.get(TASK_ATTRIBUTE)
    if given is None:
        return DEFAULT_TASK
    task = given.string_value or ""
    if given.data_type != "String" or not bounds.TASK_NAME.match(task):
        raise errors.invalid_parameter(
            f"Message (user) attribute '{TASK_ATTRIBUTE}' names a task: it must be a String of 1 to"
            " 200 characters of A-Z a-z 0-9 _ . : / -"
        )
    return task


def _delay_s(message: NewMessage, known: KnownQueue) -> int:
    delay_s = message.delay_seconds
    if delay_s is None or (known.is_fifo and delay_s == 0):
        return known.attributes.delay_seconds
    if known.is_fifo:
        raise errors.wrong_queue_type("DelaySeconds", delay_s)
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise errors.delay_out_of_range(delay_s)
    return delay_s


def _headers(message: NewMessage, sender: str) -> dict[str, str]:
    headers = {SENDER_HEADER: sender} if sender else {}
    if message.message_deduplication_id is not None:
        headers[DEDUP_HEADER] = message.message_deduplication_id
    trace = message.message_system_attributes.get("AWSTraceHeader")
    if trace is not None and trace.string_value is not None:
        headers[TRACE_HEADER] = trace.string_value
    return headers


def _content_id(body: bytes) -> str:
    """The deduplication id that a FIFO queue derives from a body."""
    return hashlib.sha256(body).hexdigest()


def _key(known: KnownQueue, group: str | None, dedup_id: str) -> str:
    """The once-only key of a FIFO message. A purge begins a new epoch, so that earlier ids no
    longer count. The key is a hash because group and id together may be longer than a key."""
    by_group = known.attributes.deduplication_scope == "messageGroup"
    # No id has a space.
    text = f"{known.epoch} {group if by_group else ''} {dedup_id}"
    return f"sqs/{hashlib.sha256(text.encode()).hexdigest()}"


def sequence_number(seq: int) -> str:
    """The SequenceNumber of a FIFO message: 20 digits, as on AWS."""
    return str(_SEQUENCE_START + seq)


class Delivery(Struct, frozen=True, kw_only=True):
    """Facts for the system attributes of a received message that are not part of its job."""

    account: str
    receive_count: int
    sent_at: int
    first_received_at: int
    source_arn: str | None = None
    """The queue in which a dead letter died."""


def system_names(request: ReceiveMessageRequest) -> tuple[str, ...]:
    """The system attributes that a request names, by both of its members."""
    return (*request.attribute_names, *request.message_system_attribute_names)


def received_message(
    job: Job, request: ReceiveMessageRequest, handle: str, delivery: Delivery | None
) -> ReceivedMessage:
    """The message of a leased job, with the attributes that the request names. `delivery` is None
    if it names no system attribute."""
    envelope = unpack_envelope(job.payload, job.content_type)
    attributes = _attributes_of(envelope) if envelope.attributes else {}
    if job.task != DEFAULT_TASK:
        attributes[TASK_ATTRIBUTE] = MessageAttributeValue(
            data_type="String", string_value=job.task
        )
    shown = message_attributes.selected_message_attributes(
        attributes, request.message_attribute_names
    )
    wire = envelope.body
    body = xml_text(wire)
    if body is None:
        # A client that does not ask for the attribute could not read the body.
        wire = base64.b64encode(wire)
        body = wire.decode()
        shown = {**shown, ENCODING_ATTRIBUTE: _BASE64}
    system: dict[str, str] = {}
    if delivery is not None:
        system = _system_attributes(job, envelope.body, delivery, system_names(request))
    return ReceivedMessage(
        message_id=job.id,
        receipt_handle=handle,
        md5_of_body=message_attributes.md5_of(wire),
        body=body,
        attributes=system,
        md5_of_message_attributes=message_attributes.md5_of_attributes(shown),
        message_attributes=shown,
    )


def _attributes_of(envelope: Envelope) -> MessageAttributes:
    """The attributes in an envelope; none if a client could not have sent them."""
    attributes = {name: _unpacked(each) for name, each in envelope.attributes.items()}
    try:
        message_attributes.check_message_attributes(attributes)
    except SqsError:
        return {}
    return attributes


def _system_attributes(
    job: Job, body: bytes, delivery: Delivery, names: Collection[str]
) -> dict[str, str]:
    made_id = None if job.group is None else _content_id(body)
    values = {
        "SenderId": job.headers.get(SENDER_HEADER, delivery.account),
        "SentTimestamp": str(delivery.sent_at),
        "ApproximateReceiveCount": str(delivery.receive_count),
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at),
        "SequenceNumber": None if job.group is None else sequence_number(job.seq),
        "MessageDeduplicationId": job.headers.get(DEDUP_HEADER) or made_id,
        "MessageGroupId": job.group or job.tenant,
        "AWSTraceHeader": job.headers.get(TRACE_HEADER),
        "DeadLetterQueueSourceArn": delivery.source_arn,
    }
    # Another program may have stored characters that XML cannot carry.
    known = {
        name: value
        for name, value in values.items()
        if value is not None and xml_bytes(value) is not None
    }
    return message_attributes.selected_system_attributes(known, names)


def _packed_value(value: MessageAttributeValue) -> Attribute:
    if value.binary_value is not None:
        return Attribute(value.data_type, value.binary_value)
    return Attribute(value.data_type, (value.string_value or "").encode())


def _unpacked(attribute: Attribute) -> MessageAttributeValue:
    if attribute.type.partition(".")[0] == "Binary":
        return MessageAttributeValue(data_type=attribute.type, binary_value=attribute.value)
    text = attribute.value.decode(errors="replace")
    return MessageAttributeValue(data_type=attribute.type, string_value=text)
