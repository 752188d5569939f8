"""Messages of gates ↔ SQS messages. Pure; everything received is hostile input.

Headers are message attributes. SQS has no content type and no id of the sender, so these are
attributes, too, beginning with `holdfast.`. A body that SQS cannot carry is sent as base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.engines.broker import Message
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsAttribute, SqsMessage

ATTRIBUTES_MAX: Final = 10
ID: Final = "holdfast.id"
HEADERS: Final = "holdfast.headers"
ENCODING: Final = "holdfast.encoding"
EMPTY_BODY: Final = "-"
"""The body of a message whose encoding is `empty`: SQS carries no empty body."""

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
_LEGAL: Final = re.compile(r"[\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)[\w-]+(?:\.[\w-]+)*")
_NAME_MAX: Final = 256
_FIFO_ID: Final = re.compile(r"[!-~]{1,128}")

_read_headers = msgspec.json.Decoder(dict[str, str]).decode


def foreign_message(received: SqsMessage, tag: int, *, is_fifo: bool) -> Message:
    """A received message. Attributes that cannot be read as ours stay headers."""
    headers = {name: _text(each) for name, each in received.attributes.items()}
    body = _body(received.body, headers)
    _unpack_headers(headers)
    own = {name: headers.pop(_PREFIX + name, None) for name in _PROPERTIES}
    system = received.system
    properties = {name: system[theirs] for theirs, name in _SYSTEM.items() if theirs in system}
    group = system.get("MessageGroupId")
    return Message(
        tag=tag,
        body=body,
        content_type=own["content_type"] or "",
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
    own |= {ID: message.message_id, ENCODING: encoding}
    texts = {name: value for name, value in own.items() if value}
    headers = {name: value for name, value in message.headers.items() if name not in texts}
    if _are_legal(texts | headers):
        texts |= headers
    else:
        # ASCII, so that every character is legal.
        texts[HEADERS] = json.dumps(headers)
    id_ = message.message_id or hashlib.sha256(message.body).hexdigest()
    group = message.group or id_ if is_fifo else message.tenant
    return OutgoingSqsMessage(
        body=body,
        attributes={name: SqsAttribute("String", value) for name, value in texts.items()},
        group=None if group is None else _fifo_id(group),
        deduplication_id=_fifo_id(id_) if is_fifo else None,
    )


def forwarded_message(received: SqsMessage, source: str, *, is_fifo: bool) -> OutgoingSqsMessage:
    """A received message as it is sent on, unchanged. A FIFO queue takes it once in five minutes; a
    message without a group is in the group of its source."""
    group = received.system.get("MessageGroupId")
    return OutgoingSqsMessage(
        body=received.body,
        attributes=received.attributes,
        group=_fifo_id(source) if is_fifo and group is None else group,
        # Not its own: two sources may use the same one for different messages.
        deduplication_id=_fifo_id(received.id) if is_fifo else None,
    )


def _body(text: str, headers: dict[str, str]) -> bytes:
    """The bytes of a body; its encoding is removed from the headers, if it is ours."""
    encoding = headers.get(ENCODING)
    try:
        if encoding == "base64":
            body = base64.b64decode(text, validate=True)
        elif encoding == "empty" and text == EMPTY_BODY:
            body = b""
        else:
            return text.encode(errors="surrogatepass")
    except (binascii.Error, ValueError):
        return text.encode(errors="surrogatepass")
    del headers[ENCODING]
    return body


def _encoded(body: bytes) -> tuple[str, str | None]:
    if not body:
        return EMPTY_BODY, "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if text and _LEGAL.fullmatch(text):
        return text, None
    return base64.b64encode(body).decode(), "base64"


def _unpack_headers(headers: dict[str, str]) -> None:
    """Replace the attribute that holds all headers as JSON by the headers."""
    packed = headers.get(HEADERS)
    if packed is None:
        return
    try:
        found = _read_headers(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    del headers[HEADERS]
    for name, value in found.items():
        headers.setdefault(name, value)


def _text(attribute: SqsAttribute) -> str:
    value = attribute.value
    return value if isinstance(value, str) else base64.b64encode(value).decode()


def _are_legal(texts: Mapping[str, str]) -> bool:
    """Whether SQS takes these as attributes."""
    return len(texts) <= ATTRIBUTES_MAX and all(
        len(name) <= _NAME_MAX and _NAME.fullmatch(name) and _LEGAL.fullmatch(value)
        for name, value in texts.items()
    )


def _fifo_id(text: str) -> str:
    """A group or deduplication id: the text, or its hash if SQS does not take it."""
    if _FIFO_ID.fullmatch(text):
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
