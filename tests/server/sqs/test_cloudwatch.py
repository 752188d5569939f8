"""CloudWatch's GetMetricData and GetMetricStatistics, from stored snapshots."""

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from holdfast.server.sqs.cloudwatch_shapes import CLOUDWATCH_ACTIONS, TARGET
from holdfast.server.sqs.metrics import COUNTED, GAUGES
from holdfast.server.sqs.shapes import member_name
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.snapshots import Roller
from holdfast.testing import sqs_server
from tests.server.direct_server import DirectReply
from tests.server.sqs.sqs_client import JSON, SqsClient

MINUTE_S = 60
VISIBLE = "ApproximateNumberOfMessagesVisible"


async def ask(sqs: SqsClient, action: str, token: str | None = None, **members: Any) -> DirectReply:
    return await sqs.server.ask(
        "POST",
        "/",
        json.dumps(members).encode(),
        token=token,
        content_type=JSON,
        x_amz_target=f"{TARGET}.{action}",
    )


def parsed(action: str, reply: DirectReply) -> Any:
    """The answer as boto3 shows it."""
    assert reply.status == 200, reply.body
    model = botocore.session.get_session().get_service_model("cloudwatch")
    wire = {"status_code": 200, "headers": reply.headers, "body": reply.body}
    return create_parser("json").parse(wire, model.operation_model(action).output_shape)


async def three_minutes(sqs: SqsClient) -> int:
    """Send one message in the first minute, two in the second, three in the third; the seconds at
    which the first began."""
    url = await sqs.create("mail")
    start = sqs.clock.wall_ms() // 1000
    app = sqs.server.server.app
    flusher = Flusher(app.engine, app.telemetry.meter, "server", sqs.clock.wall_ms)
    roller = Roller(app.engine, sqs.clock.wall_ms)
    await roller.once()
    for minute in range(1, 4):
        for _ in range(minute):
            await sqs.ask("SendMessage", QueueUrl=url, MessageBody="12345" * minute)
        sqs.clock.advance(MINUTE_S * 1000)
        await flusher.flush()
        await roller.once()
    return start


def query(metric: str, stat: str, period: int = MINUTE_S, **more: Any) -> dict[str, Any]:
    named = {
        "Namespace": "AWS/SQS",
        "MetricName": metric,
        "Dimensions": [{"Name": "QueueName", "Value": "mail"}],
    }
    return {"Id": "q", "MetricStat": {"Metric": named, "Period": period, "Stat": stat}, **more}


async def values(sqs: SqsClient, start: int, *queries: dict[str, Any], **more: Any) -> Any:
    reply = await ask(
        sqs,
        "GetMetricData",
        StartTime=start,
        EndTime=start + 3 * MINUTE_S,
        MetricDataQueries=queries,
        **{"ScanBy": "TimestampAscending", **more},
    )
    return parsed("GetMetricData", reply)["MetricDataResults"]


async def test_each_minute_has_a_value(sqs: SqsClient) -> None:
    start = await three_minutes(sqs)
    sent, size, visible = await values(
        sqs,
        start,
        query("NumberOfMessagesSent", "Sum"),
        query("SentMessageSize", "Average", Label="size"),
        query(VISIBLE, "Maximum"),
    )
    assert sent["Values"] == [1, 2, 3]
    assert sent["Timestamps"] == [
        datetime.fromtimestamp(start + minute * MINUTE_S, UTC) for minute in range(3)
    ]
    assert (size["Label"], size["Values"]) == ("size", [5, 10, 15])
    # The depth at the end of each minute.
    assert visible["Values"] == [1, 3, 6]
    assert {each["StatusCode"] for each in (sent, size, visible)} == {"Complete"}


async def test_the_latest_value_comes_first_unless_asked_otherwise(sqs: SqsClient) -> None:
    start = await three_minutes(sqs)
    [sent] = await values(sqs, start, query("NumberOfMessagesSent", "Sum"), ScanBy=None)
    assert sent["Values"] == [3, 2, 1]


