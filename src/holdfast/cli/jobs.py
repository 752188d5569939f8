"""`holdfast list` and `holdfast job …`: list, show, explain, follow and change jobs.

An act on several ids is one conditional write for each, and reports each outcome.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import (
    NO_FILTER,
    After,
    EditFlags,
    FilterFlags,
    JobId,
    JobIds,
    Limit,
    States,
    option,
    switch,
)
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    Exit,
    print_json,
    print_table,
    say,
    show_age,
    show_percent,
)
from holdfast.cli.session import open_app, person
from holdfast.cli.terminal.screen import print_paged
from holdfast.core import codec, failures
from holdfast.core.explain import Cause
from holdfast.core.lifecycle import timeline as timeline_of
from holdfast.core.model import COMMAND_TASK, Event, EventKind, Failure, Job, Queue, State, Waits
from holdfast.core.text import printable
from holdfast.core.verdict import Amendment, Cancel, Delete, Expedite, Redrive
from holdfast.errors import HoldfastError, NotFound, UnknownQueue, UsageError, WrongState
from holdfast.notation.durations import show_at, to_ms
from holdfast.notation.filters import pairs, show_state
from holdfast.ops import queues
from holdfast.ops.doctor import examine
from holdfast.ops.jobs import amend, views
from holdfast.ops.jobs.amend import FINISHED, amend_job
from holdfast.ops.jobs.explain import explain_job, explain_waits
from holdfast.ops.jobs.views import explanation, job_view, output_view, timeline_view
from holdfast.ops.views import command_of, plain, text_of, value_of
from holdfast.ops.workers import reroute as reroute_job
from holdfast.process import wall_ms

_IDS_SHOWN = 5
_NOT_IN_SHOW = ("failures", "output", "trace")
_SHOWN_IF_ZERO = ("attempts", "exit_code")
_NO_EDITS = EditFlags()
_POLL_S_FIRST, _POLL_S_MAX = 0.02, 0.25
_OVERLAP_BYTES = 256
_HINT_S = 3


async def list_all(
    *,
    state: States = None,
    which: FilterFlags = NO_FILTER,
    limit: Limit = None,
    after: After = None,
    common: Common = COMMON,
) -> None:
    """List jobs, newest first."""
    async with open_app(common) as app:
        wanted = which.wanted(state or None)
        jobs, next_page = await views.find_jobs(app.engine, wanted, page_size(limit, common), after)
        if common.json:
            print_json(await job_views(app, jobs))
    if not common.json:
        print_jobs(jobs)
        if not jobs:
            say("no jobs match")
    say_more(next_page)


async def show(id: JobId, /, *, common: Common = COMMON) -> None:
    """Show a job, its timeline and its output."""
    async with open_app(common) as app:
        job, queue = await read_job(app, id)
        now = (await examine(app.home.store)).now
        waits, causes = await explain_waits(app.engine, job, now)
    reasons = (cause.text.removeprefix("it waits for ") + _when(cause, now) for cause in causes)
    print_job(job, queue, common, waits, "; ".join(reasons))


def print_job(
    job: Job, queue: Queue | None, common: Common, waits: Waits | None = None, reasons: str = ""
) -> None:
    """Print a complete job; `reasons` say what it waits for."""
    view = plain(job_view(job, queue, waits))
    if common.json:
        print_json(view)
        return
    failure = job.failures[-1].failure if job.failures else None
    view["after"] = _few(job.after)
    if view["error"] is not None and failure is not None:
        view["error"] = failures.title(failure)
    view["waits_for"] = reasons
    view["progress"] = show_percent(job.progress)
    for name, value in view.items():
        has_value = value not in ({}, "", False) or name in _SHOWN_IF_ZERO
        if name not in _NOT_IN_SHOW and value is not None and has_value:
            print(f"{name:16}  {printable(text_of(value), one_line=True)}")
    print("timeline")
    _print_timeline(job)
    if view["error"] is not None and failure is not None and failure.trace:
        print("trace")
        for line in user_trace(failure):
            print(line)
    if job.output:
        print("output")
        print(printable(job.output.decode(errors="replace").removesuffix("\n")))


async def timeline(id: JobId, /, *, common: Common = COMMON) -> None:
    """Show what happened to a job, oldest event first."""
    async with open_app(common) as app:
        job, _ = await read_job(app, id)
    if common.json:
        print_json([plain(event) for event in timeline_view(job)])
    else:
        _print_timeline(job)


async def explain(id: JobId, /, *, common: Common = COMMON) -> None:
    """Explain why a job is not running, and what would change that."""
    async with open_app(common) as app:
        job, _ = await read_job(app, id)
        now = (await examine(app.home.store)).now
        causes = await explain_job(app.engine, job, now)
    if common.json:
        print_json(plain(explanation(job, causes)))
        return
    print(f"{job.id} is {job.state}")
    for number, cause in enumerate(causes, 1):
        print(printable(f"{number}. {cause.text}{_when(cause, now)}", one_line=True))
        if cause.remedy:
            command = f": {program()} {cause.command}" if cause.command else ""
            print(printable(f"   {cause.remedy}{command}", one_line=True))
    if job.failures and job.state is not State.DONE:
        for line in user_trace(job.failures[-1].failure):
            print(line)


async def logs(
    id: JobId,
    /,
    *,
    follow: Annotated[
        bool,
        Parameter(
            name=["--follow", "-f"], help="Follow the output until the job ends.", negative=()
        ),
    ] = False,
    attempt: Annotated[
        int | None, option("N", "Show the output of this attempt. [default: the last]")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Show the output of a job: what it printed and logged.

    Up to 16 KiB of the output of each failed attempt are kept with its failure.
    """
    if follow and attempt is not None:
        raise UsageError("--follow shows every attempt: leave out --attempt")

    def write(text: str) -> None:
        if common.json:
            print_json({"output": text})
        else:
            printer.write(text)

    printer = OutputPrinter()
    async with open_app(common) as app:
        if follow:
            job = await follow_output(app, id, write)
            if common.json:
                print_json({"id": job.id, "state": str(job.state)})
            else:
                printer.end()
                say(f"{job.id} is {job.state}" + (f" ({job.reason})" if job.reason else ""))
            return
        job, _ = await read_job(app, id)
    view = output_view(job, attempt)
    if common.json:
        print_json(plain(view))
    elif view.output:
        print_paged(printable(view.output.removesuffix("\n")))
    else:
        say(f"{job.id} has no output" + (f" of attempt {attempt}" if attempt else ""))


