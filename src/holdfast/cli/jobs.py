"""`holdfast list`, `holdfast job list`, `job show`, `job explain` and `job timeline`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast import reading
from holdfast.app import Holdfast
from holdfast.checkup import examine
from holdfast.cli.exits import NotFound
from holdfast.cli.filters import WHICH, Which
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.core.causes import Cause
from holdfast.core.model import Job, Queue, State
from holdfast.core.text import printable
from holdfast.core.timeline import timeline as told
from holdfast.durations import show_at
from holdfast.errors import UsageError
from holdfast.explaining import explain_job, explain_waits
from holdfast.upkeep import wall_ms
from holdfast.views.jobs import explanation, job_view, timeline_view
from holdfast.views.values import COMMAND, command_of, plain, text_of, value_of

States = Annotated[
    list[State] | None, Parameter(help="In this state; may be repeated.", negative=())
]
Id = Annotated[str, Parameter(help="The id of the job.")]
Limit = Annotated[int | None, Parameter(help="At most so many; 100, or 1000 with --json.")]
After = Annotated[int | None, Parameter(help="Go on where the last list ended.")]
_IDS_SHOWN = 5
_HIDDEN = ("failures", "output", "trace")
_ALSO_ZERO = ("attempts", "exit_code")


async def list_all(
    *,
    state: States = None,
    which: Which = WHICH,
    limit: Limit = None,
    after: After = None,
    common: Common = COMMON,
) -> None:
    """List jobs, newest first."""
    async with running(common) as app:
        wanted = which.wanted(tuple(state) if state else None)
        jobs, rest = await reading.some(app.engine, wanted, limit_of(limit, common), after)
        if common.json:
            print_json(await views_of(app, jobs))
    if not common.json:
        print_jobs(jobs)
        if not jobs:
            say("no job fits")
    if rest is not None:
        say(f"there may be more: --after {rest}")


async def show(id: Id, /, *, common: Common = COMMON) -> None:
    """Show one job and what happened to it."""
    async with running(common) as app:
        job, queue = await read(app, id)
        now = (await examine(app.home.store)).now
        waits, causes = await explain_waits(app.engine, job, now)
    view = plain(job_view(job, queue, waits))
    if common.json:
        print_json(view)
        return
    view["after"] = _few(job.after)
    said = (cause.text.removeprefix("it waits for ") + _when(cause, now) for cause in causes)
    view["waits_for"] = "; ".join(said)
    for name, value in view.items():
        told = value not in ({}, "", False) or name in _ALSO_ZERO
        if name not in _HIDDEN and value is not None and told:
            print(f"{name:16}  {printable(text_of(value), one_line=True)}")
    print("timeline")
    _print_timeline(job)
    if job.output:
        print("output")
        print(printable(job.output.decode(errors="replace").removesuffix("\n")))


async def timeline(id: Id, /, *, common: Common = COMMON) -> None:
    """Show what happened to a job, oldest first."""
    async with running(common) as app:
        job, _ = await read(app, id)
    if common.json:
        print_json([plain(event) for event in timeline_view(job)])
    else:
        _print_timeline(job)


async def explain(id: Id, /, *, common: Common = COMMON) -> None:
    """Say why a job is not running, and what would change it."""
    async with running(common) as app:
        job, _ = await read(app, id)
        now = (await examine(app.home.store)).now
        causes = await explain_job(app.engine, job, now)
    if common.json:
        print_json(plain(explanation(job, causes)))
        return
    print(f"{job.id} is {job.state}")
    for number, cause in enumerate(causes, 1):
        print(printable(f"{number}. {cause.text}{_when(cause, now)}", one_line=True))
        if cause.remedy:
            print(printable(f"   {cause.remedy}{_how(cause)}", one_line=True))


async def read(app: Holdfast, id: str) -> tuple[Job, Queue | None]:
    """The whole job and the queue it is in."""
    job = await app.get(id)
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}: see {program()} job list")
    return job, (await reading.queues_of(app.engine)).get(job.queue)


async def views_of(app: Holdfast, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Whole jobs, as `show` has them."""
    return [plain(view) for view in await reading.views_of(app.engine, jobs)]


def print_jobs(jobs: Iterable[Job]) -> None:
    now = wall_ms()
    rows = [
        (
            job.id,
            job.queue,
            doing(job),
            _state(job, now),
            job.attempt,
            job.priority,
            f"{show_age(max(now - job.created_at, 0))} ago",
            job.worker or "",
        )
        for job in jobs
    ]
    columns = ("id", "queue", "task", "state", "attempt", "priority", "enqueued", "worker")
    print_table(columns, rows)


def doing(job: Job) -> str:
    """The task, or what a command job runs."""
    payload = value_of(job.payload, job.content_type) if job.task == COMMAND else None
    line = command_of(payload) or job.task
    return line if len(line) <= 60 else f"{line[:59]}…"


def limit_of(limit: int | None, common: Common) -> int:
    """People read less than scripts do."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit} is below 1")
    return limit or (1000 if common.json else 100)


def _print_timeline(job: Job) -> None:
    for event in told(job):
        said = [event.text, event.failure.message if event.failure else ""]
        text = ": ".join(filter(None, said))
        by = f" by {event.by}" if event.by else ""
        attempt = f" (attempt {event.attempt})" if event.attempt else ""
        line = f"  {show_at(event.at)} {event.kind}{attempt}{by}" + (f": {text}" if text else "")
        print(printable(line, one_line=True))


def _few(ids: tuple[str, ...]) -> str:
    rest = len(ids) - _IDS_SHOWN
    return ", ".join(ids[:_IDS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _state(job: Job, now: int) -> str:
    if job.state is State.WAITING and job.due_at > now:
        return f"waiting, due in {show_age(job.due_at - now)}"
    return f"{job.state} ({job.reason})" if job.reason else str(job.state)


def _when(cause: Cause, now: int) -> str:
    if cause.at is None:
        return ""
    apart = show_age(abs(cause.at - now))
    return f" [{show_at(cause.at)}, {f'in {apart}' if cause.at > now else f'{apart} ago'}]"


def _how(cause: Cause) -> str:
    return f": {program()} {cause.command}" if cause.command else ""
