"""What a supervisor and its children say to each other: framed msgpack, many words in a frame.

A call is what takes one slot: one job, or several of a batch task. Children know nothing of
leases; they are told of calls by number and answer with one ending for each job of a call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from holdfast.core.breaker import Breaker
from holdfast.core.flow import Limit
from holdfast.core.model import Failure, NewJob


class Given(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job of a call, as far as its handler may see it."""

    id: str
    queue: str
    payload: bytes
    content_type: str
    attempt: int
    token: int
    created_at: int
    last: bool = False
    """No attempt comes after this one, if it fails."""
    checkpoint: bytes | None = None
    key: str | None = None
    tenant: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    after: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call", gc=False):
    """Run this. `timeout_ms` counts from when it starts; children of the loop keep it gently, the
    supervisor with a kill."""

    number: int
    task: str
    jobs: tuple[Given, ...]
    timeout_ms: int | None = None


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Stop this call: the operator asked for it, or its lease is lost."""

    number: int
    lost: bool = False


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Give back every call that has not started; the answer is a `Back`."""


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """End when nothing is left in hand."""


Down: TypeAlias = Call | Cancel | Recall | Finish


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="returned", gc=False):
    """The handler returned. `output`, here and below, is what the job printed or logged, if it
    changed since the last `Told`."""

    result: bytes | None = None
    then: tuple[NewJob, ...] = ()
    output: bytes | None = None


class Raised(msgspec.Struct, frozen=True, array_like=True, tag="raised"):
    """It failed; a fatal failure gets no other attempt."""

    failure: Failure
    fatal: bool = False
    output: bytes | None = None


class AskedRetry(msgspec.Struct, frozen=True, array_like=True, tag="retry"):
    """It wants to run again after `delay_ms`, or, if that is None, as the policy says."""

    failure: Failure
    delay_ms: int | None = None
    output: bytes | None = None


class AskedBury(msgspec.Struct, frozen=True, array_like=True, tag="bury"):
    failure: Failure
    output: bytes | None = None


class AskedRelease(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """With `alone` its next attempt gets a process of its own."""

    text: str = ""
    delay_ms: int = 0
    output: bytes | None = None
    alone: bool = False


class AskedCancel(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """It stopped because it was cancelled, or cancelled itself."""

    text: str = ""
    output: bytes | None = None


Ending: TypeAlias = Returned | Raised | AskedRetry | AskedBury | AskedRelease | AskedCancel


class TaskInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a supervisor must know of a task: how many jobs a call takes, whether it runs in a
    process of its own, whether the child can end it gently when its time is over, its queue
    and what bounds it there."""

    name: str
    batch: int = 1
    isolated: bool = False
    gentle: bool = False
    queue: str = "default"
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The child can take calls of these tasks."""

    tasks: tuple[TaskInfo, ...]


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The child cannot start: its application cannot be imported. It ends after saying so."""

    failure: Failure


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    """A call is over, with one ending for each of its jobs."""

    number: int
    endings: tuple[Ending, ...]


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """What a running job leaves behind: see `Note`. `index` is the job's place in its call."""

    number: int
    index: int = 0
    progress: float | None = None
    checkpoint: bytes | None = None
    output: bytes | None = None


class Back(msgspec.Struct, frozen=True, array_like=True, tag="back"):
    """These calls have not started and will not."""

    numbers: tuple[int, ...]


Up: TypeAlias = Ready | Broken | Ended | Told | Back


class WebhookSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`secrets_file` has what requests are signed with. `allow` names networks that may be reached
    though they are not public; `ca_file` whom to trust instead of the system's authorities."""

    secrets_file: str
    allow: tuple[str, ...] = ()
    ca_file: str | None = None


class ChildSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How a child is to be, as JSON in its environment: it holds no secret.

    `target` is `module:attribute` or `path.py:attribute` of the application; None for a child
    that runs commands, or, with `webhook`, sends those. `shell` says whether one string may be
    given to a shell, and `shell_off` why not. `environment` names what a command inherits; `cwd`
    is where commands run.
    """

    worker: str
    worker_id: str
    slots: int
    target: str | None = None
    webhook: WebhookSetup | None = None
    shell: bool = False
    shell_off: str = ""
    environment: tuple[str, ...] = ()
    cwd: str | None = None
    output_max: int = 64 * 1024
    grace_ms: int = 2_000
    """Between asking a command's process group to end and killing it."""


_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_DOWN = msgspec.msgpack.Decoder(list[Down])
_UP = msgspec.msgpack.Decoder(list[Up])


def frame(words: Iterable[Down] | Iterable[Up]) -> bytes:
    """One frame of many words."""
    body = _ENCODER.encode(words if isinstance(words, list) else list(words))
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come → whole frames' bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
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


def words_down(body: bytes) -> list[Down]:
    return _DOWN.decode(body)


def words_up(body: bytes) -> list[Up]:
    return _UP.decode(body)