async def cancel(
    ids: JobIds,
    /,
    *,
    text: Annotated[str, option("TEXT", "Reason, shown in the timeline.")] = "",
    force: Annotated[bool, switch("End running attempts at once.")] = False,
    common: Common = COMMON,
) -> int:
    """Cancel waiting jobs, and ask running jobs to stop.

    A running job continues until it notices the request. With --force, its worker kills it; other
    jobs in the same process are released and run again.
    """
    act = Cancel(by=person(), text=text)
    async with open_app(common) as app:

        async def request(id: str) -> None:
            job = await amend.cancel_job(app.engine, id, act, force=force)
            if job.state is State.LEASED:
                result.notes[id] = "is being killed by its worker" if force else "asked to stop"

        result = ActResult()
        await act_in_turn(ids, request, result)
    return result.print("cancelled", common)


async def retry(
    ids: JobIds,
    /,
    *,
    delay: Annotated[
        str, option("DURATION", "Wait at least this long before the jobs start.")
    ] = "0s",
    common: Common = COMMON,
) -> int:
    """Run dead, cancelled or done jobs again, with their attempts reset."""
    act = Redrive(by=person(), delay_ms=to_ms("--delay", delay, UsageError))
    return await act_on_each(ids, act, FINISHED, done="retried", common=common)


async def expedite(ids: JobIds, /, *, common: Common = COMMON) -> int:
    """Start waiting jobs next, ahead of all others."""
    act, states = Expedite(by=person()), (State.WAITING,)
    return await act_on_each(ids, act, states, done="expedited", common=common)


