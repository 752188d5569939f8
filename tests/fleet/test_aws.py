"""Calls of AWS against moto's server, and their errors against answers of AWS."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)

from holdfast import ConfigError, EngineUnavailable, HoldfastError, NotFound, UsageError
from holdfast_fleet.aws import AwsFleet, Deadline, HeldLock, JobConflict, explained
from holdfast_fleet.metrics import Metric
from holdfast_fleet.model import parse_termination
from tests.fleet.cloud import JOBS, POOLS, AtomicAws, Cloud
from tests.fleet.samples import INSTANCE, JOB, termination

SECRETS = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


@pytest.fixture
def aws(cloud: Cloud) -> AwsFleet:
    return AwsFleet(cloud.settings, pauses_s=(0.0, 0.0, 0.0))


def fault(code: str, text: str = "", status: int = 400, **more: Any) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": text},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return ClientError(answer, "Any")


class Faulty:
    """A client whose calls fail with these errors, or return these answers, in turn."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            self.calls.append((name, given))
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def faulty(aws: AwsFleet, service: str, *answers: object) -> Faulty:
    found = Faulty(*answers)
    aws._clients[service] = found
    return found


def test_the_end_of_a_job_is_written_once(aws: AwsFleet, cloud: Cloud) -> None:
    cloud.put_job(JOB, status="running", instance_id=INSTANCE, other="kept")
    message = parse_termination(termination(status="failure", exit_code=2, error="boom"))
    assert aws.complete_job(message)
    assert cloud.jobs()[JOB] == {
        "job_id": JOB,
        "status": "failed",
        "instance_id": INSTANCE,
        "exit_code": "2",
        "duration_seconds": "123",
        "started_at": "2025-11-25T10:00:00Z",
        "completed_at": "2025-11-25T10:02:03Z",
        "error": "boom",
        "other": "kept",
    }
    assert not aws.complete_job(message)
    late = parse_termination(termination(status="success"))
    assert not aws.complete_job(late), "the first terminal state stays"
    assert cloud.jobs()[JOB]["status"] == "failed"


@pytest.mark.parametrize("fields", [{}, {"status": "running"}, {"instance_id": INSTANCE}])
def test_a_record_that_knows_less(aws: AwsFleet, cloud: Cloud, fields: dict[str, str]) -> None:
    cloud.put_job(JOB, **fields)
    message = parse_termination(termination())
    assert aws.complete_job(message)
    assert not aws.complete_job(message)


def test_a_job_without_a_record_gets_one(aws: AwsFleet, cloud: Cloud) -> None:
    assert aws.complete_job(parse_termination(termination()))
    assert cloud.jobs()[JOB]["status"] == "completed"


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "queued", "instance_id": INSTANCE},
        {"status": "running", "instance_id": "i-0123456789abcdef1"},
        {"status": "completed", "instance_id": "i-0123456789abcdef1"},
        {"status": "completed"},
    ],
)
def test_a_contradiction_is_an_error(aws: AwsFleet, cloud: Cloud, fields: dict[str, str]) -> None:
    cloud.put_job(JOB, **fields)
    before = cloud.jobs()
    with pytest.raises(JobConflict, match=f"job {JOB} ended as success on {INSTANCE}"):
        aws.complete_job(parse_termination(termination()))
    assert cloud.jobs() == before


def test_a_server_that_does_not_return_the_old_item(aws: AwsFleet, cloud: Cloud) -> None:
    item = {"job_id": {"S": JOB}, "status": {"S": "completed"}, "instance_id": {"S": INSTANCE}}
    called = faulty(aws, "dynamodb", fault("ConditionalCheckFailedException"), {"Item": item})
    assert not aws.complete_job(parse_termination(termination()))
    assert [name for name, _ in called.calls] == ["update_item", "get_item"]


def test_parameters(aws: AwsFleet, cloud: Cloud) -> None:
    names = [cloud.put_parameter(f"i-{number:08x}") for number in range(25)]
    cloud.ssm.put_parameter(Name="/other/x", Value="x", Type="String")
    pages = list(aws.parameters())
    # moto returns ten at a time, whatever it is asked for.
    assert len(pages) > 1
    assert {each.name for page in pages for each in page} == set(names)
    assert all(each.modified_at for page in pages for each in page)
    assert aws.delete_parameter(names[0])
    assert not aws.delete_parameter(names[0])
    assert sorted(aws.delete_parameters(names[:15])) == sorted(names[1:15])
    assert cloud.parameters() == {*names[15:], "/other/x"}


def test_instances(aws: AwsFleet, cloud: Cloud) -> None:
    mine, other = cloud.launch(pool="blue"), cloud.launch(managed=None)
    wrong = cloud.launch(managed="True")
    [page] = aws.managed_instances(["running", "pending"])
    assert [(each.id, each.is_managed, each.pool) for each in page] == [(mine, True, "blue")]
    assert page[0].launched_at is not None
    found = aws.instances([mine, other, wrong, "i-00000000"])
    assert {each.id: each.is_managed for each in found.values()} == {
        mine: True,
        other: False,
        wrong: False,
    }
    assert aws.terminate([mine, other]) == ([mine, other], {})
    assert aws.terminate([mine]) == ([], {}), "it is not counted twice"
    assert cloud.states() == {mine: "terminated", other: "terminated", wrong: "running"}