async def test_statistics_of_a_longer_period(sqs: SqsClient) -> None:
    start = await three_minutes(sqs)
    reply = await ask(
        sqs,
        "GetMetricStatistics",
        Namespace="AWS/SQS",
        MetricName="SentMessageSize",
        Dimensions=[{"Name": "QueueName", "Value": "mail"}],
        StartTime=start,
        EndTime=start + 3 * MINUTE_S,
        Period=10 * MINUTE_S,
        Statistics=["Sum", "SampleCount", "Average", "Minimum", "Maximum"],
    )
    answer = parsed("GetMetricStatistics", reply)
    assert answer["Label"] == "SentMessageSize"
    [point] = answer["Datapoints"]
    found = {name: value for name, value in point.items() if name != "Timestamp"}
    assert found == {
        "Sum": 5 + 20 + 45,
        "SampleCount": 6,
        "Average": pytest.approx(70 / 6),
        "Minimum": 5,
        "Maximum": 15,
        "Unit": "Bytes",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"Namespace": "AWS/EC2"},
        {"MetricName": "NumberOfCats"},
        {"Dimensions": []},
        {"Dimensions": [{"Name": "QueueName", "Value": "nowhere"}]},
        {"Dimensions": [{"Name": "QueueName", "Value": "../mail"}]},
    ],
)
async def test_other_metrics_have_no_values(sqs: SqsClient, changes: dict[str, Any]) -> None:
    start = await three_minutes(sqs)
    wanted = query("NumberOfMessagesSent", "Sum")
    wanted["MetricStat"]["Metric"] |= changes
    [found] = await values(sqs, start, wanted)
    assert found["Values"] == []


@pytest.mark.parametrize("metric", [*COUNTED, *GAUGES])
async def test_every_metric_can_be_read(sqs: SqsClient, metric: str) -> None:
    start = await three_minutes(sqs)
    name = member_name(metric)
    [found] = await values(sqs, start, query(name, "Average"))
    assert len(found["Values"]) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"MetricDataQueries": []},
        {"MetricDataQueries": [query(VISIBLE, "p99")]},
        {"MetricDataQueries": [query(VISIBLE, "Sum", period=7)]},
        {"MetricDataQueries": [query(VISIBLE, "Sum", period=-60)]},
        {"MetricDataQueries": [query(VISIBLE, "Sum", period=0)]},
        {"MetricDataQueries": [{"Id": "e", "Expression": "a / b"}]},
        {"MetricDataQueries": [query(VISIBLE, "Sum")] * 101},
        {"MetricDataQueries": "all"},
        {"StartTime": 10, "EndTime": 5},
        {"StartTime": 0, "EndTime": 1e11},
        {"StartTime": 1e300},
        {"StartTime": "yesterday"},
        {"ScanBy": "Random"},
    ],
)
async def test_bad_requests_are_refused(sqs: SqsClient, bad: dict[str, Any]) -> None:
    members = {"StartTime": 0, "EndTime": 60, "MetricDataQueries": [query(VISIBLE, "Sum")], **bad}
    reply = await ask(sqs, "GetMetricData", **members)
    assert reply.status == 400, reply.body
    assert "__type" in reply.json


async def test_metrics_need_the_scope_observe_and_the_prefix(sqs: SqsClient) -> None:
    start = await three_minutes(sqs)
    members = {
        "StartTime": start,
        "EndTime": start + 180,
        "MetricDataQueries": [query("NumberOfMessagesSent", "Sum")],
    }
    token = await sqs.server.token("produce", "consume")
    reply = await ask(sqs, "GetMetricData", token, **members)
    assert reply.status == 403
    token = await sqs.server.token("observe", prefix="other")
    reply = await ask(sqs, "GetMetricData", token, **members)
    assert reply.json["MetricDataResults"][0]["Values"] == []
    token = await sqs.server.token("observe", prefix="mail")
    reply = await ask(sqs, "GetMetricData", token, **members)
    assert len(reply.json["MetricDataResults"][0]["Values"]) == 3


async def test_an_unknown_action(sqs: SqsClient) -> None:
    reply = await ask(sqs, "PutMetricData")
    assert reply.status == 400
    assert reply.json["__type"].endswith("#UnknownOperationException")


def test_boto3() -> None:
    with sqs_server() as url:
        client = boto3.session.Session().client(
            "cloudwatch",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        with contextlib.closing(client):
            answer = client.get_metric_data(
                MetricDataQueries=[query(VISIBLE, "Sum")],
                StartTime=datetime(2026, 1, 1, tzinfo=UTC),
                EndTime=datetime(2026, 1, 1, 1, tzinfo=UTC),
            )
            assert answer["MetricDataResults"][0]["Values"] == []
            with pytest.raises(ClientError) as refused:
                client.get_metric_data(
                    MetricDataQueries=[query(VISIBLE, "p50")],
                    StartTime=datetime(2026, 1, 1, tzinfo=UTC),
                    EndTime=datetime(2026, 1, 2, tzinfo=UTC),
                )
            assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_the_actions_are_those_of_the_model() -> None:
    model = botocore.session.get_session().get_service_model("cloudwatch")
    assert set(CLOUDWATCH_ACTIONS) <= set(model.operation_names)
