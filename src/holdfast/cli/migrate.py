"""`holdfast migrate-data`: all jobs of one store into another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.checkup import examine
from holdfast.cli.exits import Exit
from holdfast.cli.guards import DryRun
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program
from holdfast.cli.running import is_missing, progress, running
from holdfast.core.model import Job
from holdfast.core.text import counted
from holdfast.durations import to_ms
from holdfast.errors import Unsupported, UsageError
from holdfast.moving import Migration, Moved, Side, Survey, reopen
from holdfast.upkeep import wall_ms


async def migrate_data(
    *,
    source: Annotated[
        str | None, Parameter(name="--from", help="Where the jobs are now; else --url.")
    ] = None,
    target: Annotated[
        str | None, Parameter(name="--to", help="Where they go: a store without jobs.")
    ] = None,
    wait: Annotated[str, Parameter(help="Wait so long for jobs that run.")] = "5m",
    back: Annotated[
        bool,
        Parameter(
            name="--reopen",
            help="Give it up: open the queues of --from as they were.",
            negative=(),
        ),
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> int:
    """Move everything to another store: jobs with their past, keys, schedules, settings.

    The queues of the old store are closed first and jobs that run are waited for; nothing else is
    changed there. The new store is compared with the old one, job by job, before it is opened.
    What was cut short goes on when it is run again.
    """
    wait_ms = to_ms("wait", wait, UsageError)
    for url in (source or common.url, target):
        # Before anything is opened, and so made.
        _mover(Holdfast(url) if url else Holdfast())
    async with running(Common(url=source or common.url)) as old:
        if back:
            return _reopened(await reopen(old.engine), common)
        if target is None:
            raise UsageError("--to is missing: the url of a store without jobs")
        if Holdfast(target).url == old.url:
            raise UsageError(f"--from and --to are both {old.place}: give two stores")
        if dry_run and await is_missing(target):
            # It would be made, and be as empty.
            target = "memory:"
        async with running(Common(url=target), create=True) as new:
            skew_ms = (await examine(old.home.store)).now - wall_ms()
            migration = Migration(_side(old), _side(new), lambda: wall_ms() + skew_ms)
            survey = await migration.survey()
            if dry_run:
                return _surveyed(survey, common)
            return await _move(migration, survey, wait_ms, common)


async def _move(migration: Migration, survey: Survey, wait_ms: int, common: Common) -> int:
    if survey.is_done:
        return _told(Moved(jobs=survey.jobs), common, "was moved before")
    await migration.begin()
    leased = await migration.drain(wait_ms=wait_ms, tell=_draining(common))
    if leased:
        return _waits(leased, common)
    total = None if survey.more else survey.jobs
    with progress("moving", total) as copied:
        await migration.copy(copied)
    with progress("comparing", total) as compared:
        moved = await migration.compare(compared)
    return _told(moved, common)


def _side(app: Holdfast) -> Side:
    return Side(app.engine, _mover(app)(), app.place)


def _mover(app: Holdfast) -> Any:
    mover = getattr(app.home.store, "mover", None)
    if mover is None:
        name = app.home.store.traits.name
        raise Unsupported(name, "migrate-data, neither from it nor to it")
    return mover


def _draining(common: Common) -> Callable[[int], None]:
    """A line whenever the number of jobs that run has changed."""
    told = 0

    def tell(leased: int) -> None:
        nonlocal told
        if leased != told and not common.json:
            run = "runs" if leased == 1 else "run"
            say(f"the queues are closed; waiting for {counted(leased, 'job')} that {run}")
        told = leased

    return tell


def _reopened(queues: list[str], common: Common) -> int:
    if common.json:
        print_json({"reopened": queues})
    else:
        are = "is" if len(queues) == 1 else "are"
        print(
            f"{counted(len(queues), 'queue')} {are} open again as before;"
            " what was copied is left alone"
        )
    return Exit.DONE


def _surveyed(survey: Survey, common: Common) -> int:
    if common.json:
        print_json(
            {
                "jobs": survey.jobs,
                "more": survey.more,
                "states": {state.value: count for state, count in survey.states.items()},
                "queues": survey.queues,
                "leased": list(survey.leased),
                "resumes": survey.resumes,
                "refusal": survey.refusal,
            }
        )
    elif survey.refusal:
        print(f"would move nothing: {survey.refusal}")
    else:
        states = ", ".join(f"{count} {state}" for state, count in survey.states.items() if count)
        least = "at least " if survey.more else ""
        begun = " and go on with what was begun" if survey.resumes else ""
        jobs, queues = counted(survey.jobs, "job"), counted(survey.queues, "queue")
        print(f"would move {least}{jobs}{f' ({states})' if states else ''} of {queues}{begun}")
        if survey.leased:
            print(f"would wait for jobs that run: {', '.join(survey.leased)}")
    return Exit.USAGE if survey.refusal else Exit.DONE


def _waits(leased: list[Job], common: Common) -> int:
    if common.json:
        print_json({"moved": 0, "verified": False, "leased": [job.id for job in leased]})
    else:
        named = ", ".join(f"{job.id} (worker {job.worker or 'unnamed'})" for job in leased)
        print(f"nothing was moved: still running are {named}")
        say("run it again to wait longer, or ask their workers to stop")
        _say_way_back()
    return Exit.WAITING


def _told(moved: Moved, common: Common, how: str = "") -> int:
    found = moved.comparison
    if common.json:
        print_json(_view(moved))
    elif not moved.is_verified:
        assert found is not None
        jobs, things = counted(moved.jobs, "job"), counted(found.wrong_count, "difference")
        print(f"moved {jobs}, with {things}:")
        for text in found.wrong:
            print(f"  {text}")
        say("the new store stays shut: empty it, or give another, and move once more")
        _say_way_back()
    else:
        schedules = moved.records.get("schedule", 0)
        ended = f"; {found.ended} ended meanwhile by upkeep" if found and found.ended else ""
        rest = f", {counted(schedules, 'schedule')}" if schedules else ""
        jobs = counted(moved.jobs, "job")
        print(f"moved {jobs}{rest}; verified{ended}" if not how else f"all {how}")
        say("start workers on the new store; the queues of the old one stay closed")
        _say_way_back()
    return Exit.DONE if moved.is_verified else Exit.FAILED


def _say_way_back() -> None:
    say(f"the way back: {program()} migrate-data --from OLD --reopen")


def _view(moved: Moved) -> dict[str, Any]:
    found = moved.comparison
    view: dict[str, Any] = {"moved": moved.jobs, "verified": moved.is_verified}
    if found is not None:
        view |= {
            "states": {
                state.value: {"count": each.count, "checksum": each.checksum}
                for state, each in sorted(found.target.items())
            },
            "keys": found.keys,
            "records": moved.records,
            "ended": found.ended,
            "differences": found.wrong,
            "difference_count": found.wrong_count,
        }
    return view
