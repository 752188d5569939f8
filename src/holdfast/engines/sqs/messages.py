"""Jobs ↔ SQS messages. Pure, and every received message is hostile.

The body is the payload, or its base64 if it is not legal text. The attribute `holdfast.task` names
the task, `holdfast.encoding` the base64, `holdfast.job` (JSON) has the rest of the job, and
`holdfast.dead` tells in a dead-letter queue why the job died. Other attributes are in the payload's
envelope, as for messages that our own endpoint receives.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.codec import (
    JSON,
    TEXT,
    Attribute,
    pack_envelope,
    unpack_envelope,
)
from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import (
    NO_OVERRIDES,
    RECEIPT,
    Event,
    EventKind,
    Failure,
    Job,
    NewJob,
    Overrides,
    Reason,
    State,
)
from holdfast.core.text import xml_bytes
from holdfast.engines.sqs.client import (
    BATCH_BYTES_MAX,
    OutgoingSqsMessage,
    SqsAttribute,
    SqsMessage,
)
from holdfast.engines.sqs.settings import StoredQueue, seconds
from holdfast.errors import PayloadTooLarge, UsageError

TASK_ATTRIBUTE: Final = "holdfast.task"
ENCODING_ATTRIBUTE: Final = "holdfast.encoding"
JOB_ATTRIBUTE: Final = "holdfast.job"
DEAD_ATTRIBUTE: Final = "holdfast.dead"
MESSAGE_BYTES_MAX: Final = BATCH_BYTES_MAX
ATTRIBUTES_MAX: Final = 10
DELAY_S_MAX: Final = 15 * 60

_OWN: Final = frozenset({TASK_ATTRIBUTE, ENCODING_ATTRIBUTE, JOB_ATTRIBUTE, DEAD_ATTRIBUTE})
_OWN_MAX: Final = 4
_BASE64: Final = "base64"
_EMPTY: Final = " "
"""The base64 of nothing: a body has at least one character."""
_GROUP_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")
_CLIPPED: Final = 1_000


class UnreadableMessage(ValueError):
    """Why a message is no job."""


class JobAttribute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a job that have no other place. `attributes` are those that SQS has no room
    for, `attempts` those of the messages before this one."""

    id: str = ""
    attempts: bounds.Count = 0
    content_type: str = JSON
    tenant: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    created_at: bounds.Instant = 0
    expires_at: bounds.Instant | None = None
    origin: str | None = None
    attributes: dict[str, Attribute] = {}


