"""`holdfast fleet …`: plans, reports, and errors of one line."""

import json
import time
from pathlib import Path

import boto3.session
import pytest

from holdfast import Holdfast
from holdfast.cli import run
from holdfast_fleet import commands
from holdfast_fleet.settings import FleetSettings
from tests.cli.program import Cli, Ran
from tests.engines.sqs import servers
from tests.engines.sqs.servers import create_queue
from tests.fleet.cloud import POOLS, Cloud

OLD = "2001-01-01T00:00:00Z"


@pytest.fixture
def cli(
    cloud: Cloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    def call(*arguments: str) -> Ran:
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def queues(cloud: Cloud, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("termination", "housekeeping"):
        url = create_queue(endpoint, f"runs-fleet-{name}")
        monkeypatch.setenv(f"RUNS_FLEET_{name.upper()}_QUEUE_URL", url)


def test_a_dry_run_of_a_task(cloud: Cloud, cli: Cli) -> None:
    cloud.put_job("1", status="failed", completed_at=OLD)
    cloud.put_job("odd", status="failed", completed_at="1999")
    ran = cli("fleet", "task", "old_jobs", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "old_jobs: 1 to do\n"
        f"  would delete the record of job 1: completed at {OLD}\n"
        "  left odd: its completion time is unknown\n"
    )
    assert set(cloud.jobs()) == {"1", "odd"}
    view = cli("fleet", "task", "old_jobs", "--dry-run", "--json").json
    assert view["actions"] == [{"type": "delete_job", "job_id": "1", "why": f"completed at {OLD}"}]
    assert cli("fleet", "task", "old_jobs").out.startswith("old_jobs: 1 done\n")
    assert set(cloud.jobs()) == {"odd"}


def test_an_audit(cloud: Cloud, cli: Cli) -> None:
    cloud.put_pool("blue", instance_type="t4g.medium", volume_gb=30)
    cloud.launch(pool="blue")
    ran = cli("fleet", "audit", "--hours", "10")
    assert (ran.code, ran.err) == (0, "")
    assert "| blue | 1 | 0 | 1 | 0% | 0.00 | 0.34 |" in ran.out
    assert cli("fleet", "audit", "--json").json["pools"][0]["pool"] == "blue"
    assert cloud.metrics() == [], "an audit publishes nothing"
    assert cli("fleet", "task", "pool_audit").code == 0
    assert "PoolComputeCost blue" in cloud.metrics()


def test_errors(cloud: Cloud, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = int(time.time()) + 600
    cloud.fleet().aws.take_lock("stale_ssm", owner="x", job="", expires_at=soon)
    ran = cli("fleet", "task", "stale_ssm")
    assert ran.code == 1
    assert "stale_ssm is under way elsewhere" in ran.err
    assert cli("fleet", "audit", "--hours", "0").code == 2
    assert "unknown command" in cli("fleet", "nonsense").err
    assert "did you mean fleet?" in cli("flee").err
    assert cli("fleet", "task", "nonsense").code == 2
    cloud.dynamodb.delete_table(TableName=POOLS)
    ran = cli("fleet", "audit")
    assert ran.code == 2
    assert f"dynamodb:Scan on table {POOLS}" in ran.err
    assert ran.err.count("\n") == 1
    for name in cloud.environment:
        if name.startswith("RUNS_FLEET_"):
            monkeypatch.delenv(name)
    ran = cli("fleet", "run")
    assert ran.code == 2
    for name in (name for name in cloud.environment if name.endswith(("_URL", "_TABLE"))):
        assert name == "AWS_ENDPOINT_URL" or name in ran.err


def test_credentials_that_are_missing(
    cloud: Cloud, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3.session, "Session", servers.SESSION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert boto3.session.Session().get_credentials() is None
    ran = cli("fleet", "audit")
    assert ran.code == 2
    assert "no AWS credentials" in ran.err


def test_a_dry_run_of_the_fleet(cloud: Cloud, cli: Cli, queues: None) -> None:
    cloud.put_job("1", status="failed", completed_at=OLD)
    orphan = cloud.launch()
    ran = cli("fleet", "run", "--dry-run", "--schedule")
    assert ran.code == 0
    assert f"  left {orphan}: it is not old enough\n" in ran.out
    assert "  would delete the record of job 1" in ran.out
    assert "# Pools on " in ran.out
    views = cli("fleet", "run", "--dry-run", "--json").json
    assert [view["task"] for view in views] == [
        "orphaned_instances",
        "stale_ssm",
        "old_jobs",
        "pool_audit",
    ]
    assert set(cloud.jobs()) == {"1"}
    assert cloud.metrics() == []


def test_a_missing_queue(cli: Cli, queues: None, monkeypatch: pytest.MonkeyPatch) -> None:
    url = FleetSettings.from_environment().termination.endpoint
    monkeypatch.setenv("RUNS_FLEET_TERMINATION_QUEUE_URL", f"{url}/1/runs-fleet-novel")
    ran = cli("fleet", "run", "--dry-run")
    assert ran.code == 3
    assert "RUNS_FLEET_TERMINATION_QUEUE_URL: no queue runs-fleet-novel in us-east-1" in ran.err


async def test_schedules_are_stored_once(cloud: Cloud, queues: None, tmp_path: Path) -> None:
    settings = FleetSettings.from_environment()
    engine_url = settings.engine_url(f"sqlite:///{tmp_path}/control.db")
    for _ in range(2):
        await commands._check_queues(engine_url, settings, schedule=True)
    async with Holdfast(engine_url) as store:
        found = await store.schedules.all()
    assert len(found) == 4
    assert {each.job.queue for each in found} == {"housekeeping"}
    assert json.loads(found[0].job.payload)["task_type"] in ("old_jobs", "orphaned_instances")
