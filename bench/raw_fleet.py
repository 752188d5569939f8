"""The reference of the benchmark `fleet`: a bare loop of the same AWS calls, with five threads.

It checks nothing, repeats nothing and renews nothing. Run as `python -m bench.raw_fleet QUEUE_URL
TABLE`, it works until it is stopped.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import boto3.session
from botocore.config import Config

THREADS = 5
CONDITION = (
    "(#status = :running OR attribute_not_exists(#status)) AND"
    " (attribute_not_exists(instance_id) OR instance_id = :instance)"
)
UPDATE = (
    "SET #status = :status, exit_code = :exit, duration_seconds = :duration,"
    " started_at = :started, completed_at = :completed, instance_id = :instance"
)


def work(url: str, table: str) -> None:
    """Receive ten, handle them one by one, delete them together."""
    session = boto3.session.Session()
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"})
    services = ("sqs", "dynamodb", "ssm", "cloudwatch")
    sqs, dynamodb, ssm, cloudwatch = (session.client(each, config=config) for each in services)
    while True:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        received = answer.get("Messages", [])
        for each in received:
            fields = json.loads(each["Body"])
            dynamodb.update_item(**update(table, fields))
            ssm.delete_parameter(Name=f"/runs-fleet/runners/{fields['instance_id']}/config")
            cloudwatch.put_metric_data(Namespace="RunsFleet", MetricData=metrics(fields))
        if received:
            entries = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                for number, each in enumerate(received)
            ]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)


def update(table: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The arguments of UpdateItem."""
    return {
        "TableName": table,
        "Key": {"job_id": {"S": fields["job_id"]}},
        "UpdateExpression": UPDATE,
        "ConditionExpression": CONDITION,
        "ExpressionAttributeNames": {"#status": "status"},
        "ExpressionAttributeValues": {
            ":status": {"S": "completed"},
            ":running": {"S": "running"},
            ":exit": {"N": str(fields["exit_code"])},
            ":duration": {"N": str(fields["duration_seconds"])},
            ":started": {"S": fields["started_at"]},
            ":completed": {"S": fields["completed_at"]},
            ":instance": {"S": fields["instance_id"]},
        },
    }


def metrics(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of PutMetricData."""
    return [
        {
            "MetricName": "JobDuration",
            "Value": fields["duration_seconds"],
            "Unit": "Seconds",
            "Dimensions": [{"Name": "Status", "Value": "completed"}],
        },
        {"MetricName": "JobSuccess", "Value": 1, "Unit": "Count"},
    ]


if __name__ == "__main__":
    for _ in range(THREADS):
        threading.Thread(target=work, args=sys.argv[1:3]).start()
