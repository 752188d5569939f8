"""Messages between a supervisor and its children, and the board: memory shared by the two.

A frame of msgpack holds many messages. A call takes one slot: it runs one job, or several of a
batch task. Children know nothing of leases; they get calls by number and answer with one ending for
each job of a call. Calls that end alike share an answer. The board shows which calls run, and until
when others may begin.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from time import monotonic_ns
from typing import TypeAlias

import msgspec

from holdfast.core.breaker import Breaker
from holdfast.core.limits import Limit
from holdfast.core.model import COMMAND_TASK, WEBHOOK_TASK, Failure, NewJob
from holdfast.core.workers import TaskRecord
from holdfast.engines.sqs.delivery import SqsDelivery
from holdfast.process import LogFormat, LogLevel, boot_ns

BUILT_IN_TASKS = frozenset((COMMAND_TASK, WEBHOOK_TASK))
"""Tasks that need no application."""
TEMPLATE_READY = b"ready"
"""The first message of a fork template: it has imported the application."""


class CallJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a job that its handler may see."""

    id: str
    queue: str
    payload: bytes
    content_type: str
    attempt: int
    token: int
    created_at: int
    last: bool = False
    """True if there is no further attempt when this one fails."""
    checkpoint: bytes | None = None
    key: str | None = None
    tenant: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    after: tuple[str, ...] = ()
    sqs: SqsDelivery | None = None


class ChildCalls(msgspec.Struct, frozen=True, array_like=True, tag="calls", gc=False):
    """Run these calls of a task, each with its jobs, numbered from `first`. `timeout_ms` counts
    from the start of each; a child interrupts a coroutine itself; for a blocking function, the
    supervisor kills the child.
    """

    first: int
    task: str
    calls: list[tuple[CallJob, ...]]
    timeout_ms: int | None = None


class CancelCall(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Stop this call: an operator requested it, or its lease is lost. A command is killed without
    a grace period if the call is lost or `force` is set."""

    number: int
    lost: bool = False
    force: bool = False


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Give back every call that has not started; the answer is a `GivenBack`."""


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """Exit when no call is left."""


ToChild: TypeAlias = ChildCalls | CancelCall | Recall | Finish


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="returned", gc=False):
    """The handler returned. `output`, here and below, is the text that the job printed or logged,
    if it has grown since the last `NoteUpdate`.
    """

    result: bytes | None = None
    then: tuple[NewJob, ...] = ()
    output: bytes | None = None


class Raised(msgspec.Struct, frozen=True, array_like=True, tag="raised"):
    """The handler failed. A fatal failure gets no further attempt."""

    failure: Failure
    fatal: bool = False
    output: bytes | None = None


class AskedRetry(msgspec.Struct, frozen=True, array_like=True, tag="retry"):
    """The handler requested another attempt after `delay_ms`; None leaves that to the policy."""

    failure: Failure
    delay_ms: int | None = None
    output: bytes | None = None


class AskedBury(msgspec.Struct, frozen=True, array_like=True, tag="bury"):
    """The handler requested that the job become a dead letter."""

    failure: Failure
    output: bytes | None = None


