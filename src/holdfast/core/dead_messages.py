"""Decides about messages that a worker's queue at the broker gave up: what the ledger knows about
the job → an outcome. Also the jobs that keep a message which is not ours, as dead letters.

Pure. A message only names a job; whatever else it says is hostile and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum

from holdfast.core import bounds
from holdfast.core.model import Job, State
from holdfast.core.workers import addressee

HANDLER = "dead-letter handler"
"""The name of the handler in timelines."""
LEFT_MS_MIN = bounds.SECOND_MS

_HISTORY_MAX = 2_000
_DEATHS_MAX = 10
_COUNTS = ("x-delivery-count", "x-acquired-count")
"""Headers that the broker changes with each delivery."""
_UNWRITABLE = "cannot be written as JSON"


class DeadOutcome(StrEnum):
    """How a dead message was handled. Only the first two change its job."""

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
    """The history of a message at the broker, as bounded ASCII; "" if it has none."""
    if not history:
        return ""
    text = _json(list(history[:_DEATHS_MAX]))
    cut = "…" if len(text) > _HISTORY_MAX or len(history) > _DEATHS_MAX else ""
    return f"history at the broker: {text[:_HISTORY_MAX]}{cut}"


def rejected_id(
    *,
    queue: str,
    reason: str,
    body: bytes,
    content_type: str,
    headers: Mapping[str, str],
    history: Sequence[Mapping[str, object]],
) -> str:
    """The id of the dead letter that keeps a message which is not ours. It follows from the
    message, so that a redelivery is a duplicate."""
    fields = {
        "queue": queue,
        "reason": reason,
        "content_type": content_type,
        "headers": {name: value for name, value in headers.items() if name not in _COUNTS},
        "history": list(history),
        "body": hashlib.sha256(body).hexdigest(),
    }
    return f"rejected-{hashlib.sha256(_json(fields).encode()).hexdigest()[:40]}"


def why_rejected(queue: str, reason: str) -> str:
    """Why such a message is kept, for people."""
    where = f" to queue {queue[:80]}" if queue else ""
    why = f" ({reason[:80]})" if reason else ""
    return f"the broker gave up a message{where}{why} that names no job of Holdfast"


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