def test_one_instance_that_cannot_be_terminated(aws: AwsFleet, cloud: Cloud) -> None:
    """One call fails as a whole; alone, each is judged by itself."""
    mine = cloud.launch()
    assert aws.terminate(["i-0123456789abcdef9", mine]) == ([mine], {})
    denied = fault("UnauthorizedOperation", "You are not authorized")
    done = {"TerminatingInstances": [{"InstanceId": "i-2", "PreviousState": {"Name": "running"}}]}
    faulty(aws, "ec2", denied, denied, done)
    ended, failed = aws.terminate(["i-1", "i-2"])
    assert (ended, list(failed)) == (["i-2"], ["i-1"])
    assert "ec2:TerminateInstances" in failed["i-1"]


def test_active_jobs(aws: AwsFleet, cloud: Cloud) -> None:
    for status in ("queued", "running", "completed", "failed", "timeout", "interrupted", "novel"):
        cloud.put_job(status, status=status, instance_id=INSTANCE)
    cloud.put_job("bare")
    found = aws.active_jobs(Deadline(60))
    assert found is not None
    assert {each.job_id for each in found} == {"queued", "running", "novel", "bare"}
    assert aws.active_jobs(Deadline(0)) is None, "too late is unknown"


def test_old_jobs(aws: AwsFleet, cloud: Cloud) -> None:
    for number in range(30):
        cloud.put_job(f"old-{number}", status="failed", completed_at="2001-01-01T00:00:00Z")
    cloud.put_job("new", status="failed", completed_at="2100-01-01T00:00:00Z")
    cloud.put_job("busy", status="running", completed_at="2001-01-01T00:00:00Z")
    pages = list(aws.old_jobs(aws.now()))
    ids = [id_ for page in pages for id_ in page]
    assert len(ids) == 30
    assert max(len(page) for page in pages) == 25
    assert {item["status"]["S"] for item in aws.job_items(ids[:25])} == {"failed"}
    assert aws.job_items([]) == []
    aws.delete_jobs(ids[:25])
    assert len(cloud.jobs()) == 7


def test_unprocessed_items_are_tried_again(aws: AwsFleet) -> None:
    """moto processes everything; DynamoDB leaves out what it throttles."""
    one = {"DeleteRequest": {"Key": {"job_id": {"S": "2"}}}}
    called = faulty(aws, "dynamodb", {"UnprocessedItems": {JOBS: [one]}}, {"UnprocessedItems": {}})
    aws.delete_jobs(["1", "2"])
    assert [given["RequestItems"][JOBS] for _, given in called.calls][1] == [one]
    faulty(aws, "dynamodb", *[{"UnprocessedItems": {JOBS: [one]}}] * 5)
    with pytest.raises(EngineUnavailable, match="1 items stay unprocessed"):
        aws.delete_jobs(["2"])
    key = {"Keys": [{"job_id": {"S": "2"}}]}
    item = {"job_id": {"S": "2"}}
    faulty(
        aws,
        "dynamodb",
        {"Responses": {JOBS: []}, "UnprocessedKeys": {JOBS: key}},
        {"Responses": {JOBS: [item]}, "UnprocessedKeys": {}},
    )
    assert aws.job_items(["2"]) == [item]


def test_pools(aws: AwsFleet, cloud: Cloud) -> None:
    cloud.put_pool("blue", instance_type="t4g.medium", volume_gb=30)
    cloud.put_pool("odd", instance_type=7, volume_gb="big")
    assert aws.take_lock("old_jobs", owner="a", job="1", expires_at=10**10) is None
    found = {each.name: (each.instance_type, each.volume_gb) for each in aws.pools()}
    assert found == {"blue": ("t4g.medium", 30), "odd": (None, None)}


