"""Many jobs from a pipe or a file, one JSON object a line: read, made and enqueued side by side.

A batch is in flight while the next is read and made; a bad line is told and harms no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast import newjob
from holdfast.core import limits
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.errors import HoldfastError, UsageError

_CHUNK_BYTES = 64 * 1024
_BATCH_BYTES_MAX = 8 * 1024 * 1024
LINE_BYTES_MAX = 4 * limits.PAYLOAD_MAX


class Fault(msgspec.Struct, frozen=True):
    """Why a line was left out."""

    line: int
    code: str
    text: str


class Fed(msgspec.Struct):
    """How it went: `settled` is the last line whose fate is certain."""

    lines: int = 0
    settled: int = 0
    new: int = 0
    duplicate: int = 0
    refused: int = 0


class Lines:
    """Whole lines as they come, each with its number; never more at once than is read."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._number = 0
        self._skipping = False

    async def read(self) -> list[tuple[int, bytes]] | None:
        """The next lines, perhaps none; None at the end. One that is too long comes cut."""
        chunk = await _readable(self._file)
        if not chunk:
            last, self._rest = self._rest, b""
            return [self._numbered(last)] if last and not self._skipping else None
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        lines = [self._numbered(line) for line in whole]
        if self._skipping and lines:
            # What ends here is the rest of a line that was told of already.
            self._skipping = False
            self._number -= 1
            lines = [(number - 1, line) for number, line in lines[1:]]
        if len(self._rest) > LINE_BYTES_MAX:
            if not self._skipping:
                lines.append(self._numbered(self._rest))
            self._skipping, self._rest = True, b""
        return lines

    def _numbered(self, line: bytes) -> tuple[int, bytes]:
        self._number += 1
        return self._number, line


class Feed:
    def __init__(
        self,
        enqueue: Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]],
        base: newjob.Base,
        tell: Callable[[Fault], None],
        advance: Callable[[int], None],
    ) -> None:
        self._enqueue = enqueue
        self._base = base
        self._tell = tell
        self._advance = advance
        self._waiting: list[tuple[int, NewJob]] = []
        self._sent: list[tuple[int, NewJob]] = []
        self._sending: asyncio.Future[list[Receipt]] | None = None
        self.fed = Fed()

    async def run(self, lines: Lines) -> None:
        """Until the input ends. When cut short, what is in flight is still waited for, so that
        `fed` says what is in."""
        reading: asyncio.Task[list[tuple[int, bytes]] | None] | None = None
        ended = False
        try:
            while True:
                if reading is None and not ended and len(self._waiting) < limits.BATCH_MAX:
                    reading = asyncio.create_task(lines.read())
                if self._sending is None and self._waiting:
                    self._send()
                tasks = [task for task in (reading, self._sending) if task]
                if not tasks:
                    return
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._sending and self._sending.done():
                    self._settle()
                if reading and reading.done():
                    came, reading = reading.result(), None
                    ended = came is None
                    self._make(came or [])
        except (asyncio.CancelledError, HoldfastError):
            if reading:
                reading.cancel()
            if self._sending:
                await asyncio.wait([self._sending])
                self._settle()
            raise

    def _make(self, lines: list[tuple[int, bytes]]) -> None:
        for number, text in lines:
            self.fed.lines = number
            if len(text) > LINE_BYTES_MAX:
                self._refuse(number, "invalid_job", f"the line is over {LINE_BYTES_MAX} bytes")
            elif text and not text.isspace():
                try:
                    self._waiting.append((number, newjob.make(newjob.read(text), self._base)))
                except UsageError as error:
                    self._refuse(number, error.code, str(error))

    def _send(self) -> None:
        size, count = 0, 0
        for _, job in self._waiting[: limits.BATCH_MAX]:
            size += len(job.payload)
            if count and size > _BATCH_BYTES_MAX:
                break
            count += 1
        self._sent, self._waiting = self._waiting[:count], self._waiting[count:]
        jobs = [job for _, job in self._sent]
        self._sending = asyncio.ensure_future(self._enqueue(jobs))

    def _settle(self) -> None:
        assert self._sending is not None
        sending, self._sending = self._sending, None
        receipts = sending.result()
        for (number, _), receipt in zip(self._sent, receipts, strict=True):
            match receipt.status:
                case Status.NEW:
                    self.fed.new += 1
                case Status.DUPLICATE:
                    self.fed.duplicate += 1
                case Status.REFUSED:
                    self._refuse(number, receipt.code, receipt.text)
        self.fed.settled = self._sent[-1][0]
        self._advance(len(self._sent))

    def _refuse(self, number: int, code: str, text: str) -> None:
        self.fed.refused += 1
        self._tell(Fault(number, code, text))


async def _readable(file: int) -> bytes:
    """Waits without a thread, which could not be ended while it reads."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except PermissionError:
        # A regular file, which never keeps anybody waiting.
        return os.read(file, _CHUNK_BYTES)
    try:
        await ready.wait()
        return os.read(file, _CHUNK_BYTES)
    finally:
        loop.remove_reader(file)
