"""One command that was started: its process, its output, its clocks, and how it ended."""

from __future__ import annotations

import asyncio
import time

from holdfast.worker import command
from holdfast.worker.output import Output
from holdfast.worker.wire import Call, Ending, Told


class Running:
    """`status` is None until its own process has ended; what that left behind may live on.
    `mercy` is the timer after which it is killed, once it was asked to end."""

    __slots__ = (
        "_ended_at",
        "_instead",
        "_output_told",
        "_started_at",
        "call",
        "job",
        "marker",
        "mercy",
        "output",
        "pid",
        "pipe",
        "slot",
        "speaking",
        "status",
        "timer",
    )

    def __init__(self, call: Call, slot: int, output_max: int) -> None:
        self.call = call
        self.slot = slot
        self.job = call.jobs[0]
        self.marker = command.marker(self.job)
        self.pid = 0
        self.pipe = -1
        self.output = Output(output_max)
        self.speaking = False
        self.status: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.mercy: asyncio.TimerHandle | None = None
        self._started_at = time.monotonic()
        self._ended_at = 0.0
        self._output_told = 0
        self._instead: Ending | None = None

    @property
    def living(self) -> bool:
        """It may have processes: its own, or those that still have their grace."""
        return self.status is None or self.mercy is not None

    def started(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self._started_at = time.monotonic()

    def ended(self, status: int) -> None:
        self.status = status
        self._ended_at = time.monotonic()
        if self.timer is not None:
            self.timer.cancel()

    def lingers(self, seconds: float) -> bool:
        """Something of it is still there although it ended, or was killed, so long ago."""
        return not self.living and time.monotonic() - self._ended_at > seconds

    def cut_short(self, ending: Ending) -> None:
        """However its process ends, this is why; the first reason counts."""
        if self._instead is None and self.status is None:
            self._instead = ending

    def ending(self) -> Ending:
        assert self.status is not None
        if self._instead is not None:
            return self._instead
        duration_ms = round((self._ended_at - self._started_at) * 1000)
        return command.ending(self.status, self.output, duration_ms)

    def end_mercy(self) -> None:
        if self.mercy is not None:
            self.mercy.cancel()
            self.mercy = None
            self._ended_at = time.monotonic()

    def end_timers(self) -> None:
        self.end_mercy()
        if self.timer is not None:
            self.timer.cancel()

    def told(self) -> Told | None:
        """For the teller: what it printed, if that is news."""
        self.speaking = False
        output = self.take_output()
        return None if output is None else Told(self.call.number, output=output)

    def take_output(self) -> bytes | None:
        if self.output.size == self._output_told:
            return None
        self._output_told = self.output.size
        return self.output.value()
