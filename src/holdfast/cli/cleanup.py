"""`holdfast cleanup`: finished jobs that are old enough, archived if asked, then deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.bulk import Archived, archive_all, count, delete_all, old_jobs
from holdfast.cli.guards import DryRun, Yes, can_ask, sure
from holdfast.cli.jobs import States
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.running import progress, running
from holdfast.core.text import counted
from holdfast.upkeep import Archive


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
    old = old_jobs(days, tuple(state) if state else None, queue)
    async with running(common) as app:
        if dry_run:
            found = await count(app.engine, old)
            if common.json:
                print_json({"found": found.number, "more": found.more, "deleted": 0})
            else:
                print(f"would delete {found}")
            return
        # A timetable has nobody to ask: there, --days says what is meant.
        if archive is None and not yes and can_ask():
            found = await count(app.engine, old)
            if found.number:
                sure(f"Delete {found} for good?", yes=yes)
        with progress("cleaning up") as advance:
            if archive is None:
                ended = Archived(await delete_all(app.engine, old, advance=advance))
            else:
                ended = await archive_all(app.engine, old, Archive(archive), advance=advance)
        deleted, archived = ended
    if common.json:
        print_json({"deleted": deleted, "archived": archived})
    else:
        told = f", {archived:,} kept in {archive}" if archive else ""
        print(f"deleted {counted(deleted, 'job')}{told}")
