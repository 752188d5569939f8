"""`holdfast enqueue --wait`: what the job prints, how it ended, and why it has not started."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.app import Holdfast
from holdfast.checkup import examine
from holdfast.cli.exits import Exit
from holdfast.cli.jobs import read
from holdfast.cli.logs import Shown, follow_output
from holdfast.cli.output import Common, print_json, say
from holdfast.cli.pages import program
from holdfast.core.model import Job, State
from holdfast.errors import HoldfastError
from holdfast.explaining import explain_job
from holdfast.views.jobs import job_view
from holdfast.views.values import plain

_HINT_S = 3


async def wait_for(app: Holdfast, id: str, wait_ms: int | None, common: Common) -> Exit:
    """Show what the job prints, until it has ended or time is up."""

    def write(text: str) -> None:
        if not common.json:
            shown.write(text)

    shown = Shown()
    hint = asyncio.create_task(_tell_why_not(app, id))
    try:
        async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
            ended = await follow_output(app, id, write)
    except TimeoutError:
        shown.end()
        say(f"{id} has not ended yet; it goes on")
        return Exit.WAITING
    except asyncio.CancelledError:
        shown.end()
        say(f"{id} goes on")
        raise
    finally:
        hint.cancel()
    shown.end()
    if common.json:
        print_json(plain(job_view(*await read(app, id))))
    elif ended.state is not State.DONE:
        say(_ending(ended))
    return Exit.DONE if ended.state is State.DONE else Exit.UNDONE


async def _tell_why_not(app: Holdfast, id: str) -> None:
    """To whoever waits for a job that nobody starts."""
    await asyncio.sleep(_HINT_S)
    with contextlib.suppress(HoldfastError):
        job, _ = await read(app, id)
        if job.state is not State.WAITING or job.attempt:
            return
        now = (await examine(app.home.store)).now
        for cause in (await explain_job(app.engine, job, now))[:1]:
            say(f"still waiting: {cause.text} ({program()} job explain {id} says more)")


def _ending(job: Job) -> str:
    failure = job.failures[-1].failure if job.failures else None
    reason = f" ({job.reason})" if job.reason else ""
    return f"{job.id} is {job.state}{reason}" + (f": {failure.message}" if failure else "")