async def delete(
    ids: JobIds,
    /,
    *,
    force: Annotated[bool, switch("Also delete running jobs; their workers lose them.")] = False,
    common: Common = COMMON,
) -> int:
    """Delete jobs permanently."""
    states = tuple(state for state in State if force or state is not State.LEASED)
    return await act_on_each(ids, Delete(force=force), states, done="deleted", common=common)


async def edit(id: JobId, /, *, edits: EditFlags = _NO_EDITS, common: Common = COMMON) -> int:
    """Change a waiting or dead job."""
    if edits == _NO_EDITS:
        raise UsageError("nothing to change: give --payload, --priority, --expires, --label, …")
    changes = edits.changes()
    result = ActResult()
    async with open_app(common) as app:
        await read_job(app, id)
        try:
            await amend.edit_job(app.engine, id, changes, person())
            result.changed.append(id)
        except WrongState as error:
            result.refused[id] = str(error)
    return result.print("edited", common)


async def reroute(
    ids: JobIds,
    /,
    *,
    to: Annotated[str | None, option("NAME", "Move the jobs to this worker.")] = None,
    label: Annotated[
        list[str] | None, option("NAME=VALUE...", "Choose a worker with this label. Repeatable.")
    ] = None,
    expires: Annotated[
        str | None,
        option(
            "DURATION",
            "Give up if a job has not started within this time. [default: as set when it was"
            " enqueued]",
        ),
    ] = None,
    common: Common = COMMON,
) -> int:
    """Move jobs addressed to one worker to another worker.

    Without --to, it chooses the healthiest, then the least loaded worker that knows the task and
    has the labels of --label or, without --label, those that the job requires.
    """
    if to is not None and label:
        raise UsageError("--to names a worker and --label selects one: give only one of them")
    expires_ms = None if expires is None else to_ms("--expires", expires, UsageError)
    labels = pairs("--label", label)
    result = ActResult()
    async with open_app(common) as app:
        for id_ in dict.fromkeys(ids):
            if await app.get(id_) is None:
                result.unknown.append(id_)
                continue
            try:
                name = await reroute_job(
                    app.engine, id_, to=to, labels=labels, expires_ms=expires_ms, by=person()
                )
            except UnknownQueue:
                raise unknown_worker(to or "") from None
            except UsageError as error:
                result.refused[id_] = str(error)
            else:
                result.changed.append(id_)
                result.notes[id_] = f"rerouted to {name}"
    return result.print("rerouted", common)


class ActResult:
    """The outcome of an act on several jobs, by id."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.unknown: list[str] = []
        self.refused: dict[str, str] = {}
        self.notes: dict[str, str] = {}

    def print(self, done: str, common: Common) -> int:
        """Print it; `done` is the word for a job that was changed. Returns the exit code."""
        if common.json:
            print_json({done: self.changed, "unknown": self.unknown, "refused": self.refused})
        else:
            for id_ in self.changed:
                print(f"{printable(id_, one_line=True)} {self.notes.get(id_, done)}")
        for id_, reason in self.refused.items():
            say(f"{id_} was not {done}: {reason}")
        if self.unknown:
            raise unknown_job(", ".join(self.unknown))
        return Exit.FAILED if self.refused else Exit.DONE


async def act_on_each(
    ids: list[str], act: Amendment, states: tuple[State, ...], *, done: str, common: Common
) -> int:
    """Act on each job that is in one of these states, and print the result."""
    async with open_app(common) as app:
        result = await amend_each(app, ids, act, states)
    return result.print(done, common)


async def amend_each(
    app: Holdfast, ids: list[str], act: Amendment, states: tuple[State, ...]
) -> ActResult:
    """Act on each job that is in one of these states."""
    result = ActResult()
    await act_in_turn(ids, lambda one: amend_job(app.engine, one, act, states), result)
    return result


async def act_in_turn(
    ids: list[str], act: Callable[[str], Awaitable[None]], result: ActResult
) -> None:
    """Act on each job and note the outcome."""
    for id_ in dict.fromkeys(ids):
        try:
            await act(id_)
        except NotFound:
            result.unknown.append(id_)
        except WrongState as error:
            result.refused[id_] = str(error)
        else:
            result.changed.append(id_)


async def read_job(app: Holdfast, id: str) -> tuple[Job, Queue | None]:
    """The complete job and its queue. Raises NotFound."""
    job = await app.get(id)
    if job is None:
        raise unknown_job(id)
    return job, (await queues.queue_settings(app.engine, [job.queue])).get(job.queue)


def unknown_job(ids: str) -> NotFound:
    """The error for ids that no job has."""
    return NotFound(f'no job has the id "{ids[:1000]}"; see "{program()} job list"')


def unknown_worker(name: str) -> NotFound:
    """The error for a worker that never registered."""
    return NotFound(
        f'unknown worker "{name[:80]}": no worker with this name has registered;'
        f' see "{program()} worker list"'
    )


async def job_views(app: Holdfast, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Complete jobs, as `job show --json` prints them."""
    return [plain(view) for view in await views.read_views(app.engine, jobs)]


