"""`holdfast enqueue`: one job as JSON, flags or a command; many as lines of a pipe or a file.

Lines are read, made into jobs and enqueued concurrently: while one batch is in flight, the next is
read. A line that is wrong is reported and does not affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.cli.flags import (
    DryRun,
    JobFlags,
    option,
    switch,
    unknown_flag,
    with_create_command,
)
from holdfast.cli.jobs import unknown_worker, wait_for_job
from holdfast.cli.output import COMMON, Common, Exit, print_json, progress, say
from holdfast.cli.session import open_app
from holdfast.core import bounds, checks
from holdfast.core.checks import accepted
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.core.text import counted, not_read, printable
from holdfast.core.workers import QUEUE_PREFIX
from holdfast.errors import (
    EngineError,
    HoldfastError,
    OutcomeUnknown,
    UnknownQueue,
    Unsupported,
    UsageError,
)
from holdfast.notation.durations import to_ms
from holdfast.notation.job import JobLine
from holdfast.notation.job_lines import JobDefaults, make_job, read_line
from holdfast.notation.synonyms import ignored_note
from holdfast.ops.settings import read_job_defaults

_FAULTS_MAX = 1_000
_CHUNK_BYTES = 64 * 1024
_BATCH_BYTES_MAX = 8 * 1024 * 1024
LINE_BYTES_MAX = 4 * bounds.PAYLOAD_MAX


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EnqueueFlags:
    """Where jobs come from, and whether to wait."""

    file: Annotated[
        Path | None, option("PATH", "Enqueue the jobs of this file, one JSON object per line.")
    ] = None
    wait: Annotated[
        bool, switch("Wait until the job ends; print its output, retries and result.")
    ] = False
    wait_timeout: Annotated[
        str | None, option("DURATION", "Wait no longer than this, e.g. 30s.")
    ] = None
    dry_run: DryRun = False


_NO_JOB, _NO_FLAGS = JobFlags(), EnqueueFlags()


async def enqueue(
    *words: Annotated[
        str,
        Parameter(
            name="JOB",
            help=(
                "The job as JSON; or - to read jobs from standard input, one per line; or "
                "-- and a command with its arguments."
            ),
            allow_leading_hyphen=True,
        ),
    ],
    job: JobFlags = _NO_JOB,
    flags: EnqueueFlags = _NO_FLAGS,
    common: Common = COMMON,
) -> Exit:
    """Enqueue one job or many.

    A job is a command, a webhook, or a task with a payload. Each job flag is also a key of the
    JSON. A key overrides its flag, so flags set the defaults for all lines.

      holdfast enqueue '{"id": "j1", "command": "sleep 2", "timeout": "3s"}'
      holdfast enqueue --wait -- echo hello
      holdfast enqueue --task mail:send --payload '{"to": "a@b.c"}' --delay 10m
      generate | holdfast enqueue - --queue mail
    """
    given = job.line()
    if words != ("-",) and flags.file is None:
        line = _line(words)
        if words[:1] == ("--",) and (given.task is not None or given.command is not None):
            raise UsageError("give only one of --task, --command and a command after --")
        return await _enqueue_one(line, given, flags, common)
    if flags.file is not None and words:
        raise UsageError("give jobs with --file or on the command line, not both")
    if given.id is not None or flags.wait:
        raise UsageError("--id and --wait need a single job")
    with _opened(flags.file) as file:
        return await _enqueue_many(file, given, flags, common)


def _line(words: tuple[str, ...]) -> JobLine:
    match words:
        case ():
            return JobLine()
        case ("--", *command):
            return JobLine(command=list(command))
        case (text,) if text.lstrip().startswith("{"):
            ignored: set[str] = set()
            line = read_line(text, ignored)
            _say_note(ignored)
            return line
        case (word, *_) if word.startswith("-") and word != "-":
            raise UsageError(unknown_flag(word, _flag_names(), "enqueue"))
        case _:
            raise UsageError(
                f'"{words[0][:80]}" is not a job: give JSON such as \'{{"command": "sleep 2"}}\', '
                "or put -- before a command"
            )


def _say_note(ignored: set[str]) -> None:
    if ignored:
        say(ignored_note(ignored))


def _flag_names() -> list[str]:
    names = [field.name for flags in (_NO_JOB, _NO_FLAGS) for field in fields(flags)]
    return [f"--{name.replace('_', '-')}" for name in names]


async def _enqueue_one(line: JobLine, given: JobLine, flags: EnqueueFlags, common: Common) -> Exit:
    wait_ms = None
    if flags.wait_timeout is not None:
        wait_ms = to_ms("--wait-timeout", flags.wait_timeout, UsageError)
    async with open_app(common, create=True) as app:
        if flags.wait and not app.engine.traits.inspect:
            remedy = "leave out --wait, or use an engine that can search its jobs"
            raise Unsupported(app.engine.traits.name, "waiting for a job", remedy)
        defaults = await read_job_defaults(app.engine, given, app.new_id)
        job = make_job(line, defaults)
        if flags.dry_run:
            checks.check_job(job)
            _print_receipt(Receipt(id=job.id, status=Status.NEW), job, common, dry_run=True)
            return Exit.DONE
        [receipt] = await app.engine.enqueue([job])
        try:
            accepted(receipt)
        except UnknownQueue:
            if line.to is None:
                raise
            raise unknown_worker(line.to) from None
        if not flags.wait:
            _print_receipt(receipt, job, common)
            return Exit.DONE
        return await wait_for_job(app, receipt.id, wait_ms, common)


def _print_receipt(receipt: Receipt, job: NewJob, common: Common, *, dry_run: bool = False) -> None:
    if common.json:
        print_json(
            {"id": receipt.id, "status": receipt.status} | ({"dry_run": True} if dry_run else {})
        )
        return
    note = ""
    if dry_run:
        note = " (dry run: not enqueued)"
    elif receipt.status is not Status.NEW:
        note = " (already known)" if receipt.id == job.id else " (holds the key)"
    print(f"{printable(receipt.id, one_line=True)}{note}")


async def _enqueue_many(file: int, given: JobLine, flags: EnqueueFlags, common: Common) -> Exit:
    faults: list[LineFault] = []

    def tell(fault: LineFault) -> None:
        if fault.code == UnknownQueue.code:
            fault = replace(fault, text=_unknown_queue(fault.text))
        if len(faults) < _FAULTS_MAX:
            faults.append(fault)
        say(f"line {fault.line}: {fault.text} ({fault.code})")

    started = time.monotonic()
    async with open_app(common, create=True) as app:
        defaults = await read_job_defaults(app.engine, given, app.new_id)
        with progress("enqueueing") as advance:
            enqueue = _check_only if flags.dry_run else app.engine.enqueue
            feed = LineFeed(enqueue, defaults, tell, advance)
            try:
                await feed.run(LineReader(file))
            except OutcomeUnknown as error:
                raise OutcomeUnknown(
                    f"{error}; {_settled(feed.counts)}, and perhaps some of the next 1,000 lines:"
                    " repeat those only if each has an id or a key"
                ) from None
            except EngineError as error:
                raise type(error)(f"{error}; {_settled(feed.counts)}") from None
            except asyncio.CancelledError:
                say(_settled(feed.counts))
                raise
    _say_note(feed.ignored)
    _print_counts(feed.counts, faults, time.monotonic() - started, flags, common)
    return Exit.FAILED if feed.counts.refused else Exit.DONE


def _unknown_queue(text: str) -> str:
    """The error about a queue that does not exist, or about the worker whose queue it is."""
    worker = re.match(rf"queue {re.escape(QUEUE_PREFIX)}(\S+) does not exist", text)
    return str(unknown_worker(worker[1])) if worker else with_create_command(text)


async def _check_only(jobs: Sequence[NewJob]) -> list[Receipt]:
    receipts = []
    for job in jobs:
        try:
            checks.check_job(job)
            receipts.append(Receipt(id=job.id, status=Status.NEW))
        except UsageError as error:
            refusal = Receipt(id=job.id, status=Status.REFUSED, code=error.code, text=str(error))
            receipts.append(refusal)
    return receipts


def _settled(counts: FeedCounts) -> str:
    return f"lines 1 to {counts.settled} are settled, with {counted(counts.new, 'new job')}"


def _print_counts(
    counts: FeedCounts,
    faults: list[LineFault],
    seconds: float,
    flags: EnqueueFlags,
    common: Common,
) -> None:
    if common.json:
        view = {name: getattr(counts, name) for name in ("lines", "new", "duplicate", "refused")}
        view |= {"dry_run": flags.dry_run, "duration_ms": round(seconds * 1000)}
        print_json({**view, "errors": [msgspec.to_builtins(fault) for fault in faults]})
        return
    rate = f"{counts.new / max(seconds, 0.001):,.0f}/s"
    what = "would be enqueued" if flags.dry_run else f"enqueued in {seconds:.1f} s ({rate})"
    new = counted(counts.new, "job")
    print(f"{new} {what}, {counts.duplicate:,} already known, {counts.refused:,} refused")


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[int]:
    if path is None or path == Path("-"):
        yield sys.stdin.fileno()
        return
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(not_read(path, error)) from None
    with file:
        yield file.fileno()


class LineFault(msgspec.Struct, frozen=True):
    """Why a line was refused."""

    line: int
    code: str
    text: str


class FeedCounts(msgspec.Struct):
    """Counts of lines; `settled` is the last line whose outcome is certain."""

    lines: int = 0
    settled: int = 0
    new: int = 0
    duplicate: int = 0
    refused: int = 0


class LineReader:
    """Reads numbered lines as they arrive, in bounded memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._number = 0
        self._skipping = False

    async def read(self) -> list[tuple[int, bytes]] | None:
        """The next lines, perhaps none; None at the end. A line that is too long is cut."""
        chunk = await _read_chunk(self._file)
        if not chunk:
            last, self._rest = self._rest, b""
            return [self._numbered(last)] if last and not self._skipping else None
        *complete, self._rest = (self._rest + chunk).split(b"\n")
        lines = [self._numbered(line) for line in complete]
        if self._skipping and lines:
            # The first one is the end of a line that was reported already.
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


