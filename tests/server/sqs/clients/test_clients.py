"""Real clients against a running server, on SQLite and PostgreSQL."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.server.sqs.clients.conftest import PROGRAMS, Endpoint
from tests.server.sqs.clients.environments import NODE
from tests.wait import wait_until


async def test_boto3_resource(endpoint: Endpoint) -> None:
    await asyncio.to_thread(_use_resource, endpoint)


def _use_resource(endpoint: Endpoint) -> None:
    sqs = endpoint.resource()
    dead = sqs.create_queue(QueueName="dead")
    policy = {"deadLetterTargetArn": dead.attributes["QueueArn"], "maxReceiveCount": 1}
    attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
    queue = sqs.create_queue(QueueName="resource", Attributes=attributes)
    assert [each.url for each in sqs.queues.all()] == [dead.url, queue.url]
    assert [each.url for each in dead.dead_letter_source_queues.all()] == [queue.url]
    assert sqs.get_queue_by_name(QueueName="resource").url == queue.url

    sent = queue.send_message(MessageBody="poison")
    [seen] = queue.receive_messages(AttributeNames=["All"])
    assert seen.attributes["ApproximateReceiveCount"] == "1"
    # The next receive moves the message.
    assert queue.receive_messages() == []
    [buried] = dead.receive_messages(AttributeNames=["All"])
    assert (buried.message_id, buried.body) == (sent["MessageId"], "poison")
    assert buried.attributes["ApproximateReceiveCount"] == "2"
    assert buried.attributes["DeadLetterQueueSourceArn"] == queue.attributes["QueueArn"]
    buried.delete()
    dead.reload()
    assert dead.attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    queue.delete()
    assert [each.url for each in sqs.queues.all()] == [dead.url]
    sqs.meta.client.close()


async def test_a_cancelled_poll_of_aiobotocore_hides_no_message(
    endpoint: Endpoint, current_python: Path
) -> None:
    program = str(PROGRAMS / "aiobotocore_client.py")
    async with endpoint.started(current_python, program, endpoint.url, "waiting") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = await process.stdout.readline()
        assert line == b"polling\n", (await process.communicate())[1]
        await endpoint.until_polling(5)
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"cancelled\n"
        await endpoint.until_polling(0)
        _, err = await process.communicate(b"\n")
        assert process.returncode == 0, err.decode()


async def test_cancelled_polls_of_aiobotocore_lose_no_message(
    endpoint: Endpoint, current_python: Path
) -> None:
    program = str(PROGRAMS / "aiobotocore_client.py")
    await endpoint.run(current_python, program, endpoint.url, "storm")


async def test_celery_runs_tasks_with_retries_and_at_their_time(
    endpoint: Endpoint, current_python: Path
) -> None:
    shutil.copy(PROGRAMS / "celery_tasks.py", endpoint.folder)
    worker = ["-m", "celery", "-A", "celery_tasks", "worker", "--pool", "solo"]
    address = urlsplit(endpoint.url).netloc
    async with endpoint.started(current_python, *worker, ENDPOINT=address) as process:
        assert process.stdout is not None
        told = set[bytes]()
        while len(told) < 3 and (line := await process.stdout.readline()):
            told |= {line.strip()} if line.startswith(b"told:") else set()
        if len(told) < 3:
            raise AssertionError((await process.communicate())[1].decode(errors="replace"))
        assert told == {b"told: sum 42", b"told: retries 2", b"told: on time eta"}
        # The worker deletes a message after its task has ended.
        await asyncio.to_thread(wait_until, partial(_is_empty, endpoint.resource(), "celery"))


def _is_empty(sqs: Any, name: str) -> bool:
    found = sqs.get_queue_by_name(QueueName=name).attributes
    kinds = ("", "NotVisible", "Delayed")
    return all(found[f"ApproximateNumberOfMessages{kind}"] == "0" for kind in kinds)


async def test_aws_cli(endpoint: Endpoint, current_python: Path) -> None:
    def command(*words: str) -> bytes:
        line = ["--endpoint-url", endpoint.url, "--output", "json", "sqs", *words]
        return json.dumps(line).encode() + b"\n"

    url = f"{endpoint.url}/000000000000/cli.fifo"
    fifo = "FifoQueue=true,ContentBasedDeduplication=true"
    at = ("--queue-url", url)
    message = ("--message-body", "hello", "--message-group-id", "g")
    group = ("--attribute-names", "MessageGroupId")
    commands = [
        command("create-queue", "--queue-name", "cli.fifo", "--attributes", fifo),
        command("send-message", *at, *message),
        command("receive-message", *at, *group, "--wait-time-seconds", "1"),
        command("list-queues"),
        command("delete-queue", *at),
        command("get-queue-url", "--queue-name", "cli.fifo"),
    ]
    async with endpoint.started(current_python, str(PROGRAMS / "aws_cli.py")) as process:
        out, err = await process.communicate(b"".join(commands))
    answers = [json.loads(line) for line in out.splitlines()]
    assert [each["code"] for each in answers[:5]] == [0] * 5, (answers, err.decode())
    created, sent, received, listed = (json.loads(each["out"]) for each in answers[:4])
    assert created["QueueUrl"] == url
    [found] = received["Messages"]
    assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "hello")
    assert found["Attributes"] == {"MessageGroupId": "g"}
    assert listed["QueueUrls"] == [url]
    assert answers[5]["code"] != 0
    assert "AWS.SimpleQueueService.NonExistentQueue" in answers[5]["err"]


async def test_boto3_of_the_query_protocol(endpoint: Endpoint, query_python: Path) -> None:
    await endpoint.run(query_python, str(PROGRAMS / "query_client.py"), endpoint.url)


async def test_node_sdk_and_sqs_consumer(endpoint: Endpoint, node_packages: Path) -> None:
    # Node looks for packages beside the program.
    program = node_packages / "node_client.mjs"
    shutil.copy(PROGRAMS / program.name, program)
    await endpoint.run(NODE, str(program), endpoint.url)
