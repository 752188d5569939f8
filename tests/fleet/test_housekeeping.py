"""The four housekeeping tasks on moto's server."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import EngineUnavailable
from holdfast_fleet.aws import AwsFleet, Deadline
from holdfast_fleet.housekeeping import Run, TaskReport, plain_item
from holdfast_fleet.model import JobRecord, TaskType
from holdfast_fleet.tasks import Fleet, LockHeld
from tests.fleet.cloud import Cloud, LaterAws
from tests.fleet.samples import INSTANCE

OLD = "2001-01-01T00:00:00Z"


def soon() -> int:
    return int(time.time()) + 600


def keep(fleet: Fleet, task: TaskType, **options: Any) -> TaskReport:
    return fleet.keep_house(task, job="1", **options)


def test_orphans_are_terminated(cloud: Cloud) -> None:
    orphans = {cloud.launch() for _ in range(25)}
    busy, stranger = cloud.launch(), cloud.launch(managed=None)
    cloud.put_job("1", status="running", instance_id=busy)
    fleet = cloud.fleet()
    plan = keep(fleet, "orphaned_instances", dry_run=True)
    assert len(plan.actions) == 25
    assert set(cloud.states().values()) == {"running"}
    assert cloud.metrics() == []
    report = keep(fleet, "orphaned_instances")
    assert (report.done, report.truncated, report.failed) == (25, False, {})
    assert {each.subject for each in report.kept} == {busy}
    assert {id_ for id_, state in cloud.states().items() if state == "running"} == {busy, stranger}
    assert {id_ for id_, state in cloud.states().items() if state == "terminated"} == orphans
    assert cloud.total("OrphanedInstancesTerminated") == (25, 1)
    assert keep(fleet, "orphaned_instances").done == 0
    assert cloud.locks() == set()


def test_a_young_instance_stays(cloud: Cloud) -> None:
    young = cloud.launch()
    assert keep(cloud.fleet(AwsFleet), "orphaned_instances").actions == []
    assert cloud.states() == {young: "running"}


def test_a_job_that_is_assigned_after_the_first_look(cloud: Cloud) -> None:
    """Everything is read again just before the end of an instance."""
    orphan, lucky = cloud.launch(), cloud.launch()

    class Assigning(LaterAws):
        def active_jobs(self, deadline: Deadline) -> list[JobRecord] | None:
            found = super().active_jobs(deadline)
            cloud.put_job("late", status="running", instance_id=lucky)
            return found

    report = keep(cloud.fleet(Assigning), "orphaned_instances")
    assert (len(report.actions), report.done) == (2, 1)
    assert cloud.states() == {orphan: "terminated", lucky: "running"}


@pytest.mark.parametrize("loss", ["tag", "state"])
def test_a_fact_that_changes_after_the_first_look(cloud: Cloud, loss: str) -> None:
    orphan = cloud.launch()

    class Changing(LaterAws):
        def active_jobs(self, deadline: Deadline) -> list[JobRecord] | None:
            if loss == "tag":
                cloud.ec2.delete_tags(Resources=[orphan], Tags=[{"Key": "runs-fleet:managed"}])
            else:
                cloud.ec2.stop_instances(InstanceIds=[orphan])
            return super().active_jobs(deadline)

    assert keep(cloud.fleet(Changing), "orphaned_instances").done == 0
    assert cloud.states()[orphan] != "terminated"


def test_unread_jobs_keep_everything_alive(cloud: Cloud) -> None:
    orphan = cloud.launch()

    class Blind(LaterAws):
        def active_jobs(self, deadline: Deadline) -> list[JobRecord] | None:
            raise EngineUnavailable("dynamodb:Scan on table x: throttled")

    with pytest.raises(EngineUnavailable):
        keep(cloud.fleet(Blind), "orphaned_instances")
    assert cloud.states() == {orphan: "running"}
    assert cloud.locks() == set(), "a failed run releases its lock"


def test_parameters_of_gone_instances(cloud: Cloud) -> None:
    living, stopped, gone = cloud.launch(), cloud.launch(), cloud.launch()
    cloud.ec2.stop_instances(InstanceIds=[stopped])
    cloud.ec2.terminate_instances(InstanceIds=[gone])
    kept = {cloud.put_parameter(living), cloud.put_parameter(stopped)}
    cloud.put_parameter(gone)
    for number in range(21):
        cloud.put_parameter(f"i-{number:08x}")
    odd = "/runs-fleet/runners/odd"
    cloud.ssm.put_parameter(Name=odd, Value="x", Type="String")
    fleet = cloud.fleet()
    assert len(keep(fleet, "stale_ssm", dry_run=True).actions) == 22
    assert len(cloud.parameters()) == 25
    assert keep(fleet, "stale_ssm").done == 22
    assert cloud.parameters() == {*kept, odd}
    assert cloud.total("SSMParametersDeleted") == (22, 1)
    assert keep(fleet, "stale_ssm").done == 0


def test_a_new_parameter_of_an_instance_that_is_not_listed_yet(cloud: Cloud) -> None:
    """moto lists an instance at once; EC2 may take minutes."""
    name = cloud.put_parameter(INSTANCE)
    assert keep(cloud.fleet(AwsFleet), "stale_ssm").done == 0
    assert cloud.parameters() == {name}


def test_old_jobs_are_archived_and_deleted(cloud: Cloud, tmp_path: Path) -> None:
    for number in range(60):
        status = ("completed", "failed", "timeout", "interrupted")[number % 4]
        cloud.put_job(f"old-{number}", status=status, completed_at=OLD, exit_code=number)
    kept = {
        "new": {"status": "completed", "completed_at": "2100-01-01T00:00:00Z"},
        "busy": {"status": "running", "completed_at": OLD},
        "odd": {"status": "failed", "completed_at": "1999"},
    }
    for id_, fields in kept.items():
        cloud.put_job(id_, **fields)
    fleet = cloud.fleet(archive=tmp_path)
    assert len(keep(fleet, "old_jobs", dry_run=True).actions) == 60
    assert list(tmp_path.glob("*.jsonl")) == []
    report = keep(fleet, "old_jobs")
    assert (report.done, [each.subject for each in report.kept]) == (60, ["odd"])
    assert set(cloud.jobs()) == set(kept)
    [path] = tmp_path.glob("jobs-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["job_id"]: line["exit_code"] for line in lines} == {
        f"old-{number}": number for number in range(60)
    }
    assert path.stat().st_mode & 0o077 == 0
    assert cloud.total("JobRecordsArchived") == (60, 1)


def test_an_index_that_lags_behind(cloud: Cloud) -> None:
    """The records themselves decide. moto's index never lags."""
    cloud.put_job("again", status="running", instance_id=INSTANCE)

    class Lagging(LaterAws):
        def old_jobs(self, before: int) -> Any:
            yield ["again", "gone"]

    report = keep(cloud.fleet(Lagging), "old_jobs")
    assert (report.done, len(report.kept)) == (0, 1)
    assert set(cloud.jobs()) == {"again"}


