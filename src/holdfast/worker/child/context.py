"""The Context of a job: its handler reads the job's facts from it, and reports to it while it runs.

Thread-safe: a handler may use it from any thread it starts. It never waits for the supervisor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from holdfast.core import bounds, codec
from holdfast.core.checks import check_job
from holdfast.core.model import NewJob
from holdfast.core.text import kind_of
from holdfast.engines.sqs.delivery import SqsDelivery
from holdfast.errors import UsageError
from holdfast.notation.durations import Duration, to_ms
from holdfast.worker.wire import CallJob, NoteUpdate

OUTPUT_MAX = 64 * 1024
_NOTE_BYTES = 64


class CallState:
    """State that the jobs of one call share. `noted` is called, from any thread, with a Context
    that has a new note; `Context.take_note` then returns it."""

    __slots__ = (
        "cancelled",
        "ends_at",
        "lost",
        "noted",
        "number",
        "output_max",
        "task",
        "timeout_ms",
    )

    def __init__(
        self,
        task: str,
        *,
        number: int = 0,
        noted: Callable[[Context], None] | None = None,
        output_max: int = OUTPUT_MAX,
    ) -> None:
        self.task: str = task
        self.number: int = number
        self.noted: Callable[[Context], None] | None = noted
        self.output_max: int = output_max
        self.cancelled: bool = False
        self.lost: bool = False
        self.timeout_ms: int | None = None
        """The time from its start to its timeout."""
        self.ends_at: float | None = None
        """The instant of its timeout, by `time.monotonic`."""

    def prepared(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The follow-up jobs as the enqueue hooks change them."""
        return jobs

    def add_time(self, ms: int) -> int | None:
        """Move the timeout to this long from now. Returns the new one, counted from the start; None
        if there is no timeout, or if it is later already."""
        if self.ends_at is None or self.timeout_ms is None:
            return None
        ends_at = time.monotonic() + ms / 1000
        if ends_at <= self.ends_at:
            return None
        self.timeout_ms += math.ceil((ends_at - self.ends_at) * 1000)
        self.ends_at = ends_at
        return self.timeout_ms


