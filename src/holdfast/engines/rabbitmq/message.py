"""Conversion of messages between RabbitMQ and Holdfast. Everything received is hostile input."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
from aiormq import spec
from aiormq.abc import DeliveredMessage

from holdfast.core import bounds
from holdfast.core.workers import addressee
from holdfast.engines.broker import DeadMessage, JobMessage, Message
from holdfast.engines.rabbitmq.topology import TTL_MS_MAX, RabbitNames

JSON = "application/json"
_DEPTH_MAX = 32
_DEATHS = "x-death"
_DIRECT_REPLY = "amq.rabbitmq.reply-to"

Properties = spec.Basic.Properties


class JobBody(msgspec.Struct, frozen=True):
    """The body of a message for a job."""

    id: str
    queue: str


_read_body = msgspec.json.Decoder(JobBody).decode


def job_message(message: JobMessage, waited_ms: int) -> tuple[bytes, Properties]:
    """The body and the properties of a job's message. The time that it waited counts towards its
    expiration."""
    body = msgspec.json.encode(JobBody(message.id, message.queue))
    left_ms = message.expires_ms
    if left_ms is not None:
        # RabbitMQ gives up a message with 0 at once, also one that a worker would take now.
        left_ms = min(max(left_ms - waited_ms, 1), TTL_MS_MAX)
    expiration = None if left_ms is None else str(left_ms)
    return body, Properties(content_type=JSON, delivery_mode=2, expiration=expiration)


def read_job(body: bytes) -> JobBody | None:
    """The job that a message is for; None if the message is not one of ours."""
    try:
        job = _read_body(body)
    except msgspec.DecodeError:
        return None
    is_ours = bounds.JOB_ID.match(job.id) and bounds.QUEUE_NAME.match(job.queue)
    return job if is_ours and addressee(job.queue) is not None else None


def dead_message(number: int, delivered: DeliveredMessage, names: RabbitNames) -> DeadMessage:
    """A message from the queue of dead messages, with what RabbitMQ recorded about its deaths."""
    properties = delivered.header.properties
    headers = properties.headers if isinstance(properties.headers, dict) else {}
    deaths = headers.get(_DEATHS)
    history = tuple(
        {clean_text(key): plain_value(value) for key, value in death.items()}
        for death in (deaths if isinstance(deaths, list) else [])
        if isinstance(death, dict)
    )
    last = history[0] if history else {}
    seconds = last.get("time")
    job = read_job(delivered.body)
    queue = job.queue if job else names.own(str(last.get("queue", "")))
    return DeadMessage(
        tag=number,
        id=job.id if job else None,
        queue=queue or _worker_queue(delivered.routing_key),
        reason=str(last.get("reason", "")),
        dead_at=seconds * 1000 if isinstance(seconds, int) and _is_instant(seconds) else None,
        history=history,
        body=delivered.body,
        content_type=clean_text(properties.content_type or ""),
        headers=text_headers(headers),
    )


def foreign_message(number: int, delivered: DeliveredMessage) -> Message:
    """A message of another program, for gates."""
    properties = delivered.header.properties
    headers = properties.headers if isinstance(properties.headers, dict) else {}
    return Message(
        tag=number,
        body=delivered.body,
        content_type=clean_text(properties.content_type or ""),
        message_id=_text_or_none(properties.message_id),
        correlation_id=_text_or_none(properties.correlation_id),
        content_encoding=_text_or_none(properties.content_encoding),
        type=_text_or_none(properties.message_type),
        reply_to=_text_or_none(properties.reply_to),
        headers=text_headers(headers),
        priority=properties.priority,
        expires_ms=_milliseconds(properties.expiration),
        exchange=clean_text(delivered.exchange or ""),
        routing_key=clean_text(delivered.routing_key or ""),
        is_redelivered=bool(delivered.redelivered),
    )


def message_properties(message: Message) -> Properties:
    """The properties of a gate's message. Raises ValueError if RabbitMQ cannot carry them."""
    for name, text in (
        ("the content type", message.content_type),
        ("the message id", message.message_id or ""),
        ("the correlation id", message.correlation_id or ""),
        ("the content encoding", message.content_encoding or ""),
        ("the type", message.type or ""),
        ("the reply address", message.reply_to or ""),
        *((f"the name of the header {key[:40]!r}", key) for key in message.headers),
    ):
        if len(text.encode()) > 255:
            raise ValueError(f"{name} is {len(text.encode())} bytes; the maximum is 255")
    if message.reply_to == _DIRECT_REPLY:
        # RabbitMQ closes the channel, and the messages of others on it are not confirmed.
        raise ValueError(f"the reply address is {_DIRECT_REPLY}, which only its sender can use")
    if message.priority is not None and not 0 <= message.priority <= 255:
        raise ValueError(f"the priority is {message.priority}, and must be from 0 to 255")
    expires_ms = message.expires_ms
    return Properties(
        content_type=message.content_type or None,
        headers=dict(message.headers) or None,
        delivery_mode=2,
        priority=message.priority,
        correlation_id=message.correlation_id,
        content_encoding=message.content_encoding,
        message_type=message.type,
        reply_to=message.reply_to,
        expiration=None if expires_ms is None else str(min(max(expires_ms, 0), TTL_MS_MAX)),
        message_id=message.message_id or None,
    )


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Headers as text: a text as it is, anything else as JSON."""
    return {
        clean_text(key): clean_text(value)
        if isinstance(value, str)
        else msgspec.json.encode(plain_value(value)).decode()
        for key, value in headers.items()
    }


def plain_value(value: Any, depth: int = 0) -> object:
    """A value of a table as a JSON value. Bytes are base64; what JSON cannot say is text."""
    match value:
        case str():
            return clean_text(value)
        case bool() | None:
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case dict() if depth < _DEPTH_MAX:
            return {clean_text(str(key)): plain_value(one, depth + 1) for key, one in value.items()}
        case list() if depth < _DEPTH_MAX:
            return [plain_value(one, depth + 1) for one in value]
        case _:
            return "…"


def clean_text(text: str) -> str:
    """Text with `\\xNN` for each byte that is not UTF-8, so that different ids stay different."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _text_or_none(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _milliseconds(expiration: str | None) -> int | None:
    is_number = expiration is not None and expiration.isascii() and expiration.isdigit()
    return min(int(expiration), TTL_MS_MAX) if is_number and expiration else None


def _worker_queue(routing_key: str | None) -> str:
    is_name = routing_key and bounds.QUEUE_NAME.match(routing_key) and addressee(routing_key)
    return routing_key if routing_key and is_name else ""


def _is_instant(seconds: int) -> bool:
    return 0 <= seconds * 1000 <= bounds.INSTANT_MAX
