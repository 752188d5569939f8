"""`holdfast move-store`: move all data of one store to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from holdfast.app.application import Holdfast
from holdfast.cli.flags import DryRun, option, switch
from holdfast.cli.help_pages import program
from holdfast.cli.output import COMMON, Common, Exit, print_json, progress, say
from holdfast.cli.session import is_missing, open_app
from holdfast.core.model import Job
from holdfast.core.text import counted
from holdfast.engines.extras import Movable, extra
from holdfast.errors import Unsupported, UsageError
from holdfast.notation.durations import to_ms
from holdfast.ops.doctor import examine
from holdfast.ops.migrate.migration import Migration, MigrationResult, MigrationSurvey
from holdfast.ops.migrate.progress import Side
from holdfast.ops.migrate.steps import reopen
from holdfast.process import wall_ms


async def move_store(
    *,
    source: Annotated[
        str | None, option("URL", "Store to move from. [default: --url]", "--from")
    ] = None,
    target: Annotated[
        str | None, option("URL", "Store to move to; it must have no jobs.", "--to")
    ] = None,
    wait: Annotated[str, option("DURATION", "Wait this long for running jobs to end.")] = "5m",
    give_up: Annotated[
        bool, switch("Cancel the move: reopen the queues of --from.", "--reopen")
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> int:
    """Move all jobs, keys, schedules and settings to another store.

    It closes the queues of the old store and waits for running jobs; it changes nothing else there.
    Before it opens the new store, it compares the two, job by job. To continue an interrupted
    move, run the command again.
    """
    wait_ms = to_ms("--wait", wait, UsageError)
    for url in (source or common.url, target):
        # Checked before anything is opened, because opening creates a store.
        _movable(Holdfast(url) if url else Holdfast())
    async with open_app(Common(url=source or common.url)) as old:
        if give_up:
            return _print_reopened(await reopen(old.engine), common)
        if target is None:
            raise UsageError("--to is missing: give the URL of a store without jobs")
        if Holdfast(target).url == old.url:
            raise UsageError(f"--from and --to are both {old.place}: give two stores")
        if dry_run and await is_missing(target):
            # A new store would be as empty as this one, and is not created by a dry run.
            target = "memory:"
        async with open_app(Common(url=target), create=True) as new:
            skew_ms = (await examine(old.home.store)).now - wall_ms()
            migration = Migration(_side(old), _side(new), lambda: wall_ms() + skew_ms)
            survey = await migration.survey()
            if dry_run:
                return _print_survey(survey, common)
            return await _migrate(migration, survey, wait_ms, common)


async def _migrate(
    migration: Migration, survey: MigrationSurvey, wait_ms: int, common: Common
) -> int:
    if survey.is_done:
        return _print_moved(MigrationResult(jobs=survey.jobs), common, already=True)
    await migration.begin()
    leased = await migration.drain(wait_ms=wait_ms, tell=_say_draining(common))
    if leased:
        return _print_still_running(leased, common)
    total = None if survey.more else survey.jobs
    with progress("moving", total) as copied:
        await migration.copy(copied)
    with progress("comparing", total) as compared:
        moved = await migration.compare(compared)
    return _print_moved(moved, common)


def _side(app: Holdfast) -> Side:
    return Side(app.engine, _movable(app).mover(), app.place)


def _movable(app: Holdfast) -> Movable:
    movable = extra(app.engine, Movable)
    if movable is None:
        feature = "move-store, neither from it nor to it"
        remedy = "give the URL of the SQLite file or of the PostgreSQL database itself"
        raise Unsupported(app.engine.traits.name, feature, remedy)
    return movable


def _say_draining(common: Common) -> Callable[[int], None]:
    """A callback that prints the number of running jobs whenever it changes."""
    last = 0

    def tell(leased: int) -> None:
        nonlocal last
        if leased != last and not common.json:
            say(f"the queues are closed; waiting for {counted(leased, 'running job')}")
        last = leased

    return tell


def _print_reopened(queues: list[str], common: Common) -> int:
    if common.json:
        print_json({"reopened": queues})
    else:
        are = "is" if len(queues) == 1 else "are"
        print(
            f"{counted(len(queues), 'queue')} {are} open again; "
            "the copied data stays in the new store"
        )
    return Exit.DONE


def _print_survey(survey: MigrationSurvey, common: Common) -> int:
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
        begun = " and continue an interrupted move" if survey.resumes else ""
        jobs, queues = counted(survey.jobs, "job"), counted(survey.queues, "queue")
        print(f"would move {least}{jobs}{f' ({states})' if states else ''} of {queues}{begun}")
        if survey.leased:
            print(f"would wait for running jobs: {', '.join(survey.leased)}")
    return Exit.USAGE if survey.refusal else Exit.DONE


def _print_still_running(leased: list[Job], common: Common) -> int:
    if common.json:
        print_json({"moved": 0, "verified": False, "leased": [job.id for job in leased]})
    else:
        named = ", ".join(f"{job.id} (worker {job.worker or 'unnamed'})" for job in leased)
        print(f"nothing was moved: still running: {named}")
        say("run the command again to wait longer, or stop their workers")
        _say_how_to_cancel()
    return Exit.WAITING


def _print_moved(moved: MigrationResult, common: Common, *, already: bool = False) -> int:
    found = moved.comparison
    if common.json:
        print_json(_view(moved))
    elif not moved.is_verified:
        assert found is not None
        jobs, wrong = counted(moved.jobs, "job"), counted(found.wrong_count, "difference")
        print(f"moved {jobs}, with {wrong}:")
        for text in found.wrong:
            print(f"  {text}")
        say("the new store stays closed: empty it or choose another one, and move everything again")
        _say_how_to_cancel()
    else:
        schedules = moved.records.get("schedule", 0)
        ended = f"; upkeep ended {found.ended} during the move" if found and found.ended else ""
        rest = f", {counted(schedules, 'schedule')}" if schedules else ""
        jobs = counted(moved.jobs, "job")
        print("everything was already moved" if already else f"moved {jobs}{rest}; verified{ended}")
        say("start workers on the new store; the queues of the old one stay closed")
        _say_how_to_cancel()
    return Exit.DONE if moved.is_verified else Exit.FAILED


def _say_how_to_cancel() -> None:
    say(f'to go back to the old store: "{program()} move-store --from OLD --reopen"')


def _view(moved: MigrationResult) -> dict[str, Any]:
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
