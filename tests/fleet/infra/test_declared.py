"""Both files of `deploy/fleet` declare the same resources, which the fleet can use."""

from __future__ import annotations

import ast
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast_fleet import aws
from holdfast_fleet.model import (
    LOCK_PREFIX,
    MANAGED_TAG,
    PARAMETER_PREFIX,
    TASK_TYPES,
    parse_housekeeping,
)
from tests.fleet.infra.declared import (
    TERRAFORM,
    Declared,
    cloudformation,
    parse_terraform,
    read_template,
    terraform,
)

PREFIX = "runs-fleet-"


@pytest.fixture(scope="module")
def declared() -> Declared:
    return cloudformation()


@pytest.mark.parametrize(
    "part",
    ["queues", "tables", "schedules", "alarms", "role", "statements", "senders", "environment"],
)
def test_both_files_declare_the_same(part: str, declared: Declared) -> None:
    assert getattr(terraform(), part) == getattr(declared, part)


def test_parameters_are_the_same() -> None:
    given = {
        "".join(word.capitalize() for word in each.labels[1].split("_")): each.attributes["default"]
        for each in parse_terraform(TERRAFORM.read_text()).of("variable")
    }
    parameters = read_template()["Parameters"]
    assert {name: f'"{each["Default"]}"' for name, each in parameters.items()} == given


def test_names_have_the_prefix(declared: Declared) -> None:
    names = [*declared.queues, *declared.tables, *declared.schedules, *declared.alarms]
    assert len(names) == 4 + 2 + 4 + 4
    assert all(name.startswith(PREFIX) for name in names)


def test_dead_letters_stay_longer_than_messages(declared: Declared) -> None:
    sources = {name: each for name, each in declared.queues.items() if each.dead is not None}
    assert set(sources) == {"runs-fleet-termination", "runs-fleet-housekeeping"}
    for name, queue in sources.items():
        dead = declared.queues[queue.dead or ""]
        assert queue.dead == f"{name}-dlq"
        assert dead.retention_s > queue.retention_s
        assert dead.dead is None
        assert queue.receives == 3
        assert queue.tags == {"holdfast.task": name.removeprefix(PREFIX)}


def test_every_dead_letter_queue_has_an_alarm(declared: Declared) -> None:
    bounds = {alarm[3]: alarm[7:9] for alarm in declared.alarms.values() if "NumberOf" in alarm[2]}
    dead = {each.dead for each in declared.queues.values() if each.dead is not None}
    assert bounds == dict.fromkeys(dead, (0, "GreaterThanThreshold"))


def test_alarms_come_long_before_a_message_is_deleted(declared: Declared) -> None:
    bounds = {alarm[3]: alarm[7] for alarm in declared.alarms.values() if "Age" in alarm[2]}
    assert set(bounds) == {"runs-fleet-termination", "runs-fleet-housekeeping"}
    for name, bound_s in bounds.items():
        assert bound_s * 10 < declared.queues[name].retention_s


def test_the_rules_send_messages_of_the_document(declared: Declared) -> None:
    at = datetime(2025, 11, 25, 10, tzinfo=UTC)
    sent = {}
    for name, (schedule, template) in declared.schedules.items():
        # EventBridge writes a text with its quotes in place of the variable.
        fields = msgspec.json.decode(template.replace("<time>", '"2025-11-25T10:00:00Z"'))
        message = parse_housekeeping(fields)
        assert set(fields) == {"task_type", "timestamp", "params"}
        assert (message.timestamp, message.params) == (at, {})
        assert name == PREFIX + message.task_type.replace("_", "-")
        sent[message.task_type] = schedule
    assert tuple(sent) == TASK_TYPES
    assert list(sent.values()) == [
        *("rate(15 minutes)", "rate(1 hour)"),
        *("cron(0 2 * * ? *)", "cron(0 9 * * ? *)"),
    ]


def test_only_the_rules_may_send(declared: Declared) -> None:
    assert declared.senders.actions == ["sqs:SendMessage"]
    assert declared.senders.resources == ["runs-fleet-housekeeping"]
    assert declared.senders.condition == ("ArnEquals", "aws:SourceArn", sorted(declared.schedules))


def test_rights_end_at_the_resources_of_the_fleet(declared: Declared) -> None:
    everywhere = {sid for sid, each in declared.statements.items() if each.resources == ["*"]}
    # AWS has no narrower resource for these actions.
    assert everywhere == {"Lists", "Metrics"}
    assert declared.statements["Metrics"].condition == (
        *("StringEquals", "cloudwatch:namespace"),
        ["RunsFleet"],
    )
    assert declared.statements["Terminate"].condition == (
        *("StringEquals", f"aws:ResourceTag/{MANAGED_TAG}"),
        ["true"],
    )
    assert declared.statements["Locks"].condition == (
        *("ForAllValues:StringLike", "dynamodb:LeadingKeys"),
        [f"{LOCK_PREFIX}*"],
    )
    assert declared.statements["Parameters"].resources == [f"arn:ssm:parameter{PARAMETER_PREFIX}*"]
    for each in declared.statements.values():
        assert not [action for action in each.actions if "*" in action]


def test_the_role_has_the_rights_that_the_fleet_uses_and_no_other(declared: Declared) -> None:
    granted = {action for each in declared.statements.values() for action in each.actions}
    # The engine consumes both queues, counts them, asks for ages and sends dead letters:
    # tests/bench/test_fleet.py records its calls.
    consumed = "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ListQueueTags"
    consumed += " ListQueues ReceiveMessage SendMessage"
    called = actions_of(Path(aws.__file__).read_text())
    engine = {f"sqs:{action}" for action in consumed.split()} | {"cloudwatch:GetMetricData"}
    assert granted == called | engine


def actions_of(source: str) -> set[str]:
    """The IAM actions that `AwsFleet` calls: constants in the calls of its private methods."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [
                ast.literal_eval(each) for each in node.args[:2] if isinstance(each, ast.Constant)
            ]
            if node.func.attr in ("_call", "_pages") and len(given) == 2:
                found.add(":".join(given))
            elif node.func.attr == "_rounds":
                found.add(f"dynamodb:{given[0]}")
    return found


def test_actions_are_found_in_a_source() -> None:
    source = """
self._call("ssm", "DeleteParameter", name)
self._pages("ec2", "DescribeInstances", "instances")
self._rounds("BatchGetItem", request, "UnprocessedKeys")
"""
    assert actions_of(source) == {
        *("ssm:DeleteParameter", "ec2:DescribeInstances"),
        "dynamodb:BatchGetItem",
    }
