"""`holdfast job logs`: what a job printed, and what it prints while it runs."""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.jobs import Id, read
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.running import running
from holdfast.core.model import Job
from holdfast.core.text import printable
from holdfast.views.jobs import output_view
from holdfast.views.values import plain

_LOOK_S_FIRST, _LOOK_S_MAX = 0.02, 0.25
_SEAM_BYTES = 256


async def logs(
    id: Id,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Until the job ends.", negative=())
    ] = False,
    common: Common = COMMON,
) -> None:
    """Show what a job printed."""

    def write(text: str) -> None:
        if common.json:
            print_json({"output": text})
        else:
            shown.write(text)

    shown = Shown()
    async with running(common) as app:
        if follow:
            job = await follow_output(app, id, write)
            said = f"{job.id} is {job.state}" + (f" ({job.reason})" if job.reason else "")
            if common.json:
                print_json({"id": job.id, "state": str(job.state)})
            else:
                shown.end()
                say(said)
            return
        job, _ = await read(app, id)
    output = (job.output or b"").decode(errors="replace")
    if common.json:
        print_json(plain(output_view(job)))
    elif output:
        print(printable(output), end="" if output.endswith("\n") else "\n")
    else:
        say(f"{job.id} has printed nothing")


class Shown:
    """Output on its way to a person, who reads what is said of the job below it."""

    def __init__(self) -> None:
        self._midline = False

    def write(self, text: str) -> None:
        print(printable(text), end="", flush=True)
        self._midline = not text.endswith("\n")

    def end(self) -> None:
        """At a terminal the next line is a new one; what a program reads stays as it is."""
        if self._midline and sys.stdout.isatty():
            print(flush=True)
        self._midline = False


async def follow_output(app: Holdfast, id: str, write: Callable[[str], None]) -> Job:
    """Write what the job prints as it comes; the job when it has ended.

    What is kept of an output is bounded, so that more than is kept may be missing between two
    looks; a new attempt begins anew.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen = b""
    pause_s = _LOOK_S_FIRST
    while True:
        job, _ = await read(app, id)
        output = job.output or b""
        fresh = grown(seen, output)
        if fresh:
            write(decoder.decode(fresh))
        seen = output or seen
        if job.state.finished:
            rest = decoder.decode(b"", final=True)
            if rest:
                write(rest)
            return job
        await asyncio.sleep(pause_s)
        # Most jobs are over at once; one that is not may take long.
        pause_s = min(pause_s * 1.5, _LOOK_S_MAX)


def grown(seen: bytes, output: bytes) -> bytes:
    """What of `output` was not there yet when it was `seen`."""
    if output.startswith(seen):
        return output[len(seen) :]
    seam = seen[-_SEAM_BYTES:]
    # The middle of a long output is left out, so that its end moves up.
    at = output.rfind(seam) if len(seam) == _SEAM_BYTES else -1
    return output if at < 0 else output[at + len(seam) :]
