"""The CloudFormation template creates what it declares, on ministack.

ministack knows every resource type of the template, but it evaluates no policy and no alarm: they
are created and read back. It has no Terraform; `test_declared.py` compares the files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing.sqs import REGION
from holdfast_fleet.model import TASK_TYPES, parse_housekeeping
from holdfast_fleet.settings import FleetSettings
from tests.engines.sqs import servers
from tests.fleet.infra.declared import TEMPLATE, cloudformation, read_template

STACK = "runs-fleet"
WAIT_S_MAX = 60
DECLARED = cloudformation()


class Stack:
    """The created stack, with a client for each service."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = servers.session().client(
                service, region_name=REGION, endpoint_url=self._endpoint
            )
        return self._clients[service]

    def create(self) -> None:
        self.client("cloudformation").create_stack(
            StackName=STACK,
            TemplateBody=TEMPLATE.read_text(),
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        assert self.status() == "CREATE_COMPLETE"

    def status(self) -> str:
        """The status in which the stack comes to rest."""
        end = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < end:
            [stack] = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
            if not stack["StackStatus"].endswith("_IN_PROGRESS"):
                return str(stack["StackStatus"])
            time.sleep(0.2)
        return "late"

    def environment(self) -> dict[str, str]:
        """The outputs that are variables of the fleet."""
        [stack] = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
        return {
            each["Description"]: each["OutputValue"]
            for each in stack["Outputs"]
            if each["Description"].startswith("RUNS_FLEET_")
        }

    def url(self, queue: str) -> str:
        found: str = self.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
        return found

    def receive(self, queue: str, **options: Any) -> list[dict[str, Any]]:
        answer = self.client("sqs").receive_message(QueueUrl=self.url(queue), **options)
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with servers.running("ministack") as url:
        stack = Stack(url)
        stack.create()
        yield stack


def test_every_resource_is_created(stack: Stack) -> None:
    made = stack.client("cloudformation").describe_stack_resources(StackName=STACK)
    found = {each["LogicalResourceId"]: each["ResourceType"] for each in made["StackResources"]}
    wanted = {
        name: each["Type"]
        for name, each in read_template()["Resources"].items()
        if "Condition" not in each
    }
    assert found == wanted


def test_the_outputs_are_the_settings_of_the_fleet(stack: Stack) -> None:
    settings = FleetSettings.from_environment({**stack.environment(), "AWS_REGION": REGION})
    assert settings.termination.name == "runs-fleet-termination"
    assert settings.housekeeping.name == "runs-fleet-housekeeping"
    assert (settings.jobs_table, settings.pools_table) == ("runs-fleet-jobs", "runs-fleet-pools")


@pytest.mark.parametrize("name", DECLARED.queues)
def test_queues(name: str, stack: Stack) -> None:
    declared, sqs = DECLARED.queues[name], stack.client("sqs")
    url = stack.url(name)
    given = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert int(given["MessageRetentionPeriod"]) == declared.retention_s
    tags = sqs.list_queue_tags(QueueUrl=url)["Tags"]
    own = {key: text for key, text in tags.items() if not key.startswith("aws:cloudformation:")}
    assert own == declared.tags
    if declared.dead is not None:
        assert int(given["VisibilityTimeout"]) == declared.visibility_s
        assert int(given["ReceiveMessageWaitTimeSeconds"]) == declared.wait_s
        policy = json.loads(given["RedrivePolicy"])
        assert policy["deadLetterTargetArn"].endswith(f":{declared.dead}")
        assert int(policy["maxReceiveCount"]) == declared.receives


def test_a_message_is_dead_after_three_receives(stack: Stack) -> None:
    url = stack.url("runs-fleet-termination")
    stack.client("sqs").send_message(QueueUrl=url, MessageBody="poison")
    received = [
        stack.receive("runs-fleet-termination", VisibilityTimeout=0, WaitTimeSeconds=0)
        for _ in range(4)
    ]
    assert [len(each) for each in received] == [1, 1, 1, 0]
    [letter] = stack.receive("runs-fleet-termination-dlq", WaitTimeSeconds=5)
    assert letter["Body"] == "poison"


@pytest.mark.parametrize("name", DECLARED.tables)
def test_tables(name: str, stack: Stack) -> None:
    declared = DECLARED.tables[name]
    table = stack.client("dynamodb").describe_table(TableName=name)["Table"]
    assert table["KeySchema"] == [{"AttributeName": declared.hash_key, "KeyType": "HASH"}]
    indexes = {
        each["IndexName"]: (
            *(part["AttributeName"] for part in each["KeySchema"]),
            each["Projection"]["ProjectionType"],
        )
        for each in table.get("GlobalSecondaryIndexes", [])
    }
    assert indexes == declared.indexes


@pytest.mark.parametrize("task", TASK_TYPES)
def test_a_rule_sends_a_message_of_the_document(task: str, stack: Stack) -> None:
    """No test waits for a schedule: here an event of our own fires the rule."""
    name = f"runs-fleet-{task.replace('_', '-')}"
    events = stack.client("events")
    rule = events.describe_rule(Name=name)
    assert (rule["ScheduleExpression"], rule["State"]) == (DECLARED.schedules[name][0], "ENABLED")
    events.put_rule(Name=name, EventPattern=json.dumps({"source": [f"test.{task}"]}))
    entry = {"Source": f"test.{task}", "DetailType": "Scheduled Event", "Detail": "{}"}
    assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
    [message] = stack.receive("runs-fleet-housekeeping", WaitTimeSeconds=10, VisibilityTimeout=60)
    assert parse_housekeeping(json.loads(message["Body"])).task_type == task


def test_alarms(stack: Stack) -> None:
    made = stack.client("cloudwatch").describe_alarms()["MetricAlarms"]
    found = {
        each["AlarmName"]: (
            each["AlarmDescription"],
            each["Namespace"],
            each["MetricName"],
            *(part["Value"] for part in each["Dimensions"]),
            each["Statistic"],
            each["Period"],
            each["EvaluationPeriods"],
            each["Threshold"],
            each["ComparisonOperator"],
            each["TreatMissingData"],
        )
        for each in made
    }
    assert found == DECLARED.alarms
    assert [each["AlarmActions"] for each in made] == [[]] * len(made)


def test_the_role_has_the_declared_rights(stack: Stack) -> None:
    iam = stack.client("iam")
    trust = iam.get_role(RoleName=DECLARED.role)["Role"]["AssumeRolePolicyDocument"]
    [statement] = trust["Statement"]
    assert statement["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
    policy = iam.get_role_policy(RoleName=DECLARED.role, PolicyName="runs-fleet")["PolicyDocument"]
    found = {each["Sid"]: each["Action"] for each in policy["Statement"]}
    assert found == {sid: each.actions for sid, each in DECLARED.statements.items()}
    named = {resource for each in policy["Statement"] for resource in _listed(each["Resource"])}
    assert all(each == "*" or each.startswith("arn:aws:") for each in named)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_parameters_change_the_stack(stack: Stack) -> None:
    topic = f"arn:aws:sns:{REGION}:000000000000:people"
    stack.client("cloudformation").update_stack(
        StackName=STACK,
        TemplateBody=TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[
            {"ParameterKey": "ScheduleState", "ParameterValue": "DISABLED"},
            {"ParameterKey": "AlarmTopicArn", "ParameterValue": topic},
            {"ParameterKey": "TrustedService", "ParameterValue": "ec2.amazonaws.com"},
        ],
    )
    assert stack.status() == "UPDATE_COMPLETE"
    rules = stack.client("events").list_rules(NamePrefix="runs-fleet-")["Rules"]
    assert [each["State"] for each in rules] == ["DISABLED"] * len(DECLARED.schedules)
    made = stack.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert [each["AlarmActions"] for each in made] == [[topic]] * len(DECLARED.alarms)
    profile = stack.client("iam").get_instance_profile(InstanceProfileName="runs-fleet")
    assert [role["RoleName"] for role in profile["InstanceProfile"]["Roles"]] == [DECLARED.role]
