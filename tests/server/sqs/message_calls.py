"""The actions on messages, as tests call them."""

from typing import Any

from holdfast.ops.workers import end_overdue_and_expired
from tests.server.sqs.sqs_client import SqsClient


async def reap(sqs: SqsClient, ms: int = 0) -> None:
    """Advance the clock, and let the reaper run."""
    sqs.clock.advance(ms)
    await end_overdue_and_expired(sqs.store, 100)


async def send(sqs: SqsClient, url: str, body: str = "hello", **members: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await sqs.ask("SendMessage", QueueUrl=url, MessageBody=body, **members)
    return answer


async def receive(sqs: SqsClient, url: str, **members: Any) -> list[dict[str, Any]]:
    members = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], **members}
    answer = await sqs.ask("ReceiveMessage", QueueUrl=url, **members)
    found: list[dict[str, Any]] = answer.get("Messages", [])
    return found


async def delete(sqs: SqsClient, url: str, handle: str) -> None:
    await sqs.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)


async def hide(sqs: SqsClient, url: str, handle: str, seconds: int) -> None:
    await sqs.ask(
        "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [each["Body"] for each in messages]


def count(message: dict[str, Any]) -> int:
    return int(message["Attributes"]["ApproximateReceiveCount"])