class DeadAttribute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why and where a job died: `message_id` and `sent_at` are those of its message, `attributes`
    those that SQS has no room for."""

    reason: Reason = Reason.EXPLICIT
    failure: Failure | None = None
    queue: str = ""
    attempt: bounds.Count = 0
    message_id: str = ""
    sent_at: bounds.Instant = 0
    died_at: bounds.Instant = 0
    attributes: dict[str, Attribute] = {}


def write_message(
    job: Job, stored: StoredQueue, *, delay_ms: int = 0, deduplication_id: str | None = None
) -> OutgoingSqsMessage:
    """The message of a new job for this queue. Raises PayloadTooLarge."""
    message = _written(job, stored, delay_ms, deduplication_id)
    if message.size > MESSAGE_BYTES_MAX:
        raise PayloadTooLarge(
            f"the message of job {job.id} is {message.size} bytes, with its attributes and, for a"
            f" payload that is no text, base64; the maximum of SQS is {MESSAGE_BYTES_MAX}"
        )
    return message


def rewrite_message(
    job: Job, stored: StoredQueue, *, deduplication_id: str | None = None
) -> OutgoingSqsMessage:
    """The message of a job that was received, for this queue. A message of another program may have
    no room for the fields of the job: it goes on without them."""
    return _fitted(job, stored, deduplication_id=deduplication_id)


def repeat_message(job: Job, stored: StoredQueue, *, delay_s: int) -> OutgoingSqsMessage:
    """The message of a job that was received and not run, for the same queue: this receive does not
    count as an attempt."""
    return _fitted(job, stored, delay_ms=delay_s * bounds.SECOND_MS, attempts=job.attempt - 1)


def _fitted(
    job: Job,
    stored: StoredQueue,
    *,
    delay_ms: int = 0,
    deduplication_id: str | None = None,
    attempts: int = 0,
) -> OutgoingSqsMessage:
    """The message; if that is too large, without the fields that were added since it was sent; and
    if it was of another program, only its body and attributes, as they came. It needs no task if it
    is the one of the queue."""
    message = _written(job, stored, delay_ms, deduplication_id, attempts=attempts)
    if message.size > MESSAGE_BYTES_MAX:
        message = _written(replace(job, origin=None), stored, delay_ms, deduplication_id)
    if message.size <= MESSAGE_BYTES_MAX:
        return message
    attributes = {name: sent_attribute(each) for name, each in _foreign_attributes(job).items()}
    for name in (TASK_ATTRIBUTE, ENCODING_ATTRIBUTE):
        if name in message.attributes and (name != TASK_ATTRIBUTE or job.task != stored.task):
            attributes[name] = message.attributes[name]
    return replace(message, attributes=attributes)


def _foreign_attributes(job: Job) -> dict[str, Attribute]:
    envelope = unpack_envelope(job.payload, job.content_type)
    return {name: each for name, each in envelope.attributes.items() if name not in _OWN}


def _written(
    job: Job,
    stored: StoredQueue,
    delay_ms: int,
    deduplication_id: str | None,
    *,
    attempts: int = 0,
) -> OutgoingSqsMessage:
    envelope = unpack_envelope(job.payload, job.content_type)
    foreign = _foreign_attributes(job)
    rest = dict(list(foreign.items())[ATTRIBUTES_MAX - _OWN_MAX :])
    text = text_of(envelope.body)
    attributes = {name: sent_attribute(each) for name, each in foreign.items() if name not in rest}
    attributes[TASK_ATTRIBUTE] = SqsAttribute("String", job.task)
    if text is None:
        attributes[ENCODING_ATTRIBUTE] = SqsAttribute("String", _BASE64)
        text = base64_text(envelope.body)
    kept = JobAttribute(
        id=job.id,
        attempts=attempts,
        content_type=JSON if envelope.attributes else job.content_type,
        tenant=job.tenant,
        group=job.group,
        labels=job.labels,
        headers=own_headers(job.headers),
        overrides=job.overrides,
        created_at=job.created_at,
        expires_at=job.expires_at,
        origin=job.origin,
        attributes=rest,
    )
    attributes[JOB_ATTRIBUTE] = SqsAttribute("String", json_text(kept))
    return OutgoingSqsMessage(
        body=text,
        attributes=attributes,
        # On a FIFO queue each job without a group is one by itself.
        group=group_id(job.group or job.id if stored.is_fifo else job.tenant),
        delay_s=seconds(delay_ms) or None,
        deduplication_id=(deduplication_id or group_id(job.id)) if stored.is_fifo else None,
    )


def with_death(
    message: OutgoingSqsMessage, dead: DeadAttribute, *, deduplication_id: str | None
) -> OutgoingSqsMessage:
    """The message as a dead letter. A failure that has no room beside a large payload is clipped:
    a message can always be buried."""
    attributes = {name: each for name, each in message.attributes.items() if name != DEAD_ATTRIBUTE}
    failure = None if dead.failure is None else checks.clean_failure(dead.failure)
    letter = replace(message, delay_s=None, deduplication_id=deduplication_id)
    told = replace(dead, failure=failure)
    for part in ("trace", "message", None):
        attributes[DEAD_ATTRIBUTE] = SqsAttribute("String", json_text(told))
        letter = replace(letter, attributes=attributes)
        if letter.size <= MESSAGE_BYTES_MAX or failure is None:
            break
        if part is None:
            told = replace(told, failure=None)
        else:
            failure = replace(failure, **{part: getattr(failure, part)[:_CLIPPED]})
            told = replace(told, failure=failure)
    if letter.size > MESSAGE_BYTES_MAX or len(letter.attributes) > ATTRIBUTES_MAX:
        # Its own attributes matter more than the account of its death.
        letter = replace(letter, attributes=message.attributes)
    return letter


class Burial(NamedTuple):
    """A message to bury: its receipt handle, the letter to send, and why it died."""

    handle: str
    letter: OutgoingSqsMessage
    dead: DeadAttribute


def burial_of(
    message: SqsMessage, stored: StoredQueue, job: Job | None, dead: DeadAttribute
) -> Burial:
    """The burial of a received message; `job` is None if it cannot be read as one. Its letter has
    the body as it came, and every attribute."""
    if job is not None:
        return Burial(message.handle, rewrite_message(job, stored), dead)
    attributes = {name: each for name, each in message.attributes.items() if name != DEAD_ATTRIBUTE}
    rest = {name: _packed(attributes.pop(name)) for name in list(attributes)[ATTRIBUTES_MAX - 1 :]}
    group = message.system.get("MessageGroupId")
    letter = OutgoingSqsMessage(
        body=message.body,
        attributes=attributes,
        group=group or (group_id(message.id) if stored.is_fifo else None),
    )
    return Burial(message.handle, letter, replace(dead, attributes=rest))


def read_message(message: SqsMessage, stored: StoredQueue) -> Job:
    """The job of a message of this queue. Raises UnreadableMessage."""
    own, foreign = _read_attributes(message)
    encoding = _text_attribute(own, ENCODING_ATTRIBUTE)
    body = read_body(message.body, encoding)
    given = _read_job(own)
    task = _text_attribute(own, TASK_ATTRIBUTE)
    attributes = {**foreign, **(given.attributes if given else {})}
    payload, content_type = pack_envelope(body, attributes)
    if given is not None and not attributes:
        content_type = given.content_type
    named = JobAttribute() if given is None else given
    own_group = message.system.get("MessageGroupId") if given is None else None
    new = NewJob(
        id=named.id or _job_id(message.id),
        task=stored.task if task is None else task,
        queue=stored.queue.name,
        payload=payload,
        content_type=content_type,
        tenant=named.tenant or (None if stored.is_fifo else own_group),
        group=named.group or (own_group if stored.is_fifo else None),
        labels=named.labels,
        headers=own_headers(named.headers),
        overrides=named.overrides,
    )
    try:
        checks.check_job(new)
    except UsageError as error:
        raise UnreadableMessage(str(error)) from None
    sent_at = sent_at_of(message)
    return Job(
        id=new.id,
        task=new.task,
        queue=new.queue,
        payload=payload,
        content_type=content_type,
        created_at=named.created_at or sent_at,
        due_at=sent_at,
        expires_at=named.expires_at,
        tenant=new.tenant,
        group=new.group,
        labels=new.labels,
        headers=new.headers,
        overrides=new.overrides,
        origin=named.origin,
        attempt=min(named.attempts + receive_count(message), bounds.COUNT_MAX),
    )


def read_dead_letter(message: SqsMessage, stored: StoredQueue, source: str | None) -> Job:
    """The dead job of a message in a dead-letter queue. One that cannot be read as a job has its
    body as payload. `source` is the queue that SQS itself moved it from."""
    try:
        job = read_message(message, stored)
    except UnreadableMessage:
        body = message.body.encode("utf-8", "replace")
        job = Job(
            id=_job_id(message.id),
            task=stored.task,
            queue=stored.queue.name,
            payload=body,
            content_type=TEXT,
            created_at=sent_at_of(message),
        )
    dead = read_death(message)
    if dead is None:
        count = receive_count(message)
        text = f"Amazon SQS moved the message: it was received {count} times and not deleted"
        dead = DeadAttribute(
            reason=Reason.ATTEMPTS, failure=Failure(message=text), queue=source or "", attempt=count
        )
    origin = dead.queue if dead.queue != stored.queue.name else None
    died_at = dead.died_at or sent_at_of(message)
    buried = Event(
        at=died_at,
        kind=EventKind.BURIED,
        attempt=dead.attempt,
        failure=dead.failure,
        text=str(dead.reason),
    )
    return replace(
        job,
        state=State.DEAD,
        attempt=dead.attempt,
        events=(buried,),
        reason=dead.reason,
        fingerprint=fingerprint(dead.reason, dead.failure, job.task),
        origin=origin if origin and bounds.QUEUE_NAME.match(origin) else job.origin,
        finished_at=died_at,
        releases=max(receive_count(message) - 1, 0) if dead.message_id else 0,
        # A dead letter does not expire.
        expires_at=None,
    )


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without those of a receipt."""
    if not any(name.startswith(RECEIPT) for name in headers):
        return dict(headers)
    return {name: value for name, value in headers.items() if not name.startswith(RECEIPT)}