def print_jobs(jobs: Iterable[Job]) -> None:
    """Print jobs as a table."""
    now = wall_ms()
    rows = [
        (
            job.id,
            job.queue,
            job_title(job),
            _state(job, now),
            job.attempt,
            job.priority,
            f"{show_age(max(now - job.created_at, 0))} ago",
            job.worker or "",
        )
        for job in jobs
    ]
    columns = ("id", "queue", "task", "state", "attempt", "priority", "enqueued", "worker")
    print_table(columns, rows, less=("priority", "worker", "attempt", "enqueued", "queue"))


def say_more(next_page: int | None) -> None:
    """Say how to continue a list that was cut off."""
    if next_page is not None:
        say(f"there may be more: continue with --after {next_page}")


def job_title(job: Job) -> str:
    """The task, or the command line of a command job."""
    payload = value_of(job.payload, job.content_type) if job.task == COMMAND_TASK else None
    line = command_of(payload) or job.task
    return line if len(line) <= 60 else f"{line[:59]}…"


def page_size(limit: int | None, common: Common) -> int:
    """The number of jobs to list: people read fewer than scripts do."""
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} is below 1")
    return limit or (1000 if common.json else 100)


def _print_timeline(job: Job) -> None:
    for event in timeline_of(job):
        parts = [event.text, failures.line(event.failure) if event.failure else ""]
        text = ": ".join(filter(None, parts))
        by = f" by {event.by}" if event.by else ""
        attempt = f" (attempt {event.attempt})" if event.attempt else ""
        line = f"  {show_at(event.at)} {event.kind}{attempt}{by}" + (f": {text}" if text else "")
        print(printable(line, one_line=True))


def user_trace(failure: Failure | None) -> list[str]:
    """The traceback of a failure without frames of libraries, indented and safe to print."""
    lines = [] if failure is None else failures.user_trace(failure.trace)
    return [f"  {printable(line, one_line=True)}" for line in lines if line.strip()]


