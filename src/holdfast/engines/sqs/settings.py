"""Settings of a queue ↔ attributes and tags of an SQS queue. Pure.

The visibility timeout is the lease and the redrive policy names the dead queue; every other setting
that is not the default is a tag. Tags and attributes may have been edited by anybody: a value that
cannot be read is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.backoff import Backoff
from holdfast.core.model import Queue
from holdfast.engines.sqs.client import VISIBILITY_S_MAX, WAIT_S_MAX
from holdfast.engines.sqs.names import QueueNames, is_fifo
from holdfast.errors import UsageError

TAG: Final = "holdfast."
TASK_TAG: Final = "holdfast.task"
"""The task of messages that name none."""
DEFAULT_TASK: Final = "message"
RETENTION_S: Final = 10 * 24 * 3600
DEAD_RETENTION_S: Final = 14 * 24 * 3600
"""SQS's longest. A message that SQS itself moves keeps its age, so that it stays for the difference
at least."""
RECEIVES_MAX: Final = 1000
RECEIVES_ABOVE: Final = 100
"""So many receives above the attempts are for messages that were given back."""
ATTRIBUTES: Final = ("QueueArn", "VisibilityTimeout", "RedrivePolicy")

_TAGGED: Final = (
    *"lease_ms timeout_ms max_attempts max_crashes retention_ms dead_retention_ms".split(),
    *"payload_max accepting paused group_batch".split(),
)
_BACKOFF: Final = ("kind", "first_ms", "factor", "cap_ms", "jitter")


class RedriveAttribute(msgspec.Struct, frozen=True):
    """The RedrivePolicy attribute."""

    deadLetterTargetArn: str  # noqa: N815 (SQS's name)
    maxReceiveCount: int = RECEIVES_MAX  # noqa: N815


class StoredQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is on SQS. `dead_name` is the SQS name of the queue for its dead letters, None
    if there is none; `task` is for messages that name none."""

    queue: Queue
    url: str
    arn: str
    dead_name: str | None
    task: str = DEFAULT_TASK

    @property
    def is_fifo(self) -> bool:
        return is_fifo(self.queue.name)


def seconds(ms: int) -> int:
    """Whole seconds that are not shorter."""
    return -(-ms // bounds.SECOND_MS)


def attributes_of(queue: Queue, dead_arn: str) -> dict[str, str]:
    """The attributes that settings of a queue decide."""
    receives = RECEIVES_MAX
    if queue.max_attempts:
        receives = min(queue.max_attempts + RECEIVES_ABOVE, RECEIVES_MAX)
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": receives}
    return {
        "VisibilityTimeout": str(min(seconds(queue.lease_ms), VISIBILITY_S_MAX)),
        "RedrivePolicy": msgspec.json.encode(policy).decode(),
    }


def new_attributes(name: str, *, dead: bool) -> dict[str, str]:
    """Further attributes of a queue that is created."""
    retention_s = DEAD_RETENTION_S if dead else RETENTION_S
    made = {"MessageRetentionPeriod": str(retention_s)}
    if not dead:
        made["ReceiveMessageWaitTimeSeconds"] = str(WAIT_S_MAX)
    if is_fifo(name):
        made["FifoQueue"] = "true"
    return made


def how_to_add_dead_letters(queue: str) -> str:
    """The remedy for a queue whose dead-letter queue is missing: every change of its settings
    creates it and sets the redrive policy."""
    return (
        f"change a setting of the queue, e.g. holdfast queue update {queue} --max-attempts 10,"
        " which creates it"
    )


def tags_of(queue: Queue) -> dict[str, str]:
    """The tags of a queue: its settings that are not the defaults."""
    plain = Queue(name=queue.name)
    tags = {
        f"{TAG}{name}": _written(getattr(queue, name))
        for name in _TAGGED
        if getattr(queue, name) != getattr(plain, name)
    }
    if queue.lease_ms % bounds.SECOND_MS == 0:
        tags.pop(f"{TAG}lease_ms", None)
    if queue.backoff != plain.backoff:
        values = (_written(getattr(queue.backoff, name)) for name in _BACKOFF)
        tags[f"{TAG}backoff"] = "/".join(values)
    return tags


def setting_tags() -> frozenset[str]:
    """The names of all tags that stand for settings."""
    return frozenset(f"{TAG}{name}" for name in (*_TAGGED, "backoff"))


def read_queue(
    name: str,
    url: str,
    attributes: Mapping[str, str],
    tags: Mapping[str, str],
    names: QueueNames,
) -> StoredQueue:
    """A queue by its attributes and tags."""
    queue = Queue(name=name)
    for setting in _TAGGED:
        value = _read(tags.get(f"{TAG}{setting}", ""), setting)
        if value is not None:
            queue = _with(queue, **{setting: value})
    queue = _with(queue, backoff=_read_backoff(tags.get(f"{TAG}backoff", "")) or queue.backoff)
    visibility = attributes.get("VisibilityTimeout", "")
    if visibility.isdecimal() and int(visibility) != min(seconds(queue.lease_ms), VISIBILITY_S_MAX):
        lease_ms = max(int(visibility), 1) * bounds.SECOND_MS
        queue = _with(queue, lease_ms=min(lease_ms, VISIBILITY_S_MAX * bounds.SECOND_MS))
    policy = read_policy(attributes.get("RedrivePolicy", ""))
    dead_name = None if policy is None else policy.deadLetterTargetArn.rpartition(":")[2]
    if policy is not None:
        if f"{TAG}max_attempts" not in tags:
            # Ours is the first limit: SQS moves a message without a reason.
            queue = _with(queue, max_attempts=min(queue.max_attempts, policy.maxReceiveCount))
        dead = names.read(dead_name or "")
        if dead is not None and dead.is_dead and dead.queue != name:
            queue = _with(queue, dead_queue=dead.queue)
    task = tags.get(TASK_TAG, "")
    return StoredQueue(
        queue=queue,
        url=url,
        arn=attributes.get("QueueArn", ""),
        dead_name=dead_name,
        task=task if bounds.TASK_NAME.match(task) else DEFAULT_TASK,
    )


def _with(queue: Queue, **changes: Any) -> Queue:
    """The queue with the changes, or without them if one is not valid."""
    try:
        changed = replace(queue, **changes)
        checks.check_queue(changed)
    except (UsageError, TypeError, ValueError):
        return queue
    return changed


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(text: str, setting: str) -> object:
    """The value of a tag; None if there is none that can be read."""
    if setting in ("accepting", "paused"):
        return {"true": True, "false": False}.get(text)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _read_backoff(text: str) -> Backoff | None:
    parts = text.split("/")
    if len(parts) != len(_BACKOFF):
        return None
    kind, first_ms, factor, cap_ms, jitter = parts
    try:
        return Backoff(
            kind=kind,  # type: ignore[arg-type]
            first_ms=int(first_ms),
            factor=float(factor),
            cap_ms=int(cap_ms),
            jitter=float(jitter),
        )
    except (UsageError, ValueError):
        return None


def read_policy(text: str) -> RedriveAttribute | None:
    """The redrive policy in an attribute; None if there is none that can be read."""
    try:
        # Some writers send the count as text.
        return msgspec.json.decode(text, type=RedriveAttribute, strict=False)
    except (msgspec.MsgspecError, ValueError):
        return None
