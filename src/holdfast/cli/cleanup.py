"""`holdfast cleanup`: finished jobs that are old enough, archived if asked, then deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.bulk import batches, count
from holdfast.cli.guards import DryRun, Yes, can_ask, sure
from holdfast.cli.jobs import States
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.running import progress, running
from holdfast.core import limits
from holdfast.core.model import JobFilter, State
from holdfast.core.text import counted
from holdfast.errors import StorageFull, UsageError
from holdfast.upkeep import Archive
from holdfast.upkeep.pruner import delete_unchanged

_FINISHED = tuple(state for state in State if state.finished)
_BATCH = 100


async def cleanup(
    *,
    days: Annotated[float, Parameter(help="Those that ended at least so many days ago.")],
    archive: Annotated[
        Path | None, Parameter(help="Keep them in this file, a line of JSON each, first.")
    ] = None,
    state: States = None,
    queue: Annotated[str | None, Parameter(help="Of this queue alone.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete finished jobs that are old. A terminal is asked first, unless they are archived."""
    states = tuple(state) if state else _FINISHED
    if not set(states) <= set(_FINISHED):
        raise UsageError("only finished jobs are cleaned up: done, dead or cancelled")
    if not 0 <= days <= limits.RETENTION_MS_MAX / limits.DAY_MS:
        raise UsageError(f"days {days:g} is not 0 to {limits.RETENTION_MS_MAX // limits.DAY_MS}")
    old = JobFilter(queue=queue, states=states, finished_before_ms=round(days * limits.DAY_MS))
    async with running(common) as app:
        if dry_run:
            found = await count(app, old)
            if common.json:
                print_json({"found": found.number, "more": found.more, "deleted": 0})
            else:
                print(f"would delete {found}")
            return
        # A timetable has nobody to ask: there, --days says what is meant.
        if archive is None and not yes and can_ask():
            found = await count(app, old)
            if found.number:
                sure(f"Delete {found} for good?", yes=yes)
        deleted, archived = await _delete(app, old, None if archive is None else Archive(archive))
    if common.json:
        print_json({"deleted": deleted, "archived": archived})
    else:
        kept = f", {archived:,} kept in {archive}" if archive else ""
        print(f"deleted {counted(deleted, 'job')}{kept}")


async def _delete(app: Holdfast, old: JobFilter, archive: Archive | None) -> tuple[int, int]:
    """A job is deleted only as it was archived: one that was retried meanwhile stays."""
    deleted = archived = 0
    with progress("cleaning up") as advance:
        async for page in batches(app, old, _BATCH):
            jobs = list(page)
            if archive is not None:
                whole = await asyncio.gather(*(app.get(job.id) for job in jobs))
                jobs = [job for job in whole if job is not None and job.state.finished]
                try:
                    await asyncio.to_thread(archive.write, jobs)
                except OSError as error:
                    raise StorageFull(
                        f"{archive.path} cannot be written ({error.strerror}): "
                        f"{counted(deleted, 'job')} deleted before, and no other"
                    ) from error
                archived += len(jobs)
            deleted += await delete_unchanged(app.engine, jobs)
            advance(len(jobs))
    return deleted, archived