def test_an_archive_that_cannot_be_written_deletes_nothing(cloud: Cloud, tmp_path: Path) -> None:
    cloud.put_job("1", status="failed", completed_at=OLD)
    with pytest.raises(OSError, match="missing"):
        keep(cloud.fleet(archive=tmp_path / "missing"), "old_jobs")
    assert set(cloud.jobs()) == {"1"}


def test_plain_items() -> None:
    item = {
        "s": {"S": "x"},
        "n": {"N": "1.5"},
        "odd": {"N": "1E+300x"},
        "b": {"BOOL": True},
        "none": {"NULL": True},
        "other": {"B": b"x"},
    }
    assert plain_item(item) == {
        "s": "x",
        "n": 1.5,
        "odd": "1E+300x",
        "b": True,
        "none": None,
        "other": {"B": "b'x'"},
    }


def test_pools_are_audited(cloud: Cloud) -> None:
    cloud.put_pool("blue", instance_type="t4g.medium", volume_gb=30)
    cloud.put_pool("red", instance_type="novel")
    busy, _, stopped = (cloud.launch(pool="blue") for _ in range(3))
    cloud.ec2.stop_instances(InstanceIds=[stopped])
    cloud.put_job("1", status="running", instance_id=busy)
    fleet = cloud.fleet()
    report = keep(fleet, "pool_audit", dry_run=True, hours=12)
    assert cloud.metrics() == []
    blue, red = report.pools
    assert (blue.running, blue.stopped, blue.idle, blue.assigned) == (2, 1, 1, 1)
    assert (red.running, red.compute_cost, red.utilization) == (0, None, None)
    assert "| blue | 2 | 1 | 1 | 33% | 0.04 | 0.81 |" in report.markdown
    assert keep(fleet, "pool_audit").done == 2
    assert cloud.metrics() == [
        "PoolComputeCost blue",
        "PoolIdleCost blue",
        "PoolUtilization blue",
    ]
    assert cloud.total("PoolComputeCost", PoolName="blue")[0] == pytest.approx(2 * 0.0336 * 24)


@pytest.mark.parametrize("task", ["orphaned_instances", "stale_ssm", "old_jobs", "pool_audit"])
def test_a_run_is_bounded(cloud: Cloud, task: TaskType) -> None:
    """Out of time, it says so; what it has not read counts as unknown."""
    orphan = cloud.launch(pool="blue")
    cloud.put_pool("blue")
    cloud.put_job("1", status="failed", completed_at=OLD)
    cloud.put_parameter(INSTANCE)
    fleet = cloud.fleet()
    published: list[Sequence[object]] = []
    report = Run(task, fleet.settings, fleet.aws, published.append, deadline=Deadline(0)).run()
    assert report.truncated
    assert cloud.states() == {orphan: "running"}
    assert report.done <= 1, "at most one page"
    if task == "pool_audit":
        assert report.pools[0].running is None
        assert "Truncated" in report.markdown


def test_one_of_a_kind_runs_at_a_time(cloud: Cloud) -> None:
    fleet = cloud.fleet()
    assert fleet.aws.take_lock("old_jobs", owner="x", job="other", expires_at=soon()) is None
    with pytest.raises(LockHeld, match="old_jobs is under way elsewhere") as caught:
        keep(fleet, "old_jobs")
    assert caught.value.job == "other"
    assert keep(fleet, "stale_ssm").done == 0
    assert keep(fleet, "old_jobs", dry_run=True).done == 0, "a dry run needs no lock"