def test_a_lock_has_one_owner(aws: AwsFleet, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 2_000_000_000
    monkeypatch.setattr("holdfast_fleet.aws.time.time", lambda: now)

    def take(owner: str, expires_at: int = now + 600) -> HeldLock | None:
        return aws.take_lock("old_jobs", owner=owner, job=f"job-{owner}", expires_at=expires_at)

    assert take("a") is None
    assert take("b") == HeldLock("job-a", now + 600)
    assert take("a") is None, "a repeat after a lost answer"
    aws.release_lock("old_jobs", owner="b")
    assert take("b") is not None, "only its owner releases a lock"
    aws.release_lock("old_jobs", owner="a")
    assert take("b") is None
    now += 601
    assert take("c", now + 600) is None, "an expired lock is nobody's"
    now -= 10**6
    assert take("d", now + 600) is None, "a lock of a wrong clock does not last"
    assert aws.take_lock("pool_audit", owner="b", job="", expires_at=now + 600) is None


def test_a_race_for_a_lock_has_one_winner(cloud: Cloud) -> None:
    fleets = [AtomicAws(cloud.settings) for _ in range(4)]

    def take(number: int) -> HeldLock | None:
        return fleets[number % 4].take_lock(
            "old_jobs", owner=str(number), job="", expires_at=10**10
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(take, range(16))).count(None) == 1


def test_metrics(aws: AwsFleet, cloud: Cloud) -> None:
    aws.put_metrics([Metric("JobSuccess", 1), Metric("JobFailure", 1, "Count", {"Error": "x"})])
    assert cloud.metrics() == ["JobFailure x", "JobSuccess"]


def test_a_passing_fault_is_tried_again(aws: AwsFleet) -> None:
    for passing in (
        fault("ThrottlingException"),
        fault("ProvisionedThroughputExceededException"),
        fault("Novel", status=503),
        EndpointConnectionError(endpoint_url="https://x"),
        ConnectTimeoutError(endpoint_url="https://x"),
    ):
        called = faulty(aws, "ssm", passing, passing, passing, {})
        assert aws.delete_parameter("/x")
        assert len(called.calls) == 4
        faulty(aws, "ssm", *[passing] * 4)
        with pytest.raises(EngineUnavailable, match="ssm:DeleteParameter on parameter /x in"):
            aws.delete_parameter("/x")


def test_other_faults_are_not(aws: AwsFleet) -> None:
    for final in (
        fault("AccessDeniedException"),
        fault("ValidationException"),
        NoCredentialsError(),
    ):
        called = faulty(aws, "ssm", final)
        with pytest.raises(HoldfastError, match="ssm:DeleteParameter"):
            aws.delete_parameter("/x")
        assert len(called.calls) == 1


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (fault("AccessDenied", f"no {SECRETS[0]}"), ConfigError, "allow the action dynamodb:Scan"),
        (fault("UnrecognizedClientException", SECRETS[1]), ConfigError, "does not accept"),
        (fault("ExpiredTokenException", SECRETS[1]), ConfigError, "renew them"),
        (fault("ResourceNotFoundException", "x"), ConfigError, "does not exist in this account"),
        (
            fault("ValidationException", "The table does not have the specified index: x"),
            ConfigError,
            "create the index status-completed_at-index",
        ),
        (fault("ParameterNotFound"), NotFound, "table t"),
        (fault("Odd", f"key {SECRETS[0]} {SECRETS[1]}\n\x1b[31m"), UsageError, "key … …"),
        (NoCredentialsError(), ConfigError, "no AWS credentials"),
        (OSError("broken //me:hush@proxy"), EngineUnavailable, "//…@proxy"),
    ],
)
def test_an_error_names_action_and_resource_and_no_secret(
    error: BaseException, kind: type[HoldfastError], says: str
) -> None:
    found = explained(error, "dynamodb:Scan", "table t in eu-west-1")
    assert type(found) is kind
    text = str(found)
    assert "dynamodb:Scan on table t in eu-west-1" in text
    assert says in text
    assert "\n" not in text
    for secret in (*SECRETS, "hush"):
        assert secret not in text


def test_what_is_missing_is_said_at_the_start(aws: AwsFleet, cloud: Cloud) -> None:
    aws.check()
    cloud.dynamodb.delete_table(TableName=POOLS)
    with pytest.raises(ConfigError, match=f"dynamodb:DescribeTable on table {POOLS}"):
        aws.check()
    cloud.create_table(POOLS, "name", AttributeDefinitions=[_string("name")])
    with pytest.raises(ConfigError, match=f"table {POOLS} has the key name, not pool_name"):
        aws.check()
    cloud.dynamodb.delete_table(TableName=JOBS)
    cloud.create_table(JOBS, "job_id", AttributeDefinitions=[_string("job_id")])
    cloud.dynamodb.delete_table(TableName=POOLS)
    cloud.create_table(POOLS, "pool_name", AttributeDefinitions=[_string("pool_name")])
    with pytest.raises(ConfigError, match=f"table {JOBS} has no index"):
        aws.check()


def _string(name: str) -> dict[str, str]:
    return {"AttributeName": name, "AttributeType": "S"}


def test_a_clock_that_runs_ahead_does_not_make_things_old(
    aws: AwsFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"date": "Tue, 25 Nov 2025 10:00:00 GMT"}
    told = 1764064800
    monkeypatch.setattr("holdfast_fleet.aws.time.time", lambda: told + 10**6)
    faulty(aws, "ssm", {"ResponseMetadata": {"HTTPHeaders": headers}})
    aws.delete_parameter("/x")
    assert aws.now() == told + 1
    monkeypatch.setattr("holdfast_fleet.aws.time.time", lambda: told - 500)
    faulty(aws, "ssm", {"ResponseMetadata": {"HTTPHeaders": headers}})
    aws.delete_parameter("/x")
    assert aws.now() == told - 500, "the earlier of both"
