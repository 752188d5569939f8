"""Decides about messages that a worker's queue at the broker gave up: what the ledger knows about
the job → an outcome. Also the jobs that keep a message which is not ours, as dead letters.

Pure. A message only names a job; whatever else it says is hostile and decides nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.core import bounds, checks
from holdfast.core.model import Failure, Job, NewJob, Reason, State
from holdfast.core.verdict import BuryWaiting
from holdfast.core.workers import addressee
from holdfast.errors import UsageError

HANDLER = "dead-letter handler"
"""The name of the handler in timelines."""
REJECTED_QUEUE = "broker-rejected"
"""The queue of dead letters that keep messages which are not ours."""
REJECTED_TASK = "broker:rejected"
REJECTED_TYPE = "application/vnd.holdfast.message+json"
"""The content type of a message that did not fit the fields of a job, in one or more parts."""
LEFT_MS_MIN = bounds.SECOND_MS

_HISTORY_MAX = 2_000
_DEATHS_MAX = 10
_PARKED_MS = bounds.MINUTE_MS
_COUNTS = ("x-delivery-count", "x-acquired-count")
"""Headers that the broker changes with each delivery."""
_UNWRITABLE = "cannot be written as JSON"


class DeadOutcome(StrEnum):
    """What became of a dead message. Only the first two change its job."""

    REROUTED = "rerouted"
    BURIED = "buried"
    REDELIVERED = "redelivered"
    FINISHED = "finished"
    LEASED = "leased"
    MOVED = "moved"
    MISSING = "missing"
    REJECTED = "rejected"


OUTCOMES: dict[DeadOutcome, str] = {
    DeadOutcome.REROUTED: "its job expired, and goes to another worker",
    DeadOutcome.BURIED: "its job expired, and is a dead letter",
    DeadOutcome.REDELIVERED: "its job has time left, and gets a new message",
    DeadOutcome.FINISHED: "its job has ended",
    DeadOutcome.LEASED: "its job is running",
    DeadOutcome.MOVED: "its job is in another queue",
    DeadOutcome.MISSING: "its job does not exist",
    DeadOutcome.REJECTED: "it is not one of ours, and is kept as a dead letter",
}
"""Every outcome in words."""


def is_ours(id: str | None, queue: str) -> bool:
    """Whether a message can be about a job that is addressed to a worker."""
    known = id is not None and bounds.JOB_ID.match(id) and bounds.QUEUE_NAME.match(queue)
    return bool(known and addressee(queue))


def judge_message(queue: str, job: Job | None, *, is_expired: bool) -> DeadOutcome | None:
    """The outcome for a message to `queue` about `job`, as the ledger has it; None if the job must
    be rerouted or buried. `is_expired` is the ledger's own judgement, by its clock."""
    if job is None:
        return DeadOutcome.MISSING
    if job.has_ended:
        return DeadOutcome.FINISHED
    if job.state is State.LEASED:
        return DeadOutcome.LEASED
    if job.queue != queue:
        return DeadOutcome.MOVED
    return None if is_expired else DeadOutcome.REDELIVERED


def left_ms(job: Job, now: int) -> int | None:
    """The time until the job expires, for its next message. At least a second, so that clocks that
    differ do not make a message go round without a pause."""
    return None if job.expires_at is None else max(LEFT_MS_MIN, job.expires_at - now)


def history_text(history: Sequence[Mapping[str, object]]) -> str:
    """What the broker recorded about the message, as bounded ASCII; "" if it recorded nothing."""
    if not history:
        return ""
    text = _json(list(history[:_DEATHS_MAX]))
    cut = "…" if len(text) > _HISTORY_MAX or len(history) > _DEATHS_MAX else ""
    return f"history at the broker: {text[:_HISTORY_MAX]}{cut}"


class RejectedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not one of ours, as the broker gave it."""

    queue: str
    reason: str = ""
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = {}
    history: Sequence[Mapping[str, object]] = ()


def kept_jobs(message: RejectedMessage) -> list[NewJob]:
    """The jobs that keep the message, with bytes and headers intact. Their ids follow from it, so
    that a redelivery is a duplicate.

    They are never due, and expire after a minute: if the handler is killed before it buries them,
    no worker runs them, and the reaper makes them dead letters.
    """
    body, headers = message.body, dict(message.headers)
    content_type = message.content_type or "application/octet-stream"
    whole = _envelope(message, headers)
    lasting = {name: value for name, value in headers.items() if name not in _COUNTS}
    digest = hashlib.sha256(_envelope(message, lasting)).hexdigest()[:40]

    def job(payload: bytes, part: str, **fields: object) -> NewJob:
        new = NewJob(
            id=f"rejected-{digest}{part}",
            task=REJECTED_TASK,
            queue=REJECTED_QUEUE,
            payload=payload,
            delay_ms=bounds.DELAY_MS_MAX,
            expires_ms=_PARKED_MS,
        )
        return msgspec.structs.replace(new, **fields)

    plain = job(body, "", content_type=content_type, headers=headers)
    try:
        checks.check_job(plain)
    except UsageError:
        size = bounds.PAYLOAD_MAX
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        return [
            job(
                part,
                f"-{number}-of-{len(parts)}" if len(parts) > 1 else "",
                content_type=REJECTED_TYPE,
            )
            for number, part in enumerate(parts, 1)
        ]
    return [plain]


def bury_rejected(message: RejectedMessage) -> BuryWaiting:
    """The amendment that makes dead letters of the jobs that keep the message."""
    where = f" to queue {message.queue[:80]}" if message.queue else ""
    why = f" ({message.reason[:80]})" if message.reason else ""
    failure = Failure(
        type="RejectedMessage",
        message=f"the broker gave up a message{where}{why} that names no job of Holdfast",
        trace=history_text(message.history),
    )
    return BuryWaiting(by=HANDLER, reason=Reason.REJECTED, failure=failure)


def _envelope(message: RejectedMessage, headers: Mapping[str, str]) -> bytes:
    """The whole message as JSON, with its body in base64."""
    fields = {
        "queue": message.queue,
        "reason": message.reason,
        "content_type": message.content_type,
        "headers": dict(headers),
        "history": list(message.history),
        "body_base64": base64.b64encode(message.body).decode(),
    }
    return _json(fields).encode()


def _json(value: object, *, is_part: bool = False) -> str:
    """JSON in ASCII, of anything: control characters and lone surrogates are escaped, and a part
    that cannot be written is replaced."""
    try:
        return json.dumps(value, default=repr, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        if is_part or not isinstance(value, dict):
            return json.dumps(_UNWRITABLE)
    parts = (f"{json.dumps(str(key))}:{_json(value[key], is_part=True)}" for key in value)
    return "{" + ",".join(parts) + "}"
