"""Kills between any two steps, throttling and lost answers, and two fleets at once: nothing is
lost, and each record, parameter and instance changes once."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from holdfast import EngineUnavailable
from holdfast_fleet.model import TASK_TYPES, TaskType, parse_termination
from holdfast_fleet.tasks import Fleet, LockHeld
from tests.fleet.cloud import AtomicAws, Cloud, LaterAws
from tests.fleet.samples import termination
from tests.sources import ROOT

BUSY: dict[str, Any] = {"living": 1, "jobs": {"busy": "running"}, "parameters": 1, "locks": []}
ENDS: dict[str, dict[str, Any]] = {
    "termination": {
        **BUSY,
        "jobs": {"busy": "running", "67890": "completed"},
        "metrics": ["JobDuration completed", "JobSuccess"],
    },
    "orphaned_instances": {**BUSY, "metrics": ["OrphanedInstancesTerminated"]},
    "stale_ssm": {**BUSY, "metrics": ["SSMParametersDeleted"]},
    "old_jobs": {**BUSY, "metrics": ["JobRecordsArchived"]},
    "pool_audit": {
        **BUSY,
        "metrics": ["PoolComputeCost blue", "PoolIdleCost blue", "PoolUtilization blue"],
    },
}


@pytest.fixture(scope="module")
def killed(moto: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The output of one program for all tasks: its start takes as long as the kills of a task."""
    cloud = Cloud(moto, tmp_path_factory.mktemp("killed"))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fleet.kill_program", *ENDS],
        cwd=ROOT,
        env={**os.environ, **cloud.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("what", ENDS)
def test_a_kill_between_any_two_steps(killed: list[dict[str, Any]], what: str) -> None:
    lines = [line for line in killed if line["what"] == what]
    kills = len(lines) - 1
    assert kills >= 3
    assert [line["exit"] for line in lines] == [-signal.SIGKILL] * kills + [0]
    for line in lines:
        assert line["again"] == ENDS[what], line
    assert lines[-1]["done"] == ENDS[what]


class FlakyAws(LaterAws):
    """A third of its calls is throttled, or carried out without an answer."""

    random = Random(1)

    def _client(self, service: str) -> Any:
        return _Flaky(super()._client(service), self.random)


class _Flaky:
    def __init__(self, client: Any, random: Random) -> None:
        self._client = client
        self._random = random

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)

        def call(**given: Any) -> Any:
            drawn = self._random.random()
            if drawn < 0.2:
                answer: Any = {"Error": {"Code": "ThrottlingException"}}
                raise ClientError(answer, name)
            answer = real(**given)
            if drawn < 0.35:
                raise ConnectionClosedError(endpoint_url="http://x")
            return answer

        return call


def sample(number: int) -> dict[str, Any]:
    return termination(job_id=f"job-{number}", instance_id=f"i-{number:08x}")


def deliver(fleet: Fleet, number: int) -> None:
    """As SQS does, until the message is handled."""
    for attempt in range(1, 50):
        try:
            fleet.terminate(sample(number), attempt=attempt)
        except EngineUnavailable:
            continue
        return
    raise AssertionError("never handled")


def test_throttling_and_lost_answers(cloud: Cloud) -> None:
    fleet = cloud.fleet(FlakyAws)
    for number in range(20):
        cloud.put_job(f"job-{number}", status="running", instance_id=f"i-{number:08x}")
        cloud.put_parameter(f"i-{number:08x}")
    for number in range(20):
        deliver(fleet, number)
    assert {job["status"] for job in cloud.jobs().values()} == {"completed"}
    assert cloud.parameters() == set()
    assert cloud.total("JobSuccess")[0] >= 20, "a metric may repeat after a lost answer"


@pytest.mark.parametrize("task", TASK_TYPES)
def test_housekeeping_with_throttling_and_lost_answers(cloud: Cloud, task: TaskType) -> None:
    busy, orphan = cloud.launch(pool="blue"), cloud.launch()
    cloud.put_job("busy", status="running", instance_id=busy)
    cloud.put_job("old", status="failed", completed_at="2001-01-01T00:00:00Z")
    cloud.put_pool("blue")
    gone = {cloud.put_parameter("i-00000001")}
    kept = cloud.put_parameter(busy)
    fleet = cloud.fleet(FlakyAws)
    for _ in range(50):
        try:
            fleet.keep_house(task, job="1")
        except (EngineUnavailable, LockHeld):
            # The lock of a failed run may be left: its release was throttled, too.
            for name in cloud.locks():
                cloud.dynamodb.delete_item(
                    TableName="runs-fleet-pools", Key={"pool_name": {"S": name}}
                )
            continue
        break
    else:
        raise AssertionError("never done")
    states = cloud.states()
    assert states[busy] == "running"
    assert (states[orphan] == "terminated") is (task == "orphaned_instances")
    assert ("old" not in cloud.jobs()) is (task == "old_jobs")
    assert "busy" in cloud.jobs()
    assert cloud.parameters() == {kept, *(set() if task == "stale_ssm" else gone)}


@pytest.mark.parametrize(
    ("account", "aws"),
    [("cloud", AtomicAws), ("atomic_cloud", LaterAws)],
    ids=["moto", "ministack"],
)
def test_two_fleets_at_once(
    account: str, aws: type[LaterAws], request: pytest.FixtureRequest
) -> None:
    """Both get every message and every order; each thing changes once."""
    cloud: Cloud = request.getfixturevalue(account)
    count = 12
    for number in range(count):
        cloud.put_job(f"job-{number}", status="running", instance_id=f"i-{number:08x}")
        cloud.put_parameter(f"i-{number:08x}")
    fleets = [cloud.fleet(aws), cloud.fleet(aws)]
    changed: list[str] = []

    def handle(order: tuple[Fleet, int]) -> None:
        fleet, number = order
        if fleet.aws.complete_job(parse_termination(sample(number))):
            changed.append(f"record {number}")
        if fleet.aws.delete_parameter(f"/runs-fleet/runners/i-{number:08x}/config"):
            changed.append(f"parameter {number}")
        fleet.terminate(sample(number), attempt=1)

    orders = [(fleet, number) for number in range(count) for fleet in fleets]
    Random(2).shuffle(orders)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(handle, orders))
    assert sorted(changed) == sorted(
        f"{what} {number}" for what in ("record", "parameter") for number in range(count)
    )
    assert cloud.total("JobSuccess") == (0, 0), "the test itself was first"


def test_two_fleets_keep_house_at_once(cloud: Cloud) -> None:
    orphans = [cloud.launch() for _ in range(6)]
    for number in range(30):
        cloud.put_parameter(f"i-{number:08x}")
        cloud.put_job(f"old-{number}", status="failed", completed_at="2001-01-01T00:00:00Z")
    fleets = [cloud.fleet(AtomicAws), cloud.fleet(AtomicAws)]

    def keep(order: tuple[Fleet, TaskType]) -> tuple[str, int]:
        fleet, task = order
        try:
            return task, fleet.keep_house(task, job=str(id(fleet))).done
        except LockHeld:
            return task, 0

    tasks: tuple[TaskType, ...] = ("orphaned_instances", "stale_ssm", "old_jobs")
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(keep, [(fleet, task) for task in tasks for fleet in fleets]))
    assert {task: sum(n for each, n in done if each == task) for task in tasks} == {
        "orphaned_instances": len(orphans),
        "stale_ssm": 30,
        "old_jobs": 30,
    }
    assert set(cloud.states().values()) == {"terminated"}
    assert cloud.parameters() == set()
    assert cloud.jobs() == {}
