"""Run the runner fleet on AWS: terminations and housekeeping.

The modules that need boto3 are imported when a command runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from holdfast import ConfigError, Exists, Holdfast, NotFound
from holdfast_fleet.model import TASK_TYPES, TaskType
from holdfast_fleet.settings import FleetSettings

if TYPE_CHECKING:
    from holdfast_fleet.housekeeping import TaskReport
    from holdfast_fleet.tasks import Fleet

COMMANDS: Final = (
    ("run", "holdfast_fleet.commands:run"),
    ("task", "holdfast_fleet.commands:task"),
    ("audit", "holdfast_fleet.commands:audit"),
)
_CONTROL: Final = "sqlite:///holdfast.db"
_SHOWN_MAX: Final = 20
_VERBS: Final = {
    "terminate_instance": "terminate instance {instance_id}",
    "delete_parameter": "delete parameter {name}",
    "delete_job": "delete the record of job {job_id}",
}

Url = Annotated[
    str | None,
    Parameter(
        metavar="URL",
        help="Store of the data that workers share, e.g. postgresql://host/name.",
    ),
]
Json = Annotated[bool, Parameter(help="Print only JSON.", negative=())]
DryRun = Annotated[bool, Parameter(help="Print the plan and do nothing.", negative=())]
Hours = Annotated[
    float,
    Parameter(metavar="N", help="Add up the costs of the last N hours (pool_audit).", negative=()),
]


def run(
    *,
    dry_run: DryRun = False,
    schedule: Annotated[
        bool,
        Parameter(
            help="Also enqueue housekeeping regularly, instead of scheduled rules on AWS.",
            negative=(),
        ),
    ] = False,
    url: Url = None,
    json: Json = False,
) -> int:
    """Process the messages of the termination and housekeeping queues on SQS until stopped.

    The settings are environment variables such as RUNS_FLEET_TERMINATION_QUEUE_URL. Any number of
    these processes may run. After the first SIGTERM, a process finishes its current messages.
    """
    fleet = _fleet()
    settings = fleet.settings
    fleet.aws.check()
    engine_url = settings.engine_url(url or os.environ.get("HOLDFAST_URL") or _CONTROL)
    asyncio.run(_check_queues(engine_url, settings, schedule=schedule and not dry_run))
    if dry_run:
        reports = [fleet.keep_house(each, job="", dry_run=True) for each in TASK_TYPES]
        return _print(reports, json=json)
    from holdfast_fleet.tasks import SLOTS, app

    return app.run_worker(
        url=engine_url,
        queues={settings.termination_queue: 1, settings.housekeeping_queue: 1},
        # A message can name its task: it must not be able to run a command.
        commands=False,
        # One process, because it bounds the terminations that run at the same time.
        processes=1,
        concurrency=SLOTS,
        prefetch=10,
        job_lines=not json,
    )


def task(
    name: Annotated[TaskType, Parameter(help="Task to run.")],
    /,
    *,
    dry_run: DryRun = False,
    hours: Hours = 24.0,
    url: Url = None,  # noqa: ARG001 (every command takes it)
    json: Json = False,
) -> int:
    """Run one housekeeping task now.

    It takes the same lock as tasks that messages start, so only one of each kind runs at a time.
    """
    if not 0 < hours <= 24 * 366:
        raise ConfigError(f"--hours {hours:g}: expected a number above 0, at most {24 * 366}")
    report = _fleet().keep_house(name, job="", hours=hours, dry_run=dry_run)
    return _print([report], json=json)


def audit(*, hours: Hours = 24.0, url: Url = None, json: Json = False) -> int:
    """Print the report on all pools without publishing it."""
    return task("pool_audit", dry_run=True, hours=hours, url=url, json=json)


def _fleet() -> Fleet:
    settings = FleetSettings.from_environment()
    try:
        from holdfast_fleet.tasks import Fleet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the fleet needs the package {error.name}: pip install 'holdfast[aws]'"
        ) from None
    return Fleet(settings)


async def _check_queues(engine_url: str, settings: FleetSettings, *, schedule: bool) -> None:
    """Raise NotFound if a queue is missing; with `schedule`, store the schedules."""
    queues = {
        settings.termination_queue: ("RUNS_FLEET_TERMINATION_QUEUE_URL", settings.termination),
        settings.housekeeping_queue: ("RUNS_FLEET_HOUSEKEEPING_QUEUE_URL", settings.housekeeping),
    }
    async with Holdfast(engine_url) as store:
        found = {view.queue.name for view in await store.queues(names=queues, counts=False)}
        for queue, (variable, address) in queues.items():
            if queue not in found:
                raise NotFound(
                    f"{variable}: no queue {address.name} in {address.region} of this account:"
                    " create it, or correct the URL and the credentials"
                )
        if schedule:
            await _store_schedules(store, settings.housekeeping_queue)


async def _store_schedules(store: Holdfast, queue: str) -> None:
    from holdfast_fleet.tasks import schedules

    for each in schedules(queue):
        try:
            await store.schedules.add(each)
        except Exists:
            await store.schedules.edit(each.name, cron=each.cron, job=each.job)


def _print(reports: list[TaskReport], *, json: bool) -> int:
    if json:
        views = [msgspec.to_builtins(each) for each in reports]
        print(dumps(views[0] if len(views) == 1 else views), flush=True)
    else:
        for each in reports:
            _print_report(each)
    return 1 if any(each.failed or each.truncated for each in reports) else 0


def _print_report(report: TaskReport) -> None:
    if report.markdown:
        print(report.markdown)
    else:
        count = len(report.actions) if report.dry_run else report.done
        print(f"{report.task}: {count} {'to do' if report.dry_run else 'done'}")
    if report.dry_run:
        for action in report.actions:
            fields: dict[str, Any] = msgspec.to_builtins(action)
            print(f"  would {_VERBS[fields['type']].format_map(fields)}: {fields['why']}")
    _print_skipped([f"{each.subject}: {each.why}" for each in report.kept])
    for subject, why in report.failed.items():
        print(f"{report.task}: {subject}: {why}", file=sys.stderr)
    if report.truncated:
        print(f"{report.task}: truncated: it ran out of time", file=sys.stderr)


def _print_skipped(lines: list[str]) -> None:
    for line in lines[:_SHOWN_MAX]:
        print(f"  left {ascii(line)[1:-1]}")
    if len(lines) > _SHOWN_MAX:
        print(f"  and {len(lines) - _SHOWN_MAX} more")
