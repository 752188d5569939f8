"""Records of the SQS endpoint: its queues, the move tasks of dead-letter queues, and the key that
seals receipt handles.

An SQS queue is a Holdfast queue and a record of what the queue's settings cannot express. The
record is written before the settings: while it is `pending`, they may not follow it yet.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import bounds, checks
from holdfast.core.bounds import Count, Instant
from holdfast.ops.records import RecordKind, check_same

SQS_QUEUE_KIND = "sqs-queue"
MOVE_TASKS_KIND = "sqs-moves"

QUEUE_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(\.fifo)?\Z")
"""The names that Amazon SQS allows; `.fifo` is the end of a FIFO queue's name."""
REGION = re.compile(r"[a-z0-9-]{1,32}\Z")
ACCOUNT = re.compile(r"[0-9]{12}\Z")
FIFO_SUFFIX = ".fifo"
TAGS_MAX = 50
TASKS_MAX = 10
"""Move tasks of a queue that are remembered: as many as ListMessageMoveTasks shows."""

SEALING_KEY_BYTES = 32

_ATTRIBUTES_MAX = 64
_VALUE_CHARS_MAX = 16 * 1024

Text = Annotated[str, Meta(max_length=_VALUE_CHARS_MAX)]
Name = Annotated[str, Meta(max_length=bounds.NAME_BYTES_MAX)]


class SqsQueue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queue of SQS clients. `queue` is the name of the Holdfast queue, and `attributes` are those
    that a client set. Deduplication ids are valid in one `epoch`: a new one ends them. A deleted
    queue leaves its record, with `deleted_at`, so that its name is not used again at once. While it
    is `purging`, messages from before `purged_at` are deleted."""

    name: str
    region: str
    queue: str
    epoch: Instant
    created_at: Instant
    modified_at: Instant
    attributes: Annotated[dict[str, Text], Meta(max_length=_ATTRIBUTES_MAX)] = {}
    tags: Annotated[dict[str, Text], Meta(max_length=TAGS_MAX)] = {}
    purged_at: Instant | None = None
    purging: bool = False
    deleted_at: Instant | None = None
    pending: bool = False

    @property
    def is_fifo(self) -> bool:
        """True for a FIFO queue."""
        return self.name.endswith(FIFO_SUFFIX)


class MoveState(StrEnum):
    """The states of a move task, as AWS names them."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """True once nothing more is moved."""
        return self not in (MoveState.RUNNING, MoveState.CANCELLING)


class MoveTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Moves the messages of a dead-letter queue to `destination`, or each to the queue it came
    from. `rate` is the messages per second, and `ahead_us` how far the task is ahead of it. One
    process at a time is `moving` messages; if it dies, another one takes over."""

    id: Name
    source_arn: Text
    started_at: Instant
    destination: str | None = None
    destination_arn: Text | None = None
    rate: Annotated[int, Meta(ge=1, le=500)] | None = None
    state: MoveState = MoveState.RUNNING
    moved: Count = 0
    to_move: Count = 0
    failure: Text = ""
    ahead_us: Annotated[int, Meta(ge=0, le=2**62)] = 0
    moving: bool = False


class MoveTasks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The move tasks of one dead-letter queue, newest first. Only the first may be running."""

    tasks: Annotated[tuple[MoveTask, ...], Meta(min_length=1, max_length=TASKS_MAX)]


class SealingKey(msgspec.Struct, frozen=True):
    """A random key that seals receipt handles."""

    secret: Annotated[bytes, Meta(min_length=SEALING_KEY_BYTES, max_length=SEALING_KEY_BYTES)]

    def __repr__(self) -> str:
        return "<SealingKey>"


def queue_key(region: str, name: str) -> str:
    """The key of a queue's record."""
    return f"{region}/{name}"


def _check_queue(key: str, record: SqsQueue) -> None:
    check_same("region and name", queue_key(record.region, record.name), key)
    if not QUEUE_NAME.match(record.name) or not REGION.match(record.region):
        raise ValueError("its name or its region is not one of Amazon SQS")
    checks.check_queue_name(record.queue)


def _check_moves(key: str, record: MoveTasks) -> None:
    checks.check_queue_name(key)
    for task in record.tasks:
        if task.destination is not None:
            checks.check_queue_name(task.destination)


SQS_QUEUES = RecordKind(SQS_QUEUE_KIND, SqsQueue, label="the SQS queue", check=_check_queue)
"""Queues by region and name."""
MOVE_TASKS = RecordKind(MOVE_TASKS_KIND, MoveTasks, label="the move tasks of", check=_check_moves)
"""Move tasks by the name of the dead-letter queue."""
SEALING_KEYS = RecordKind("sqs-key", SealingKey)
"""Private to the server: no operation and no migration reads this kind."""