def receive_count(message: SqsMessage) -> int:
    """How often the message was received, this time included."""
    return max(_number(message.system.get("ApproximateReceiveCount", "")), 1)


def sent_at_of(message: SqsMessage) -> int:
    """When the message was sent, by the clock of the service."""
    return min(_number(message.system.get("SentTimestamp", "")), bounds.INSTANT_MAX)


def text_of(body: bytes) -> str | None:
    """The text of a body; None if SQS cannot carry it, as it cannot an empty one."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text and xml_bytes(text) is not None else None


def base64_text(body: bytes) -> str:
    """The base64 of a body, with at least one character."""
    return base64.b64encode(body).decode() or _EMPTY


def json_text(value: msgspec.Struct) -> str:
    """JSON in ASCII: SQS does not take every character."""
    wire = msgspec.json.encode(value)
    if wire.isascii():
        return wire.decode()
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def group_id(name: str | None) -> str | None:
    """A name that SQS accepts: one with other characters, or longer, is hashed."""
    if name is None or _GROUP_ID.match(name):
        return name
    return f"sha256-{hashlib.sha256(name.encode()).hexdigest()}"


def delivery_id(message_id: str, attempt: int) -> str:
    """The deduplication id of a message that is sent because of this delivery: a FIFO queue takes a
    repeat only once."""
    return hashlib.sha256(f"{message_id} {attempt}".encode()).hexdigest()


def _job_id(message_id: str) -> str:
    if bounds.JOB_ID.match(message_id):
        return message_id
    return hashlib.sha256(message_id.encode("utf-8", "replace")).hexdigest()


def sent_attribute(attribute: Attribute) -> SqsAttribute:
    """An attribute of an envelope, as SQS has it."""
    if attribute.type.partition(".")[0] == "Binary":
        return SqsAttribute(attribute.type, attribute.value)
    return SqsAttribute(attribute.type, attribute.value.decode("utf-8", "replace"))


def _packed(attribute: SqsAttribute) -> Attribute:
    value = attribute.value
    wire = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return Attribute(attribute.type, wire)


def _read_attributes(
    message: SqsMessage,
) -> tuple[dict[str, SqsAttribute], dict[str, Attribute]]:
    own: dict[str, SqsAttribute] = {}
    foreign: dict[str, Attribute] = {}
    for name, each in message.attributes.items():
        if name in _OWN:
            own[name] = each
        else:
            foreign[name] = _packed(each)
    return own, foreign


def _text_attribute(own: Mapping[str, SqsAttribute], name: str) -> str | None:
    found = own.get(name)
    if found is None:
        return None
    if not isinstance(found.value, str):
        raise UnreadableMessage(f"the attribute {name} is not a String")
    return found.value


def read_body(body: str, encoding: str | None) -> bytes:
    """The bytes of a body. Raises UnreadableMessage."""
    try:
        if encoding is None:
            return body.encode()
        if encoding == _BASE64:
            return base64.b64decode(body.strip(), validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        raise UnreadableMessage(f"the body is not {encoding or 'text'}") from None
    raise UnreadableMessage(f"the encoding {encoding[:40]!r} is not known: use base64")


def _read_job(own: Mapping[str, SqsAttribute]) -> JobAttribute | None:
    text = _text_attribute(own, JOB_ATTRIBUTE)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=JobAttribute)
    except (msgspec.MsgspecError, UsageError, RecursionError, ValueError) as error:
        raise UnreadableMessage(f"the attribute {JOB_ATTRIBUTE} is not valid: {error}") from None


def read_death(message: SqsMessage) -> DeadAttribute | None:
    """Why and where the job of a dead letter died, if Holdfast buried it."""
    found = message.attributes.get(DEAD_ATTRIBUTE)
    if found is None or not isinstance(found.value, str):
        return None
    try:
        return msgspec.json.decode(found.value, type=DeadAttribute)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
