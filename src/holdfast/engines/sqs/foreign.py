"""Messages of gates ↔ SQS messages. Pure; everything received is hostile input.

Headers are message attributes. SQS has no content type and no id of the sender, so these are
attributes, too, beginning with `holdfast.`. A body that SQS cannot carry is sent as base64.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.core.codec import JSON
from holdfast.engines.broker import Message
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsAttribute, SqsMessage
from holdfast.engines.sqs.messages import (
    ATTRIBUTES_MAX,
    DEAD_ATTRIBUTE,
    ENCODING_ATTRIBUTE,
    JOB_ATTRIBUTE,
    DeadAttribute,
    JobAttribute,
    UnreadableMessage,
    base64_text,
    group_id,
    json_text,
    read_body,
    read_death,
    sent_attribute,
    text_of,
)

ID_ATTRIBUTE: Final = "holdfast.id"

_PREFIX: Final = "holdfast."
_PROPERTIES: Final = ("content_type", "correlation_id", "content_encoding", "type", "reply_to")
_SYSTEM: Final = {
    "SentTimestamp": "sent_at",
    "ApproximateReceiveCount": "receive_count",
    "ApproximateFirstReceiveTimestamp": "first_received_at",
    "MessageDeduplicationId": "deduplication_id",
    "SequenceNumber": "sequence_number",
    "SenderId": "sender_id",
    "AWSTraceHeader": "trace_header",
    "DeadLetterQueueSourceArn": "source_arn",
}
_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)[\w-]+(?:\.[\w-]+)*")
_NAME_MAX: Final = 256

_read_job = msgspec.json.Decoder(JobAttribute).decode


def foreign_message(received: SqsMessage, tag: int, *, is_fifo: bool) -> Message:
    """A received message. Attributes that cannot be read as ours stay headers."""
    headers = {name: _text(each) for name, each in received.attributes.items()}
    body = _body(received.body, headers)
    job = _unpack_job(headers)
    dead = read_death(received)
    if dead is not None:
        # Its facts are properties; a header may be too long for a job.
        del headers[DEAD_ATTRIBUTE]
    for part in (job, dead):
        for name, each in part.attributes.items() if part else ():
            headers.setdefault(name, _text(sent_attribute(each)))
    own = {name: headers.pop(_PREFIX + name, None) for name in _PROPERTIES}
    group = received.system.get("MessageGroupId")
    properties = _properties(received, dead)
    return Message(
        tag=tag,
        body=body,
        content_type=own["content_type"] or (job.content_type if job else ""),
        message_id=received.id or None,
        correlation_id=own["correlation_id"],
        content_encoding=own["content_encoding"],
        type=own["type"],
        reply_to=own["reply_to"],
        headers=headers,
        group=group if is_fifo else None,
        tenant=None if is_fifo else group,
        properties=properties,
        is_redelivered=properties.get("receive_count", "1") != "1",
    )


def outgoing_message(message: Message, *, is_fifo: bool) -> OutgoingSqsMessage:
    """A message of a gate, to be sent. The job's id makes a FIFO queue take it only once."""
    body, encoding = _encoded(message.body)
    own = {_PREFIX + name: getattr(message, name) for name in _PROPERTIES}
    own |= {ID_ATTRIBUTE: message.message_id, ENCODING_ATTRIBUTE: encoding}
    texts = {name: value for name, value in own.items() if value}
    headers = {name: value for name, value in message.headers.items() if name not in texts}
    if _are_legal(texts | headers):
        texts |= headers
    else:
        type_ = message.content_type or JSON
        job = JobAttribute(id=message.message_id or "", content_type=type_, headers=headers)
        texts[JOB_ATTRIBUTE] = json_text(job)
    id_ = message.message_id or hashlib.sha256(message.body).hexdigest()
    group = message.group or id_ if is_fifo else message.tenant
    return OutgoingSqsMessage(
        body=body,
        attributes={name: SqsAttribute("String", value) for name, value in texts.items()},
        group=group_id(group),
        deduplication_id=group_id(id_) if is_fifo else None,
    )


def forwarded_message(received: SqsMessage, source: str, *, is_fifo: bool) -> OutgoingSqsMessage:
    """A received message as it is sent on, unchanged. A FIFO queue takes it once in five minutes; a
    message without a group is in the group of its source."""
    group = received.system.get("MessageGroupId")
    return OutgoingSqsMessage(
        body=received.body,
        attributes=received.attributes,
        group=group_id(source) if is_fifo and group is None else group,
        # Not its own: two sources may use the same one for different messages.
        deduplication_id=group_id(received.id) if is_fifo else None,
    )


def _properties(received: SqsMessage, dead: DeadAttribute | None) -> dict[str, str]:
    """The headers with the facts of SQS about the message, and the reason if Holdfast buried it."""
    system = received.system
    found = {name: system[theirs] for theirs, name in _SYSTEM.items() if theirs in system}
    if dead is None:
        return found
    # The counts and times of the letter itself begin with the burial.
    found |= {"reason": dead.reason.value, "receive_count": str(dead.attempt)}
    found |= {"sent_at": str(dead.sent_at)} if dead.sent_at else {}
    found |= {"source_queue": dead.queue} if dead.queue else {}
    failure = "" if dead.failure is None else dead.failure.message or dead.failure.type
    return found | ({"failure": failure} if failure else {})


def _body(text: str, headers: dict[str, str]) -> bytes:
    """The bytes of a body; its encoding is removed from the headers, if it is ours."""
    try:
        body = read_body(text, headers.get(ENCODING_ATTRIBUTE))
    except UnreadableMessage:
        return text.encode(errors="surrogatepass")
    headers.pop(ENCODING_ATTRIBUTE, None)
    return body


def _encoded(body: bytes) -> tuple[str, str | None]:
    text = text_of(body)
    return (base64_text(body), "base64") if text is None else (text, None)


def _unpack_job(headers: dict[str, str]) -> JobAttribute | None:
    """The attribute with the fields of a job; its headers are headers of the message."""
    try:
        job = _read_job(headers.get(JOB_ATTRIBUTE, ""))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    del headers[JOB_ATTRIBUTE]
    for name, value in job.headers.items():
        headers.setdefault(name, value)
    return job


def _text(attribute: SqsAttribute) -> str:
    value = attribute.value
    return value if isinstance(value, str) else base64.b64encode(value).decode()


def _are_legal(texts: Mapping[str, str]) -> bool:
    """Whether SQS takes these as attributes."""
    return len(texts) <= ATTRIBUTES_MAX and all(
        len(name) <= _NAME_MAX and _NAME.fullmatch(name) and text_of(value.encode())
        for name, value in texts.items()
    )
