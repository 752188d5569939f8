"""The resources that `deploy/fleet` declares, read from both of its files into one form.

A reference to a resource is replaced by the name of that resource.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.sources import ROOT

FOLDER = ROOT / "deploy" / "fleet"
TEMPLATE = FOLDER / "template.yaml"
TERRAFORM = FOLDER / "main.tf"


@dataclass(frozen=True)
class DeclaredQueue:
    """`dead` is the name of its dead-letter queue, and `receives` the limit of receives."""

    retention_s: int
    visibility_s: int | None
    wait_s: int | None
    encrypted: bool
    dead: str | None
    receives: int | None
    tags: dict[str, str]


@dataclass(frozen=True)
class DeclaredTable:
    """`keys` are attributes with their types, `indexes` have hash key, range key and projection."""

    hash_key: str
    keys: dict[str, str]
    indexes: dict[str, tuple[str, str, str]]
    recovery: bool


@dataclass(frozen=True)
class DeclaredStatement:
    """A statement of a policy. `condition` has operator, key and values."""

    actions: list[str]
    resources: list[str]
    condition: tuple[str, str, list[str]] | None


@dataclass(frozen=True)
class Declared:
    """All resources, by their names at AWS; statements by their ids."""

    queues: dict[str, DeclaredQueue]
    tables: dict[str, DeclaredTable]
    schedules: dict[str, tuple[str, str]]
    """The rules: schedule and the template of the message."""
    alarms: dict[str, tuple[Any, ...]]
    """Description, namespace, metric, queue, statistic, period, count, bound, operator, no data."""
    role: str
    statements: dict[str, DeclaredStatement]
    senders: DeclaredStatement
    """The statement that lets the rules send."""
    environment: dict[str, str]
    """Variables of the fleet, with the names of resources."""


def read_template() -> dict[str, Any]:
    """The CloudFormation template, with its short tags in their long form."""
    yaml = importlib.import_module("yaml")
    loader: Any = type("TemplateLoader", (yaml.SafeLoader,), {})

    def construct(reader: Any, tag: str, node: Any) -> dict[str, Any]:
        if isinstance(node, yaml.ScalarNode):
            value = reader.construct_scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            value = reader.construct_sequence(node, deep=True)
        else:
            value = reader.construct_mapping(node, deep=True)
        return {tag if tag == "Ref" else f"Fn::{tag}": value}

    loader.add_multi_constructor("!", construct)
    found: dict[str, Any] = yaml.load(TEMPLATE.read_text(), Loader=loader)
    return found


def cloudformation() -> Declared:
    """The resources of template.yaml."""
    return _Template(read_template()).read()


class _Template:
    """Reads the sections of a template."""

    def __init__(self, template: dict[str, Any]) -> None:
        self._outputs = template["Outputs"]
        self._resources = template["Resources"]
        properties = ("QueueName", "TableName", "Name", "AlarmName", "RoleName")
        self._names = {
            logical: next((given[key] for key in properties if key in given), logical)
            for logical, each in self._resources.items()
            for given in [each["Properties"]]
        }

    def read(self) -> Declared:
        [role] = self._of("AWS::IAM::Role")
        [policy] = role["Policies"]
        [senders] = self._of("AWS::SQS::QueuePolicy")
        [sender] = senders["PolicyDocument"]["Statement"]
        return Declared(
            queues={each["QueueName"]: self._queue(each) for each in self._of("AWS::SQS::Queue")},
            tables={
                each["TableName"]: self._table(each) for each in self._of("AWS::DynamoDB::Table")
            },
            schedules={
                each["Name"]: self._schedule(each) for each in self._of("AWS::Events::Rule")
            },
            alarms={
                each["AlarmName"]: self._alarm(each) for each in self._of("AWS::CloudWatch::Alarm")
            },
            role=role["RoleName"],
            statements={
                each["Sid"]: self._statement(each) for each in policy["PolicyDocument"]["Statement"]
            },
            senders=self._statement(sender),
            environment={
                each["Description"]: self._name(each["Value"])
                for each in self._outputs.values()
                if each["Description"].startswith("RUNS_FLEET_")
            },
        )

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [each["Properties"] for each in self._resources.values() if each["Type"] == kind]

    def _name(self, value: Any) -> str:
        """A text, with the references in it replaced by names."""
        match value:
            case {"Ref": logical}:
                return str(self._names[logical])
            case {"Fn::GetAtt": path}:
                return str(self._names[path.partition(".")[0]])
            case {"Fn::Sub": text}:
                named = re.sub(r"\$\{(\w+)\.Arn\}", lambda found: self._names[found[1]], text)
                return _place(named, "AWS::Partition", "AWS::Region", "AWS::AccountId")
            case _:
                return str(value)

    def _queue(self, given: dict[str, Any]) -> DeclaredQueue:
        redrive = given.get("RedrivePolicy", {})
        dead = redrive.get("deadLetterTargetArn")
        return DeclaredQueue(
            retention_s=given["MessageRetentionPeriod"],
            visibility_s=given.get("VisibilityTimeout"),
            wait_s=given.get("ReceiveMessageWaitTimeSeconds"),
            encrypted=given["SqsManagedSseEnabled"],
            dead=None if dead is None else self._name(dead),
            receives=redrive.get("maxReceiveCount"),
            tags={each["Key"]: each["Value"] for each in given.get("Tags", [])},
        )

    def _table(self, given: dict[str, Any]) -> DeclaredTable:
        [key] = given["KeySchema"]
        indexes = {
            each["IndexName"]: (
                *(part["AttributeName"] for part in each["KeySchema"]),
                each["Projection"]["ProjectionType"],
            )
            for each in given.get("GlobalSecondaryIndexes", [])
        }
        return DeclaredTable(
            hash_key=key["AttributeName"],
            keys={
                each["AttributeName"]: each["AttributeType"]
                for each in given["AttributeDefinitions"]
            },
            indexes=indexes,
            recovery=given["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"],
        )

    def _schedule(self, given: dict[str, Any]) -> tuple[str, str]:
        [target] = given["Targets"]
        assert self._name(target["Arn"]) == "runs-fleet-housekeeping"
        assert target["InputTransformer"]["InputPathsMap"] == {"time": "$.time"}
        return given["ScheduleExpression"], target["InputTransformer"]["InputTemplate"]

    def _alarm(self, given: dict[str, Any]) -> tuple[Any, ...]:
        [dimension] = given["Dimensions"]
        return (
            given["AlarmDescription"],
            given["Namespace"],
            given["MetricName"],
            self._name(dimension["Value"]),
            given["Statistic"],
            given["Period"],
            given["EvaluationPeriods"],
            given["Threshold"],
            given["ComparisonOperator"],
            given["TreatMissingData"],
        )

    def _statement(self, given: dict[str, Any]) -> DeclaredStatement:
        assert given["Effect"] == "Allow"
        resources = given["Resource"]
        condition = None
        if "Condition" in given:
            [(operator, keys)] = given["Condition"].items()
            [(key, values)] = keys.items()
            values = values if isinstance(values, list) else [values]
            condition = (operator, key, sorted(map(self._name, values)))
        return DeclaredStatement(
            actions=given["Action"],
            resources=[
                self._name(each)
                for each in (resources if isinstance(resources, list) else [resources])
            ],
            condition=condition,
        )


@dataclass
class Block:
    """A block of Terraform: its kind with labels, its attributes as they are written, and the
    blocks in it."""

    labels: list[str]
    attributes: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def of(self, *labels: str) -> list[Block]:
        return [each for each in self.blocks if each.labels[: len(labels)] == list(labels)]


def parse_terraform(text: str) -> Block:
    """The blocks of a file in the form that `terraform fmt` writes."""
    root = Block([])
    open_blocks = [root]
    lines = iter(text.splitlines())
    for line in lines:
        code = line.strip()
        if not code or code.startswith("#"):
            continue
        if code == "}":
            open_blocks.pop()
        elif found := re.fullmatch(r'(\w+)((?: "[^"]+")*) \{(\})?', code):
            block = Block([found[1], *re.findall(r'"([^"]+)"', found[2])])
            open_blocks[-1].blocks.append(block)
            if not found[3]:
                open_blocks.append(block)
        else:
            name, _, value = code.partition("=")
            while sum(map(value.count, "([{")) > sum(map(value.count, ")]}")):
                value += "\n" + next(lines).strip()
            open_blocks[-1].attributes[name.strip()] = value.strip()
    assert open_blocks == [root], "a block is not closed"
    return root


def terraform() -> Declared:
    """The resources of main.tf."""
    return _Terraform(parse_terraform(TERRAFORM.read_text())).read()


class _Terraform:
    """Reads the blocks of a file."""

    def __init__(self, root: Block) -> None:
        self._root = root
        self._names = {
            ".".join(each.labels[1:]): _text(each.attributes["name"])
            for each in root.of("resource")
            if "name" in each.attributes
        }
        [self._locals] = [each for each in root.of("locals") if "schedules" in each.attributes]

    def read(self) -> Declared:
        policies = {
            each.labels[2]: [self._statement(part) for part in each.of("statement")]
            for each in self._root.of("data", "aws_iam_policy_document")
        }
        [(_, senders)] = policies["housekeeping_queue"]
        [role] = self._root.of("resource", "aws_iam_role")
        [environment] = self._root.of("output", "environment")
        return Declared(
            queues={
                _text(each.attributes["name"]): self._queue(each)
                for each in self._root.of("resource", "aws_sqs_queue")
            },
            tables={
                _text(each.attributes["name"]): self._table(each)
                for each in self._root.of("resource", "aws_dynamodb_table")
            },
            schedules=self._schedules(),
            alarms={
                _text(each.attributes["alarm_name"]): self._alarm(each)
                for each in self._root.of("resource", "aws_cloudwatch_metric_alarm")
            },
            role=_text(role.attributes["name"]),
            statements=dict(policies["fleet"]),
            senders=senders,
            environment={
                key: self._name(value)
                for key, value in _map(environment.attributes["value"]).items()
            },
        )

    def _name(self, value: str) -> str:
        """A text, with the references in it replaced by names."""

        def named(found: re.Match[str]) -> str:
            return self._names[found[1]]

        if not value.startswith('"'):
            return re.sub(r"(\w+\.\w+)\.\w+", named, value)
        text = re.sub(r"\$\{(aws_\w+\.\w+)\.arn\}", named, _text(value))
        return _place(text, "local.partition", "local.place")

    def _queue(self, block: Block) -> DeclaredQueue:
        given = block.attributes
        redrive = _map(given.get("redrive_policy", ""))
        return DeclaredQueue(
            retention_s=int(given["message_retention_seconds"]),
            visibility_s=_number(given.get("visibility_timeout_seconds")),
            wait_s=_number(given.get("receive_wait_time_seconds")),
            encrypted=given["sqs_managed_sse_enabled"] == "true",
            dead=self._name(redrive["deadLetterTargetArn"]) if redrive else None,
            receives=_number(redrive.get("maxReceiveCount")),
            tags={key: _text(value) for key, value in _map(given.get("tags", "")).items()},
        )

    def _table(self, block: Block) -> DeclaredTable:
        [recovery] = block.of("point_in_time_recovery")
        return DeclaredTable(
            hash_key=_text(block.attributes["hash_key"]),
            keys={
                _text(each.attributes["name"]): _text(each.attributes["type"])
                for each in block.of("attribute")
            },
            indexes={
                _text(each.attributes["name"]): (
                    _text(each.attributes["hash_key"]),
                    _text(each.attributes["range_key"]),
                    _text(each.attributes["projection_type"]),
                )
                for each in block.of("global_secondary_index")
            },
            recovery=recovery.attributes["enabled"] == "true",
        )

    def _schedules(self) -> dict[str, tuple[str, str]]:
        [rule] = self._root.of("resource", "aws_cloudwatch_event_rule")
        [target] = self._root.of("resource", "aws_cloudwatch_event_target")
        [transformer] = target.of("input_transformer")
        assert rule.attributes["name"] == '"runs-fleet-${replace(each.key, "_", "-")}"'
        assert rule.attributes["schedule_expression"] == "each.value"
        assert self._name(target.attributes["arn"]) == "runs-fleet-housekeeping"
        assert _map(transformer.attributes["input_paths"]) == {"time": '"$.time"'}
        for each in (rule, target):
            assert each.attributes["for_each"] == "local.schedules"
        message = _text(transformer.attributes["input_template"])
        return {
            f"runs-fleet-{task.replace('_', '-')}": (
                _text(schedule),
                message.replace("${each.key}", task),
            )
            for task, schedule in _map(self._locals.attributes["schedules"]).items()
        }

    def _alarm(self, block: Block) -> tuple[Any, ...]:
        given = block.attributes
        [queue] = _map(given["dimensions"]).values()
        assert given["alarm_actions"] == "local.alarm_actions"
        return (
            _text(given["alarm_description"]),
            _text(given["namespace"]),
            _text(given["metric_name"]),
            self._name(queue),
            _text(given["statistic"]),
            int(given["period"]),
            int(given["evaluation_periods"]),
            int(given["threshold"]),
            _text(given["comparison_operator"]),
            _text(given["treat_missing_data"]),
        )

    def _statement(self, block: Block) -> tuple[str, DeclaredStatement]:
        given = block.attributes
        condition = None
        for each in block.of("condition"):
            values = each.attributes["values"]
            condition = (
                _text(each.attributes["test"]),
                _text(each.attributes["variable"]),
                # A list that Terraform makes of all rules.
                sorted(
                    self._schedules() if " for " in f" {values[1:]}" else map(_text, _list(values))
                ),
            )
        statement = DeclaredStatement(
            actions=[_text(each) for each in _list(given["actions"])],
            resources=[self._name(each) for each in _list(given.get("resources", "[]"))],
            condition=condition,
        )
        return _text(given.get("sid", '""')), statement


def _place(text: str, *variables: str) -> str:
    for name in variables:
        text = text.replace(f"${{{name}}}", "")
    return re.sub(":+", ":", text)


def _text(value: str) -> str:
    if "${replace" in value:
        return value
    found: str = json.loads(value)
    return found


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _list(value: str) -> list[str]:
    return [each.strip() for each in value.strip("[]").split(",") if each.strip()]


def _map(value: str) -> dict[str, str]:
    inner = value.removeprefix("jsonencode(").removesuffix(")").strip("{}")
    found = re.findall(r'(?m)("[^"]+"|\w+) +=\s+(.+?)\s*$', inner)
    return {key.strip('"'): text for key, text in found}
