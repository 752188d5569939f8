"""`holdfast enqueue`: one job as JSON, as flags or as a command; many from a pipe or a file."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from holdfast import newjob
from holdfast.app import accepted
from holdfast.cli import feeding
from holdfast.cli.exits import Exit, NotFound
from holdfast.cli.guards import DryRun
from holdfast.cli.jobflags import Flags
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program
from holdfast.cli.running import progress, running
from holdfast.cli.waiting import wait_for
from holdfast.config import settings
from holdfast.core import checks
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.core.text import counted, printable
from holdfast.durations import to_ms
from holdfast.errors import EngineError, OutcomeUnknown, UnknownQueue, UsageError

_FAULTS_MAX = 1_000
_PERHAPS = (
    "and perhaps some of the 1,000 lines after them: repeat those only if each has an id or a key"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Ways:
    """How it is done."""

    file: Annotated[Path | None, Parameter(help="Jobs of this file, one JSON object a line.")] = (
        None
    )
    wait: Annotated[bool, Parameter(help="Show its output, until it has ended.", negative=())] = (
        False
    )
    wait_timeout: Annotated[str | None, Parameter(help="Wait no longer than this: 30s.")] = None
    dry_run: DryRun = False


_FLAGS, _WAYS = Flags(), Ways()


async def enqueue(
    *words: Annotated[
        str,
        Parameter(
            name="JOB",
            help=(
                "The job as JSON, or - for jobs from the standard input, one a line, or "
                "-- and a command with its arguments."
            ),
            allow_leading_hyphen=True,
        ),
    ],
    flags: Flags = _FLAGS,
    ways: Ways = _WAYS,
    common: Common = COMMON,
) -> Exit:
    """Put a job in a queue, or many.

    A job is a command, or a task with a payload. Each flag about the job is a key of its JSON too,
    and there it wins, so that a flag is for every line of many.

      holdfast enqueue '{"id": "j1", "command": "sleep 2", "timeout": "3s"}'
      holdfast enqueue --wait -- echo hello
      holdfast enqueue --task mail:send --payload '{"to": "a@b.c"}' --delay 10m
      generate | holdfast enqueue - --queue mail
    """
    base = flags.line()
    many = words == ("-",) or ways.file is not None
    if not many:
        line = _line(words)
        if words[:1] == ("--",) and (base.task is not None or base.command is not None):
            raise UsageError("--task, --command or a command after --: a job is only one of them")
        return await _one(line, base, ways, common)
    if ways.file is not None and words:
        raise UsageError("jobs come from --file or from the command line, not both")
    if base.id is not None or ways.wait:
        raise UsageError("--id and --wait are for one job, not for many")
    with _opened(ways.file) as file:
        return await _many(file, base, ways, common)


def _line(words: tuple[str, ...]) -> newjob.Line:
    match words:
        case ():
            return newjob.Line()
        case ("--", *command):
            return newjob.Line(command=list(command))
        case (text,) if text.lstrip().startswith("{"):
            return newjob.read(text)
        case (word, *_) if word.startswith("-") and word != "-":
            close = difflib.get_close_matches(word, _options(), 1)
            remedy = f"did you mean {close[0]}?" if close else f"see {program()} enqueue --help"
            raise UsageError(f"unknown option {word[:80]!r}: {remedy}")
        case _:
            raise UsageError(
                f'{words[0][:80]!r} is no job: give JSON, such as \'{{"command": "sleep 2"}}\', '
                "or put -- before a command"
            )


def _options() -> list[str]:
    names = [field.name for shape in (Flags, Ways) for field in fields(shape)]
    return [f"--{name.replace('_', '-')}" for name in names]


async def _one(line: newjob.Line, flags: newjob.Line, ways: Ways, common: Common) -> Exit:
    wait_ms = (
        None if ways.wait_timeout is None else to_ms("wait_timeout", ways.wait_timeout, UsageError)
    )
    async with running(common, create=True) as app:
        base = newjob.base_of(flags, await settings(app.engine), app.new_id)
        job = newjob.make(line, base)
        if ways.dry_run:
            checks.check_job(job)
            _print_receipt(Receipt(id=job.id, status=Status.NEW), job, common, dry_run=True)
            return Exit.DONE
        [receipt] = await app.engine.enqueue([job])
        try:
            accepted(receipt)
        except UnknownQueue:
            if line.to is None:
                raise
            raise NotFound(
                f"no worker of the name {line.to[:80]!r} was ever here: see {program()} worker list"
            ) from None
        if not ways.wait:
            _print_receipt(receipt, job, common)
            return Exit.DONE
        return await wait_for(app, receipt.id, wait_ms, common)


def _print_receipt(receipt: Receipt, job: NewJob, common: Common, *, dry_run: bool = False) -> None:
    if common.json:
        print_json(
            {"id": receipt.id, "status": receipt.status} | ({"dry_run": True} if dry_run else {})
        )
        return
    there = ""
    if dry_run:
        there = " (not enqueued: a dry run)"
    elif receipt.status is not Status.NEW:
        there = " (it was there already)" if receipt.id == job.id else " (it holds the key)"
    print(f"{printable(receipt.id, one_line=True)}{there}")


async def _many(file: int, flags: newjob.Line, ways: Ways, common: Common) -> Exit:
    faults: list[feeding.Fault] = []

    def tell(fault: feeding.Fault) -> None:
        if len(faults) < _FAULTS_MAX:
            faults.append(fault)
        say(f"line {fault.line}: {fault.text} ({fault.code})")

    started = time.monotonic()
    async with running(common, create=True) as app:
        base = newjob.base_of(flags, await settings(app.engine), app.new_id)
        with progress("enqueuing") as advance:
            send = _only_checked if ways.dry_run else app.engine.enqueue
            feed = feeding.Feed(send, base, tell, advance)
            try:
                await feed.run(feeding.Lines(file))
            except OutcomeUnknown as error:
                raise OutcomeUnknown(f"{error}; {_certain(feed.fed)}, {_PERHAPS}") from None
            except EngineError as error:
                raise type(error)(f"{error}; {_certain(feed.fed)}") from None
            except asyncio.CancelledError:
                say(_certain(feed.fed))
                raise
    _print_fed(feed.fed, faults, time.monotonic() - started, ways, common)
    return Exit.FAILED if feed.fed.refused else Exit.DONE


def _certain(fed: feeding.Fed) -> str:
    return f"the lines up to {fed.settled} are settled, {counted(fed.new, 'new job')} went in"


async def _only_checked(jobs: Sequence[NewJob]) -> list[Receipt]:
    receipts = []
    for job in jobs:
        try:
            checks.check_job(job)
            receipts.append(Receipt(id=job.id, status=Status.NEW))
        except UsageError as error:
            refusal = Receipt(id=job.id, status=Status.REFUSED, code=error.code, text=str(error))
            receipts.append(refusal)
    return receipts


def _print_fed(
    fed: feeding.Fed, faults: list[feeding.Fault], seconds: float, ways: Ways, common: Common
) -> None:
    if common.json:
        counts = {name: getattr(fed, name) for name in ("lines", "new", "duplicate", "refused")}
        view = {**counts, "dry_run": ways.dry_run, "duration_ms": round(seconds * 1000)}
        print_json({**view, "errors": [msgspec.to_builtins(fault) for fault in faults]})
        return
    rate = f"{fed.new / max(seconds, 0.001):,.0f}/s"
    what = "would be enqueued" if ways.dry_run else f"enqueued in {seconds:.1f} s ({rate})"
    new = counted(fed.new, "job")
    print(f"{new} {what}, {fed.duplicate:,} there already, {fed.refused:,} refused")


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[int]:
    if path is None or path == Path("-"):
        yield sys.stdin.fileno()
        return
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield file.fileno()
