"""The four housekeeping tasks: read the facts, plan, check again, act, count.

Each is bounded in time and safe to repeat: a run that is killed leaves the rest to the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast_fleet import metrics
from holdfast_fleet.aws import INSTANCES_FILTER, AwsFleet, Deadline, Item, read_job
from holdfast_fleet.metrics import Metric
from holdfast_fleet.model import (
    Action,
    DeleteJob,
    DeleteParameter,
    Instance,
    Parameter,
    PoolReport,
    SkippedSubject,
    TaskType,
    TerminateInstance,
    instance_of,
    iso_of,
)
from holdfast_fleet.plan import (
    LIVING,
    RETENTION_S,
    audit_pools,
    plan_old_jobs,
    plan_orphans,
    plan_parameters,
)
from holdfast_fleet.report import markdown
from holdfast_fleet.settings import FleetSettings

LIMIT_S: Final = 5 * 60
TERMINATE_BATCH: Final = 20
"""Instances that are checked once more, and then terminated, in one call."""
_ALL_STATES: Final = ("pending", "running", "stopping", "stopped", "shutting-down")

Publish = Callable[[Sequence[Metric]], None]


class TaskReport(msgspec.Struct, kw_only=True):
    """The outcome of one run. `done` counts what this run itself changed, `failed` holds the error
    by subject. A truncated run ran out of time, and left the rest to the next one."""

    task: TaskType
    dry_run: bool = False
    truncated: bool = False
    done: int = 0
    actions: list[Action] = []
    kept: list[SkippedSubject] = []
    failed: dict[str, str] = {}
    pools: list[PoolReport] = []
    markdown: str = ""


class Run:
    """One run of a task. A dry run reads and plans, and changes nothing."""

    def __init__(
        self,
        task: TaskType,
        settings: FleetSettings,
        aws: AwsFleet,
        publish: Publish,
        *,
        dry_run: bool = False,
        hours: float = 24.0,
        deadline: Deadline | None = None,
    ) -> None:
        self._settings = settings
        self._aws = aws
        self._publish = publish
        self._hours = hours
        self._deadline = deadline or Deadline(LIMIT_S)
        self.report = TaskReport(task=task, dry_run=dry_run)

    def run(self) -> TaskReport:
        """Run the task until it is done or its time is over."""
        match self.report.task:
            case "orphaned_instances":
                self._orphaned_instances()
            case "stale_ssm":
                self._stale_ssm()
            case "old_jobs":
                self._old_jobs()
            case "pool_audit":
                self._pool_audit()
        return self.report

    def _orphaned_instances(self) -> None:
        found = self._managed(sorted(LIVING))
        first = self._plan_orphans(found)
        ids = [each.instance_id for each in first if isinstance(each, TerminateInstance)]
        if self.report.dry_run:
            return
        for start in range(0, len(ids), TERMINATE_BATCH):
            if self._is_over():
                break
            self.report.done += self._terminate(ids[start : start + TERMINATE_BATCH])
        self._count("OrphanedInstancesTerminated")

    def _terminate(self, ids: Sequence[str]) -> int:
        """Read everything anew, and terminate those that still are orphans. EC2 has no conditional
        call: a job that is assigned after this read is lost with its instance."""
        fresh = list(self._aws.instances(ids).values())
        jobs = self._aws.active_jobs(self._deadline)
        plan = plan_orphans(
            fresh, jobs, now=self._aws.now(), max_runtime_s=self._settings.max_runtime_s
        )
        self.report.kept += plan.kept
        still = [each.instance_id for each in plan.actions if isinstance(each, TerminateInstance)]
        if not still:
            return 0
        ended, failed = self._aws.terminate(still)
        self.report.failed |= failed
        return len(ended)

    def _plan_orphans(self, instances: Sequence[Instance]) -> Sequence[Action]:
        jobs = self._aws.active_jobs(self._deadline)
        if jobs is None:
            self.report.truncated = True
        plan = plan_orphans(
            instances, jobs, now=self._aws.now(), max_runtime_s=self._settings.max_runtime_s
        )
        self.report.actions += plan.actions
        self.report.kept += plan.kept
        return plan.actions

    def _stale_ssm(self) -> None:
        # All pages first: a deletion between two of them may shift the next one.
        found: list[Parameter] = []
        for page in self._aws.parameters():
            found += page
            if self._is_over():
                break
        for start in range(0, len(found), INSTANCES_FILTER):
            if self._is_over():
                break
            self._delete_stale(found[start : start + INSTANCES_FILTER])
        self._count("SSMParametersDeleted")

    def _delete_stale(self, parameters: Sequence[Parameter]) -> None:
        ids = [id_ for each in parameters if (id_ := instance_of(each.name)) is not None]
        plan = plan_parameters(parameters, self._aws.instances(ids), now=self._aws.now())
        self.report.actions += plan.actions
        self.report.kept += plan.kept
        names = [each.name for each in plan.actions if isinstance(each, DeleteParameter)]
        if names and not self.report.dry_run:
            self.report.done += len(self._aws.delete_parameters(names))

    def _old_jobs(self) -> None:
        for ids in self._aws.old_jobs(self._aws.now() - RETENTION_S):
            # The index may lag behind: the records themselves decide.
            items = {read_job(item).job_id: item for item in self._aws.job_items(ids)}
            plan = plan_old_jobs(map(read_job, items.values()), now=self._aws.now())
            self.report.actions += plan.actions
            self.report.kept += plan.kept
            old = [each.job_id for each in plan.actions if isinstance(each, DeleteJob)]
            if old and not self.report.dry_run:
                if self._settings.archive is not None:
                    append_archive(
                        self._settings.archive, self._aws.now(), [items[id_] for id_ in old]
                    )
                self._aws.delete_jobs(old)
                self.report.done += len(old)
            if self._is_over():
                break
        self._count("JobRecordsArchived")

    def _pool_audit(self) -> None:
        pools = self._aws.pools()
        instances = self._managed(_ALL_STATES)
        unread = self.report.truncated
        jobs = self._aws.active_jobs(self._deadline)
        if jobs is None:
            self.report.truncated = True
        self.report.pools = audit_pools(
            pools, None if unread else instances, jobs, self._settings.prices, hours=self._hours
        )
        self.report.markdown = markdown(
            self.report.pools, at=iso_of(self._aws.now()), truncated=self.report.truncated
        )
        if not self.report.dry_run:
            self.report.done = len(pools)
            self._publish(metrics.of_pools(self.report.pools))

    def _managed(self, states: Sequence[str]) -> list[Instance]:
        found: list[Instance] = []
        for page in self._aws.managed_instances(states):
            found += page
            if self._is_over():
                break
        return found

    def _is_over(self) -> bool:
        self.report.truncated = self.report.truncated or self._deadline.is_over
        return self.report.truncated

    def _count(self, name: str) -> None:
        """Publish how much was done; killed before this, the count is lost, and not the work."""
        if not self.report.dry_run:
            self._publish([Metric(name, self.report.done)])


def append_archive(folder: Path, now: int, items: Sequence[Item]) -> None:
    """Append records to the file of the day, as lines of JSON, durable on return. A run that is
    killed before it deletes them leaves them here twice."""
    path = folder / f"jobs-{iso_of(now)[:10]}.jsonl"
    lines = "".join(f"{json.dumps(plain_item(item), sort_keys=True)}\n" for item in items)
    number = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(number, "ab") as file:  # noqa: PTH123 (a descriptor)
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())
    # The name of a new file is durable once its folder is.
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def plain_item(item: Item) -> dict[str, Any]:
    """A record without DynamoDB's types; a number stays the text that it was, if JSON has no such
    number, and other types stay as they are."""
    return {name: _plain_value(value) for name, value in item.items()}


def _plain_value(value: object) -> Any:
    match value:
        case {"S": str(text)}:
            return text
        case {"N": str(number)}:
            try:
                return json.loads(number)
            except ValueError:
                return number
        case {"BOOL": bool(flag)}:
            return flag
        case {"NULL": True}:
            return None
        case Mapping():
            return {str(kind): str(part) for kind, part in value.items()}
        case _:
            return str(value)