class AskedRelease(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """The attempt is refunded. With `alone` the next one gets a process of its own."""

    text: str = ""
    delay_ms: int = 0
    output: bytes | None = None
    alone: bool = False


class AskedCancel(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """The handler stopped because the job was cancelled, or cancelled it itself."""

    text: str = ""
    output: bytes | None = None


Ending: TypeAlias = Returned | Raised | AskedRetry | AskedBury | AskedRelease | AskedCancel


class TaskInfo(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a task that a supervisor needs: how many jobs a call takes, whether it runs in a
    process of its own, whether the child can interrupt it at its timeout, its queue, the limits,
    the circuit breaker and the options for jobs that it declares, and whether it handles the dead
    letters of its queue instead of jobs."""

    name: str
    batch: int = 1
    isolated: bool = False
    gentle: bool = False
    queue: str = "default"
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None
    declared: TaskRecord | None = None
    dead: bool = False


class ChildReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The child can run calls of these tasks. `schedules` are the `DeclaredSchedules` of the
    application, as MessagePack; empty for a child without an application."""

    tasks: tuple[TaskInfo, ...]
    schedules: bytes = b""


class ChildBroken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The application cannot be imported; the child exits after this message."""

    failure: Failure


class CallsEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    """Calls that have ended alike, with one ending for each job of a call."""

    numbers: list[int]
    endings: tuple[Ending, ...]


class NoteUpdate(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """A note of a running job: see `Note`. `index` is the job's place in its call."""

    number: int
    index: int = 0
    progress: float | None = None
    checkpoint: bytes | None = None
    output: bytes | None = None
    timeout_ms: int | None = None
    """The new timeout of the call, counted from its start."""


class GivenBack(msgspec.Struct, frozen=True, array_like=True, tag="back"):
    """These calls have not started, and will not."""

    numbers: tuple[int, ...]


FromChild: TypeAlias = ChildReady | ChildBroken | CallsEnded | NoteUpdate | GivenBack


class WebhookSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`secrets_file` has the secrets that sign requests. `allow` names networks that may be reached
    although they are not public; `ca_file` is a CA bundle used instead of the system's."""

    secrets_file: str
    allow: tuple[str, ...] = ()
    ca_file: str | None = None


class ChildSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The setup of a child, passed as JSON in its environment: it holds no secret.

    `target` is `module:attribute` or `path.py:attribute` of the application; None for a child that
    runs commands or, with `webhook`, sends webhooks. `shell` allows command strings for a shell.
    `environment` names the variables that a command inherits; `cwd` is where commands run.
    """

    worker: str
    worker_id: str
    slots: int
    target: str | None = None
    webhook: WebhookSetup | None = None
    shell: bool = False
    environment: tuple[str, ...] = ()
    cwd: str | None = None
    output_max: int = 64 * 1024
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None
    grace_ms: int = 2_000
    """Time between SIGTERM and SIGKILL for a command's process group."""


class TemplateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a template: which application it imports, and the store that the
    application uses unless it names one."""

    setup: ChildSetup
    url: str | None = None


_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_TO_CHILD = msgspec.msgpack.Decoder(list[ToChild])
_FROM_CHILD = msgspec.msgpack.Decoder(list[FromChild])


def encode_frame(content: Sequence[ToChild] | Sequence[FromChild]) -> bytes:
    """One frame of many messages."""
    body = _ENCODER.encode(content)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Turns bytes as they arrive into the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that this data completes; the rest is buffered."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
        del buffer[:at]


def decode_to_child(body: bytes) -> list[ToChild]:
    """The messages of a frame to a child."""
    return _TO_CHILD.decode(body)


def decode_from_child(body: bytes) -> list[FromChild]:
    """The messages of a frame from a child."""
    return _FROM_CHILD.decode(body)


_STARTED = 0  # the highest number of a call that was ever started
_UNTIL = 1  # when calls must have begun, by the boot clock
_HEAD = 2
_CELLS = 2  # the call's number, 0 when the slot is free; and when it started
NO_DEADLINE_NS = 2**63 - 1


class Board:
    """Shared memory of a supervisor and one child, made with `Board.make`; the child opens the
    descriptor it inherits.

    The child writes the call of each slot, which costs no message; the supervisor reads it to
    enforce timeouts and to know what a dead child was running. The supervisor writes until when the
    leases of the child's calls are valid. If it freezes, that instant passes, and no revocation is
    needed.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self._map = mmap.mmap(descriptor, _size(slots))
        self._cells = memoryview(self._map).cast("q")

    @classmethod
    def make(cls, slots: int) -> Board:
        """A new board with this many slots."""
        descriptor = os.memfd_create("holdfast-board", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _size(slots))
        board = cls(descriptor, slots)
        board.until_ns = NO_DEADLINE_NS
        return board

    @property
    def until_ns(self) -> int:
        """The child may begin its calls before this instant of `boot_ns`. Written by the
        supervisor."""
        return self._cells[_UNTIL]

    @until_ns.setter
    def until_ns(self, instant: int) -> None:
        self._cells[_UNTIL] = instant

    def may_begin(self) -> bool:
        """True while the leases of all calls in the child are certainly valid."""
        return boot_ns() < self._cells[_UNTIL]

    def start(self, slot: int, number: int) -> None:
        """Write the time first: a reader that sees the number must see when the call started."""
        cells = self._cells
        if number > cells[_STARTED]:  # noqa: PLR1730 (max takes longer)
            cells[_STARTED] = number
        at = _HEAD + slot * _CELLS
        cells[at + 1] = monotonic_ns()
        cells[at] = number

    def end(self, slot: int) -> None:
        """The call of this slot has ended."""
        self._cells[_HEAD + slot * _CELLS] = 0

    @property
    def started(self) -> int:
        """The highest number of a started call. Calls start in order: higher ones have not."""
        return self._cells[_STARTED]

    def running(self) -> dict[int, int]:
        """Numbers of the running calls, with the `monotonic_ns` at which each started."""
        cells = self._cells
        ends = _HEAD + self.slots * _CELLS
        return {cells[at]: cells[at + 1] for at in range(_HEAD, ends, _CELLS) if cells[at]}

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        os.close(self.descriptor)


def _size(slots: int) -> int:
    return (_HEAD + slots * _CELLS) * 8
