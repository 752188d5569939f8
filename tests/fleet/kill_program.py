"""Kills a fleet with SIGKILL before and after each of its AWS calls, and starts it again.

Arguments: tasks, or `termination`. For each of them and each number of calls that a process makes
before it is killed, a line of JSON tells what is there after another attempt.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import boto3.session

from holdfast_fleet.model import LOCK_PREFIX
from holdfast_fleet.tasks import Fleet, LockHeld
from tests.engines.sqs import servers
from tests.fleet.cloud import POOLS, Cloud, LaterAws
from tests.fleet.samples import INSTANCE, JOB, termination

OLD = "2001-01-01T00:00:00Z"


class MortalAws(LaterAws):
    """Dies after so many calls, the last of them answered."""

    lives = 10**6

    def _call(self, service: str, action: str, resource: str, **given: Any) -> dict[str, Any]:
        if not self.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        self.lives -= 1
        return super()._call(service, action, resource, **given)


def mortal_fleet(cloud: Cloud) -> Fleet:
    """A fleet with all its clients and no connection yet, for forked processes: creating a client
    takes longer than the calls of a task."""
    fleet = cloud.fleet(MortalAws)
    for service in ("cloudwatch", "dynamodb", "ec2", "ssm"):
        fleet.aws._client(service)
    return fleet


def prepare_once(cloud: Cloud) -> None:
    """Launch an instance with a job, which must stay as it is."""
    cloud.reset()
    busy = cloud.launch(pool="blue")
    cloud.put_job("busy", status="running", instance_id=busy)
    cloud.put_parameter(busy)
    cloud.put_pool("blue", instance_type="t4g.medium", volume_gb=30)


def prepare(cloud: Cloud, what: str) -> None:
    match what:
        case "termination":
            cloud.put_job(JOB, status="running", instance_id=INSTANCE)
            cloud.put_parameter(INSTANCE)
        case "orphaned_instances":
            cloud.launch()
        case "stale_ssm":
            cloud.put_parameter(INSTANCE)
        case "old_jobs":
            cloud.put_job("old", status="failed", completed_at=OLD)
        case _:
            pass


def attempt(fleet: Fleet, what: Any, number: int) -> None:
    if what == "termination":
        fleet.terminate(termination(), attempt=number)
    else:
        fleet.keep_house(what, job="1")


def state(cloud: Cloud) -> dict[str, Any]:
    return {
        "living": list(cloud.states().values()).count("running"),
        "jobs": {id_: job.get("status") for id_, job in cloud.jobs().items()},
        "parameters": len(cloud.parameters()),
        "metrics": cloud.metrics(),
        "locks": sorted(cloud.locks()),
    }


def main(tasks: list[str]) -> None:
    # A forked process has the service models that its parent has read.
    boto3.session.Session = servers.session
    cloud = Cloud(os.environ["AWS_ENDPOINT_URL"], Path())
    for what in tasks:
        prepare_once(cloud)
        kill_after_each_call(cloud, what)


def kill_after_each_call(cloud: Cloud, what: str) -> None:
    again, mortal = cloud.fleet(), mortal_fleet(cloud)
    calls = 0
    while True:
        prepare(cloud, what)
        child = os.fork()
        if child == 0:
            MortalAws.lives = calls
            attempt(mortal, what, 1)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = state(cloud) if ended == 0 else None
        try:
            attempt(again, what, 2)
        except LockHeld:
            # The lock would end in some minutes; `test_aws.py` lets it.
            key = {"pool_name": {"S": LOCK_PREFIX + what}}
            cloud.dynamodb.delete_item(TableName=POOLS, Key=key)
            attempt(again, what, 2)
        found = {"exit": ended, "done": done, "again": state(cloud)}
        print(json.dumps({"what": what, "calls": calls, **found}), flush=True)
        if ended == 0:
            return
        calls += 1


if __name__ == "__main__":
    main(sys.argv[1:])
