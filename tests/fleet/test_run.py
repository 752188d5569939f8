"""Real processes: a fleet that consumes untagged queues on SQS directly, and one that gets its
messages through inlets into a file."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.sqs import REGION
from holdfast_fleet.model import iso_of
from tests.cli.program import Ran, command, environment, run_program
from tests.engines.sqs.servers import client, create_queue
from tests.fleet.cloud import Cloud, body
from tests.fleet.samples import housekeeping, termination
from tests.wait import wait_until

NAMES = ("runs-fleet-termination", "runs-fleet-housekeeping")


class Queues:
    """The queues of a fleet at our own endpoint, as other programs made and use them."""

    def __init__(self, endpoint: str, visibility_s: int) -> None:
        self.endpoint = endpoint
        self.sqs = client(endpoint)
        self.urls: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        for name in NAMES:
            self.dead[name] = create_queue(endpoint, f"{name}-dlq")
            told = self.sqs.get_queue_attributes(
                QueueUrl=self.dead[name], AttributeNames=["QueueArn"]
            )
            policy = {
                "deadLetterTargetArn": told["Attributes"]["QueueArn"],
                "maxReceiveCount": 3,
            }
            self.urls[name] = create_queue(
                endpoint,
                name,
                RedrivePolicy=json.dumps(policy),
                VisibilityTimeout=str(visibility_s),
            )

    def send(self, name: str, text: str, **attributes: str) -> None:
        self.sqs.send_message(
            QueueUrl=self.urls[name],
            MessageBody=text,
            MessageAttributes={
                key: {"DataType": "String", "StringValue": value}
                for key, value in attributes.items()
            },
        )

    def letters(self, name: str) -> list[dict[str, Any]]:
        """The dead letters that arrived since the last look, with the reason that Holdfast gave."""
        answer = self.sqs.receive_message(
            QueueUrl=self.dead[name],
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            VisibilityTimeout=600,
        )
        found = []
        for each in answer.get("Messages", ()):
            dead = each.get("MessageAttributes", {}).get("holdfast.dead")
            told = json.loads(dead["StringValue"]) if dead else {}
            found.append({"body": each["Body"], "reason": told.get("reason"), **told})
        return found

    def are_empty(self) -> bool:
        """No message waits or is in flight."""
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return all(
            not any(
                int(count)
                for count in self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)[
                    "Attributes"
                ].values()
            )
            for url in self.urls.values()
        )

    def delete(self) -> None:
        for url in (*self.urls.values(), *self.dead.values()):
            self.sqs.delete_queue(QueueUrl=url)


@pytest.fixture(params=[30])
def queues(request: pytest.FixtureRequest, endpoint: str) -> Iterator[Queues]:
    """The parameter is the visibility timeout, in seconds."""
    found = Queues(endpoint, request.param)
    yield found
    found.delete()


@pytest.fixture
def variables(cloud: Cloud, queues: Queues, tmp_path: Path) -> dict[str, str]:
    return {
        **cloud.environment,
        "RUNS_FLEET_TERMINATION_QUEUE_URL": queues.urls[NAMES[0]],
        "RUNS_FLEET_HOUSEKEEPING_QUEUE_URL": queues.urls[NAMES[1]],
        "RUNS_FLEET_METRICS_FILE": str(tmp_path / "fleet.prom"),
        "HOLDFAST_URL": f"sqlite:///{tmp_path}/control.db?durability=relaxed",
    }


@contextmanager
def program(
    folder: Path, variables: dict[str, str], *line: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command(*line), cwd=folder, env=environment(**variables), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(holds: Callable[[], object], *, pause_s: float = 0.2) -> None:
    """Ask a few times a second: an answer is work for moto, and the fleet needs the machine."""

    def holds_later() -> object:
        time.sleep(pause_s)
        return holds()

    wait_until(holds_later)


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def all_done(cloud: Cloud, count: int) -> Callable[[], bool]:
    return lambda: [job["status"] for job in cloud.jobs().values()].count("completed") == count


def send_jobs(cloud: Cloud, queues: Queues, count: int) -> list[dict[str, Any]]:
    sent = []
    for number in range(count):
        id_ = f"i-{number:08x}"
        cloud.put_job(f"job-{number}", status="running", instance_id=id_)
        cloud.put_parameter(id_)
        # Not long ago, or housekeeping deletes the record.
        now = iso_of(int(time.time()))
        fields = termination(job_id=f"job-{number}", instance_id=id_, completed_at=now)
        queues.send(NAMES[0], body(fields))
        sent.append(fields)
    return sent


def send_again(queues: Queues, sent: list[dict[str, Any]]) -> None:
    """Every third message once more, and one that comes after them. At the same time as the first
    ones, moto could let both win: see AtomicAws."""
    for fields in sent[::3]:
        queues.send(NAMES[0], body(fields))
    queues.send(NAMES[0], body({**sent[0], "job_id": "last"}))


def test_queues_are_consumed_directly(
    cloud: Cloud, queues: Queues, variables: dict[str, str], tmp_path: Path
) -> None:
    sent = send_jobs(cloud, queues, 6)
    malformed = ["no json", "[1]", body({**termination(), "exit_code": "0"})]
    for text in malformed:
        queues.send(NAMES[0], text)
    cloud.put_job("old", status="failed", completed_at="2001-01-01T00:00:00Z")
    queues.send(NAMES[1], body(housekeeping("old_jobs")))
    queues.send(NAMES[1], body(housekeeping("rm -rf")), extra="kept")
    letters: list[dict[str, Any]] = []

    def all_rejected() -> bool:
        letters.extend(letter for name in NAMES for letter in queues.letters(name))
        return len([each for each in letters if each["reason"] == "rejected"]) == 4

    with program(tmp_path, variables, "fleet", "run") as process:
        wait_for(all_done(cloud, 6))
        wait_for(lambda: "old" not in cloud.jobs())
        wait_for(all_rejected)
        send_again(queues, sent)
        wait_for(lambda: queues.are_empty() and "last" in cloud.jobs())
        assert stop(process) == 0
    assert {each["body"] for each in letters} >= set(malformed)
    why = [each.get("failure", {}).get("message", "") for each in letters]
    assert any("exit_code '0'" in text for text in why)
    assert cloud.parameters() == set()
    assert cloud.total("JobSuccess") == (7, 7), "a second message about a job does not count"
    assert "runs_fleet_job_success_total 7.0\n" in (tmp_path / "fleet.prom").read_text()
    log = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in log


@pytest.mark.parametrize("queues", [6], indirect=True)
def test_a_fleet_that_is_killed(
    cloud: Cloud, queues: Queues, variables: dict[str, str], tmp_path: Path
) -> None:
    """Two fleets share the queue; one is killed with messages in hand."""
    count = 30
    send_jobs(cloud, queues, count)
    with program(tmp_path, variables, "fleet", "run") as first:
        # Soon, while it has other messages in hand.
        wait_for(
            lambda: "completed" in {job["status"] for job in cloud.jobs().values()}, pause_s=0.05
        )
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    with program(tmp_path, variables, "fleet", "run", "--json") as second:
        wait_for(all_done(cloud, count))
        wait_for(lambda: cloud.parameters() == set())
        assert stop(second) == 0
    assert [letter for name in NAMES for letter in queues.letters(name)] == []
    assert cloud.total("JobSuccess")[0] >= count


def test_inlets_into_a_file(
    cloud: Cloud, queues: Queues, variables: dict[str, str], tmp_path: Path
) -> None:
    variables["HOLDFAST_BROKER_AWS"] = f"sqs://{REGION}?endpoint={queues.endpoint}"

    def call(*line: str) -> Ran:
        ran = run_program(tmp_path, *line, given=b"", **variables)
        assert ran.code == 0, ran.err
        return ran

    for name in NAMES:
        task = name.removeprefix("runs-fleet-")
        call("queue", "create", name)
        add = f"gate add {task} --broker aws --source {name} --queue {name} --task {task}"
        call(*add.split(), "--content-type", "application/json")
    sent = send_jobs(cloud, queues, 5)
    queues.send(NAMES[0], body(termination(status="ended")))
    queues.send(NAMES[1], body(housekeeping("stale_ssm")))
    line = "worker run holdfast_fleet.tasks:app --processes 1 --concurrency 9".split()

    with program(tmp_path, variables, *line) as process:
        wait_for(all_done(cloud, 5))
        wait_for(lambda: "rejected" in call("dlq", "list", "--json").out)
        wait_for(lambda: "SSMParametersDeleted" in cloud.metrics())
        send_again(queues, sent)
        wait_for(lambda: "last" in cloud.jobs())
        assert stop(process) == 0
    assert cloud.total("JobSuccess") == (6, 6)