class Context:
    """The running job, for its handler: what is known about it, and how to report progress,
    checkpoints and output. A handler gets it by a parameter of this type, `ctx: Context`."""

    __slots__ = (
        "_call",
        "_checkpoint",
        "_dirty",
        "_extended_ms",
        "_follow_ups",
        "_index",
        "_job",
        "_lock",
        "_new_checkpoint",
        "_output",
        "_output_sent",
        "_progress",
    )

    def __init__(self, job: CallJob, call: CallState, index: int = 0) -> None:
        self._job = job
        self._call = call
        self._index = index
        self._lock = Lock()
        self._dirty = False
        self._extended_ms: int | None = None
        self._checkpoint = job.checkpoint
        self._new_checkpoint: bytes | None = None
        self._progress: float | None = None
        self._output: BoundedOutput | None = None
        self._output_sent = 0
        self._follow_ups: list[NewJob] = []

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._job.id

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._job.queue

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._call.task

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._job.attempt

    @property
    def last(self) -> bool:
        """True if there is no further attempt when this one fails."""
        return self._job.last

    @property
    def token(self) -> int:
        """Grows with every lease of the job. Pass it to systems that you write to, so that they can
        refuse a late earlier attempt."""
        return self._job.token

    @property
    def tenant(self) -> str | None:
        """The tenant of the job."""
        return self._job.tenant

    @property
    def key(self) -> str | None:
        """The once-only key of the job."""
        return self._job.key

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the job."""
        return self._job.labels

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job."""
        return self._job.headers

    @property
    def sqs(self) -> SqsDelivery | None:
        """The message of the job, on Amazon SQS; None on other engines."""
        return self._job.sqs

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the jobs that had to end before this one; `task.handle(id).result()` returns
        the result of one of them."""
        return self._job.after

    @property
    def created_at(self) -> int:
        """When the job was enqueued, in milliseconds since 1970."""
        return self._job.created_at

    @property
    def deadline(self) -> float | None:
        """Seconds until the timeout, never below zero; None without a timeout."""
        ends_at = self._call.ends_at
        return None if ends_at is None else max(0.0, ends_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True if an operator cancelled the job or its lease is lost: raise `Cancelled` soon."""
        return self._call.cancelled

    @property
    def lost(self) -> bool:
        """True if another attempt may already be running: stop at once, and change nothing more."""
        return self._call.lost

    def more_time(self, duration: Duration) -> None:
        """Ask for more time: move the timeout to this long from now, e.g. "10m", unless it is later
        already. Call it a second or more before the timeout; without a timeout it does nothing. The
        lease needs no extension: the worker renews it while the job runs."""
        ms = to_ms("duration", duration, UsageError)
        with self._lock:
            timeout_ms = self._call.add_time(ms)
            if timeout_ms is None:
                return
            self._extended_ms = timeout_ms
        self._notify()

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how much is done, from 0 to 1; the text goes to the log."""
        value: object = fraction
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"progress {value!r} is not a number: give one from 0 to 1")
        with self._lock:
            self._progress = min(1.0, max(0.0, float(fraction)))
        if text:
            self.log(text)
        else:
            self._notify()

    def checkpoint(self, value: Any) -> None:
        """Save a value, encoded as JSON, for the next attempt to resume from. It is stored within a
        second, not at once: a crash may lose the last one."""
        data = codec.encode(value)
        if len(data) > bounds.CHECKPOINT_MAX:
            raise UsageError(
                f"the checkpoint is {len(data)} bytes; the maximum is {bounds.CHECKPOINT_MAX}:"
                " store the data elsewhere and save a reference"
            )
        with self._lock:
            self._checkpoint = self._new_checkpoint = data
        self._notify()

    def resume(self, default: Any = None) -> Any:
        """The value of the last checkpoint, of this attempt or an earlier one."""
        data = self._checkpoint
        return default if data is None else codec.decode(data)

    def log(self, *values: object) -> None:
        """Write a line to the job's output. `print` does so too, and also prints it on the worker's
        terminal. Only the head and the tail of very long output are stored.
        """
        self.write_output((" ".join(map(str, values)) + "\n").encode(errors="replace"))

    def write_output(self, data: bytes) -> None:
        """For the runner: add to the job's output."""
        with self._lock:
            if self._output is None:
                self._output = BoundedOutput(self._call.output_max)
            self._output.write(data)
        self._notify()

    def then(self, *jobs: NewJob) -> None:
        """Enqueue follow-up jobs if this job completes, in the same transaction."""
        for job in jobs:
            if not isinstance(job, NewJob):
                raise UsageError(f"a follow-up job is a NewJob, not {kind_of(job)}")
            check_job(job)
        follow_ups = self._call.prepared(jobs)
        with self._lock:
            if len(self._follow_ups) + len(jobs) > bounds.FOLLOW_UPS_MAX:
                raise UsageError(f"a job may have at most {bounds.FOLLOW_UPS_MAX} follow-up jobs")
            self._follow_ups += follow_ups

    def take_note(self, *, ending: bool = False) -> NoteUpdate | None:
        """For the runner: the note since the last call; without the output if the job is ending,
        because its ending carries the output.
        """
        with self._lock:
            progress, self._progress = self._progress, None
            checkpoint, self._new_checkpoint = self._new_checkpoint, None
            extended_ms, self._extended_ms = self._extended_ms, None
            output = None if ending else self._take_output()
            self._dirty = False
        if progress is None and checkpoint is None and output is None and extended_ms is None:
            return None
        return NoteUpdate(self._call.number, self._index, progress, checkpoint, output, extended_ms)

    def take_rest(self) -> tuple[bytes | None, tuple[NewJob, ...]]:
        """For the runner: output that was not in a note yet, and the follow-up jobs."""
        with self._lock:
            return self._take_output(), tuple(self._follow_ups)

    def _take_output(self) -> bytes | None:
        output = self._output
        if output is None or output.size == self._output_sent:
            return None
        self._output_sent = output.size
        return output.value()

    def _notify(self) -> None:
        noted = self._call.noted
        if noted is None or self._dirty:
            return
        self._dirty = True
        noted(self)


class BoundedOutput:
    """The head and the tail of a job's output; the bytes between them are only counted. Holds at
    most `most` bytes, in less than twice as much memory.
    """

    __slots__ = ("_half", "_head", "_tail", "size")

    def __init__(self, most: int) -> None:
        self.size: int = 0
        """Bytes written in total."""
        self._half = max(0, (most - _NOTE_BYTES) // 2)
        self._head = bytearray()
        self._tail = bytearray()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        half = self._half
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= half:
            self._tail[:] = data[len(data) - half :]
        elif data:
            self._tail += data
            # Trimmed only now and then, so that many small writes are as cheap as a few large ones.
            if len(self._tail) > 2 * half:
                del self._tail[:-half]

    def value(self) -> bytes:
        """The output; if it was too long, its head and tail with a line between them that says how
        much is left out.
        """
        tail = self._tail[-self._half :] if self._half else b""
        left_out = self.size - len(self._head) - len(tail)
        if not left_out:
            return bytes(self._head + tail)
        return b"".join((self._head, b"\n... %d bytes left out ...\n" % left_out, tail))

    def last_line(self, most: int = 200) -> str:
        """The last line that is not blank."""
        complete = self.size == len(self._head) + len(self._tail)
        end = bytes(self._head + self._tail if complete else self._tail)[-4096:].rstrip()
        line = end[end.rfind(b"\n") + 1 :].decode(errors="replace").strip()
        return line if len(line) <= most else line[: most - 1] + "…"