class LineFeed:
    """Makes jobs of lines and enqueues them in batches, one batch at a time, in order."""

    def __init__(
        self,
        enqueue: Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]],
        defaults: JobDefaults,
        tell: Callable[[LineFault], None],
        advance: Callable[[int], None],
    ) -> None:
        self._enqueue = enqueue
        self._defaults = defaults
        self._tell = tell
        self._advance = advance
        self._waiting: list[tuple[int, NewJob]] = []
        self._in_flight: list[tuple[int, NewJob]] = []
        self._call: asyncio.Future[list[Receipt]] | None = None
        self.counts: FeedCounts = FeedCounts()
        self.ignored: set[str] = set()
        """Names of fields that were left out of lines, as `read_line` does."""

    async def run(self, reader: LineReader) -> None:
        """Enqueue every line. When interrupted, the batch in flight is still awaited, so that
        `counts` is exact.
        """
        reading: asyncio.Task[list[tuple[int, bytes]] | None] | None = None
        ended = False
        try:
            while True:
                if reading is None and not ended and len(self._waiting) < bounds.BATCH_MAX:
                    reading = asyncio.create_task(reader.read())
                if self._call is None and self._waiting:
                    self._start_batch()
                tasks = [task for task in (reading, self._call) if task]
                if not tasks:
                    return
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._call and self._call.done():
                    self._finish_batch()
                if reading and reading.done():
                    lines, reading = reading.result(), None
                    ended = lines is None
                    self._make_jobs(lines or [])
        except (asyncio.CancelledError, HoldfastError):
            if reading:
                reading.cancel()
            if self._call:
                await asyncio.wait([self._call])
                self._finish_batch()
            raise

    def _make_jobs(self, lines: list[tuple[int, bytes]]) -> None:
        for number, text in lines:
            self.counts.lines = number
            if len(text) > LINE_BYTES_MAX:
                self._refuse(
                    number, "invalid_job", f"the line is longer than {LINE_BYTES_MAX} bytes"
                )
            elif text and not text.isspace():
                try:
                    self._waiting.append(
                        (number, make_job(read_line(text, self.ignored), self._defaults))
                    )
                except UsageError as error:
                    self._refuse(number, error.code, str(error))

    def _start_batch(self) -> None:
        size, count = 0, 0
        for _, job in self._waiting[: bounds.BATCH_MAX]:
            size += len(job.payload)
            if count and size > _BATCH_BYTES_MAX:
                break
            count += 1
        self._in_flight, self._waiting = self._waiting[:count], self._waiting[count:]
        jobs = [job for _, job in self._in_flight]
        self._call = asyncio.ensure_future(self._enqueue(jobs))

    def _finish_batch(self) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        receipts = call.result()
        for (number, _), receipt in zip(self._in_flight, receipts, strict=True):
            match receipt.status:
                case Status.NEW:
                    self.counts.new += 1
                case Status.DUPLICATE:
                    self.counts.duplicate += 1
                case Status.REFUSED:
                    self._refuse(number, receipt.code, receipt.text)
        self.counts.settled = self._in_flight[-1][0]
        self._advance(len(self._in_flight))

    def _refuse(self, number: int, code: str, text: str) -> None:
        self.counts.refused += 1
        self._tell(LineFault(number, code, text))


async def _read_chunk(file: int) -> bytes:
    """Read without a thread: a thread that waits for input cannot be stopped."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except PermissionError:
        # A regular file never blocks.
        return os.read(file, _CHUNK_BYTES)
    try:
        await ready.wait()
        return os.read(file, _CHUNK_BYTES)
    finally:
        loop.remove_reader(file)
