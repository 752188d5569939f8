"""Queue attributes of SQS ↔ settings of a Holdfast queue. Pure.

Settings that no attribute describes are left as they are: they belong to operators.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import Queue
from holdfast.ops.sqs import SqsQueue
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.queue_attributes import (
    RECEIVE_COUNT_MAX,
    RETENTION_S_MAX,
    VISIBILITY_S_MAX,
    QueueArn,
    QueueAttributes,
    RedrivePolicy,
    changed_attributes,
)

FIFO_BATCH: Final = 10
"""Messages of one group in one receive."""

_NO_BACKOFF: Final = Backoff(kind="constant", first_ms=0, cap_ms=0, jitter=0.0)


def new_queue(name: str, *, is_fifo: bool) -> Queue:
    """The settings of a new queue, apart from its attributes. A message is gone once it is done;
    one that was not deleted is visible again when its timeout ends, any number of times."""
    return Queue(
        name=name,
        max_attempts=0,
        max_crashes=bounds.ATTEMPTS_MAX,
        backoff=_NO_BACKOFF,
        order="keep" if is_fifo else "tail",
        retention_ms=0,
        payload_max=bounds.PAYLOAD_MAX,
        group_batch=FIFO_BATCH if is_fifo else 1,
    )


def with_attributes(
    queue: Queue, record: SqsQueue, attributes: QueueAttributes, dead_queue: str | None
) -> Queue:
    """The settings with those attributes that a client set. `dead_queue` is the queue that the
    RedrivePolicy names, if it exists: without it no message may die, since clients would not find
    it. A message may be received once more than the policy allows: that receive moves it, as on
    AWS."""
    if "VisibilityTimeout" in record.attributes:
        queue = replace(queue, lease_ms=_lease_ms(attributes.visibility_timeout))
    if "MessageRetentionPeriod" in record.attributes:
        retention_ms = attributes.message_retention_period * bounds.SECOND_MS
        queue = replace(queue, dead_retention_ms=retention_ms)
    if "RedrivePolicy" in record.attributes:
        policy = attributes.redrive_policy
        receives_max = 0 if policy is None or dead_queue is None else policy.max_receive_count + 1
        queue = replace(queue, max_attempts=receives_max, dead_queue=dead_queue)
    return queue


def attributes_of(record: SqsQueue, queue: Queue, account: str) -> QueueAttributes:
    """The attributes of a queue: those that a client set, and for the others what the settings say.
    A visibility timeout that an operator changed is shown as it is, unless the settings have yet to
    follow the record."""
    shown_s = min(queue.lease_ms // bounds.SECOND_MS, VISIBILITY_S_MAX)
    base = QueueAttributes(
        visibility_timeout=shown_s,
        message_retention_period=RETENTION_S_MAX,
        fifo_queue=record.is_fifo,
        redrive_policy=_redrive_policy(record, queue, account),
    )
    try:
        found = changed_attributes(base, record.attributes)
    except SqsError:
        # The stored record is not from this version.
        return base
    if not record.pending and _lease_ms(found.visibility_timeout) != queue.lease_ms:
        found = replace(found, visibility_timeout=shown_s)
    return found


def _lease_ms(visibility_s: int) -> int:
    return max(visibility_s * bounds.SECOND_MS, bounds.LEASE_MS_MIN)


def _redrive_policy(record: SqsQueue, queue: Queue, account: str) -> RedrivePolicy | None:
    """The policy of a queue whose dead queue an operator set."""
    if queue.dead_queue is None or queue.max_attempts == 0:
        return None
    arn = QueueArn(record.region, account, queue.dead_queue)
    receives_max = min(max(queue.max_attempts - 1, 1), RECEIVE_COUNT_MAX)
    return RedrivePolicy(dead_letter_target_arn=str(arn), max_receive_count=receives_max)
