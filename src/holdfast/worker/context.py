"""What a handler sees of its job, and what it can leave behind while it runs.

Thread-safe: a handler may use it from any thread it starts. It never waits for the supervisor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from holdfast.core import codec, limits
from holdfast.core.checks import check_job
from holdfast.core.model import NewJob
from holdfast.errors import UsageError
from holdfast.worker.output import Output
from holdfast.worker.wire import Given, Told

OUTPUT_MAX = 64 * 1024


class Standing:
    """What the jobs of one call share. `hear` is told, from any thread, of a context that has
    something new; what it is, `Context.told` then gives."""

    __slots__ = ("cancelled", "ends_at", "hear", "lost", "number", "output_max", "task")

    def __init__(
        self,
        task: str,
        *,
        number: int = 0,
        hear: Callable[[Context], None] | None = None,
        output_max: int = OUTPUT_MAX,
    ) -> None:
        self.task = task
        self.number = number
        self.hear = hear
        self.output_max = output_max
        self.cancelled = False
        self.lost = False
        self.ends_at: float | None = None
        """When its time is over, by `time.monotonic`."""


class Context:
    """Ask for it with a parameter of this type."""

    __slots__ = (
        "_checkpoint",
        "_dirty",
        "_follow_ups",
        "_index",
        "_job",
        "_lock",
        "_output",
        "_output_told",
        "_progress",
        "_standing",
        "_untold_checkpoint",
    )

    def __init__(self, job: Given, standing: Standing, index: int = 0) -> None:
        self._job = job
        self._standing = standing
        self._index = index
        self._lock = Lock()
        self._dirty = False
        self._checkpoint = job.checkpoint
        self._untold_checkpoint: bytes | None = None
        self._progress: float | None = None
        self._output: Output | None = None
        self._output_told = 0
        self._follow_ups: list[NewJob] = []

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def task(self) -> str:
        return self._standing.task

    @property
    def attempt(self) -> int:
        """1 the first time."""
        return self._job.attempt

    @property
    def last(self) -> bool:
        """No attempt comes after this one, if it fails."""
        return self._job.last

    @property
    def token(self) -> int:
        """Grows with every lease of the job: give it to what you write to, to keep out a late
        earlier attempt."""
        return self._job.token

    @property
    def tenant(self) -> str | None:
        return self._job.tenant

    @property
    def key(self) -> str | None:
        return self._job.key

    @property
    def labels(self) -> Mapping[str, str]:
        return self._job.labels

    @property
    def headers(self) -> Mapping[str, str]:
        return self._job.headers

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the jobs that had to end before this one; `task.handle(id).result()` is what
        one of them returned."""
        return self._job.after

    @property
    def created_at(self) -> int:
        """In milliseconds since 1970."""
        return self._job.created_at

    @property
    def deadline(self) -> float | None:
        """Seconds left before the timeout, never below zero; None if there is none."""
        ends_at = self._standing.ends_at
        return None if ends_at is None else max(0.0, ends_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Somebody wants it stopped, or its lease is lost: raise `Cancelled` when convenient."""
        return self._standing.cancelled

    @property
    def lost(self) -> bool:
        """Another attempt may run already: stop at once, and change nothing any more."""
        return self._standing.lost

    def progress(self, fraction: float, text: str = "") -> None:
        """How much is done, from 0 to 1; the text goes to the log."""
        given: object = fraction
        if not isinstance(given, int | float) or not math.isfinite(given):
            raise UsageError(f"progress {given!r} is no number: give one from 0 to 1")
        with self._lock:
            self._progress = min(1.0, max(0.0, float(fraction)))
        if text:
            self.log(text)
        else:
            self._tell()

    def checkpoint(self, value: Any) -> None:
        """Keep this, JSON as every payload, for the next attempt to go on from. It is stored
        soon, not at once: a crash in the same second may take it along."""
        data = codec.encode(value)
        if len(data) > limits.CHECKPOINT_MAX:
            raise UsageError(
                f"the checkpoint is {len(data)} bytes; the bound is {limits.CHECKPOINT_MAX}:"
                " store the data elsewhere and keep a reference"
            )
        with self._lock:
            self._checkpoint = self._untold_checkpoint = data
        self._tell()

    def resume(self, default: Any = None) -> Any:
        """The last checkpoint's value, of this attempt or an earlier one."""
        data = self._checkpoint
        return default if data is None else codec.decode(data)

    def log(self, *values: object) -> None:
        """A line of the job's output, as `print` would write it. Of very many lines, the first
        and the last are kept."""
        line = (" ".join(map(str, values)) + "\n").encode(errors="replace")
        with self._lock:
            if self._output is None:
                self._output = Output(self._standing.output_max)
            self._output.write(line)
        self._tell()

    def then(self, *jobs: NewJob) -> None:
        """Enqueue these when, and only if, this job completes, in the same transaction."""
        for job in jobs:
            if not isinstance(job, NewJob):
                raise UsageError(f"a follow-up job is a NewJob, not a {type(job).__name__}")
            check_job(job)
        with self._lock:
            if len(self._follow_ups) + len(jobs) > limits.FOLLOW_UPS_MAX:
                raise UsageError(f"a job may have at most {limits.FOLLOW_UPS_MAX} follow-up jobs")
            self._follow_ups += jobs

    def told(self, *, ending: bool = False) -> Told | None:
        """For the runner: what is new since it was last asked; without the output when the job
        is ending, since its ending carries that."""
        with self._lock:
            progress, self._progress = self._progress, None
            checkpoint, self._untold_checkpoint = self._untold_checkpoint, None
            output = None if ending else self._take_output()
            self._dirty = False
        if progress is None and checkpoint is None and output is None:
            return None
        return Told(self._standing.number, self._index, progress, checkpoint, output)

    def remains(self) -> tuple[bytes | None, tuple[NewJob, ...]]:
        """For the runner: the output if it is not told yet, and the follow-up jobs."""
        with self._lock:
            return self._take_output(), tuple(self._follow_ups)

    def _take_output(self) -> bytes | None:
        output = self._output
        if output is None or output.size == self._output_told:
            return None
        self._output_told = output.size
        return output.value()

    def _tell(self) -> None:
        hear = self._standing.hear
        if hear is None or self._dirty:
            return
        self._dirty = True
        hear(self)