def _few(ids: tuple[str, ...]) -> str:
    rest = len(ids) - _IDS_SHOWN
    return ", ".join(ids[:_IDS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _state(job: Job, now: int) -> str:
    word = show_state(job, now)
    if job.state is State.WAITING and job.due_at > now:
        return f"{word}, due in {show_age(job.due_at - now)}"
    return f"{word} ({job.reason})" if job.reason else word


def _when(cause: Cause, now: int) -> str:
    if cause.at is None:
        return ""
    apart = show_age(abs(cause.at - now))
    return f" [{show_at(cause.at)}, {f'in {apart}' if cause.at > now else f'{apart} ago'}]"


async def wait_for_job(app: Holdfast, id: str, wait_ms: int | None, common: Common) -> Exit:
    """Print the output of a job until it ends or the timeout passes."""

    def write(text: str) -> None:
        if not common.json:
            printer.write(text)

    def note_retry(event: Event, due_ms: int) -> None:
        printer.end()
        error = failures.line(event.failure) if event.failure else event.text
        soon = f"in {show_age(due_ms)}" if due_ms > 0 else "now"
        say(f"attempt {event.attempt} failed: {error}; the next one starts {soon}")

    printer = OutputPrinter()
    hint = asyncio.create_task(_hint_if_not_started(app, id))
    try:
        async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
            ended = await follow_output(app, id, write, note_retry)
    except TimeoutError:
        printer.end()
        say(f"{id} has not ended yet; it continues")
        return Exit.WAITING
    except asyncio.CancelledError:
        printer.end()
        say(f"{id} continues")
        raise
    finally:
        hint.cancel()
    printer.end()
    if common.json:
        print_json(plain(job_view(*await read_job(app, id))))
    elif ended.state is not State.DONE:
        _say_ending(ended)
    elif ended.result is not None and ended.task != COMMAND_TASK:
        print(printable(text_of(value_of(ended.result, codec.JSON)), one_line=True))
    return Exit.DONE if ended.state is State.DONE else Exit.UNDONE


class OutputPrinter:
    """Prints output of a job, and ends its last line before a note about the job."""

    def __init__(self) -> None:
        self._midline = False

    def write(self, text: str) -> None:
        """Print a piece of output."""
        print(printable(text), end="", flush=True)
        self._midline = not text.endswith("\n")

    def end(self) -> None:
        """End the line at a terminal; programs read the output unchanged."""
        if self._midline and sys.stdout.isatty():
            print(flush=True)
        self._midline = False


async def follow_output(
    app: Holdfast,
    id: str,
    write: Callable[[str], None],
    note_retry: Callable[[Event, int], None] = lambda _event, _due_ms: None,
) -> Job:
    """Write new output as it appears, and return the job when it has ended. `note_retry` gets each
    failure with another attempt, and the milliseconds until that is due.

    Stored output is bounded, so that between two reads a part may be lost; a new attempt starts
    with empty output.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    written, attempt = b"", 0
    pause_s = _POLL_S_FIRST
    while True:
        job, _ = await read_job(app, id)
        output = job.output or b""
        added = new_output(written, output)
        if added:
            write(decoder.decode(added))
        written = output or written
        for event in job.failures:
            if event.kind is EventKind.RETRIED and event.attempt > attempt:
                attempt = event.attempt
                note_retry(event, job.due_at - event.at if attempt == job.attempt else 0)
        if job.state.finished:
            rest = decoder.decode(b"", final=True)
            if rest:
                write(rest)
            return job
        await asyncio.sleep(pause_s)
        # Most jobs end quickly; a long one is polled less often.
        pause_s = min(pause_s * 1.5, _POLL_S_MAX)


def new_output(written: bytes, output: bytes) -> bytes:
    """The part of `output` that is not in `written` yet."""
    if output.startswith(written):
        return output[len(written) :]
    overlap = written[-_OVERLAP_BYTES:]
    # The middle of a long output is cut, which shifts its end.
    at = output.rfind(overlap) if len(overlap) == _OVERLAP_BYTES else -1
    return output if at < 0 else output[at + len(overlap) :]


async def _hint_if_not_started(app: Holdfast, id: str) -> None:
    """After a while, say why the job has not started."""
    await asyncio.sleep(_HINT_S)
    with contextlib.suppress(HoldfastError):
        job, _ = await read_job(app, id)
        if job.state is not State.WAITING or job.attempt:
            return
        now = (await examine(app.home.store)).now
        for cause in (await explain_job(app.engine, job, now))[:1]:
            say(f'still waiting: {cause.text}; see "{program()} job explain {id}"')


def _say_ending(job: Job) -> None:
    failure = job.failures[-1].failure if job.failures else None
    reason = f" ({job.reason})" if job.reason else ""
    error = f": {failures.title(failure)}" if failure else ""
    say(f"{job.id} is {job.state}{reason}{error}")
    for line in user_trace(failure):
        say(line)
