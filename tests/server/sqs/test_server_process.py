"""Queues and move tasks with boto3 on `holdfast serve`, which is killed and started again."""

import json
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.server.server_process import ServerProcess, server_process
from tests.wait import wait_until

DEAD = "arn:aws:sqs:us-east-1:000000000000:dead"
OTHER = "arn:aws:sqs:us-east-1:000000000000:other"
COUNT = 20


def client_of(server: ServerProcess) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"max_attempts": 1}),
    )


def test_a_move_task_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        client = client_of(server)
        dead = client.create_queue(QueueName="dead", tags={"team": "a"})["QueueUrl"]
        client.create_queue(QueueName="other", Attributes={"VisibilityTimeout": "77"})
        policy = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1})
        client.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})
        for first in range(0, COUNT, 10):
            entries = [
                {"Id": str(number), "MessageBody": str(number)}
                for number in range(first, first + 10)
            ]
            client.send_message_batch(QueueUrl=dead, Entries=entries)
        client.start_message_move_task(
            SourceArn=DEAD, DestinationArn=OTHER, MaxNumberOfMessagesPerSecond=5
        )
        wait_until(lambda: task_of(client)["ApproximateNumberOfMessagesMoved"] > 0)
        server.popen.kill()
    with server_process(tmp_path) as server:
        client = client_of(server)
        assert task_of(client)["Status"] == "RUNNING"
        wait_until(lambda: task_of(client)["Status"] == "COMPLETED")
        url = client.get_queue_url(QueueName="other")["QueueUrl"]
        shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert shown["VisibilityTimeout"] == "77"
        assert shown["ApproximateNumberOfMessages"] == str(COUNT)
        found: list[str] = []
        while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            found += [each["Body"] for each in messages]
        assert sorted(map(int, found)) == list(range(COUNT))
        dead = client.get_queue_url(QueueName="dead")["QueueUrl"]
        assert client.list_queue_tags(QueueUrl=dead)["Tags"] == {"team": "a"}


def task_of(client: Any) -> dict[str, Any]:
    [task] = client.list_message_move_tasks(SourceArn=DEAD)["Results"]
    return dict(task)
